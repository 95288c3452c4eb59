//! How a fixed header is laid out, as data: the formats check at compile time that their fields leave no gap, and
//! [`layout`] prints every size and offset for the golden file and for people with a hex dump.

use crate::lanes::{block, file};
use crate::{batch, checkpoint, record, segment};
use core::fmt::Write as _;

/// One field of a fixed header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// What it is.
    pub name: &'static str,
    /// Its first byte.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// A field.
#[must_use]
pub const fn field(name: &'static str, offset: usize, bytes: usize) -> Field {
    Field { name, offset, bytes }
}

/// Length of the header that the fields make; fails the build where one does not start at the end of the one before.
#[must_use]
pub const fn contiguous(fields: &[Field]) -> usize {
    let mut end = 0;
    let mut i = 0;
    while i < fields.len() {
        assert!(fields[i].offset == end, "a field does not start where the one before it ends");
        end += fields[i].bytes;
        i += 1;
    }
    end
}

/// One header: each field's offset, length and name.
#[must_use]
pub fn layout_of(name: &str, version: u16, fields: &[Field]) -> String {
    let mut text = format!("{name}, version {version}, {} bytes\n", contiguous(fields));
    for field in fields {
        let _ = writeln!(text, "  {:>3} {:>3} {}", field.offset, field.bytes, field.name);
    }
    text
}

/// Every size and offset of the formats of this crate, as text.
#[must_use]
pub fn layout() -> String {
    let mut text = String::new();
    let parts = [
        ("segment header", segment::VERSION, &segment::FIELDS[..]),
        ("batch header", batch::VERSION, &batch::FIELDS[..]),
        ("record header", batch::VERSION, &record::FIELDS[..]),
        ("checkpoint header", checkpoint::VERSION, &checkpoint::FIELDS[..]),
        ("lane file header", file::VERSION, &file::FIELDS[..]),
        ("lane block header", file::VERSION, &block::FIELDS[..]),
    ];
    for (name, version, fields) in parts {
        text += &layout_of(name, version, fields);
    }
    let _ = writeln!(text, "block {} bytes", crate::disk::BLOCK_BYTES);
    let _ = writeln!(text, "record data at most {} bytes", record::DATA_BYTES_MAX);
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_layout_is_the_golden_one() {
        assert_eq!(super::layout(), include_str!("layout.golden"));
    }
}
