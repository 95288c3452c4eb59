//! Text that came from elsewhere, made safe for a terminal: no control character of a message reaches it, so that a
//! body cannot move the cursor, recolour the screen or hide a line.

use super::table::Cell;

/// More characters of a text are shown on no terminal.
const SHOWN_MAX: usize = 500;

/// The text on one line: controls, also the invisible ones that reorder text, are shown as escapes.
pub fn one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, character| {
        match character {
            '\n' | '\r' | '\t' => line.extend(character.escape_default()),
            control if control.is_ascii_control() => line.push_str(&format!("\\x{:02x}", u32::from(control))),
            other if other.is_control() || is_direction(other) => line.extend(other.escape_default()),
            plain => line.push(plain),
        }
        line
    })
}

/// The text on one line, cut to `width` characters.
pub fn cut(text: &str, width: usize) -> String {
    // An escape is at least as long as its character: looking at `width + 1` characters is enough.
    let line = one_line(&text.chars().take(width + 1).collect::<String>());
    if line.chars().count() <= width {
        return line;
    }
    let mut kept: String = line.chars().take(width.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

/// A long text on one line.
pub fn long(text: &str) -> Cell {
    cut(text, SHOWN_MAX).into()
}

/// A body on one line: as text where it is text, invalid bytes replaced; its size where it is cut.
pub fn body(bytes: &[u8]) -> Cell {
    // Four bytes a character at most; a body is up to 128 KiB, its start is enough.
    let start = &bytes[..bytes.len().min(4 * (SHOWN_MAX + 1))];
    let tail = format!(" ({})", super::units::bytes(bytes.len() as u64));
    Cell::cut(cut(&String::from_utf8_lossy(start), SHOWN_MAX), tail)
}

/// Characters that reorder what stands around them.
fn is_direction(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_are_shown_not_obeyed() {
        assert_eq!(one_line("a\x1b[31m\nb\t\0\x7f\u{85}"), "a\\x1b[31m\\nb\\t\\x00\\x7f\\u{85}");
        assert_eq!(one_line("größe 💡"), "größe 💡");
        assert_eq!(one_line("\u{202e}x"), "\\u{202e}x");
    }

    #[test]
    fn long_bodies_are_cut_and_say_their_size() {
        assert_eq!(body(b"hello").fit(10), "hello");
        assert_eq!(body(b"0123456789").fit(10), "0123456789");
        assert_eq!(body(b"0123456789a0123456789").fit(20), "0123456789a0… (21 B)");
        assert_eq!(body(&[b'x'; 2_048]).fit(8), "xxxxxxx…", "no room for the size");
        assert!(body(&[b'x'; 2_048]).fit(100).ends_with("x… (2 KiB)"));
        assert_eq!(body(&[0xff, b'a']).fit(10), "\u{fffd}a");
    }

    proptest! {
        #[test]
        fn nothing_moves_the_cursor(bytes: Vec<u8>, width in 1usize..80) {
            let shown = body(&bytes).fit(width);
            prop_assert!(!shown.chars().any(char::is_control));
            prop_assert!(cut(&String::from_utf8_lossy(&bytes), width).chars().count() <= width);
        }
    }
}
