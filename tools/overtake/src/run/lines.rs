//! Lines of standard input, read ahead by a thread of their own. Memory is bounded whatever the input is.

use overtake_base::limits::BODY_BYTES_MAX;
use std::io::{self, BufRead};
use tokio::sync::mpsc;

/// One line of the input, without its line feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// From 1.
    pub number: u64,
    /// Its bytes; nothing where it is longer than a body may be.
    pub body: Option<Vec<u8>>,
}

/// Lines on their way from the reading thread.
pub type Lines = mpsc::Receiver<io::Result<Line>>;

/// Lines read ahead, at most.
const READ_AHEAD: usize = 64;

/// Reads `input` in a thread of its own: standard input cannot be waited for together with anything else.
pub fn read(mut input: impl BufRead + Send + 'static) -> Lines {
    let (sender, lines) = mpsc::channel(READ_AHEAD);
    std::thread::spawn(move || {
        let mut number = 0;
        while let Some(body) = next(&mut input).transpose() {
            number += 1;
            let line = body.map(|body| Line { number, body });
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    });
    lines
}

/// The next line; `Some(None)` for one that is too long, which is skipped without being kept.
fn next(input: &mut impl BufRead) -> io::Result<Option<Option<Vec<u8>>>> {
    let mut line = Vec::new();
    let (mut any, mut too_long) = (false, false);
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            return Ok(any.then(|| (!too_long).then_some(line)));
        }
        any = true;
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        too_long |= line.len() + part.len() > BODY_BYTES_MAX;
        if !too_long {
            line.extend_from_slice(part);
        }
        let used = end.map_or(chunk.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(Some((!too_long).then_some(line)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn lines(input: Vec<u8>) -> Vec<Line> {
        let mut lines = read(Cursor::new(input));
        std::iter::from_fn(|| lines.blocking_recv()).map(Result::unwrap).collect()
    }

    #[test]
    fn lines_are_numbered_and_an_end_without_a_line_feed_counts() {
        let line = |number, body: &[u8]| Line { number, body: Some(body.to_vec()) };
        let all = lines(b"a\n\nb\r\nc".to_vec());
        assert_eq!(all, [line(1, b"a"), line(2, b""), line(3, b"b\r"), line(4, b"c")]);
        assert!(lines(Vec::new()).is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_is_reported_and_the_next_one_read() {
        let mut input = vec![b'x'; BODY_BYTES_MAX + 1];
        input.extend_from_slice(b"\nb\n");
        input.extend_from_slice(&vec![b'y'; BODY_BYTES_MAX]);
        let all = lines(input);
        assert_eq!(all[0], Line { number: 1, body: None });
        assert_eq!(all[1].body.as_deref(), Some(&b"b"[..]));
        assert_eq!(all[2].body.as_ref().map(Vec::len), Some(BODY_BYTES_MAX));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn nothing_is_lost_or_reordered(texts in proptest::collection::vec("[a-z]{0,40}", 0..200)) {
            let input: String = texts.iter().map(|text| format!("{text}\n")).collect();
            let read: Vec<String> = lines(input.into_bytes())
                .into_iter()
                .map(|line| String::from_utf8(line.body.unwrap()).unwrap())
                .collect();
            prop_assert_eq!(read, texts);
        }
    }
}
