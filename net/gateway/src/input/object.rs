//! JSON objects read field by field. Values stay raw text until their own rule looks at them, so that every refusal
//! names the field and what is allowed, unknown and repeated fields are noticed, and no tree is built.

use super::fault::Fault;
use super::number::Scaled;
use core::fmt;
use overtake_base::limits::LEVELS_MAX;
use serde::Deserializer as _;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// An object whose fields are all among the known ones, each at most once.
pub(crate) struct Object<'a> {
    names: &'static [&'static str],
    values: Vec<Option<&'a RawValue>>,
}

impl<'a> Object<'a> {
    /// Reads a whole request.
    pub(crate) fn parse(bytes: &'a [u8], names: &'static [&'static str]) -> Result<Self, Fault> {
        let mut object = Self { names, values: vec![None; names.len()] };
        read_map(bytes, |name, value| object.put(name, value))?;
        Ok(object)
    }

    /// The object of a request without a body.
    pub(crate) fn empty(names: &'static [&'static str]) -> Self {
        Self { names, values: vec![None; names.len()] }
    }

    fn put(&mut self, name: &str, value: &'a RawValue) -> Result<(), Fault> {
        let known = self.names.iter().position(|n| *n == name);
        match known.and_then(|place| self.values.get_mut(place)) {
            None => Err(unknown(name, self.names)),
            Some(Some(_)) => Err(Fault::of(name, "is given twice")),
            Some(empty) => {
                *empty = Some(value);
                Ok(())
            }
        }
    }

    /// The field's value: `None` where it is absent, `Some(None)` where it is null.
    pub(crate) fn named(&self, name: &'static str) -> Option<Option<Value<'a>>> {
        let place = self.names.iter().position(|n| *n == name)?;
        let raw = (*self.values.get(place)?)?;
        Some((raw.get() != "null").then_some(Value { raw, field: Field { name, index: None } }))
    }

    /// The field's value; null is absent.
    pub(crate) fn optional(&self, name: &'static str) -> Option<Value<'a>> {
        self.named(name).flatten()
    }

    /// The field's value; `expected` says what it must be.
    pub(crate) fn required(&self, name: &'static str, expected: &str) -> Result<Value<'a>, Fault> {
        self.optional(name).ok_or_else(|| Fault::of(name, format!("is missing; it {expected}")))
    }
}

fn unknown(name: &str, names: &[&str]) -> Fault {
    const SHOWN_BYTES_MAX: usize = 128;
    let shown: String = name.chars().take(SHOWN_BYTES_MAX).collect();
    let known = if names.is_empty() { "there are none here".to_owned() } else { names.join(", ") };
    Fault::of(shown, format!("is not a known field; known fields: {known}"))
}

/// Where a value stands: a field, or an item of a field's list.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    name: &'static str,
    index: Option<usize>,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}[{index}]", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// One value that is not null (items of lists may be).
#[derive(Clone, Copy)]
pub(crate) struct Value<'a> {
    raw: &'a RawValue,
    field: Field,
}

impl<'a> Value<'a> {
    /// A fault of this value.
    pub(crate) fn fault(self, text: impl Into<String>) -> Fault {
        Fault::of(self.field, text)
    }

    /// The JSON text.
    pub(crate) fn raw(self) -> &'a str {
        self.raw.get()
    }

    /// True for an object.
    pub(crate) fn is_object(self) -> bool {
        self.raw().starts_with('{')
    }

    /// True for a list.
    pub(crate) fn is_list(self) -> bool {
        self.raw().starts_with('[')
    }

    /// A whole number in `low..=high`.
    pub(crate) fn whole(self, low: u64, high: u64) -> Result<u64, Fault> {
        Scaled::parse(self.raw(), 0)
            .and_then(|n| n.whole_in(low, high))
            .ok_or_else(|| self.fault(format!("must be a whole number {low}..={high}")))
    }

    /// A whole number in `low..=high`, both of which fit 32 bits.
    pub(crate) fn whole_u32(self, low: u32, high: u32) -> Result<u32, Fault> {
        self.whole(u64::from(low), u64::from(high)).map(|n| u32::try_from(n).unwrap_or(high))
    }

