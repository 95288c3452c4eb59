//! The mix of levels that the system is designed for: P0..P4 = 2, 8, 20, 30 and 40 of a hundred.

/// Messages of each level in one hundred.
pub const SHARES: [u32; 5] = [2, 8, 20, 30, 40];
/// Messages after which the mix repeats.
pub const PERIOD: usize = 100;

/// The levels of one hundred messages, each level spread evenly over it: always the level that is furthest behind its
/// share.
#[must_use]
pub fn levels() -> [u32; PERIOD] {
    let mut credit = [0i64; SHARES.len()];
    core::array::from_fn(|_| {
        for (credit, share) in credit.iter_mut().zip(SHARES) {
            *credit += i64::from(share);
        }
        let furthest =
            (1..credit.len()).fold(0, |best, level| if credit[level] >= credit[best] { level } else { best });
        credit[furthest] -= PERIOD as i64;
        furthest as u32
    })
}

/// The fewest batches of `size` messages after which the mix repeats.
#[must_use]
pub const fn batches(size: usize) -> usize {
    let (mut a, mut b) = (size, PERIOD);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    PERIOD / a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_messages_hold_the_shares_exactly_and_spread() {
        let levels = levels();
        for (level, share) in SHARES.iter().enumerate() {
            let count = |part: &[u32]| part.iter().filter(|l| **l == level as u32).count() as u32;
            assert_eq!(count(&levels), *share);
            for half in levels.chunks(50) {
                assert!(count(half).abs_diff(share / 2) <= 1, "level {level}");
            }
        }
    }

    #[test]
    fn batches_repeat_with_the_mix() {
        assert_eq!([1, 50, 100, 200, 3, 40, 1_000].map(batches), [100, 2, 1, 1, 100, 5, 1]);
    }
}
