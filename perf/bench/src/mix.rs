//! The mix of levels that the system is designed for: P0..P4 = 2, 8, 20, 30 and 40 of a hundred.

/// Messages of each level in one hundred.
pub const SHARES: [u32; 5] = [2, 8, 20, 30, 40];
/// Messages after which the mix repeats.
pub const PERIOD: usize = 100;

/// The levels of one hundred messages of the mix.
#[must_use]
pub fn levels() -> Vec<u32> {
    spread(&SHARES)
}

/// Levels so that each has its share of every run of `shares.iter().sum()` messages, spread evenly over it: always the
/// level that is furthest behind its share. Empty where all shares are 0.
#[must_use]
pub fn spread(shares: &[u32]) -> Vec<u32> {
    let period: i64 = shares.iter().map(|share| i64::from(*share)).sum();
    let mut credit = vec![0i64; shares.len()];
    let mut next = || {
        for (credit, share) in credit.iter_mut().zip(shares) {
            *credit += i64::from(*share);
        }
        let furthest =
            (1..credit.len()).fold(0, |best, level| if credit[level] >= credit[best] { level } else { best });
        credit[furthest] -= period;
        furthest as u32
    };
    (0..period).map(|_| next()).collect()
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
    fn any_shares_are_held_exactly() {
        let levels = spread(&[1, 0, 3]);
        assert_eq!([0, 1, 2].map(|level| levels.iter().filter(|l| **l == level).count()), [1, 0, 3]);
        assert!(spread(&[0, 0]).is_empty() && spread(&[]).is_empty());
    }

    #[test]
    fn batches_repeat_with_the_mix() {
        assert_eq!([1, 50, 100, 200, 3, 40, 1_000].map(batches), [100, 2, 1, 1, 100, 5, 1]);
    }
}
