//! Messages: delivered, peeked, inspected; outcomes of enqueues and settles.

use super::table::{Cell, Table, pairs};
use super::units::{count, relative};
use super::{View, more, text};
use overtake_wire::message::{Delivered, Enqueued, Inspected, MessageState, PeekedMessage, Settled};

/// Characters of a body that a table shows.
const BODY_WIDTH: usize = 60;

/// Messages of one receive.
pub fn delivered(messages: &[Delivered], view: View) -> String {
    let mut table =
        Table::new(["LEVEL", "RECEIPT", ">DELIVERY", ">ENQUEUED", ">LEASE ENDS", "ID", "HEADERS", "BODY"]);
    for message in messages {
        table.row([
            if message.share {
                format!("p{} (share)", message.priority)
            } else {
                format!("p{}", message.priority)
            }
            .into(),
            message.receipt.to_string().into(),
            deliveries(message.deliveries),
            relative(view.now, message.enqueued_at).into(),
            relative(view.now, message.lease_expires_at).into(),
            message.id.to_string().into(),
            headers(&message.headers),
            text::body(&message.body, BODY_WIDTH).into(),
        ]);
    }
    table.render(view.style)
}

/// A page of messages that nobody leased.
pub fn peeked(messages: &[PeekedMessage], next: Option<&str>, view: View) -> String {
    if messages.is_empty() {
        return "no messages\n".to_owned() + &more(next, view);
    }
    let mut table = Table::new(["LEVEL", "STATE", ">DELIVERIES", ">ENQUEUED", "ID", "HEADERS", "BODY"]);
    for message in messages {
        let until = match message.state {
            MessageState::Delayed => message.deliver_at,
            MessageState::Leased => message.lease_expires_at,
            MessageState::Visible | MessageState::Dead => None,
        };
        let state = state(message.state);
        table.row([
            format!("p{}", message.priority).into(),
            until.map_or(state.to_owned(), |at| format!("{state}, ends {}", relative(view.now, at))).into(),
            deliveries(message.deliveries),
            relative(view.now, message.enqueued_at).into(),
            message.id.to_string().into(),
            headers(&message.headers),
            text::body(&message.body, BODY_WIDTH).into(),
        ]);
    }
    table.render(view.style) + &more(next, view)
}

/// One message: where it is and why it was not delivered.
pub fn inspected(message: &Inspected, view: View) -> String {
    let mut fields = vec![
        ("level", format!("p{}", message.priority)),
        ("state", state(message.state).to_owned()),
        ("shard", message.shard.to_string()),
        ("enqueued", relative(view.now, message.enqueued_at)),
        ("deliveries", count(u64::from(message.deliveries))),
    ];
    let optional = [
        ("visible", message.deliver_at.map(|at| relative(view.now, at))),
        ("lease ends", message.lease_expires_at.map(|at| relative(view.now, at))),
        ("worker", message.worker.as_deref().map(text::one_line)),
        ("ahead", message.ahead.map(|ahead| format!("{} on its shard", count(ahead)))),
    ];
    fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    fields.push(("why", text::one_line(&message.why)));
    view.style.bold(&message.id.to_string()) + "\n" + &pairs(&fields)
}

/// One stored message.
pub fn enqueued(stored: &Enqueued) -> String {
    let note = if stored.duplicate { "  (duplicate: stored before, nothing stored now)" } else { "" };
    format!("{}{note}\n", stored.id)
}

/// Outcomes of receipts.
pub fn settled<'a>(outcomes: impl Iterator<Item = (&'a str, Settled)>, done: &str, view: View) -> String {
    let mut table = Table::new(["RECEIPT", "OUTCOME"]);
    for (receipt, outcome) in outcomes {
        table.row([
            text::one_line(receipt).into(),
            match outcome {
                Settled::Ok => Cell::good(done),
                Settled::Stale => Cell::warn("stale: this is not its current lease"),
                Settled::Unknown => {
                    Cell::warn("unknown: no such message any more, or no receipt of this queue")
                }
            },
        ]);
    }
    table.render(view.style)
}

