//! Frames on a stream: `u32` length of what follows, `u64` request id, `u8` kind, payload. Here only the cutting of a
//! byte stream into frames; what is inside is [`crate::request`]'s and [`crate::response`]'s.

use crate::{REQUEST_FRAME_BYTES_MAX, RESPONSE_FRAME_BYTES_MAX};
use bytes::{Buf as _, Bytes};
use core::fmt;
use std::collections::VecDeque;

/// Bytes of the length prefix.
pub const LENGTH_BYTES: usize = 4;

/// A frame says it is longer than this side takes. The stream cannot be read any further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLarge {
    /// What the frame says, in bytes.
    pub length: usize,
    /// What is allowed, in bytes.
    pub max: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a frame of {} bytes, at most {} are allowed", self.length, self.max)
    }
}

impl core::error::Error for TooLarge {}

/// Cuts one stream into frames. A frame that lies in one chunk is handed out without copying; one that does not is
/// copied as its chunks come, so that a sender of tiny chunks makes us hold its bytes and not the packets around them.
#[derive(Debug)]
pub struct FrameSplitter {
    max: usize,
    chunks: VecDeque<Bytes>,
    /// Start of a frame whose end is not in `chunks` yet, length prefix included.
    partial: Vec<u8>,
}

impl FrameSplitter {
    /// A splitter for what clients send.
    #[must_use]
    pub fn for_requests() -> Self {
        Self::with_max(REQUEST_FRAME_BYTES_MAX)
    }

    /// A splitter for what servers send.
    #[must_use]
    pub fn for_responses() -> Self {
        Self::with_max(RESPONSE_FRAME_BYTES_MAX)
    }

    /// A splitter that refuses frames over `max` bytes, length prefix not counted.
    #[must_use]
    pub fn with_max(max: usize) -> Self {
        Self { max, chunks: VecDeque::new(), partial: Vec::new() }
    }

    /// Takes the next bytes of the stream. Call [`Self::next_frame`] until it has none before pushing much more.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.chunks.push_back(chunk);
        }
    }

    /// The next whole frame, without its length prefix; none where more bytes are needed.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, TooLarge> {
        while let Some(chunk) = self.chunks.front_mut() {
            if self.partial.is_empty()
                && let Some(length) = prefix(chunk)
            {
                check(length, self.max)?;
                if chunk.len() >= LENGTH_BYTES + length {
                    chunk.advance(LENGTH_BYTES);
                    let frame = chunk.split_to(length);
                    self.drop_front_if_empty();
                    return Ok(Some(frame));
                }
            }
            let missing = match prefix(&self.partial) {
                Some(length) => LENGTH_BYTES + length - self.partial.len(),
                // Only up to the end of the prefix: what the rest is part of is not known before it is whole.
                None => LENGTH_BYTES - self.partial.len(),
            };
            let taken = missing.min(chunk.len());
            self.partial.extend_from_slice(&chunk[..taken]);
            chunk.advance(taken);
            self.drop_front_if_empty();
            let Some(length) = prefix(&self.partial) else { continue };
            // At once, not with the next chunk: a sender that waits for an answer sends none.
            check(length, self.max)?;
            if self.partial.len() == LENGTH_BYTES + length {
                let mut frame = Bytes::from(core::mem::take(&mut self.partial));
                frame.advance(LENGTH_BYTES);
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// True where the stream may end here: no frame is half read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty() && self.chunks.is_empty()
    }

    fn drop_front_if_empty(&mut self) {
        if self.chunks.front().is_some_and(Bytes::is_empty) {
            self.chunks.pop_front();
        }
    }
}

fn prefix(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk::<LENGTH_BYTES>().map(|prefix| u32::from_le_bytes(*prefix) as usize)
}

fn check(length: usize, max: usize) -> Result<(), TooLarge> {
    if length > max { Err(TooLarge { length, max }) } else { Ok(()) }
}

/// Appends one frame whose payload is what `write` appends. The length is filled in afterwards.
pub(crate) fn write_frame(id: u64, kind: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    out.extend_from_slice(&id.to_le_bytes());
    out.push(kind);
    write(out);
    let length = u32::try_from(out.len() - start - LENGTH_BYTES).unwrap_or(u32::MAX);
    out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for frame in frames {
            out.extend_from_slice(&(frame.len() as u32).to_le_bytes());
            out.extend_from_slice(frame);
        }
        out
    }

    #[test]
    fn a_length_that_is_too_large_is_refused_however_it_comes() {
        for cut in 1..=LENGTH_BYTES {
            let mut splitter = FrameSplitter::with_max(40);
            let prefix = 41_u32.to_le_bytes();
            splitter.push(Bytes::copy_from_slice(&prefix[..cut]));
            if cut < LENGTH_BYTES {
                assert_eq!(splitter.next_frame(), Ok(None));
                splitter.push(Bytes::copy_from_slice(&prefix[cut..]));
            }
            assert_eq!(splitter.next_frame(), Err(TooLarge { length: 41, max: 40 }), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn frames_come_out_however_the_stream_is_cut(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12),
            cuts in prop::collection::vec(1usize..30, 1..40),
            read_after_each_push: bool,
        ) {
            let stream = Bytes::from(framed(&frames));
            let mut splitter = FrameSplitter::with_max(40);
            let mut seen = Vec::new();
            let (mut rest, mut cuts) = (stream, cuts.into_iter().cycle());
            while !rest.is_empty() {
                let cut = cuts.next().unwrap().min(rest.len());
                splitter.push(rest.split_to(cut));
                if read_after_each_push {
                    while let Some(frame) = splitter.next_frame().unwrap() { seen.push(frame.to_vec()); }
                }
            }
            while let Some(frame) = splitter.next_frame().unwrap() { seen.push(frame.to_vec()); }
            prop_assert_eq!(seen, frames);
            prop_assert!(splitter.is_empty());
        }

        #[test]
        fn any_bytes_are_split_without_panic(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..40)) {
            let mut splitter = FrameSplitter::with_max(1_000);
            for chunk in chunks {
                splitter.push(chunk.into());
                while let Ok(Some(_)) = splitter.next_frame() {}
            }
        }
    }

    #[test]
    fn a_frame_in_one_chunk_shares_its_memory() {
        let chunk = Bytes::from(framed(&[vec![7; 30], vec![8; 20]]));
        let (first, second) = (chunk[4..].as_ptr(), chunk[38..].as_ptr());
        let mut splitter = FrameSplitter::for_requests();
        splitter.push(chunk.clone());
        assert_eq!(splitter.next_frame().unwrap().unwrap().as_ptr(), first);
        assert_eq!(splitter.next_frame().unwrap().unwrap().as_ptr(), second);
        assert!(splitter.is_empty());
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_by_its_prefix() {
        for cut in 1..=4 {
            let mut splitter = FrameSplitter::with_max(10);
            let prefix = Bytes::copy_from_slice(&11u32.to_le_bytes());
            splitter.push(prefix.slice(..cut));
            splitter.push(prefix.slice(cut..));
            splitter.push(Bytes::from_static(b"x"));
            assert_eq!(splitter.next_frame(), Err(TooLarge { length: 11, max: 10 }));
        }
    }
}
