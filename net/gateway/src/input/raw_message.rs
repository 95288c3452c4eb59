//! One message to store whose body is the request's body as it is: the other fields are `Overtake-*` headers.

use super::fault::Fault;
use super::message::{self, HeadersReader, NewMessage};
use super::number::Scaled;
use super::object::{self, LEVEL};
use axum::http::{HeaderMap, HeaderName};
use bytes::Bytes;
use overtake_base::limits::{BODY_BYTES_MAX, DELAY_S_MAX, PERIOD_S_MAX};

const PREFIX: &str = "overtake-";
const HEADER_PREFIX: &str = "overtake-header-";

/// Reads the message from its headers and body.
pub(crate) fn parse(headers: &HeaderMap, body: Bytes) -> Result<NewMessage, Fault> {
    if body.len() > BODY_BYTES_MAX {
        return Err(message::body_too_large());
    }
    let mut read = NewMessage { body, ..NewMessage::default() };
    let mut own_headers = HeadersReader::default();
    let mut priority = None;
    for name in headers.keys().filter(|name| name.as_str().starts_with(PREFIX)) {
        let text = single(headers, name)?;
        match name.as_str() {
            "overtake-priority" => priority = Some(level(text)?),
            "overtake-deliver-at" => read.deliver_at = Some(message::header_time(text)?),
            "overtake-delay-s" => read.delay_s = Some(seconds("delay_s", text, 0, DELAY_S_MAX)?),
            "overtake-dedup-key" => read.dedup_key = Some(message::dedup_key(text.as_bytes())?),
            "overtake-expires-in-s" => {
                read.expires_in_s = Some(seconds("expires_in_s", text, 1, PERIOD_S_MAX)?)
            }
            "overtake-id" => read.id = Some(message::id(text)?),
            other => match other.strip_prefix(HEADER_PREFIX) {
                Some(own) if !own.is_empty() => own_headers.put(own.to_owned(), text.to_owned())?,
                _ => return Err(unknown(name)),
            },
        }
    }
    read.headers = own_headers.read;
    read.priority =
        priority.ok_or_else(|| Fault::of("priority", format!("is missing; Overtake-Priority {LEVEL}")))?;
    read.check()
}

/// Refuses `Overtake-*` headers beside a JSON body, where they would be ignored without a word.
pub(crate) fn refuse_headers(headers: &HeaderMap) -> Result<(), Fault> {
    match headers.keys().find(|name| name.as_str().starts_with(PREFIX)) {
        Some(name) => Err(Fault::of(name, "goes with a body of application/octet-stream, not with JSON")),
        None => Ok(()),
    }
}

fn unknown(name: &HeaderName) -> Fault {
    Fault::of(
        name,
        "is not a known header; known: Overtake-Priority, -Deliver-At, -Delay-S, -Dedup-Key, -Expires-In-S, -Id, \
         and Overtake-Header-NAME",
    )
}

fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h str, Fault> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => {
            core::str::from_utf8(value.as_bytes()).map_err(|_| Fault::of(name, "must be UTF-8 text"))
        }
        _ => Err(Fault::of(name, "is given twice")),
    }
}

fn level(text: &str) -> Result<u32, Fault> {
    object::level(text).ok_or_else(|| Fault::of("priority", LEVEL))
}

fn seconds(field: &'static str, text: &str, low: u64, high: u64) -> Result<u64, Fault> {
    Scaled::parse(text, 0)
        .and_then(|n| n.whole_in(low, high))
        .ok_or_else(|| Fault::of(field, format!("must be a whole number {low}..={high}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use overtake_base::UnixMillis;

    fn read(headers: &[(&str, &[u8])]) -> Result<NewMessage, Fault> {
        let headers = headers
            .iter()
            .map(|(n, v)| (n.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(v).unwrap()))
            .fold(HeaderMap::new(), |mut map, (name, value)| {
                map.append(name, value);
                map
            });
        parse(&headers, Bytes::from_static(b"\0raw"))
    }

    #[test]
    fn every_header_arrives() {
        let message = read(&[
            ("content-type", b"application/octet-stream"),
            ("Overtake-Priority", b"2"),
            ("Overtake-Delay-S", b"5"),
            ("Overtake-Dedup-Key", "schlüssel".as_bytes()),
            ("Overtake-Expires-In-S", b"9"),
            ("Overtake-Id", b"m_01JZ8D3V9QF3W3Q8B3M1S6T7VX"),
            ("Overtake-Header-TraceParent", b"00-1"),
        ])
        .unwrap();
        assert_eq!(&message.body[..], b"\0raw");
        assert_eq!((message.priority, message.delay_s, message.expires_in_s), (2, Some(5), Some(9)));
        assert_eq!(message.dedup_key.as_deref(), Some("schlüssel".as_bytes()));
        assert!(message.id.is_some());
        assert_eq!(message.headers, [("traceparent".to_owned(), "00-1".to_owned())]);
        for text in ["2030-01-01T00:00:00Z", "1893456000000"] {
            let message = read(&[("overtake-priority", b"0"), ("overtake-deliver-at", text.as_bytes())]);
            assert_eq!(message.unwrap().deliver_at, Some(UnixMillis(1_893_456_000_000)));
        }
    }

    #[test]
    fn refusals_name_the_field_or_header() {
        let priority: (&str, &[u8]) = ("overtake-priority", b"0");
        for (bad, field) in [
            (("overtake-colour", &b"1"[..]), "overtake-colour"),
            (("overtake-header-", b"1"), "overtake-header-"),
            (("overtake-header-x", b"\xff"), "overtake-header-x"),
            (("overtake-priority", b"0"), "overtake-priority"),
            (("overtake-delay-s", b"-1"), "delay_s"),
            (("overtake-delay-s", b""), "delay_s"),
            (("overtake-deliver-at", b"now"), "deliver_at"),
            (("overtake-expires-in-s", b"0"), "expires_in_s"),
            (("overtake-dedup-key", b""), "dedup_key"),
            (("overtake-id", b"m_"), "id"),
        ] {
            assert_eq!(read(&[priority, bad]).unwrap_err().field.as_deref(), Some(field), "{bad:?}");
        }
        assert_eq!(read(&[]).unwrap_err().field.as_deref(), Some("priority"));
        assert_eq!(read(&[("overtake-priority", b"x")]).unwrap_err().field.as_deref(), Some("priority"));
    }
}
