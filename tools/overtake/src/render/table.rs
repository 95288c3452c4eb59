//! Aligned columns that fit the terminal. Widths are counted in characters of the plain text, colour is laid on
//! afterwards.

use super::{View, text};
use std::collections::BTreeSet;

/// What a column with long texts is cut to where the width of the terminal is not known: in a file or a pipe.
const LONG_WIDTH: usize = 100;
/// A column with long texts is made no narrower than this, as long as another column can be left out.
const LONG_WIDTH_MIN: usize = 16;
/// And no narrower than this in any case.
const LONG_WIDTH_LAST: usize = 6;
/// So much of a text is shown at least where something is added to its cut end.
const CUT_WIDTH_MIN: usize = 5;
/// Between two columns.
const GAP: usize = 2;

/// One cell: its text, and how it is coloured.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    /// Added where the text is cut.
    tail: String,
    tone: Tone,
}

#[derive(Clone, Copy, Debug)]
enum Tone {
    Plain,
    Good,
    Warn,
    Bad,
    Dim,
}

impl Cell {
    /// In green.
    pub fn good(text: impl Into<String>) -> Self {
        Self::toned(text, Tone::Good)
    }

    /// In yellow.
    pub fn warn(text: impl Into<String>) -> Self {
        Self::toned(text, Tone::Warn)
    }

    /// In red.
    pub fn bad(text: impl Into<String>) -> Self {
        Self::toned(text, Tone::Bad)
    }

    /// Nothing there.
    pub fn none() -> Self {
        Self::toned("-", Tone::Dim)
    }

    /// A text that says `tail` where it is cut.
    pub fn cut(text: impl Into<String>, tail: impl Into<String>) -> Self {
        Self { tail: tail.into(), ..Self::toned(text, Tone::Plain) }
    }

    fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tail: String::new(), tone }
    }

    fn is_none(&self) -> bool {
        matches!(self.tone, Tone::Dim)
    }

    /// The text in `width` characters at most.
    pub fn fit(&self, width: usize) -> String {
        if width_of(&self.text) <= width {
            return self.text.clone();
        }
        let tail = if width_of(&self.tail) + CUT_WIDTH_MIN <= width { self.tail.as_str() } else { "" };
        text::cut(&self.text, width - width_of(tail)) + tail
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// A column by its heading, with marks in front: `>` aligned to the right; `~` long texts, cut to what the terminal has
/// left; `?` left out where there is no room; `*` left out where it has nothing to show.
#[derive(Clone, Copy, Debug)]
struct Column {
    heading: &'static str,
    right: bool,
    long: bool,
    spare: bool,
    if_any: bool,
}

impl Column {
    fn new(marked: &'static str) -> Self {
        let heading = marked.trim_start_matches(['>', '~', '?', '*']);
        let has = |mark| marked[..marked.len() - heading.len()].contains(mark);
        Self { heading, right: has('>'), long: has('~'), spare: has('?'), if_any: has('*') }
    }
}

/// A table.
#[derive(Debug)]
pub struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<[Cell; N]>,
    headings: bool,
}

impl<const N: usize> Table<N> {
    /// An empty table. A heading's first characters say how its column behaves: see [`Column`].
    pub fn new(headings: [&'static str; N]) -> Self {
        Self { columns: headings.map(Column::new), rows: Vec::new(), headings: true }
    }

    /// One more row.
    pub fn row(&mut self, cells: [Cell; N]) {
        self.rows.push(cells);
    }

    /// Rows only: the table goes on where another one ended.
    pub fn without_headings(mut self) -> Self {
        self.headings = false;
        self
    }

    /// The whole table, a line feed after each line. No rows: no text.
    pub fn render(&self, view: View) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let columns = self.fit(view.width);
        let last = columns.last().map_or(0, |(column, _)| *column);
        let line = |show: &dyn Fn(usize, usize) -> (String, Option<Cell>)| {
            let mut line = String::new();
            for (column, width) in columns.iter().copied() {
                let (text, cell) = show(column, width);
                let padded = if self.columns[column].right {
                    format!("{text:>width$}")
                } else if column == last {
                    text
                } else {
                    format!("{text:<width$}")
                };
                line.push_str(&match cell.map_or(Tone::Plain, |cell| cell.tone) {
                    Tone::Plain => padded,
                    Tone::Good => view.style.green(&padded),
                    Tone::Warn => view.style.yellow(&padded),
                    Tone::Bad => view.style.red(&padded),
                    Tone::Dim => view.style.dim(&padded),
                });
                line.push_str(if column == last { "\n" } else { "  " });
            }
            line
        };
        let mut out = String::new();
        if self.headings {
            let headings = line(&|column, _| (self.columns[column].heading.to_owned(), None));
            out = view.style.bold(headings.trim_end_matches('\n')) + "\n";
        }
        for row in &self.rows {
            out.push_str(&line(&|column, width| (row[column].fit(width), Some(row[column].clone()))));
        }
        out
    }

