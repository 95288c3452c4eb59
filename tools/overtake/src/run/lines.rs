//! Lines of standard input as batches of messages: a batch goes when it is full or when the input pauses, so that
//! both a file of millions and `tail -f` are served well. Memory is bounded whatever the input is.

use overtake_base::limits::{BATCH_MESSAGES_MAX, BODY_BYTES_MAX, REQUEST_BYTES_MAX};
use std::io::{self, BufRead};
use std::time::Duration;
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
/// The input pauses when nothing comes for so long.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes of one batch, half of what a request may have: names, lengths and headers fit into the other half.
const BATCH_BYTES_MAX: usize = REQUEST_BYTES_MAX / 2;

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

/// Gathers batches out of lines.
#[derive(Debug)]
pub struct Batches {
    lines: Lines,
    /// What one message adds to its body.
    message_bytes: usize,
    held: Option<Line>,
}

impl Batches {
    /// `message_bytes`: bytes of everything but the body, the same for each message.
    pub fn new(lines: Lines, message_bytes: usize) -> Self {
        Self { lines, message_bytes, held: None }
    }

    /// The next batch; empty at the end of the input. Too long lines are in it, each for the caller to refuse.
    pub async fn next(&mut self) -> io::Result<Vec<Line>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        if let Some(held) = self.held.take() {
            bytes += self.size(&held);
            batch.push(held);
        }
        while batch.len() < BATCH_MESSAGES_MAX {
            let line = if batch.is_empty() {
                self.lines.recv().await
            } else {
                match tokio::time::timeout(PAUSE, self.lines.recv()).await {
                    Ok(line) => line,
                    Err(_) => break,
                }
            };
            let Some(line) = line.transpose()? else { break };
            bytes += self.size(&line);
            if bytes > BATCH_BYTES_MAX && !batch.is_empty() {
                self.held = Some(line);
                break;
            }
            batch.push(line);
        }
        Ok(batch)
    }

    fn size(&self, line: &Line) -> usize {
        self.message_bytes + line.body.as_ref().map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn batches(input: Vec<u8>, message_bytes: usize) -> Vec<Vec<Line>> {
        runtime().block_on(async {
            let mut batches = Batches::new(read(Cursor::new(input)), message_bytes);
            let mut all = Vec::new();
            loop {
                let batch = batches.next().await.unwrap();
                if batch.is_empty() {
                    return all;
                }
                all.push(batch);
            }
        })
    }

    #[test]
    fn lines_are_numbered_and_an_end_without_a_line_feed_counts() {
        let all = batches(b"a\n\nb\r\nc".to_vec(), 0).concat();
        let line = |number, body: &[u8]| Line { number, body: Some(body.to_vec()) };
        assert_eq!(all, [line(1, b"a"), line(2, b""), line(3, b"b\r"), line(4, b"c")]);
        assert!(batches(Vec::new(), 0).is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_is_reported_and_the_next_one_read() {
        let mut input = vec![b'x'; BODY_BYTES_MAX + 1];
        input.extend_from_slice(b"\nb\n");
        input.extend_from_slice(&vec![b'y'; BODY_BYTES_MAX]);
        let all = batches(input, 0).concat();
        assert_eq!(all[0], Line { number: 1, body: None });
        assert_eq!(all[1].body.as_deref(), Some(&b"b"[..]));
        assert_eq!(all[2].body.as_ref().map(Vec::len), Some(BODY_BYTES_MAX));
    }

    #[test]
    fn batches_stay_within_a_request() {
        let input = [vec![b'x'; 100_000], b"\n".to_vec()].concat().repeat(50);
        let all = batches(input, 1_000);
        assert_eq!(all.concat().len(), 50);
        for batch in &all {
            assert!(batch.len() * 101_000 <= BATCH_BYTES_MAX);
        }
        let small = batches(b"\n".repeat(2_500), 0);
        assert!(small.iter().all(|batch| batch.len() <= BATCH_MESSAGES_MAX));
        assert_eq!(small.concat().len(), 2_500);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn nothing_is_lost_or_reordered(lines in proptest::collection::vec("[a-z]{0,40}", 0..200)) {
            let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let read: Vec<String> = batches(input.into_bytes(), 10)
                .concat()
                .into_iter()
                .map(|line| String::from_utf8(line.body.unwrap()).unwrap())
                .collect();
            prop_assert_eq!(read, lines);
        }
    }
}
