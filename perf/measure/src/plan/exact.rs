//! Whole fractions, so that a plan's arithmetic is the same on every machine and can be done again by hand.

use core::fmt;
use core::str::FromStr;

/// Most digits before and after the point of a number that is given.
const DIGITS_MAX: (usize, usize) = (15, 6);

/// A fraction of whole numbers, not negative, in lowest terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exact {
    above: u128,
    below: u128,
}

const fn common(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Exact {
    /// A whole number.
    #[must_use]
    pub const fn whole(number: u128) -> Self {
        Self { above: number, below: 1 }
    }

    /// `above / below`; zero where `below` is.
    #[must_use]
    pub const fn ratio(above: u128, below: u128) -> Self {
        let common = common(above, below);
        if below == 0 || common == 0 {
            Self::whole(0)
        } else {
            Self { above: above / common, below: below / common }
        }
    }

    /// What was measured, to three decimals.
    #[must_use]
    pub fn measured(value: f64) -> Self {
        Self::ratio((value.clamp(0.0, 1e18) * 1e3).round() as u128, 1_000)
    }

    /// The product. Bounds of what is given keep it far below the largest number.
    #[must_use]
    pub const fn times(self, other: Self) -> Self {
        // Reduced crosswise first, so that the products stay small.
        let (left, right) = (Self::ratio(self.above, other.below), Self::ratio(other.above, self.below));
        Self { above: left.above.saturating_mul(right.above), below: left.below.saturating_mul(right.below) }
    }

    /// The quotient; zero where `other` is.
    #[must_use]
    pub const fn over(self, other: Self) -> Self {
        if other.above == 0 {
            Self::whole(0)
        } else {
            self.times(Self { above: other.below, below: other.above })
        }
    }

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        let above =
            self.above.saturating_mul(other.below).saturating_add(other.above.saturating_mul(self.below));
        Self::ratio(above, self.below.saturating_mul(other.below))
    }

    /// The difference; none where `other` is more.
    #[must_use]
    pub const fn minus(self, other: Self) -> Option<Self> {
        let above = self.above.saturating_mul(other.below);
        match above.checked_sub(other.above.saturating_mul(self.below)) {
            Some(above) => Some(Self::ratio(above, self.below.saturating_mul(other.below))),
            None => None,
        }
    }

    /// The next whole number.
    #[must_use]
    pub const fn up(self) -> u128 {
        self.above.div_ceil(self.below)
    }

    /// The nearest whole number, halves up, of which only so many digits are told; the rest are zeros.
    #[must_use]
    pub fn about(self, digits: u32) -> u128 {
        let whole = self.above / self.below;
        let unit = 10u128.pow((whole.max(1).ilog10() + 1).saturating_sub(digits));
        let half = self.plus(Self::ratio(unit, 2));
        half.above / half.below / unit * unit
    }

    /// As a floating number.
    #[must_use]
    pub fn float(self) -> f64 {
        self.above as f64 / self.below as f64
    }
}

impl FromStr for Exact {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            let (before, after) = DIGITS_MAX;
            format!(
                "{text:?} is not a number like 4 or 0.25, with up to {before} digits before and {after} after the point"
            )
        };
        let (number, percent) = text.strip_suffix('%').map_or((text, false), |number| (number, true));
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let fits = (1..=DIGITS_MAX.0).contains(&whole.len()) && decimals.len() <= DIGITS_MAX.1;
        let digits = format!("{whole}{decimals}");
        if !fits || number.ends_with('.') || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(expected());
        }
        let above = digits.parse().map_err(|_| expected())?;
        let below = 10u128.pow(decimals.len() as u32) * if percent { 100 } else { 1 };
        Ok(Self::ratio(above, below))
    }
}

impl fmt::Display for Exact {
    /// With up to three decimals, as few as will do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousandths = self.times(Self::whole(1_000)).plus(Self::ratio(1, 2));
        let thousandths = thousandths.above / thousandths.below;
        let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(text: &str) -> Exact {
        text.parse().unwrap()
    }

    #[test]
    fn numbers_are_read_and_shown() {
        for text in ["0", "4", "0.1", "3.2", "1200000000", "0.125"] {
            assert_eq!(exact(text).to_string(), text);
        }
        assert_eq!((exact("20%"), exact("0.0004").to_string()), (Exact::ratio(1, 5), "0".into()));
        for bad in ["", ".", "1.", "-1", "1e9", "x", "1,5", "1.1234567", "1234567890123456", "%", "é", "+1"]
        {
            assert!(bad.parse::<Exact>().is_err(), "{bad}");
        }
    }

    #[test]
    fn arithmetic_is_exact() {
        let third = Exact::ratio(1, 3);
        assert_eq!(third.plus(third).plus(third), Exact::whole(1));
        assert_eq!(exact("0.1").times(exact("3")), exact("0.3"));
        assert_eq!(exact("1").over(exact("0")), Exact::whole(0));
        assert_eq!((exact("2.1").up(), exact("2").up()), (3, 2));
        assert_eq!(Exact::measured(1.23456), Exact::ratio(1_235, 1_000));
    }

    #[test]
    fn about_keeps_so_many_digits() {
        let about = |text: &str, digits| exact(text).about(digits);
        assert_eq!(
            (about("13888.888888", 3), about("55555.555555", 2), about("35000000", 1)),
            (13_900, 56_000, 40_000_000)
        );
        assert_eq!((about("0", 2), about("0.4", 2), about("9.6", 1), about("996", 2)), (0, 0, 10, 1_000));
    }
}
