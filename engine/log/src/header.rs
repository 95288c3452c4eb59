//! What the headers of files have in common: a magic and a version stand in front, a checksum of everything before it at
//! the end. Every version keeps a header's length and its checksum: so a version that is damaged is told from one that
//! another program wrote.

use overtake_base::checksum::checksum;
use overtake_base::{Malformed, Reader, Writer};

const CHECKSUM_BYTES: usize = 8;

/// What the first bytes of a file are if not a header of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotAHeader {
    /// Nothing but zeros: prepared, never used.
    Blank,
    /// A header of another format version.
    Version(u16),
    /// Something else.
    Damaged(&'static str),
}

/// The headers of one kind of file.
pub(crate) struct HeaderKind {
    pub(crate) magic: &'static [u8; 8],
    pub(crate) version: u16,
    /// Of the checksum.
    pub(crate) domain: u64,
    /// Length, checksum included.
    pub(crate) bytes: usize,
    /// Said where the magic is not there.
    pub(crate) absent: &'static str,
    /// Said where the checksum does not fit.
    pub(crate) unfit: &'static str,
}

impl HeaderKind {
    /// A header of this version; `fields` writes what stands between version and checksum.
    pub(crate) fn encode(&self, fields: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes);
        let mut writer = Writer(&mut bytes);
        writer.raw(self.magic);
        writer.u16(self.version);
        fields(&mut writer);
        writer.raw(&[0; CHECKSUM_BYTES]);
        assert_eq!(bytes.len(), self.bytes, "a header has the length of its kind");
        self.seal(&mut bytes);
        bytes
    }

    /// Writes the checksum of the header at the start of `file`.
    pub(crate) fn seal(&self, file: &mut [u8]) {
        let at = self.bytes - CHECKSUM_BYTES;
        let sum = checksum(self.domain, &file[..at]);
        file[at..self.bytes].copy_from_slice(&sum.to_le_bytes());
    }

    /// The header at the start of `file`; `fields` reads what stands between version and checksum.
    pub(crate) fn decode<T>(
        &self,
        file: &[u8],
        fields: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, NotAHeader> {
        let short = "the file is shorter than a header";
        let bytes = file.get(..self.bytes).ok_or(NotAHeader::Damaged(short))?;
        if file.iter().all(|byte| *byte == 0) {
            return Err(NotAHeader::Blank);
        }
        let damaged = |malformed: Malformed| NotAHeader::Damaged(malformed.0);
        let (whole, sum) = bytes.split_at(self.bytes - CHECKSUM_BYTES);
        let mut reader = Reader::new(whole);
        if reader.raw(self.magic.len(), short).map_err(damaged)? != self.magic {
            return Err(NotAHeader::Damaged(self.absent));
        }
        if sum != checksum(self.domain, whole).to_le_bytes() {
            return Err(NotAHeader::Damaged(self.unfit));
        }
        let version = reader.u16("version").map_err(damaged)?;
        if version != self.version {
            return Err(NotAHeader::Version(version));
        }
        fields(&mut reader).map_err(damaged)
    }
}
