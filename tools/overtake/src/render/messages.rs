//! Messages: delivered, peeked, inspected; outcomes of enqueues and settles.

use super::table::{Cell, Table, pairs};
use super::units::{count, relative};
use super::{View, more, text};
use overtake_wire::message::{
    DeadLetter, Delivered, Enqueued, Inspected, MessageState, PeekedMessage, Settled,
};

/// Messages of one receive. `goes_on`: of several, not the first one, so that headings are there already.
pub fn delivered(messages: &[Delivered], goes_on: bool, view: View) -> String {
    let mut table = Table::new([
        "LEVEL",
        "RECEIPT",
        "?>DELIVERY",
        "?>ENQUEUED",
        ">LEASE ENDS",
        "ID",
        "*~HEADERS",
        "~BODY",
    ]);
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
            text::body(&message.body),
        ]);
    }
    if goes_on { table.without_headings().render(view) } else { table.render(view) }
}

/// A page of messages that nobody leased.
pub fn peeked(messages: &[PeekedMessage], next: Option<&str>, view: View) -> String {
    if messages.is_empty() {
        return "no messages\n".to_owned() + &more(next, view);
    }
    let mut table = Table::new(["LEVEL", "STATE", "?>DELIVERIES", "?>ENQUEUED", "ID", "*~HEADERS", "~BODY"]);
    for message in messages {
        let state = match (message.state, message.deliver_at, message.lease_expires_at) {
            (MessageState::Delayed, Some(at), _) => format!("delayed, due {}", relative(view.now, at)),
            (MessageState::Leased, _, Some(at)) => format!("leased, ends {}", relative(view.now, at)),
            (other, ..) => state(other).to_owned(),
        };
        table.row([
            format!("p{}", message.priority).into(),
            state.into(),
            deliveries(message.deliveries),
            relative(view.now, message.enqueued_at).into(),
            message.id.to_string().into(),
            headers(&message.headers),
            text::body(&message.body),
        ]);
    }
    table.render(view) + &more(next, view)
}

/// One message: where it is and why it was not delivered; with its story where it is a dead letter.
pub fn inspected(message: &Inspected, story: Option<&DeadLetter>, view: View) -> String {
    let mut fields = vec![
        ("level", format!("p{}", message.priority)),
        ("state", state(message.state).to_owned()),
        ("shard", message.shard.to_string()),
        ("enqueued", relative(view.now, message.enqueued_at)),
        ("deliveries", count(u64::from(message.deliveries))),
    ];
    let optional = [
        ("due", message.deliver_at.map(|at| relative(view.now, at))),
        ("lease ends", message.lease_expires_at.map(|at| relative(view.now, at))),
        ("worker", message.worker.as_deref().map(text::one_line)),
        ("ahead", message.ahead.map(|ahead| format!("{} on its shard", count(ahead)))),
    ];
    fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    if let Some(letter) = story {
        fields.push(("dead", relative(view.now, letter.dead_at)));
    }
    fields.push(("why", text::one_line(&message.why)));
    for (index, (at, what)) in story.into_iter().flat_map(|letter| &letter.history).enumerate() {
        let name = if index == 0 { "history" } else { "" };
        fields.push((name, format!("{}: {}", relative(view.now, *at), text::one_line(what))));
    }
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
    table.render(view)
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
    text::long(&all.join(" "))
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
            delivered(std::slice::from_ref(&message), false, plain()),
            "\
LEVEL       RECEIPT   DELIVERY     ENQUEUED  LEASE ENDS  ID                            HEADERS     BODY
p3 (share)  r_5_12_2         2  1.5 min ago     in 30 s  m_01Q9GD6E000000000000000007  trace=a\\nb  pay\\x07
"
        );
        assert_eq!(delivered(&[], false, plain()), "");
        let narrow = View { width: Some(80), ..plain() };
        let message = Delivered { headers: vec![], share: false, body: "x".repeat(3_000).into(), ..message };
        assert_eq!(
            delivered(&[message], true, narrow),
            "p3     r_5_12_2     in 30 s  m_01Q9GD6E000000000000000007  xxxxxxxxxx… (2.9 KiB)\n"
        );
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
LEVEL  STATE                DELIVERIES  ENQUEUED  ID                            BODY
p0     delayed, due in 1 h           0  0 ms ago  m_01Q9GD6E000000000000000007  x
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
            inspected(&message, None, plain()),
            "\
m_01Q9GD6E000000000000000007
level       p1
state       leased
shard       4
enqueued    5 s ago
deliveries  1
lease ends  in 2 s
worker      w\\x1b1
why         leased
"
        );
        let letter = DeadLetter {
            id: id(),
            priority: 1,
            deliveries: 2,
            last_error: "away".into(),
            dead_at: UnixMillis(NOW_MS - 1_000),
            history: vec![
                (UnixMillis(NOW_MS - 3_000), "lease expired".into()),
                (UnixMillis(NOW_MS - 1_000), "away\x07".into()),
            ],
            enqueued_at: UnixMillis(NOW_MS),
            headers: vec![],
            body: "".into(),
        };
        let dead = Inspected { worker: None, lease_expires_at: None, why: "dead".into(), ..message };
        assert!(inspected(&dead, Some(&letter), plain()).ends_with(
            "\
dead        1 s ago
why         dead
history     3 s ago: lease expired
            1 s ago: away\\x07
"
        ));
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