    /// A level that some queue can have. Whether this queue has it is for the servers to say.
    pub(crate) fn level(self) -> Result<u32, Fault> {
        level(self.raw()).ok_or_else(|| self.fault(LEVEL))
    }

    /// The number times 10^`scale`; `None` where the value is no number.
    pub(crate) fn number(self, scale: i64) -> Option<Scaled> {
        Scaled::parse(self.raw(), scale)
    }

    /// True or false.
    pub(crate) fn boolean(self) -> Result<bool, Fault> {
        match self.raw() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.fault("must be true or false")),
        }
    }

    /// A string; `expected` says what it must be.
    pub(crate) fn text(self, expected: &str) -> Result<Cow<'a, str>, Fault> {
        text_of(self.raw()).ok_or_else(|| self.fault(expected))
    }

    /// Calls `each` with the items of a list of `low..=high` items.
    pub(crate) fn list(
        self,
        low: usize,
        high: usize,
        mut each: impl FnMut(Value<'a>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let expected = || self.fault(format!("must be a list of {low}..={high} items"));
        let name = self.field.name;
        let mut count = 0;
        let mut fault = None;
        let read = serde_json::Deserializer::from_str(self.raw()).deserialize_seq(List(|raw| {
            let item = Value { raw, field: Field { name, index: Some(count) } };
            count += 1;
            let outcome = if count > high { Err(expected()) } else { each(item) };
            outcome.map_err(|e| fault = Some(e)).is_ok()
        }));
        match fault {
            Some(fault) => Err(fault),
            None if read.is_err() || count < low => Err(expected()),
            None => Ok(()),
        }
    }

    /// Reads an object of known fields; faults name the path to it.
    pub(crate) fn object<T>(
        self,
        names: &'static [&'static str],
        read: impl FnOnce(Object<'a>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if !self.is_object() {
            return Err(self.fault(format!("must be an object of {}", names.join(", "))));
        }
        Object::parse(self.raw().as_bytes(), names).and_then(read).map_err(|fault| fault.within(self.field))
    }

    /// Calls `each` with the names and values of an object of any fields, as they come.
    pub(crate) fn entries(
        self,
        expected: &str,
        mut each: impl FnMut(&str, Value<'a>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if !self.is_object() {
            return Err(self.fault(expected));
        }
        read_map(self.raw().as_bytes(), |name, raw| each(name, Value { raw, field: self.field }))
    }
}

/// What a level must be.
pub(crate) const LEVEL: &str = "must be a whole number 0..=99 and below the queue's number of levels";

/// A level as a number's text.
pub(crate) fn level(text: &str) -> Option<u32> {
    let level = Scaled::parse(text, 0)?.whole_in(0, LEVELS_MAX as u64 - 1)?;
    u32::try_from(level).ok()
}

/// A JSON string without its quotes; most have no escapes and are not copied.
fn text_of(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// Reads one object and nothing after it.
fn read_map<'a>(
    bytes: &'a [u8],
    each: impl FnMut(&str, &'a RawValue) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut fault = None;
    let mut input = serde_json::Deserializer::from_slice(bytes);
    let read = input.deserialize_map(Map { each, fault: &mut fault }).and_then(|()| input.end());
    match (fault, read) {
        (Some(fault), _) => Err(fault),
        (None, Ok(())) => Ok(()),
        (None, Err(e)) if e.is_data() => Err(Fault::request("the request must be a JSON object")),
        (None, Err(e)) => Err(Fault::request(format!("the request is not valid JSON: {e}"))),
    }
}

struct Map<'f, F> {
    each: F,
    fault: &'f mut Option<Fault>,
}

impl<'de, F: FnMut(&str, &'de RawValue) -> Result<(), Fault>> Visitor<'de> for Map<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key_seed(NameSeed)? {
            let value = map.next_value()?;
            if let Err(fault) = (self.each)(&name, value) {
                *self.fault = Some(fault);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

/// A field's name, borrowed where it has no escapes.
struct Name<'a>(Cow<'a, str>);
struct NameSeed;

