//! Single values and maps as JSON: times, bodies, fractions, one value per level.

use crate::input::time;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use core::fmt::Display;
use overtake_base::UnixMillis;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Type};
use utoipa::openapi::{KnownFormat, RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

/// A time: RFC 3339 with milliseconds and `Z`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Time(pub UnixMillis);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = time::format(self.0);
        serializer.serialize_str(core::str::from_utf8(&text).unwrap_or_default())
    }
}

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .examples(["2026-01-31T12:00:00.000Z"])
            .into()
    }
}

impl ToSchema for Time {}

/// A body: base64 of the standard alphabet with padding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base64(pub Bytes);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(&self.0, &STANDARD))
    }
}

impl PartialSchema for Base64 {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .content_encoding("base64")
            .examples(["aGVsbG8="])
            .into()
    }
}

impl ToSchema for Base64 {}

/// An id or a receipt, in its textual form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text<T>(pub T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<T> PartialSchema for Text<T> {
    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

impl<T> ToSchema for Text<T> {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Text")
    }
}

/// A number kept in millionths; a whole one is printed without a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Micro(pub u64);

impl Serialize for Micro {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const ONE: u64 = 1_000_000;
        // Both are below 2^53 and the quotient has at most 15 digits, so its shortest decimal is the exact one.
        if self.0.is_multiple_of(ONE) {
            serializer.serialize_u64(self.0 / ONE)
        } else {
            serializer.serialize_f64(self.0 as f64 / ONE as f64)
        }
    }
}

/// Names and values as one object, in the order given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pairs<T>(pub Vec<(String, T)>);

impl<T: Serialize> Serialize for Pairs<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<T: PartialSchema> PartialSchema for Pairs<T> {
    fn schema() -> RefOr<Schema> {
        object_of(T::schema())
    }
}

impl<T: ToSchema> ToSchema for Pairs<T> {
    fn name() -> Cow<'static, str> {
        Cow::Owned(format!("MapOf{}", T::name()))
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(schemas);
    }
}

/// One value for each level: an object of `p0`, `p1`, …, every level present.
#[derive(Clone, PartialEq, Debug)]
pub struct Levels<T>(pub Vec<T>);

impl<T: Serialize> Serialize for Levels<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (level, value) in self.0.iter().enumerate() {
            map.serialize_entry(&format_args!("p{level}"), value)?;
        }
        map.end()
    }
}

impl<T: PartialSchema> PartialSchema for Levels<T> {
    fn schema() -> RefOr<Schema> {
        object_of(T::schema())
    }
}

impl<T: ToSchema> ToSchema for Levels<T> {
    fn name() -> Cow<'static, str> {
        Cow::Owned(format!("LevelsOf{}", T::name()))
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(schemas);
    }
}

fn object_of(values: RefOr<Schema>) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(AdditionalProperties::RefOr(values)))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn scalars_print_as_the_contract_says() {
        let json = |value: &dyn erased::Json| value.json();
        assert_eq!(json(&Time(UnixMillis(1_500))), r#""1970-01-01T00:00:01.500Z""#);
        assert_eq!(json(&Base64(Bytes::from_static(b"\xfb\xff"))), r#""+/8=""#);
        assert_eq!(json(&Pairs(vec![("b".into(), 1), ("a\"".into(), 2)])), r#"{"b":1,"a\"":2}"#);
        assert_eq!(json(&Levels(vec![Some(0.5), None])), r#"{"p0":0.5,"p1":null}"#);
        assert_eq!(json(&Text(overtake_base::ShardId(7))), r#""7""#);
        assert_eq!(json(&Micro(100_000)), "0.1");
        assert_eq!(json(&Micro(50_000_000)), "50");
        assert_eq!(json(&Micro(1_000_000_000_000_000)), "1000000000");
        assert_eq!(json(&Micro(999_999_999_999_999)), "999999999.999999");
    }

    mod erased {
        pub trait Json {
            fn json(&self) -> String;
        }
        impl<T: serde::Serialize> Json for T {
            fn json(&self) -> String {
                serde_json::to_string(self).unwrap()
            }
        }
    }

    proptest! {
        #[test]
        fn millionths_survive_their_decimal(micro in 0u64..=1_000_000_000_000_000) {
            let text = serde_json::to_string(&Micro(micro)).unwrap();
            let read = crate::input::number::Scaled::parse(&text, 6).and_then(|n| n.whole_in(0, u64::MAX));
            prop_assert_eq!(read, Some(micro));
        }
    }
}
