//! Aligned columns. Widths are counted in characters of the plain text, colour is laid on afterwards.

use super::style::Style;

/// One cell: its text, and how it is coloured.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
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
        Self { text: text.into(), tone: Tone::Good }
    }

    /// In yellow.
    pub fn warn(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Warn }
    }

    /// In red.
    pub fn bad(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Bad }
    }

    /// Nothing there.
    pub fn none() -> Self {
        Self { text: "-".to_owned(), tone: Tone::Dim }
    }

    fn show(&self, padded: &str, style: Style) -> String {
        match self.tone {
            Tone::Plain => padded.to_owned(),
            Tone::Good => style.green(padded),
            Tone::Warn => style.yellow(padded),
            Tone::Bad => style.red(padded),
            Tone::Dim => style.dim(padded),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

/// A table. A heading that starts with `>` makes its column right-aligned.
#[derive(Debug)]
pub struct Table<const N: usize> {
    headings: [&'static str; N],
    rows: Vec<[Cell; N]>,
}

impl<const N: usize> Table<N> {
    /// An empty table.
    pub fn new(headings: [&'static str; N]) -> Self {
        Self { headings, rows: Vec::new() }
    }

    /// One more row.
    pub fn row(&mut self, cells: [Cell; N]) {
        self.rows.push(cells);
    }

    /// The whole table, a line feed after each line. No rows: no text.
    pub fn render(&self, style: Style) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let width_of = |text: &str| text.chars().count();
        let heading = |column: usize| self.headings[column].trim_start_matches('>');
        let widths: [usize; N] = core::array::from_fn(|column| {
            let cells = self.rows.iter().map(|row| width_of(&row[column].text));
            cells.chain([width_of(heading(column))]).max().unwrap_or(0)
        });
        let line = |show: &dyn Fn(usize) -> (String, Option<Cell>)| {
            let mut line = String::new();
            for (column, width) in widths.iter().copied().enumerate() {
                let (text, cell) = show(column);
                let right = self.headings[column].starts_with('>');
                let padded = if right {
                    format!("{text:>width$}")
                } else if column + 1 == N {
                    text
                } else {
                    format!("{text:<width$}")
                };
                line.push_str(&cell.map_or_else(|| style.bold(&padded), |cell| cell.show(&padded, style)));
                line.push_str(if column + 1 == N { "\n" } else { "  " });
            }
            line
        };
        let mut out = line(&|column| (heading(column).to_owned(), None));
        for row in &self.rows {
            out.push_str(&line(&|column| (row[column].text.clone(), Some(row[column].clone()))));
        }
        out
    }
}

/// Name and value, one a line, values aligned.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    pairs.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_whatever_is_in_them() {
        let mut table = Table::new(["NAME", ">DEPTH", "NOTE"]);
        assert_eq!(table.render(Style::plain()), "");
        table.row(["a".into(), "1,000".into(), "x".into()]);
        table.row(["größe".into(), Cell::none(), "longer".into()]);
        assert_eq!(
            table.render(Style::plain()),
            "NAME   DEPTH  NOTE\na      1,000  x\ngröße      -  longer\n"
        );
    }

    #[test]
    fn colour_does_not_move_columns() {
        let mut table = Table::new(["A", "B"]);
        table.row([Cell::bad("xyz"), "1".into()]);
        let coloured = table.render(Style::decide(true, None, None));
        assert!(coloured.contains("\x1b[31mxyz\x1b[0m  1\n"), "{coloured:?}");
    }
}
