//! Answers made readable: pure functions from values to text. No clock, no terminal in here; both are arguments.

pub mod dlq;
pub mod messages;
pub mod nodes;
pub mod queues;
pub mod stats;
pub mod style;
pub mod table;
pub mod text;
pub mod units;

use overtake_base::UnixMillis;
use style::Style;

/// What a rendering depends on besides the values.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Ages are told from here.
    pub now: UnixMillis,
    /// Colour or none.
    pub style: Style,
    /// Characters of a line, where a terminal has so many.
    pub width: Option<usize>,
}

/// The line under a page that does not end the list.
pub fn more(next: Option<&str>, view: View) -> String {
    next.map_or_else(String::new, |cursor| {
        view.style.dim(&format!("more: add --after {}\n", text::one_line(cursor)))
    })
}

#[cfg(test)]
pub(crate) fn plain() -> View {
    View { now: UnixMillis(1_900_000_000_000), style: Style::plain(), width: None }
}