fn state(state: MessageState) -> &'static str {
    match state {
        MessageState::Visible => "visible",
        MessageState::Delayed => "delayed",
        MessageState::Leased => "leased",
        MessageState::Dead => "dead",
    }
}

fn deliveries(number: u32) -> Cell {
    let shown = count(u64::from(number));
    if number > 1 { Cell::warn(shown) } else { shown.into() }
}

/// Headers in one cell.
pub fn headers(headers: &[(String, String)]) -> Cell {
    if headers.is_empty() {
        return Cell::none();
    }
    let all: Vec<String> = headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
    text::cut(&all.join(" "), 40).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;
    use overtake_base::{MessageId, Receipt, Sequence, ShardId, UnixMillis};

    const NOW_MS: u64 = 1_900_000_000_000;

    fn id() -> MessageId {
        MessageId::new(NOW_MS, 7)
    }

    #[test]
    fn a_receive() {
        let message = Delivered {
            id: id(),
            priority: 3,
            receipt: Receipt { shard: ShardId(5), sequence: Sequence(12), deliveries: 2 },
            deliveries: 2,
            enqueued_at: UnixMillis(NOW_MS - 90_000),
            lease_expires_at: UnixMillis(NOW_MS + 30_000),
            headers: vec![("trace".into(), "a\nb".into())],
            share: true,
            body: "pay\x07".into(),
        };
        assert_eq!(
            delivered(&[message], plain()),
            "\
LEVEL       RECEIPT   DELIVERY     ENQUEUED  LEASE ENDS  ID                            HEADERS     BODY
p3 (share)  r_5_12_2         2  1.5 min ago     in 30 s  m_01Q9GD6E000000000000000007  trace=a\\nb  pay\\u{7}
"
        );
        assert_eq!(delivered(&[], plain()), "");
    }

    #[test]
    fn a_peek() {
        let message = PeekedMessage {
            id: id(),
            priority: 0,
            state: MessageState::Delayed,
            deliveries: 0,
            enqueued_at: UnixMillis(NOW_MS),
            deliver_at: Some(UnixMillis(NOW_MS + 3_600_000)),
            lease_expires_at: None,
            headers: vec![],
            body: "x".into(),
        };
        assert_eq!(
            peeked(&[message], Some("c1"), plain()),
            "\
LEVEL  STATE                 DELIVERIES  ENQUEUED  ID                            HEADERS  BODY
p0     delayed, ends in 1 h           0  0 ms ago  m_01Q9GD6E000000000000000007  -        x
more: add --after c1
"
        );
        assert_eq!(peeked(&[], None, plain()), "no messages\n");
    }

    #[test]
    fn an_inspection_shows_only_what_there_is() {
        let message = Inspected {
            id: id(),
            priority: 1,
            state: MessageState::Leased,
            shard: 4,
            enqueued_at: UnixMillis(NOW_MS - 5_000),
            deliver_at: None,
            lease_expires_at: Some(UnixMillis(NOW_MS + 2_000)),
            worker: Some("w\x1b1".into()),
            deliveries: 1,
            ahead: None,
            why: "leased".into(),
        };
        assert_eq!(
            inspected(&message, plain()),
            "\
m_01Q9GD6E000000000000000007
level       p1
state       leased
shard       4
enqueued    5 s ago
deliveries  1
lease ends  in 2 s
worker      w\\u{1b}1
why         leased
"
        );
    }

    #[test]
    fn outcomes() {
        let stored = Enqueued { id: id(), shard: 1, duplicate: false };
        assert_eq!(enqueued(&stored), "m_01Q9GD6E000000000000000007\n");
        assert!(enqueued(&Enqueued { duplicate: true, ..stored }).contains("duplicate"));
        let outcomes = [("r_1_2_3", Settled::Ok), ("r_1_2_4", Settled::Stale)];
        assert_eq!(
            settled(outcomes.into_iter(), "acked", plain()),
            "RECEIPT  OUTCOME\nr_1_2_3  acked\nr_1_2_4  stale: this is not its current lease\n"
        );
    }
}
