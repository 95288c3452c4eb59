//! Plots of logs: percentile curves on an axis of nines, a percentile over time, the rate over time; one log or several on
//! top of each other.

use crate::chart::{Anchor, Color, Letters, Picture, Shape};
use crate::encoding::EncodedHistogram;
use crate::hlog::Log;
use crate::summary::{name_of, totals};
use hdrhistogram::Histogram;

const WIDTH: f32 = 1_140.0;
const CHART_HEIGHT: f32 = 420.0;
const LEFT: f32 = 84.0;
const LEGEND: f32 = 330.0;
const TOP: f32 = 62.0;
const BOTTOM: f32 = 52.0;
const LEGEND_ROW: f32 = 20.0;
const TEXT: Color = Color(0x22, 0x22, 0x22);
const GRID: Color = Color(0xdd, 0xdd, 0xdd);
const AXIS: Color = Color(0x55, 0x55, 0x55);
/// Colours that people tell apart who do not see all of them.
const COLORS: [Color; 8] = [
    Color(0x00, 0x72, 0xb2),
    Color(0xd5, 0x5e, 0x00),
    Color(0x00, 0x9e, 0x73),
    Color(0xcc, 0x79, 0xa7),
    Color(0x56, 0xb4, 0xe9),
    Color(0xe6, 0x9f, 0x00),
    Color(0x33, 0x33, 0x33),
    Color(0x99, 0x66, 0x33),
];
/// Values further apart than this are drawn on a logarithmic axis.
const LINEAR_SPAN_MAX: f64 = 20.0;
/// Most lines of one chart.
pub const LINES_MAX: usize = 48;
/// Nines of the axis, at most.
const NINES_MAX: f64 = 6.0;

/// A log with the name it has in the legend.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Name.
    pub name: &'a str,
    /// Log.
    pub log: &'a Log,
}

/// What to draw.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Latency by percentile, all time together.
    Percentiles,
    /// This percentile of each interval.
    OverTime(f64),
    /// Values a second, of each interval.
    Rate,
}

/// One line of a chart.
struct Line {
    name: String,
    color: Color,
    style: usize,
    /// More than one where nothing was measured in between.
    parts: Vec<Vec<(f64, f64)>>,
}

/// An axis: from where to where, and what is written at which places.
struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
    title: &'static str,
}

impl Axis {
    /// Where a value lies, from 0 to 1.
    fn part(&self, value: f64) -> f64 {
        let place = |value: f64| if self.logarithmic { value.max(self.from).log10() } else { value };
        let (from, to) = (place(self.from), place(self.to));
        ((place(value) - from) / (to - from)).clamp(0.0, 1.0)
    }
}

