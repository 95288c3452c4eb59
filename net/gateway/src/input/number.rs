//! JSON numbers of any size, compared with a range exactly.
//!
//! A number is refused because it is out of range or not whole, never because it does not fit some machine type: so
//! the text is read as a decimal, not through `f64`.

/// A JSON number, multiplied by a power of ten and cut to its whole part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scaled {
    /// True below zero.
    negative: bool,
    /// The whole part without its sign; `u128::MAX` stands for everything too large.
    whole: u128,
    /// Nothing was cut off.
    exact: bool,
    /// What was cut off is a half or more.
    half_or_more: bool,
}

/// More whole digits than this are "too large": every range of the contract ends far below.
const DIGITS_MAX: i64 = 36;

impl Scaled {
    /// Reads `text`, a number that JSON's grammar allows, times 10^`scale`. `None` where it is no number.
    pub(crate) fn parse(text: &str, scale: i64) -> Option<Self> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (int, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = || int.bytes().chain(fraction.bytes()).skip_while(|d| *d == b'0');
        if !digits().all(|d| d.is_ascii_digit()) {
            return None;
        }
        let count = digits().count() as i64;
        if count == 0 {
            return Some(Self { negative: false, whole: 0, exact: true, half_or_more: false });
        }
        // The digits are d₁d₂…; the decimal point stands after the `point`-th of them.
        let point =
            (count - fraction.len() as i64).saturating_add(exponent_of(exponent)?).saturating_add(scale);
        if point > DIGITS_MAX {
            return Some(Self { negative, whole: u128::MAX, exact: true, half_or_more: false });
        }
        let whole_digits = point.max(0) as usize;
        let whole = digits()
            .chain(core::iter::repeat(b'0'))
            .take(whole_digits)
            .fold(0u128, |whole, digit| whole * 10 + u128::from(digit - b'0'));
        let exact = digits().skip(whole_digits).all(|d| d == b'0');
        let half_or_more = point >= 0 && digits().nth(whole_digits).is_some_and(|d| d >= b'5');
        Some(Self { negative, whole, exact, half_or_more })
    }

    /// The value, where it is whole and in `low..=high`.
    pub(crate) fn whole_in(self, low: u64, high: u64) -> Option<u64> {
        if self.exact { self.rounded_in(low, high) } else { None }
    }

    /// The value rounded to the nearest whole, where it is in `low..=high` before rounding.
    pub(crate) fn rounded_in(self, low: u64, high: u64) -> Option<u64> {
        let below_high = self.whole < u128::from(high) || (self.whole == u128::from(high) && self.exact);
        if self.negative || self.whole < u128::from(low) || !below_high {
            return None;
        }
        u64::try_from(self.whole + u128::from(self.half_or_more)).ok()
    }

    /// True for anything above zero, however small.
    pub(crate) fn is_positive(self) -> bool {
        !self.negative && (self.whole > 0 || !self.exact)
    }
}

/// The exponent; what does not fit becomes the largest or smallest one, which is as good for a comparison.
fn exponent_of(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|d| d.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse().unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    Some(if negative { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &str) -> Option<u64> {
        Scaled::parse(text, 0).and_then(|n| n.whole_in(1, 1_000))
    }

    #[test]
    fn whole_numbers_have_many_spellings() {
        for (text, value) in
            [("1", 1), ("10e1", 100), ("1.0", 1), ("1000.000", 1_000), ("0.05E+2", 5), ("700e-2", 7)]
        {
            assert_eq!(whole(text), Some(value), "{text}");
        }
        for text in
            ["0", "-0", "-1", "1.5", "1001", "1000.0001", "1e99", "1e-99", "1e99999999999999999999", "0.999"]
        {
            assert_eq!(whole(text), None, "{text}");
        }
        for text in ["", "-", "x", "1x", "1e", "1e+", "NaN", ".5"] {
            assert_eq!(Scaled::parse(text, 0), None, "{text}");
        }
    }

    #[test]
    fn ranges_are_checked_before_rounding() {
        let fraction = |text| Scaled::parse(text, 6).and_then(|n| n.rounded_in(0, 500_000));
        assert_eq!(fraction("0.1"), Some(100_000));
        assert_eq!(fraction("0.5"), Some(500_000));
        assert_eq!(fraction("0.50000000000000000000000000000000001"), None);
        assert_eq!(fraction("0.4999999999"), Some(500_000));
        assert_eq!(fraction("0.0000004"), Some(0));
        assert_eq!(fraction("5e-7"), Some(1));
        assert_eq!(fraction("-0.1"), None);
        assert!(Scaled::parse("1e-400", 6).is_some_and(Scaled::is_positive));
        assert!(!Scaled::parse("0e5", 6).is_some_and(Scaled::is_positive));
    }

    proptest! {
        #[test]
        fn every_u64_survives(value: u64) {
            let number = Scaled::parse(&value.to_string(), 0).unwrap();
            prop_assert_eq!(number.whole_in(0, u64::MAX), Some(value));
        }

        #[test]
        fn decimals_round_like_the_sum_of_their_parts(int in 0u64..1_000_000, micro in 0u64..1_000_000, rest in 0u32..1_000) {
            let text = format!("{int}.{micro:06}{rest:03}");
            let want = int * 1_000_000 + micro + u64::from(rest >= 500);
            prop_assert_eq!(Scaled::parse(&text, 6).unwrap().rounded_in(0, u64::MAX), Some(want));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.eE]{0,12}", scale in 0i64..7) {
            let _ = Scaled::parse(&text, scale);
        }
    }
}
