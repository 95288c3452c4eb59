//! Reading requests: everything that turns bytes and texts from outside into checked values. Each refusal is a
//! [`Fault`] that names the field and what is allowed.

pub(crate) mod config;
pub(crate) mod dlq;
pub(crate) mod fault;
pub(crate) mod message;
pub(crate) mod number;
pub(crate) mod object;
pub(crate) mod query;
pub(crate) mod raw_message;
pub(crate) mod receive;
pub(crate) mod settle;
pub(crate) mod time;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
pub use fault::Fault;

/// Reads bytes as the body, or the query, of each kind of request, for a fuzzer: whatever they are, none of it may panic.
pub fn read_as_any_request(bytes: &[u8]) {
    let _ = message::NewMessage::parse(bytes);
    let _ = message::parse_batch(bytes);
    let _ = settle::SettleRequest::parse(bytes);
    let _ = receive::ReceiveRequest::parse(bytes);
    let _ = dlq::RedriveRequest::parse(bytes);
    let _ = config::parse_config(bytes);
    if let Ok(text) = core::str::from_utf8(bytes) {
        let _ = query::Page::parse(Some(text));
        let _ = query::PeekQuery::parse(Some(text));
        let _ = message::header_time(text);
        let _ = message::id(text);
    }
}

/// Reads these headers and this body as a message to store, for a fuzzer. Headers that HTTP does not allow are left out.
pub fn read_as_raw_request<'a>(headers: impl Iterator<Item = (&'a [u8], &'a [u8])>, body: &[u8]) {
    let pairs = headers.filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    });
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(name, value);
    }
    let _ = raw_message::refuse_headers(&map);
    let _ = raw_message::parse(&map, Bytes::copy_from_slice(body));
}
