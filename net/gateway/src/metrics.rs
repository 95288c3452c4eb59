//! The Prometheus text format (version 0.0.4).

use core::fmt::Write as _;
use overtake_wire::message::Metric;
use std::collections::BTreeMap;

/// Media type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The values as text: all samples of a name together, after its `HELP` and `TYPE`.
pub(crate) fn text(values: &[Metric]) -> String {
    let mut families: BTreeMap<String, Vec<&Metric>> = BTreeMap::new();
    for value in values {
        families.entry(allowed(&value.name, true)).or_default().push(value);
    }
    let mut text = String::new();
    for (name, samples) in &families {
        let kind = if samples.iter().all(|sample| sample.counter) { "counter" } else { "gauge" };
        let words = name.strip_prefix("overtake_").unwrap_or(name).replace('_', " ");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} Overtake: {words}\n# TYPE {name} {kind}");
        for sample in samples {
            let _ = writeln!(text, "{name}{} {}", labels(&sample.labels), number(sample.value));
        }
    }
    text
}

/// The name with every character that is not allowed made `_`. Colons are for names only, not for labels.
fn allowed(name: &str, colon: bool) -> String {
    let allowed = |at: usize, c: char| {
        c.is_ascii_alphabetic() || c == '_' || (colon && c == ':') || (at > 0 && c.is_ascii_digit())
    };
    let name: String = name.chars().enumerate().map(|(at, c)| if allowed(at, c) { c } else { '_' }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

fn labels(labels: &[(String, String)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<String> = labels
        .iter()
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{}=\"{value}\"", allowed(name, false))
        })
        .collect();
    format!("{{{}}}", pairs.join(","))
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str, labels: &[(&str, &str)], value: f64, counter: bool) -> Metric {
        let labels = labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Metric { name: name.to_owned(), labels, value, counter }
    }

    #[test]
    fn families_stand_together_with_help_and_type() {
        let values = [
            metric("overtake_acked_total", &[("queue", "a\"b\\c\nd"), ("level", "0")], 3.0, true),
            metric("overtake_depth", &[], 1.5, false),
            metric("overtake_acked_total", &[("queue", "z")], 1e15, true),
            metric("1bad-name", &[("la:bel", "ok")], f64::INFINITY, false),
        ];
        let want = "# HELP _bad_name Overtake:  bad name\n# TYPE _bad_name gauge\n_bad_name{la_bel=\"ok\"} +Inf\n\
            # HELP overtake_acked_total Overtake: acked total\n# TYPE overtake_acked_total counter\n\
            overtake_acked_total{queue=\"a\\\"b\\\\c\\nd\",level=\"0\"} 3\n\
            overtake_acked_total{queue=\"z\"} 1000000000000000\n\
            # HELP overtake_depth Overtake: depth\n# TYPE overtake_depth gauge\novertake_depth 1.5\n";
        assert_eq!(text(&values), want);
        assert_eq!(text(&[]), "");
        assert_eq!((number(f64::NAN), number(f64::NEG_INFINITY)), ("NaN".to_owned(), "-Inf".to_owned()));
    }
}
