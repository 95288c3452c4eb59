//! One message to store, and a batch of them.

use super::fault::Fault;
use super::object::{LEVEL, Object, Value};
use super::time;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use overtake_base::limits::{
    BATCH_MESSAGES_MAX, BODY_BYTES_MAX, DEDUP_KEY_BYTES_MAX, DELAY_S_MAX, HEADERS_BYTES_MAX, PERIOD_S_MAX,
};
use overtake_base::{MessageId, UnixMillis};
use overtake_wire::message::{Delay, EnqueueMessage, Headers};
use std::collections::BTreeSet;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{KnownFormat, RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

/// One message to store.
#[derive(ToSchema, Default, PartialEq, Debug)]
#[schema(as = NewMessage, examples(json!({ "priority": 1, "body": "aGVsbG8=", "dedup_key": "invoice-4711" })))]
pub(crate) struct NewMessage {
    /// Level, 0 = most urgent; below the queue's number of levels.
    #[schema(minimum = 0, maximum = 99)]
    pub(crate) priority: u32,
    /// 0..=131072 bytes, as base64 with padding.
    #[schema(value_type = String, content_encoding = "base64", max_length = 174_764)]
    pub(crate) body: Bytes,
    /// When it becomes visible: RFC 3339 ending in `Z`, or Unix milliseconds; at most 366 days ahead, a time in the
    /// past means now. Not together with `delay_s`.
    #[schema(value_type = Option<TimeInput>)]
    pub(crate) deliver_at: Option<UnixMillis>,
    /// Seconds until it becomes visible. Not together with `deliver_at`.
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub(crate) delay_s: Option<u64>,
    /// 1..=256 bytes: a repeat within the queue's dedup window stores nothing and returns the first id.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    pub(crate) dedup_key: Option<Bytes>,
    /// Seconds after which it is no longer delivered, from its first visibility; at most the queue's `retention_s`.
    #[schema(minimum = 1, maximum = 31_622_400)]
    pub(crate) expires_in_s: Option<u64>,
    /// Texts handed to the consumer; names and values are 4096 bytes at most.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub(crate) headers: Headers,
    /// Made by the client, for safe retries: `m_` and a ULID whose time is within 24 h of now.
    #[schema(value_type = Option<String>, pattern = "^m_[0-7][0-9A-HJKMNP-TV-Z]{25}$", examples("m_01JZ8D3V9QF3W3Q8B3M1S6T7VX"))]
    pub(crate) id: Option<MessageId>,
}

/// The schema of a time in a request.
pub(crate) struct TimeInput;

impl PartialSchema for TimeInput {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .pattern(Some("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]+)?Z$"))
            .examples(["2026-01-31T12:00:00.000Z"]);
        let unix_ms = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(0))
            .maximum(Some(time::LAST_MS as f64));
        OneOfBuilder::new()
            .description(Some("RFC 3339 ending in Z (years 1970 to 9999), or Unix milliseconds"))
            .item(text)
            .item(unix_ms)
            .into()
    }
}

impl ToSchema for TimeInput {}

/// Messages to store, each with its own outcome.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only the schema is used: a malformed message must not hide the others")]
pub(crate) struct NewMessages {
    /// 1..=1000 messages.
    #[schema(min_items = 1, max_items = 1000)]
    messages: Vec<NewMessage>,
}

const BODY: &str = "must be base64 text of the standard alphabet with padding";
const DEDUP_KEY: &str = "must be text of 1..=256 bytes";
const HEADERS: &str = "must be an object of texts; names and values 4096 bytes at most";
const TIME: &str = "must be an RFC 3339 time ending in Z, or Unix milliseconds 0..=253402300799999";

impl NewMessage {
    pub(crate) const FIELDS: &'static [&'static str] =
        &["priority", "body", "deliver_at", "delay_s", "dedup_key", "expires_in_s", "headers", "id"];

    /// Reads a message from a request of its own.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        Self::read(&Object::parse(bytes, Self::FIELDS)?)
    }

    fn read(object: &Object<'_>) -> Result<Self, Fault> {
        let message = Self {
            priority: object.required("priority", LEVEL)?.level()?,
            body: body(object.required("body", BODY)?)?,
            deliver_at: object.optional("deliver_at").map(time_input).transpose()?,
            delay_s: object.optional("delay_s").map(|v| v.whole(0, DELAY_S_MAX)).transpose()?,
            dedup_key: object
                .optional("dedup_key")
                .map(|v| dedup_key(v.text(DEDUP_KEY)?.as_bytes()))
                .transpose()?,
            expires_in_s: object.optional("expires_in_s").map(|v| v.whole(1, PERIOD_S_MAX)).transpose()?,
            headers: object.optional("headers").map(headers).transpose()?.unwrap_or_default(),
            id: object.optional("id").map(|v| id(&v.text(ID)?)).transpose()?,
        };
        message.check()
    }

    /// The rules that look at more than one field.
    pub(crate) fn check(self) -> Result<Self, Fault> {
        if self.deliver_at.is_some() && self.delay_s.is_some() {
            return Err(Fault::of("delay_s", "and deliver_at exclude each other; give one of them"));
        }
        Ok(self)
    }

    /// The message as it goes to the servers.
    pub(crate) fn into_wire(self) -> EnqueueMessage {
        EnqueueMessage {
            priority: self.priority,
            id: self.id,
            delay: match (self.deliver_at, self.delay_s) {
                (Some(at), _) => Delay::At(at),
                (None, Some(seconds)) => Delay::AfterS(seconds),
                (None, None) => Delay::None,
            },
            dedup_key: self.dedup_key,
            expires_in_s: self.expires_in_s,
            headers: self.headers,
            body: self.body,
        }
    }
}

