//! A summary as the words of a slot: a first word of queue (32 bits), shard (16), gone (8) and number of levels (8);
//! version; depth; body bytes; then for each level one word of level (8 bits) and visible count (56), and one of the head's time.

use overtake_base::limits::{DEPTH_MAX, LEVELS_MAX};

const VISIBLE_BITS: u32 = 56;
const VISIBLE_MASK: u64 = (1 << VISIBLE_BITS) - 1;
const FIXED_WORDS: usize = 4;
const LEVEL_WORDS: usize = 2;

/// Words of a summary with so many levels.
pub(crate) const fn words(levels: usize) -> usize {
    FIXED_WORDS + LEVEL_WORDS * levels
}

const _: () = {
    assert!(DEPTH_MAX <= VISIBLE_MASK);
    assert!(LEVELS_MAX <= u8::MAX as usize);
};

/// What one core shows of one queue on one of its shards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BoardSummary {
    /// The queue's number.
    pub queue: u32,
    /// The shard's number.
    pub shard: u16,
    /// The queue is no more; the rest says nothing.
    pub gone: bool,
    /// Grows with the shard's log; tells the newer of two summaries that came different ways.
    pub version: u64,
    /// Visible, delayed and leased messages.
    pub depth: u64,
    /// Their body bytes.
    pub body_bytes: u64,
    /// Each non-empty level, at most 100; further ones are left out.
    pub levels: Vec<BoardLevel>,
}

/// One non-empty level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BoardLevel {
    /// The level.
    pub level: u8,
    /// Visible messages, at most 2⁵⁶ − 1.
    pub visible: u64,
    /// First visibility of the next one, Unix milliseconds.
    pub head_since_ms: u64,
}

pub(crate) fn encode(summary: &BoardSummary, words: &mut Vec<u64>) {
    words.clear();
    let levels = &summary.levels[..summary.levels.len().min(LEVELS_MAX)];
    words.extend([
        u64::from(summary.queue)
            | u64::from(summary.shard) << 32
            | u64::from(summary.gone) << 48
            | (levels.len() as u64) << 56,
        summary.version,
        summary.depth,
        summary.body_bytes,
    ]);
    for level in levels {
        let visible = level.visible.min(VISIBLE_MASK);
        words.extend([u64::from(level.level) << VISIBLE_BITS | visible, level.head_since_ms]);
    }
}

/// Words that follow the first one.
pub(crate) fn words_after(first: u64) -> usize {
    words((first >> 56) as usize) - 1
}

/// `None` where the words are not a whole summary.
pub(crate) fn decode(words: &[u64], summary: &mut BoardSummary) -> Option<()> {
    let [first, version, depth, body_bytes, levels @ ..] = words else { return None };
    let (pairs, rest) = levels.as_chunks::<LEVEL_WORDS>();
    if !rest.is_empty() || pairs.len() != (first >> 56) as usize {
        return None;
    }
    summary.queue = *first as u32;
    summary.shard = (first >> 32) as u16;
    summary.gone = first >> 48 & 1 == 1;
    summary.version = *version;
    summary.depth = *depth;
    summary.body_bytes = *body_bytes;
    summary.levels.clear();
    summary.levels.extend(pairs.iter().map(|[head, since]| BoardLevel {
        level: (head >> VISIBLE_BITS) as u8,
        visible: head & VISIBLE_MASK,
        head_since_ms: *since,
    }));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn level()(level: u8, visible in 0..=VISIBLE_MASK, head_since_ms: u64) -> BoardLevel {
            BoardLevel { level, visible, head_since_ms }
        }
    }

    prop_compose! {
        fn summary()(queue: u32, shard: u16, gone: bool, version: u64, depth: u64, body_bytes: u64,
            levels in proptest::collection::vec(level(), 0..=LEVELS_MAX)) -> BoardSummary {
            BoardSummary { queue, shard, gone, version, depth, body_bytes, levels }
        }
    }

    proptest! {
        #[test]
        fn summaries_survive_their_words(summary in summary()) {
            let (mut encoded, mut decoded) = (Vec::new(), BoardSummary::default());
            encode(&summary, &mut encoded);
            prop_assert_eq!(encoded.len(), words(summary.levels.len()));
            prop_assert_eq!(encoded.len() - 1, words_after(encoded[0]));
            prop_assert_eq!(decode(&encoded, &mut decoded), Some(()));
            prop_assert_eq!(decoded, summary);
        }

        #[test]
        fn any_words_decode_or_fail(words: Vec<u64>) {
            let _ = decode(&words, &mut BoardSummary::default());
        }
    }
}