    /// The columns that are shown, and how wide.
    fn fit(&self, limit: Option<usize>) -> Vec<(usize, usize)> {
        let shown = |column: usize| {
            !self.columns[column].if_any || self.rows.iter().any(|row| !row[column].is_none())
        };
        let mut left_out: BTreeSet<usize> = (0..N).filter(|column| !shown(*column)).collect();
        loop {
            let mut columns: Vec<(usize, usize)> = (0..N)
                .filter(|column| !left_out.contains(column))
                .map(|column| (column, self.natural_width(column, limit)))
                .collect();
            let Some(limit) = limit else { return columns };
            let total: usize = columns.iter().map(|(_, width)| width + GAP).sum();
            let excess = total.saturating_sub(GAP + limit);
            let excess = self.shrink(&mut columns, excess, LONG_WIDTH_MIN);
            match columns.iter().rev().find(|(column, _)| self.columns[*column].spare) {
                Some((spare, _)) if excess > 0 => left_out.insert(*spare),
                _ => {
                    self.shrink(&mut columns, excess, LONG_WIDTH_LAST);
                    return columns;
                }
            };
        }
    }

    fn natural_width(&self, column: usize, limit: Option<usize>) -> usize {
        let cells = self.rows.iter().map(|row| width_of(&row[column].text)).max().unwrap_or(0);
        let cells = if self.columns[column].long && limit.is_none() { cells.min(LONG_WIDTH) } else { cells };
        cells.max(width_of(self.columns[column].heading))
    }

    /// Takes `excess` characters from the columns with long texts, the widest first; gives what is left of it.
    fn shrink(&self, columns: &mut [(usize, usize)], mut excess: usize, width_min: usize) -> usize {
        while excess > 0 {
            let long = columns.iter_mut().filter(|(column, width)| {
                let heading = width_of(self.columns[*column].heading);
                self.columns[*column].long && *width > width_min.max(heading)
            });
            let Some((_, width)) = long.max_by_key(|(_, width)| *width) else { break };
            *width -= 1;
            excess -= 1;
        }
        excess
    }
}

fn width_of(text: &str) -> usize {
    text.chars().count()
}

/// Name and value, one a line, values aligned.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| width_of(name)).max().unwrap_or(0);
    pairs.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;
    use crate::render::style::Style;

    #[test]
    fn columns_align_whatever_is_in_them() {
        let mut table = Table::new(["NAME", ">DEPTH", "NOTE"]);
        assert_eq!(table.render(plain()), "");
        table.row(["a".into(), "1,000".into(), "x".into()]);
        table.row(["größe".into(), Cell::none(), "longer".into()]);
        assert_eq!(table.render(plain()), "NAME   DEPTH  NOTE\na      1,000  x\ngröße      -  longer\n");
        assert_eq!(table.without_headings().render(plain()), "a      1,000  x\ngröße      -  longer\n");
    }

    #[test]
    fn colour_does_not_move_columns() {
        let mut table = Table::new(["A", "B"]);
        table.row([Cell::bad("xyz"), "1".into()]);
        let coloured = table.render(View { style: Style::decide(true, None, None), ..plain() });
        assert!(coloured.contains("\x1b[31mxyz\x1b[0m  1\n"), "{coloured:?}");
    }

    #[test]
    fn a_table_fits_its_terminal() {
        let mut table = Table::new(["ID", "?AGE", "*~HEADERS", "~BODY"]);
        let body = "0123456789".repeat(20);
        table.row(["m_1".into(), "1.5 min".into(), Cell::none(), Cell::cut(&body, " (200 B)")]);
        let at = |width| table.render(View { width, ..plain() });
        let widest = |text: &str| text.lines().map(width_of).max().unwrap_or(0);
        assert_eq!(widest(&at(Some(250))), 3 + 2 + 7 + 2 + 200, "all of it where there is room");
        assert_eq!(at(Some(40)), "ID   AGE      BODY\nm_1  1.5 min  01234567890123456… (200 B)\n");
        assert_eq!(at(Some(22)), "ID   BODY\nm_1  01234567… (200 B)\n", "the age is spare");
        assert_eq!(at(Some(5)), "ID   BODY\nm_1  01234…\n", "no narrower than can be read");
        assert_eq!(widest(&at(None)), 3 + 2 + 7 + 2 + LONG_WIDTH);
        table.row(["m_2".into(), "2 s".into(), "a=b".into(), "x".into()]);
        assert!(table.render(plain()).starts_with("ID   AGE      HEADERS"), "where any row has one");
        for width in 20..260 {
            assert!(widest(&table.render(View { width: Some(width), ..plain() })) <= width, "{width}");
        }
    }
}
