//! Two measurements side by side: what got slower than a bound allows.

use crate::summary::{Total, name_of};
use crate::table::{align, legend, marked, too_few};
use std::collections::BTreeMap;

/// What counts as a regression.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bound {
    /// Growth of a percentile that is still taken, in percent.
    pub max_percent: f64,
    /// Growth that is taken whatever its percentage, in nanoseconds: below it is noise.
    pub ignore_ns: u64,
}

/// One percentile of one tag.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// The tag.
    pub tag: String,
    /// Which percentile.
    pub percentile: f64,
    /// Before, in nanoseconds; none where the tag was not measured.
    pub before_ns: Option<u64>,
    /// After.
    pub after_ns: Option<u64>,
    /// Whether too few values were measured for this percentile, before and after.
    pub few: [bool; 2],
    /// Whether it is worse than the bound allows. What is no longer measured is neither better nor worse, and the same holds
    /// for a percentile of too few values: one of them would decide.
    pub regressed: bool,
}

impl Change {
    fn percent(&self) -> Option<f64> {
        let (before, after) = (self.before_ns? as f64, self.after_ns? as f64);
        (before > 0.0).then(|| (after - before) * 100.0 / before)
    }
}

/// Compares these percentiles of all tags.
#[must_use]
pub fn compare(
    before: &BTreeMap<String, Total>,
    after: &BTreeMap<String, Total>,
    percentiles: &[f64],
    bound: Bound,
) -> Vec<Change> {
    let mut tags: Vec<&String> = before.keys().chain(after.keys()).collect();
    tags.sort();
    tags.dedup();
    let one = |tag: &String, percentile: f64| {
        let value = |totals: &BTreeMap<String, Total>| {
            let values = &totals.get(tag)?.histogram;
            (!values.is_empty()).then(|| values.value_at_percentile(percentile))
        };
        let (before_ns, after_ns) = (value(before), value(after));
        let few = [before, after]
            .map(|totals| totals.get(tag).is_some_and(|total| too_few(total.histogram.len(), percentile)));
        let regressed = match (before_ns, after_ns) {
            (None, _) | (_, None) => false,
            _ if few.contains(&true) => false,
            (Some(before), Some(after)) => {
                let allowed = before as f64 * (1.0 + bound.max_percent / 100.0);
                after as f64 > allowed && after - before > bound.ignore_ns
            }
        };
        Change { tag: tag.clone(), percentile, before_ns, after_ns, few, regressed }
    };
    tags.into_iter().flat_map(|tag| percentiles.iter().map(move |p| one(tag, *p))).collect()
}

/// The changes as a table, in milliseconds.
#[must_use]
pub fn render(changes: &[Change]) -> String {
    let mut cells = vec![["tag", "percentile", "before ms", "after ms", "change", ""].map(str::to_owned)];
    cells.extend(changes.iter().map(|change| {
        let ms = |value: Option<u64>, few| value.map_or_else(|| "-".into(), |ns| marked(ns, few));
        let verdict = match (change.before_ns, change.after_ns) {
            (Some(_), None) => "no longer measured",
            (None, _) => "new",
            _ if change.regressed => "REGRESSION",
            _ if change.few.contains(&true) => "too few values to compare",
            _ => "",
        };
        [
            name_of(&change.tag),
            format!("p{}", change.percentile),
            ms(change.before_ns, change.few[0]),
            ms(change.after_ns, change.few[1]),
            change.percent().map_or_else(String::new, |percent| format!("{percent:+.1} %")),
            verdict.to_owned(),
        ]
    }));
    let table = align(&cells, [true, true, false, false, false, true]);
    let legend = legend(&table);
    table + legend
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlog::histogram;

    fn totals(tags: &[(&str, u64)]) -> BTreeMap<String, Total> {
        let total = |ns: u64| {
            let mut histogram = histogram();
            histogram.saturating_record_n(ns, 1_000);
            Total { histogram, start_ms: 0, end_ms: 1 }
        };
        tags.iter().map(|(tag, ns)| ((*tag).to_owned(), total(*ns))).collect()
    }

    #[test]
    fn a_percentile_of_too_few_values_is_marked_and_no_regression() {
        let (before, after) = (totals(&[("a", 1_000_000)]), totals(&[("a", 9_000_000)]));
        let bound = Bound { max_percent: 10.0, ignore_ns: 0 };
        // Of a thousand values one is above the 99.9th percentile, and none above the 99.99th.
        let changes = compare(&before, &after, &[99.9, 99.99], bound);
        assert_eq!(changes.iter().map(|change| change.regressed).collect::<Vec<_>>(), [true, false]);
        let text = render(&changes);
        let line = text.lines().find(|line| line.contains("p99.99")).unwrap();
        assert!(line.matches('*').count() == 2 && line.ends_with("too few values to compare"), "{text}");
        assert!(text.contains("* the highest value"), "{text}");
    }

    #[test]
    fn only_growth_over_the_bound_is_a_regression() {
        let before =
            totals(&[("a", 1_000_000), ("b", 1_000_000), ("c", 1_000_000), ("gone", 1), ("tiny", 1_000)]);
        let after =
            totals(&[("a", 1_090_000), ("b", 1_200_000), ("c", 500_000), ("new", 9), ("tiny", 3_000)]);
        let bound = Bound { max_percent: 10.0, ignore_ns: 5_000 };
        let changes = compare(&before, &after, &[99.0], bound);
        let regressed: Vec<_> = changes.iter().filter(|c| c.regressed).map(|c| c.tag.as_str()).collect();
        assert_eq!(regressed, ["b"]);
        let text = render(&changes);
        assert!(
            text.lines().any(|l| l.starts_with("b ") && l.contains("+20.0 %") && l.ends_with("REGRESSION")),
            "{text}"
        );
        assert!(text.lines().any(|l| l.starts_with("gone") && l.ends_with("no longer measured")), "{text}");
        assert!(text.lines().any(|l| l.starts_with("c ") && l.ends_with("-50.0 %")), "{text}");
        assert!(compare(&before, &before, &[50.0, 99.0], bound).iter().all(|c| !c.regressed));
    }
}