/// Draws the charts below each other.
///
/// # Errors
/// Where there is nothing to draw, or too much.
pub fn plot(logs: &[Named<'_>], kinds: &[Kind], title: &str) -> Result<Picture, String> {
    let mut picture = Picture { width: WIDTH, height: CHART_HEIGHT * kinds.len() as f32, shapes: vec![] };
    for (kind, number) in kinds.iter().zip(0u16..) {
        let lines = lines(logs, *kind)?;
        if lines.iter().all(|line| line.parts.is_empty()) {
            return Err("there is nothing to draw: no values under these tags".into());
        }
        if lines.len() > LINES_MAX {
            return Err(format!(
                "{} lines are too many to tell apart, {LINES_MAX} at most: choose with --tag",
                lines.len()
            ));
        }
        let (heading, x, y) = axes(&lines, *kind);
        let heading = if title.is_empty() { heading } else { format!("{title}: {heading}") };
        draw(&mut picture.shapes, f32::from(number) * CHART_HEIGHT, &heading, &lines, &x, &y);
    }
    Ok(picture)
}

fn lines(logs: &[Named<'_>], kind: Kind) -> Result<Vec<Line>, String> {
    let all = logs.iter().map(|named| totals(named.log)).collect::<Result<Vec<_>, _>>()?;
    let mut tags: Vec<&String> = all.iter().flat_map(|totals| totals.keys()).collect();
    tags.sort();
    tags.dedup();
    let mut lines = Vec::new();
    for (index, (named, totals)) in logs.iter().zip(&all).enumerate() {
        for (tag_index, tag) in tags.iter().enumerate() {
            let Some(total) = totals.get(*tag) else { continue };
            let parts = match kind {
                Kind::Percentiles => by_percentile(&total.histogram),
                Kind::OverTime(percentile) => over_time(named.log, tag, None, |values, _| {
                    Ok(values.decode()?.value_at_percentile(percentile) as f64 / 1e6)
                })?,
                Kind::Rate => over_time(named.log, tag, Some(0.0), |values, length_s| {
                    Ok(values.len() as f64 / length_s)
                })?,
            };
            let name = match logs.len() {
                1 => name_of(tag),
                _ => format!("{} {}", named.name, name_of(tag)),
            };
            // With several logs and one tag, colours tell the logs apart; else tags, and styles the logs.
            let color = if tags.len() == 1 { index } else { tag_index };
            let color = COLORS[color % COLORS.len()];
            lines.push(Line { name, color, style: index, parts });
        }
    }
    Ok(lines)
}

/// Nines and milliseconds.
fn by_percentile(values: &Histogram<u64>) -> Vec<Vec<(f64, f64)>> {
    if values.is_empty() {
        return vec![];
    }
    // Beyond one in all values there is nothing but the largest.
    let last = (values.len() as f64).log10().min(NINES_MAX);
    let at = |nines: f64| values.value_at_quantile(1.0 - 10f64.powf(-nines)) as f64 / 1e6;
    let steps = (last / 0.02) as u32;
    let mut points: Vec<(f64, f64)> =
        (0..=steps).map(|step| f64::from(step) * 0.02).map(|n| (n, at(n))).collect();
    points.push((
        last,
        values.max().min(if last < NINES_MAX { u64::MAX } else { (at(last) * 1e6) as u64 }) as f64 / 1e6,
    ));
    vec![points]
}

/// Seconds from the start of the log, and a value of each interval. Where nothing was measured for a while the line goes to
/// the value for nothing, and is broken where there is none.
fn over_time(
    log: &Log,
    tag: &str,
    nothing: Option<f64>,
    value: impl Fn(&EncodedHistogram, f64) -> Result<f64, String>,
) -> Result<Vec<Vec<(f64, f64)>>, String> {
    let start_ms = log.intervals.iter().map(|interval| interval.start_ms).min().unwrap_or(0);
    let of_tag = log.intervals.iter().filter(|i| i.tag == tag && !i.histogram.is_empty() && i.length_ms > 0);
    let mut of_tag: Vec<_> = of_tag.collect();
    of_tag.sort_by_key(|interval| interval.start_ms);
    // A tag of which nothing happened has no interval: half of one that is missing is no scatter of their lengths.
    let hole_ms = of_tag.iter().map(|interval| interval.length_ms).max().unwrap_or(0) / 2;
    let (mut parts, mut end_ms) = (Vec::new(), start_ms);
    for interval in of_tag {
        let seconds = |at_ms: u64| (at_ms - start_ms) as f64 / 1e3;
        if parts.is_empty() {
            parts.push(Vec::new());
        } else if interval.start_ms > end_ms.saturating_add(hole_ms) {
            match (nothing, parts.last_mut()) {
                (Some(nothing), Some(part)) => {
                    part.extend([(seconds(end_ms), nothing), (seconds(interval.start_ms), nothing)]);
                }
                _ => parts.push(Vec::new()),
            }
        }
        end_ms = end_ms.max(interval.end_ms());
        let middle_s = seconds(interval.start_ms) + interval.length_ms as f64 / 2e3;
        let point = (middle_s, value(&interval.histogram, interval.length_ms as f64 / 1e3)?);
        parts.last_mut().into_iter().for_each(|part| part.push(point));
    }
    Ok(parts)
}

fn axes(lines: &[Line], kind: Kind) -> (String, Axis, Axis) {
    let points = || lines.iter().flat_map(|line| &line.parts).flatten();
    let largest = |of: &dyn Fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
    let x_to = largest(&|p| p.0);
    match kind {
        Kind::Percentiles => ("latency by percentile".into(), nines_axis(x_to), value_axis(lines, "ms")),
        Kind::OverTime(percentile) => (
            format!("p{percentile} of each interval"),
            linear_axis(0.0, x_to, "seconds"),
            value_axis(lines, "ms"),
        ),
        Kind::Rate => {
            let y = linear_axis(0.0, largest(&|p| p.1), "per second");
            ("rate of each interval".into(), linear_axis(0.0, x_to, "seconds"), y)
        }
    }
}

fn nines_axis(to: f64) -> Axis {
    let to = to.max(1.0);
    let mut ticks = vec![(0.0, "0".to_owned()), (0.5f64.log10().abs(), "50".to_owned())];
    for nines in 1..=to.floor() as usize {
        let label = if nines <= 2 { "9".repeat(nines) } else { format!("99.{}", "9".repeat(nines - 2)) };
        ticks.push((nines as f64, if nines == 1 { "90".into() } else { label }));
    }
    Axis { from: 0.0, to, logarithmic: false, ticks, title: "percentile" }
}

/// An axis of what is measured: linear from 0, or logarithmic where values are far apart.
fn value_axis(lines: &[Line], title: &'static str) -> Axis {
    let values = || {
        lines.iter().flat_map(|line| &line.parts).flatten().map(|point| point.1).filter(|value| *value > 0.0)
    };
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if most <= least * LINEAR_SPAN_MAX || !least.is_finite() {
        return linear_axis(0.0, most, title);
    }
    // From and to a step of 1, 2 or 5 that holds all values; steps of 1 alone where there are many.
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let steps = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
    let steps: Vec<f64> = steps.collect();
    let first = steps.iter().rposition(|step| *step <= least).unwrap_or(0);
    let last = steps.iter().position(|step| *step >= most).unwrap_or(steps.len() - 1);
    let few = last - first <= 12;
    let ticks =
        (first..=last).filter(|at| few || at.is_multiple_of(3)).map(|at| (steps[at], number(steps[at])));
    Axis { from: steps[first], to: steps[last], logarithmic: true, ticks: ticks.collect(), title }
}

fn linear_axis(from: f64, to: f64, title: &'static str) -> Axis {
    let to = if to > from { to } else { from + 1.0 };
    let rough = (to - from) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(rough);
    let count = ((to - from) / step).ceil() as u32;
    let ticks = (0..=count).map(|n| from + f64::from(n) * step).map(|value| (value, number(value))).collect();
    Axis { from, to: from + f64::from(count) * step, logarithmic: false, ticks, title }
}

/// A number without needless digits.
fn number(value: f64) -> String {
    if value >= 10_000.0 && (value / 1e3).fract() == 0.0 {
        return format!("{}k", value / 1e3);
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn draw(shapes: &mut Vec<Shape>, top: f32, heading: &str, lines: &[Line], x: &Axis, y: &Axis) {
    let (left, right) = (LEFT, WIDTH - LEGEND);
    let (upper, lower) = (top + TOP, top + CHART_HEIGHT - BOTTOM);
    let place_x = |value: f64| left + (right - left) * x.part(value) as f32;
    let place_y = |value: f64| lower - (lower - upper) * y.part(value) as f32;
    let text = |x, y, text: &str, letters, anchor| Shape::Text {
        x,
        y,
        text: text.to_owned(),
        letters,
        color: TEXT,
        anchor,
    };
    let line = |points, color, width| Shape::Line { points, color, width, style: 0 };
    shapes.push(text(left, top + 22.0, heading, Letters::Title, Anchor::Start));
    for (value, label) in &x.ticks {
        let at = place_x(*value);
        shapes.push(line(vec![(at, upper), (at, lower)], GRID, 1.0));
        shapes.push(text(at, lower + 14.0, label, Letters::Normal, Anchor::Middle));
    }
    for (value, label) in &y.ticks {
        let at = place_y(*value);
        shapes.push(line(vec![(left, at), (right, at)], GRID, 1.0));
        shapes.push(text(left - 8.0, at, label, Letters::Normal, Anchor::End));
    }
    shapes.push(line(vec![(left, upper), (left, lower), (right, lower)], AXIS, 1.2));
    shapes.push(text(left - 8.0, upper - 16.0, y.title, Letters::Normal, Anchor::End));
    shapes.push(text(f32::midpoint(left, right), lower + 34.0, x.title, Letters::Normal, Anchor::Middle));
    let row = LEGEND_ROW.min((lower - upper) / lines.len().max(1) as f32);
    for (index, series) in lines.iter().enumerate() {
        let drawn = |points| Shape::Line { points, color: series.color, width: 2.0, style: series.style };
        for part in &series.parts {
            shapes.push(drawn(part.iter().map(|(x, y)| (place_x(*x), place_y(*y))).collect()));
        }
        let at = upper + row * (index as f32 + 0.5);
        shapes.push(drawn(vec![(right + 16.0, at), (right + 46.0, at)]));
        let room = ((LEGEND - 60.0) / Letters::Normal.width()) as usize;
        shapes.push(text(right + 54.0, at, &shortened(&series.name, room), Letters::Normal, Anchor::Start));
    }
}

/// A name that fits; its end tells more than its start.
fn shortened(name: &str, room: usize) -> String {
    let count = name.chars().count();
    if count <= room {
        name.to_owned()
    } else {
        format!("..{}", name.chars().skip(count - room + 2).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlog::{Interval, histogram};

    fn log(tags: &[&str], scale: u64) -> Log {
        let mut intervals = Vec::new();
        for second in 0..5 {
            for (index, tag) in tags.iter().enumerate() {
                let mut histogram = histogram();
                for n in 1..1_000 {
                    histogram.saturating_record(n * n * scale * (index as u64 + 1));
                }
                intervals.push(Interval {
                    tag: (*tag).into(),
                    start_ms: second * 1_000,
                    length_ms: 1_000,
                    histogram: EncodedHistogram::new(&histogram).unwrap(),
                });
            }
        }
        Log { intervals, ..Log::default() }
    }

    fn svg(logs: &[&Log], kind: Kind) -> String {
        let named: Vec<_> = logs.iter().zip(["a", "b"]).map(|(log, name)| Named { name, log }).collect();
        plot(&named, &[kind], "test").unwrap().to_svg()
    }

    #[test]
    fn axes_have_titles_units_and_nines() {
        let log = log(&["enqueue", "deliver.P0"], 1_000);
        let percentiles = svg(&[&log], Kind::Percentiles);
        for text in [
            "test: latency by percentile",
            ">percentile<",
            ">ms<",
            ">50<",
            ">90<",
            ">99<",
            ">99.9<",
            ">enqueue<",
        ] {
            assert!(percentiles.contains(text), "{text} in {percentiles}");
        }
        assert!(svg(&[&log], Kind::OverTime(99.0)).contains("p99 of each interval"));
        assert!(svg(&[&log], Kind::Rate).contains("per second"));
    }

    #[test]
    fn two_logs_are_told_apart() {
        let (before, after) = (log(&["x", "y"], 1_000), log(&["x", "y"], 5_000));
        let both = svg(&[&before, &after], Kind::Percentiles);
        assert!(both.contains(">a x<") && both.contains(">b y<"));
        assert_eq!(both.matches("stroke-dasharray").count(), 4, "two lines and their two samples");
    }

    #[test]
    fn each_of_six_logs_has_a_style_and_each_tag_its_colour() {
        let log = log(&["x", "y"], 1_000);
        let named = ["a", "b", "c", "d", "e", "f"].map(|name| Named { name, log: &log });
        let svg = plot(&named, &[Kind::Percentiles], "").unwrap().to_svg();
        let dash = |line: &str| line.split("stroke-dasharray=").nth(1).map(str::to_owned);
        let drawn = svg.lines().filter(|line| line.contains("stroke-width=\"2\""));
        let styles: std::collections::BTreeSet<_> = drawn.map(dash).collect();
        assert_eq!(styles.len(), 6, "{styles:?}");
        let colors = lines(&named, Kind::Rate).unwrap();
        assert!(colors.chunks(2).all(|of_log| of_log[0].color == COLORS[0] && of_log[1].color == COLORS[1]));
    }

    #[test]
    fn an_outage_is_seen() {
        let mut outage = log(&["x"], 1_000);
        outage.intervals.retain(|interval| ![2_000, 3_000].contains(&interval.start_ms));
        let named = [Named { name: "a", log: &outage }];
        let parts = |kind| lines(&named, kind).unwrap().remove(0).parts;
        let rate = parts(Kind::Rate);
        assert_eq!(rate, [[(0.5, 999.0), (1.5, 999.0), (2.0, 0.0), (4.0, 0.0), (4.5, 999.0)]]);
        let times: Vec<Vec<f64>> = parts(Kind::OverTime(99.0))
            .iter()
            .map(|part| part.iter().map(|point| point.0).collect())
            .collect();
        assert_eq!(times, [vec![0.5, 1.5], vec![4.5]]);
        // A point by itself is drawn, too.
        assert!(svg(&[&outage], Kind::OverTime(99.0)).contains("<circle"));
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        assert!(
            plot(&[Named { name: "a", log: &Log::default() }], &[Kind::Rate], "")
                .unwrap_err()
                .contains("nothing to draw")
        );
        let tags: Vec<String> = (0..60).map(|n| format!("tag{n}")).collect();
        let many = log(&tags.iter().map(String::as_str).collect::<Vec<_>>(), 1);
        assert!(
            plot(&[Named { name: "a", log: &many }], &[Kind::Rate], "")
                .unwrap_err()
                .contains("choose with --tag")
        );
    }

    #[test]
    fn axes_hold_their_values() {
        for to in [0.003, 0.9, 1.0, 7.0, 99.0, 12_345.0] {
            let axis = linear_axis(0.0, to, "x");
            assert!(
                axis.to >= to && axis.ticks.len() >= 4 && axis.ticks.len() <= 9,
                "{to}: {:?}",
                axis.ticks
            );
        }
        assert_eq!([0.05, 5.0, 2_500.0, 20_000.0].map(number), ["0.05", "5", "2500", "20k"]);
        assert_eq!(shortened("abcdef", 5), "..def");
    }
}