/// Reads a batch: one outcome for each message, in order. Only a batch that is no list of 1..=1000 items, or no
/// JSON, is refused as a whole.
pub(crate) fn parse_batch(bytes: &[u8]) -> Result<Vec<Result<NewMessage, Fault>>, Fault> {
    let object = Object::parse(bytes, &["messages"])?;
    let messages = object.required("messages", "must be a list of 1..=1000 messages")?;
    let mut read = Vec::new();
    messages.list(1, BATCH_MESSAGES_MAX, |item| {
        read.push(if item.is_object() {
            Object::parse(item.raw().as_bytes(), NewMessage::FIELDS).and_then(|o| NewMessage::read(&o))
        } else {
            Err(Fault::request("the message must be an object"))
        });
        Ok(())
    })?;
    Ok(read)
}

fn body(value: Value<'_>) -> Result<Bytes, Fault> {
    let text = value.text(BODY)?;
    if text.len() > BODY_BYTES_MAX.div_ceil(3) * 4 {
        return Err(body_too_large());
    }
    let body = STANDARD.decode(text.as_bytes()).map_err(|_| value.fault(BODY))?;
    if body.len() > BODY_BYTES_MAX { Err(body_too_large()) } else { Ok(body.into()) }
}

pub(crate) fn body_too_large() -> Fault {
    Fault::too_large("body", format!("must be at most {BODY_BYTES_MAX} bytes after decoding"))
}

fn time_input(value: Value<'_>) -> Result<UnixMillis, Fault> {
    let text = if value.raw().starts_with('"') { value.text(TIME)? } else { return number_time(value) };
    time::parse(&text).ok_or_else(|| value.fault(TIME))
}

fn number_time(value: Value<'_>) -> Result<UnixMillis, Fault> {
    value.whole(0, time::LAST_MS).map(UnixMillis).map_err(|_| value.fault(TIME))
}

/// A time in a header: as in JSON, without quotes.
pub(crate) fn header_time(text: &str) -> Result<UnixMillis, Fault> {
    let number = super::number::Scaled::parse(text, 0).and_then(|n| n.whole_in(0, time::LAST_MS));
    number.map(UnixMillis).or_else(|| time::parse(text)).ok_or_else(|| Fault::of("deliver_at", TIME))
}

pub(crate) fn dedup_key(key: &[u8]) -> Result<Bytes, Fault> {
    if (1..=DEDUP_KEY_BYTES_MAX).contains(&key.len()) {
        Ok(Bytes::copy_from_slice(key))
    } else {
        Err(Fault::of("dedup_key", DEDUP_KEY))
    }
}

const ID: &str = "must be m_ and a ULID of 26 upper-case Crockford base32 characters";

pub(crate) fn id(text: &str) -> Result<MessageId, Fault> {
    text.parse().map_err(|_| Fault::of("id", ID))
}

fn headers(value: Value<'_>) -> Result<Headers, Fault> {
    let mut headers = HeadersReader::default();
    value.entries(HEADERS, |name, value| headers.put(name.to_owned(), value.text(HEADERS)?.into_owned()))?;
    Ok(headers.read)
}

/// Collects headers: bounded in bytes, each name once.
#[derive(Default)]
pub(crate) struct HeadersReader {
    pub(crate) read: Headers,
    names: BTreeSet<String>,
    bytes: usize,
}