impl<'de> DeserializeSeed<'de> for NameSeed {
    type Value = Name<'de>;
    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Name<'de>, D::Error> {
        input.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for NameSeed {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

struct List<F>(F);

impl<'de, F: FnMut(&'de RawValue) -> bool> Visitor<'de> for List<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element()? {
            if !(self.0)(item) {
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: &[&str] = &["a", "list"];

    fn fault(json: &str) -> String {
        Object::parse(json.as_bytes(), NAMES).err().map(|f| f.to_string()).unwrap_or_default()
    }

    #[test]
    fn only_objects_of_known_fields_pass() {
        assert!(
            fault("{\n  \"a\": 1,\n  \"a b").contains("line 3 column"),
            "{}",
            fault("{\n  \"a\": 1,\n  \"a b")
        );
        assert_eq!(fault(r#"{"x":1}"#), "x is not a known field; known fields: a, list");
        assert_eq!(fault(r#"{"a":1,"list":2,"\u0061":3}"#), "a is given twice");
        for bad in ["[]", "1", "\"a\"", "null", "true"] {
            assert_eq!(fault(bad), "the request must be a JSON object", "{bad}");
        }
        for bad in [
            "",
            "{",
            "{} x",
            "{\"a\":01}",
            "{\"a\":1,}",
            "{\"a\":\"\n\"}",
            "{'a':1}",
            "{\"a\":tru}",
            "\u{feff}{}",
        ] {
            assert!(fault(bad).starts_with("the request is not valid JSON"), "{bad}: {}", fault(bad));
        }
        assert!(Object::parse(b"{\"a\":\"\xff\"}", NAMES).is_err());
    }

    #[test]
    fn null_is_absent() {
        let object = Object::parse(br#"{"a": null}"#, NAMES).unwrap_or_else(|f| panic!("{f}"));
        assert!(object.optional("a").is_none());
        assert!(matches!(object.named("a"), Some(None)));
        assert!(object.named("list").is_none());
        assert_eq!(
            object.required("a", "must be 1").err().unwrap().to_string(),
            "a is missing; it must be 1"
        );
    }

    #[test]
    fn numbers_of_any_size_name_their_range() {
        for bad in [
            "300",
            "-1",
            "1.5",
            "1e99",
            "\"5\"",
            "true",
            "[]",
            "{}",
            "123456789012345678901234567890123456789012",
        ] {
            let json = format!("{{\"a\":{bad}}}");
            let object = Object::parse(json.as_bytes(), NAMES).unwrap_or_else(|f| panic!("{f}"));
            let fault = object.required("a", "").and_then(|v| v.whole(1, 100)).unwrap_err();
            assert_eq!(fault.to_string(), "a must be a whole number 1..=100", "{bad}");
        }
    }

    #[test]
    fn lists_are_bounded_and_name_the_item() {
        let read = |json: &str, high| {
            let object = Object::parse(json.as_bytes(), NAMES)?;
            let mut seen = Vec::new();
            object.required("list", "")?.list(1, high, |item| {
                seen.push(item.whole(0, 9)?);
                Ok(())
            })?;
            Ok::<_, Fault>(seen)
        };
        assert_eq!(read(r#"{"list":[1, 2 ,3]}"#, 3), Ok(vec![1, 2, 3]));
        assert_eq!(
            read(r#"{"list":[1,2,3]}"#, 2).unwrap_err().to_string(),
            "list must be a list of 1..=2 items"
        );
        assert_eq!(read(r#"{"list":[]}"#, 2).unwrap_err().to_string(), "list must be a list of 1..=2 items");
        assert_eq!(read(r#"{"list":{}}"#, 2).unwrap_err().to_string(), "list must be a list of 1..=2 items");
        assert_eq!(read(r#"{"list":[1,null]}"#, 2).unwrap_err().field.as_deref(), Some("list[1]"));
    }

    #[test]
    fn deep_nesting_is_no_danger() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(500_000), "]".repeat(500_000));
        assert!(Object::parse(deep.as_bytes(), NAMES).is_ok());
    }

    proptest! {
        #[test]
        fn strings_survive(text: String) {
            let json = serde_json::json!({ "a": text }).to_string();
            let object = Object::parse(json.as_bytes(), NAMES).unwrap_or_else(|f| panic!("{f}"));
            let read = object.required("a", "").and_then(|v| v.text("must be text")).map(|t| t.into_owned());
            prop_assert_eq!(read, Ok(text));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Object::parse(&bytes, NAMES);
        }
    }
}
