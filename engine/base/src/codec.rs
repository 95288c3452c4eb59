//! The one byte codec: little-endian integers, length-prefixed bytes. Disk records, log commands and wire frames are
//! all written with [`Writer`] and read with [`Reader`], which checks every length before it believes it.

use bytes::Bytes;
use core::fmt;

/// Bytes that are not what they should be. Says what was being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed bytes: {}", self.0)
    }
}

impl core::error::Error for Malformed {}

/// Appends little-endian fields to a byte vector.
pub struct Writer<'a>(pub &'a mut Vec<u8>);

macro_rules! write_integer {
    ($($name:ident $type:ty),*) => {$(
        #[doc = concat!("Appends a little-endian `", stringify!($type), "`.")]
        pub fn $name(&mut self, value: $type) {
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    )*};
}

impl Writer<'_> {
    write_integer!(u8 u8, u16 u16, u32 u32, u64 u64, u128 u128);

    /// Appends one byte, 0 or 1.
    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// Appends bytes as they are, without a length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a `u32` length and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.raw(bytes);
    }

    /// Appends a `u32` length and the text's UTF-8 bytes.
    pub fn str(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Appends seven bits a byte, lowest first; small numbers take few bytes.
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }

    /// Appends a difference; small ones of either sign take few bytes.
    pub fn difference(&mut self, from: u64, to: u64) {
        let signed = to.wrapping_sub(from) as i64;
        self.varint((signed << 1 ^ signed >> 63) as u64);
    }

    /// Appends 0, or 1 and what `write` appends.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Reads what [`Writer`] wrote, from bytes that may be anything.
#[derive(Clone)]
pub struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

macro_rules! read_integer {
    ($($name:ident $type:ty),*) => {$(
        #[doc = concat!("Reads a little-endian `", stringify!($type), "`; `what` names it in the error.")]
        pub fn $name(&mut self, what: &'static str) -> Result<$type, Malformed> {
            let bytes = self.raw(size_of::<$type>(), what)?;
            Ok(<$type>::from_le_bytes(bytes.try_into().map_err(|_| Malformed(what))?))
        }
    )*};
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { all: bytes, at: 0 }
    }

    read_integer!(u8 u8, u16 u16, u32 u32, u64 u64, u128 u128);

    /// Reads one byte that must be 0 or 1.
    pub fn bool(&mut self, what: &'static str) -> Result<bool, Malformed> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed(what)),
        }
    }

    /// Reads `length` bytes as they are.
    pub fn raw(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(length).ok_or(Malformed(what))?;
        let bytes = self.all.get(self.at..end).ok_or(Malformed(what))?;
        self.at = end;
        Ok(bytes)
    }

    /// Reads a `u32` length of at most `max` and that many bytes.
    pub fn bytes(&mut self, max: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let length = self.u32(what)? as usize;
        if length > max {
            return Err(Malformed(what));
        }
        self.raw(length, what)
    }

    /// Reads a `u32` length of at most `max` and that many bytes of UTF-8.
    pub fn str(&mut self, max: usize, what: &'static str) -> Result<&'a str, Malformed> {
        core::str::from_utf8(self.bytes(max, what)?).map_err(|_| Malformed(what))
    }

    /// Reads what [`Writer::varint`] wrote.
    pub fn varint(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Malformed(what));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed(what))
    }

    /// Reads what [`Writer::varint`] wrote; it must fit 32 bits.
    pub fn varint32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        u32::try_from(self.varint(what)?).map_err(|_| Malformed(what))
    }

    /// Reads what [`Writer::difference`] wrote.
    pub fn difference(&mut self, from: u64, what: &'static str) -> Result<u64, Malformed> {
        let folded = self.varint(what)?;
        let signed = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        Ok(from.wrapping_add(signed as u64))
    }

    /// Reads what [`Writer::option`] wrote.
    pub fn option<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.bool(what)? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reads a `u32` count of at most `max`, refusing one that the bytes left could not hold at `bytes_each` a piece.
    pub fn count(&mut self, max: usize, bytes_each: usize, what: &'static str) -> Result<usize, Malformed> {
        let count = self.u32(what)? as usize;
        if count > max || count.saturating_mul(bytes_each) > self.left() {
            return Err(Malformed(what));
        }
        Ok(count)
    }

    /// Where the next byte stands.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.all.len() - self.at
    }

    /// Fails unless everything was read.
    pub fn finish(&self, what: &'static str) -> Result<(), Malformed> {
        if self.left() == 0 { Ok(()) } else { Err(Malformed(what)) }
    }
}

/// The part of `whole` that `part` (a slice of it) covers, sharing its memory.
#[must_use]
pub fn share(whole: &Bytes, part: &[u8]) -> Bytes {
    if part.is_empty() { Bytes::new() } else { whole.slice_ref(part) }
}

#[cfg(test)]
mod tests {
    use super::{Malformed, Reader, Writer};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_of_varying_length_are_read(a: u64, b: u64, shift in 0u32..64, bytes: Vec<u8>) {
            let mut out = Vec::new();
            let mut writer = Writer(&mut out);
            writer.varint(a >> shift);
            writer.difference(a, b);
            writer.difference(b, b.wrapping_add(3));
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint("a"), Ok(a >> shift));
            prop_assert_eq!(reader.difference(a, "b"), Ok(b));
            prop_assert_eq!(reader.difference(b, "c"), Ok(b.wrapping_add(3)));
            prop_assert_eq!(reader.left(), 0);
            let _ = Reader::new(&bytes).varint("any bytes");
        }

        #[test]
        fn what_is_written_is_read(a: u64, b: Vec<u8>, c: Option<u16>, d: String) {
            let mut out = Vec::new();
            let mut writer = Writer(&mut out);
            writer.u64(a);
            writer.bytes(&b);
            writer.option(c, Writer::u16);
            writer.str(&d);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.u64("a"), Ok(a));
            prop_assert_eq!(reader.bytes(b.len(), "b"), Ok(&b[..]));
            prop_assert_eq!(reader.option("c", |r| r.u16("c")), Ok(c));
            prop_assert_eq!(reader.str(d.len(), "d"), Ok(&d[..]));
            prop_assert_eq!(reader.finish("end"), Ok(()));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.left() > 0 {
                let before = reader.left();
                let _ = reader.bytes(16, "x");
                let _ = reader.count(10, 4, "n");
                if reader.left() == before { break; }
            }
        }
    }

    #[test]
    fn a_length_past_the_end_is_refused() {
        let bytes = [255, 255, 255, 255, 1];
        assert_eq!(Reader::new(&bytes).bytes(usize::MAX, "body"), Err(Malformed("body")));
        assert_eq!(Reader::new(&bytes).count(usize::MAX, 1, "list"), Err(Malformed("list")));
    }
}