impl HeadersReader {
    /// Adds a header.
    pub(crate) fn put(&mut self, name: String, value: String) -> Result<(), Fault> {
        self.bytes += name.len() + value.len();
        if self.bytes > HEADERS_BYTES_MAX {
            return Err(Fault::of("headers", HEADERS));
        }
        if !self.names.insert(name.clone()) {
            return Err(Fault::of("headers", format!("must name each header once; {name} is given twice")));
        }
        self.read.push((name, value));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> Fault {
        NewMessage::parse(json.as_bytes()).unwrap_err()
    }

    #[test]
    fn every_field_arrives() {
        let json = r#"{ "priority": 3, "body": "aGk=", "deliver_at": "2030-01-01T00:00:00.5Z", "delay_s": null,
            "dedup_key": "k\u00e4", "expires_in_s": 60, "headers": { "b": "1", "a": "\n" },
            "id": "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX" }"#;
        let message = NewMessage::parse(json.as_bytes()).unwrap().into_wire();
        let want = EnqueueMessage {
            priority: 3,
            id: Some("m_01JZ8D3V9QF3W3Q8B3M1S6T7VX".parse().unwrap()),
            delay: Delay::At(UnixMillis(1_893_456_000_500)),
            dedup_key: Some(Bytes::from_static("kä".as_bytes())),
            expires_in_s: Some(60),
            headers: vec![("b".into(), "1".into()), ("a".into(), "\n".into())],
            body: Bytes::from_static(b"hi"),
        };
        assert_eq!(message, want);
        let message = NewMessage::parse(br#"{"priority":0,"body":"","delay_s":7}"#).unwrap().into_wire();
        assert_eq!(message.delay, Delay::AfterS(7));
        let message = NewMessage::parse(br#"{"priority":0,"body":"","deliver_at":12}"#).unwrap().into_wire();
        assert_eq!(message.delay, Delay::At(UnixMillis(12)));
    }

    #[test]
    fn every_refusal_names_its_field() {
        let long_key = format!("\"{}\"", "k".repeat(257));
        let long_headers = format!("{{\"a\":\"{}\"}}", "x".repeat(4096));
        for (field, bad) in [
            ("priority", "-1"),
            ("priority", "100"),
            ("priority", "1e99"),
            ("priority", "1.5"),
            ("priority", "\"5\""),
            ("priority", "-1e99"),
            ("body", "1"),
            ("body", "\"aGk\""),
            ("body", "\"aG=k\""),
            ("body", "\"a-_=\""),
            ("body", "\"aGl=\""),
            ("body", "\" aGk=\""),
            ("deliver_at", "\"tomorrow\""),
            ("deliver_at", "-1"),
            ("deliver_at", "1e99"),
            ("deliver_at", "\"2030-01-01T00:00:00+01:00\""),
            ("delay_s", "-1"),
            ("delay_s", "31622401"),
            ("delay_s", "0.5"),
            ("delay_s", "\"5\""),
            ("dedup_key", "\"\""),
            ("dedup_key", "7"),
            ("dedup_key", &long_key),
            ("dedup_key", "\"\\ud800\""),
            ("expires_in_s", "0"),
            ("expires_in_s", "31622401"),
            ("expires_in_s", "1.5"),
            ("headers", "[]"),
            ("headers", "{\"a\":1}"),
            ("headers", "{\"a\":null}"),
            ("headers", "{\"a\":\"\",\"a\":\"\"}"),
            ("headers", &long_headers),
            ("id", "\"m_1\""),
            ("id", "\"m_01jz8d3v9qf3w3q8b3m1s6t7vx\""),
            ("id", "1"),
            ("colour", "1"),
        ] {
            let mut fields = vec![("priority", "0"), ("body", "\"\"")];
            fields.retain(|(name, _)| *name != field);
            fields.push((field, bad));
            let json: Vec<String> =
                fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            let fault = refused(&format!("{{{}}}", json.join(",")));
            assert_eq!(
                (fault.field.as_deref(), fault.too_large),
                (Some(field), false),
                "{field} {bad}: {fault}"
            );
        }
        assert_eq!(refused(r#"{"body":""}"#).field.as_deref(), Some("priority"));
        assert_eq!(refused(r#"{"priority":0,"body":null}"#).field.as_deref(), Some("body"));
        assert_eq!(
            refused(r#"{"priority":0,"body":"","delay_s":1,"deliver_at":1}"#).field.as_deref(),
            Some("delay_s")
        );
    }

    #[test]
    fn bodies_end_at_their_limit() {
        let json =
            |bytes: usize| format!("{{\"priority\":0,\"body\":\"{}\"}}", STANDARD.encode(vec![7u8; bytes]));
        assert_eq!(NewMessage::parse(json(BODY_BYTES_MAX).as_bytes()).unwrap().body.len(), BODY_BYTES_MAX);
        for over in [1, 2, 3, 100_000] {
            assert!(refused(&json(BODY_BYTES_MAX + over)).too_large);
        }
    }

    #[test]
    fn a_malformed_message_does_not_hide_the_others() {
        let batch =
            br#"{"messages":[{"priority":0,"body":""},{"priority":0},7,{"priority":1,"body":"","x":1}]}"#;
        let read = parse_batch(batch).unwrap();
        let faults: Vec<Option<&str>> =
            read.iter().map(|r| r.as_ref().err().and_then(|f| f.field.as_deref())).collect();
        assert_eq!(faults, [None, Some("body"), None, Some("x")]);
        assert!(read[0].is_ok() && read[2].is_err());
        let of = |count: usize| format!("{{\"messages\":[{}]}}", vec!["{}"; count].join(","));
        assert!(parse_batch(of(1_000).as_bytes()).is_ok());
        for bad in [of(0), of(1_001), "{}".into(), r#"{"messages":{}}"#.into(), r#"{"messages":[{]}"#.into()]
        {
            assert!(parse_batch(bad.as_bytes()).is_err(), "{bad:.40}");
        }
    }
}
