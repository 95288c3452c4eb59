//! As much of Rust as the rules need: tokens with their lines, without comments and literals, and without what is
//! compiled for tests only.

/// A token: an identifier (or number), a lifetime, or one character of punctuation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token<'a> {
    /// Its text.
    pub text: &'a str,
    /// Its line, from 1.
    pub line: usize,
}

/// The tokens of a source. Literals of text and characters become `""`.
#[must_use]
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let (mut at, mut line) = (0, 1);
    let mut out = Vec::new();
    while at < bytes.len() {
        let rest = &source[at..];
        let (length, token) = next_token(rest);
        if let Some(text) = token {
            out.push(Token { text, line });
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    out
}

/// Length of what stands first in `rest` (never 0), and its token if it is one.
fn next_token(rest: &str) -> (usize, Option<&str>) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), None);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), None);
    }
    if let Some(length) = text_literal(rest) {
        return (length, Some("\"\""));
    }
    let first = rest.chars().next().unwrap_or(' ');
    if first == '\'' {
        return quote(rest);
    }
    if is_word(first) {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        return (length, Some(&rest[..length]));
    }
    let length = first.len_utf8();
    (length, (!first.is_whitespace()).then(|| &rest[..length]))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Length of a string literal of any kind that starts here.
fn text_literal(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|r| r.trim_start_matches('#').starts_with('"'))
    })?;
    let after = &rest[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    let open = prefix.len() + hashes + 1;
    if prefix.ends_with('r') {
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len()));
    }
    if hashes > 0 {
        return None;
    }
    Some(open + escaped_until(&rest[open..], '"'))
}

/// Length up to and with the first `end` that no backslash precedes.
fn escaped_until(rest: &str, end: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == end => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// A character literal, or a lifetime.
fn quote(rest: &str) -> (usize, Option<&str>) {
    let mut chars = rest[1..].chars();
    let (first, second) = (chars.next(), chars.next());
    if first == Some('\\') || second == Some('\'') {
        return (1 + escaped_until(&rest[1..], '\''), Some("\"\""));
    }
    let length = 1 + rest[1..].find(|c| !is_word(c)).unwrap_or(rest.len() - 1);
    (length, Some(&rest[..length]))
}

/// What is left of a source without the items that are compiled for tests only.
#[derive(Debug)]
pub struct Production<'a> {
    /// The tokens left.
    pub tokens: Vec<Token<'a>>,
    /// Modules for tests that lie in files of their own.
    pub test_modules: Vec<&'a str>,
}

/// Drops items under `#[cfg(test)]` (and `#[cfg(all(test, …))]`, `#[test]`).
#[must_use]
pub fn without_tests<'a>(all: &[Token<'a>]) -> Production<'a> {
    let mut out = Production { tokens: Vec::new(), test_modules: Vec::new() };
    let mut at = 0;
    while at < all.len() {
        if is_test_attribute(&all[at..]) {
            let end = item_end(all, at);
            let item = &all[at..end];
            if let [.., name, semicolon] = item
                && semicolon.text == ";"
                && item.iter().any(|t| t.text == "mod")
            {
                out.test_modules.push(name.text);
            }
            at = end;
        } else {
            out.tokens.push(all[at]);
            at += 1;
        }
    }
    out
}

fn is_test_attribute(tokens: &[Token<'_>]) -> bool {
    let starts = |pattern: &[&str]| {
        tokens.len() >= pattern.len() && tokens.iter().zip(pattern).all(|(t, p)| t.text == *p)
    };
    starts(&["#", "[", "cfg", "(", "test", ")"])
        || starts(&["#", "[", "cfg", "(", "all", "(", "test", ","])
        || starts(&["#", "[", "test", "]"])
}

/// End of the item at `at`, attributes included: a `;` or a closing `}` outside of any bracket.
fn item_end(all: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, token) in all[at..].iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token.text == "}" {
                    return at + offset + 1;
                }
            }
            ";" if depth == 0 => return at + offset + 1,
            _ => {}
        }
    }
    all.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).into_iter().map(|t| t.text).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(texts("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(
            texts(r##"x("a\"b", b"c", r#"d"e"#, 'f', '\'', '"') y"##).join(" "),
            r#"x ( "" , "" , "" , "" , "" , "" ) y"#
        );
        assert_eq!(texts("fn f<'a>(x: &'a str) {}").join(" "), "fn f < 'a > ( x : & 'a str ) { }");
        assert_eq!(texts("\"open"), ["\"\""]);
        assert_eq!(texts("r#type b'x' über"), ["r", "#", "type", "b", "\"\"", "über"]);
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let source = "a\n/* \n */ b \"\n\" c";
        let lines: Vec<_> = tokens(source).iter().map(|t| t.line).collect();
        assert_eq!(lines, [1, 3, 3, 4]);
    }

    #[test]
    fn tests_are_left_out() {
        let source = "fn a() {}
            #[cfg(test)] mod tests { fn b() { [1; 2]; } }
            fn c() {}
            #[cfg(test)] use d::{e, f};
            #[cfg(all(test, unix))] #[allow(x)] pub fn g<T: Into<[u8; 4]>>(t: T) { }
            #[cfg(test)] pub(crate) mod helpers;
            fn h() {}";
        let all = tokens(source);
        let left = without_tests(&all);
        let names: Vec<_> = left
            .tokens
            .iter()
            .map(|t| t.text)
            .filter(|t| t.len() == 1 && is_word(t.chars().next().unwrap()))
            .collect();
        assert_eq!(names, ["a", "c", "h"]);
        assert_eq!(left.test_modules, ["helpers"]);
    }
}
