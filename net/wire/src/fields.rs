//! Parts that several records share: ids, lists, texts, headers, receipts, refusals.

use crate::message::{ErrorCode, Headers, Refusal};
use overtake_base::limits::{ERROR_BYTES_MAX, HEADERS_BYTES_MAX};
use overtake_base::{Malformed, MessageId, Receipt, Sequence, ShardId};
use overtake_base::{Reader, UnixMillis, Writer};

/// Most entries of one message's headers that are read: with distinct names there cannot be more in 4,096 bytes.
const HEADERS_MAX: usize = HEADERS_BYTES_MAX + 1;
/// Fewest bytes that one text takes: its length.
pub(crate) const TEXT_BYTES_MIN: usize = 4;
/// Bytes of a message id.
pub(crate) const ID_BYTES: usize = 16;

/// The longest start of `text` that is kept of a release's error: at most 4,096 bytes, whole characters.
#[must_use]
pub fn cut_error(text: &str) -> &str {
    &text[..text.floor_char_boundary(ERROR_BYTES_MAX)]
}

/// Appends headers: `u32` count, then for each a `u32` length and the name, a `u32` length and the value. These bytes
/// are also what a queue stores.
pub fn encode_headers(headers: &Headers, out: &mut Vec<u8>) {
    write_headers(&mut Writer(out), headers);
}

/// Reads what [`encode_headers`] wrote; the bytes must end where the headers end.
pub fn decode_headers(bytes: &[u8]) -> Result<Headers, Malformed> {
    let mut reader = Reader::new(bytes);
    let headers = read_headers(&mut reader)?;
    reader.finish("headers")?;
    Ok(headers)
}

pub(crate) fn write_headers(out: &mut Writer<'_>, headers: &Headers) {
    write_list(out, headers, |w, (name, value)| {
        w.str(name);
        w.str(value);
    });
}

pub(crate) fn read_headers(input: &mut Reader<'_>) -> Result<Headers, Malformed> {
    read_list(input, HEADERS_MAX, 2 * TEXT_BYTES_MIN, "headers", |r| {
        Ok((read_text(r, "headers")?, read_text(r, "headers")?))
    })
}

pub(crate) fn write_list<T>(out: &mut Writer<'_>, list: &[T], mut write: impl FnMut(&mut Writer<'_>, &T)) {
    out.u32(u32::try_from(list.len()).unwrap_or(u32::MAX));
    for item in list {
        write(out, item);
    }
}

/// Reads a list of at most `max` items. No more memory is set aside than items of `bytes_each` bytes can be there.
pub(crate) fn read_list<'a, T>(
    input: &mut Reader<'a>,
    max: usize,
    bytes_each: usize,
    what: &'static str,
    mut read: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = input.count(max, bytes_each, what)?;
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        list.push(read(input)?);
    }
    Ok(list)
}

/// Reads a text of any length the frame holds: lengths are judged by `validate`, which can name the field.
pub(crate) fn read_text(input: &mut Reader<'_>, what: &'static str) -> Result<String, Malformed> {
    input.str(usize::MAX, what).map(str::to_owned)
}

pub(crate) fn read_option_text(
    input: &mut Reader<'_>,
    what: &'static str,
) -> Result<Option<String>, Malformed> {
    input.option(what, |r| read_text(r, what))
}

pub(crate) fn write_option_text(out: &mut Writer<'_>, text: Option<&String>) {
    out.option(text, |w, text| w.str(text));
}

pub(crate) fn write_id(out: &mut Writer<'_>, id: MessageId) {
    out.u128(id.0);
}

pub(crate) fn read_id(input: &mut Reader<'_>, what: &'static str) -> Result<MessageId, Malformed> {
    input.u128(what).map(MessageId)
}

pub(crate) fn write_time(out: &mut Writer<'_>, time: UnixMillis) {
    out.u64(time.0);
}

pub(crate) fn read_time(input: &mut Reader<'_>, what: &'static str) -> Result<UnixMillis, Malformed> {
    input.u64(what).map(UnixMillis)
}

pub(crate) fn write_receipt(out: &mut Writer<'_>, receipt: Receipt) {
    out.u16(receipt.shard.0);
    out.u64(receipt.sequence.0);
    out.u32(receipt.deliveries);
}

pub(crate) fn read_receipt(input: &mut Reader<'_>) -> Result<Receipt, Malformed> {
    Ok(Receipt {
        shard: ShardId(input.u16("receipt")?),
        sequence: Sequence(input.u64("receipt")?),
        deliveries: input.u32("receipt")?,
    })
}

/// IEEE 754 binary64, its bits as a little-endian integer.
pub(crate) fn write_float(out: &mut Writer<'_>, value: f64) {
    out.u64(value.to_bits());
}

pub(crate) fn read_float(input: &mut Reader<'_>, what: &'static str) -> Result<f64, Malformed> {
    input.u64(what).map(f64::from_bits)
}

pub(crate) fn write_refusal(out: &mut Writer<'_>, refusal: &Refusal) {
    out.u16(refusal.code as u16);
    write_option_text(out, refusal.field.as_ref());
    out.str(&refusal.detail);
    out.option(refusal.retry_after_ms, Writer::u32);
    out.bool(refusal.stored_unknown);
}

pub(crate) fn read_refusal(input: &mut Reader<'_>) -> Result<Refusal, Malformed> {
    Ok(Refusal {
        code: ErrorCode::try_from(input.u16("error code")?)?,
        field: read_option_text(input, "field")?,
        detail: read_text(input, "detail")?,
        retry_after_ms: input.option("retry_after_ms", |r| r.u32("retry_after_ms"))?,
        stored_unknown: input.bool("stored_unknown")?,
    })
}

/// Declares the kinds of one direction: names and numbers once, with `ALL` and the way back from a number.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($kind:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum $name { $($kind = $number,)* }

        impl $name {
            /// Every kind, by number.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];
        }

        impl TryFrom<u8> for $name {
            type Error = overtake_base::Malformed;
            fn try_from(number: u8) -> Result<Self, overtake_base::Malformed> {
                match number {
                    $($number => Ok(Self::$kind),)*
                    _ => Err(overtake_base::Malformed($what)),
                }
            }
        }
    };
}
pub(crate) use kinds;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_survive_their_bytes(headers in prop::collection::vec((".{0,9}", ".{0,9}"), 0..9)) {
            let mut bytes = Vec::new();
            encode_headers(&headers, &mut bytes);
            prop_assert_eq!(decode_headers(&bytes), Ok(headers));
        }

        #[test]
        fn any_bytes_are_read_as_headers_without_panic(bytes: Vec<u8>) {
            let _ = decode_headers(&bytes);
        }

        #[test]
        fn an_error_is_cut_between_characters(text in "[a-zé€😀]{0,2000}") {
            let cut = cut_error(&text);
            prop_assert!(text.starts_with(cut) && cut.len() <= ERROR_BYTES_MAX);
            prop_assert!(cut.len() == text.len() || cut.len() > ERROR_BYTES_MAX - 4);
        }
    }
}
