//! Dead letters.

use super::messages::headers;
use super::table::Table;
use super::units::{count, relative};
use super::{View, more, text};
use overtake_wire::message::DeadLetter;

/// A page of dead letters.
pub fn list(letters: &[DeadLetter], next: Option<&str>, view: View) -> String {
    if letters.is_empty() {
        return "no dead letters\n".to_owned() + &more(next, view);
    }
    let mut table = Table::new(["LEVEL", "?>DELIVERIES", ">DEAD", "ID", "~LAST ERROR", "*~HEADERS", "~BODY"]);
    for letter in letters {
        table.row([
            format!("p{}", letter.priority).into(),
            count(u64::from(letter.deliveries)).into(),
            relative(view.now, letter.dead_at).into(),
            letter.id.to_string().into(),
            text::long(&letter.last_error),
            headers(&letter.headers),
            text::body(&letter.body),
        ]);
    }
    table.render(view) + &more(next, view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;
    use overtake_base::{MessageId, UnixMillis};

    #[test]
    fn a_list_of_dead_letters() {
        let now_ms = 1_900_000_000_000;
        let letter = DeadLetter {
            id: MessageId::new(now_ms, 7),
            priority: 2,
            deliveries: 5,
            last_error: "exit status 1:\nno such user".into(),
            dead_at: UnixMillis(now_ms - 120_000),
            history: vec![],
            enqueued_at: UnixMillis(now_ms - 300_000),
            headers: vec![],
            body: "x".into(),
        };
        assert_eq!(
            list(&[letter], None, plain()),
            "\
LEVEL  DELIVERIES       DEAD  ID                            LAST ERROR                    BODY
p2              5  2 min ago  m_01Q9GD6E000000000000000007  exit status 1:\\nno such user  x
"
        );
        assert_eq!(list(&[], None, plain()), "no dead letters\n");
    }
}
