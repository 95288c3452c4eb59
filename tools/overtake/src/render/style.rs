//! Colour, only where a person looks: on a terminal, unless `NO_COLOR` is set or the terminal is dumb.

/// Whether to colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Never colours.
    #[cfg(test)]
    pub const fn plain() -> Self {
        Self { colour: false }
    }

    /// Decides from what the environment says. `no_color` and `term`: the variables of these names.
    pub fn decide(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let refused = no_color.is_some_and(|value| !value.is_empty()) || term == Some("dumb");
        Self { colour: is_terminal && !refused }
    }

    /// Headings.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Side remarks.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Good.
    pub fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// To be looked at.
    pub fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// Bad.
    pub fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_needs_a_willing_terminal() {
        let coloured = |style: Style| style.red("x") != "x";
        assert!(coloured(Style::decide(true, None, Some("xterm"))));
        assert!(coloured(Style::decide(true, Some(""), None)), "an empty NO_COLOR does not count");
        assert!(!coloured(Style::decide(false, None, Some("xterm"))));
        assert!(!coloured(Style::decide(true, Some("1"), Some("xterm"))));
        assert!(!coloured(Style::decide(true, None, Some("dumb"))));
    }
}
