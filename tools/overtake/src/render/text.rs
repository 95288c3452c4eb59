//! Text that came from elsewhere, made safe for a terminal: no control character of a message reaches it, so that a
//! body cannot move the cursor, recolour the screen or hide a line.

/// The text on one line: controls, also the invisible ones that reorder text, are shown as escapes.
pub fn one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, character| {
        if character.is_control() || is_direction(character) {
            line.extend(character.escape_default());
        } else {
            line.push(character);
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

/// A body on one line: as text where it is text, invalid bytes replaced; its size where it was cut.
pub fn body(bytes: &[u8], width: usize) -> String {
    // Four bytes a character at most; a body is up to 128 KiB, its start is enough.
    let start = &bytes[..bytes.len().min(4 * (width + 1))];
    let line = cut(&String::from_utf8_lossy(start), width);
    if line.ends_with('…') || start.len() < bytes.len() {
        format!("{line} ({})", super::units::bytes(bytes.len() as u64))
    } else {
        line
    }
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
        assert_eq!(one_line("a\x1b[31m\nb"), "a\\u{1b}[31m\\nb");
        assert_eq!(one_line("größe 💡"), "größe 💡");
        assert_eq!(one_line("\u{202e}x"), "\\u{202e}x");
    }

    #[test]
    fn long_bodies_are_cut_and_say_their_size() {
        assert_eq!(body(b"hello", 10), "hello");
        assert_eq!(body(b"0123456789", 10), "0123456789");
        assert_eq!(body(b"0123456789a", 10), "012345678… (11 B)");
        assert_eq!(body(&[b'x'; 2_048], 4), "xxx… (2 KiB)");
        assert_eq!(body(&[0xff, b'a'], 10), "\u{fffd}a");
    }

    proptest! {
        #[test]
        fn nothing_moves_the_cursor(bytes: Vec<u8>, width in 1usize..80) {
            let shown = body(&bytes, width);
            prop_assert!(!shown.chars().any(char::is_control));
            prop_assert!(cut(&String::from_utf8_lossy(&bytes), width).chars().count() <= width);
        }
    }
}
