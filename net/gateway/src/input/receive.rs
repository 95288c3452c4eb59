//! A receive: all fields optional, an empty body allowed.

use super::fault::Fault;
use super::object::Object;
use overtake_base::limits::{LEASE_S_MAX, RECEIVE_MESSAGES_MAX, WAIT_S_MAX, WORKER_BYTES_MAX};
use overtake_wire::message::Receive;
use utoipa::ToSchema;

/// What to receive. Every field is optional.
#[derive(ToSchema)]
#[schema(as = ReceiveRequest, examples(json!({ "max": 10, "wait_s": 20, "worker": "mailer-3" })))]
pub(crate) struct ReceiveRequest {
    /// Messages at most; default 10.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    max: u32,
    /// Seconds to wait for the first message; default 0.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 20)]
    wait_s: u32,
    /// Seconds the messages are leased; default the queue's.
    #[schema(minimum = 1, maximum = 43_200)]
    lease_s: Option<u32>,
    /// Only levels 0..=this; below the queue's number of levels.
    #[schema(minimum = 0, maximum = 99)]
    max_priority: Option<u32>,
    /// Label of the worker, 128 bytes at most; shown in stats and with the message.
    #[schema(max_length = 128)]
    worker: Option<String>,
}

/// Messages of a receive over HTTP that does not say.
const MAX_DEFAULT: u32 = 10;

impl ReceiveRequest {
    pub(crate) const FIELDS: &'static [&'static str] =
        &["max", "wait_s", "lease_s", "max_priority", "worker"];

    /// Reads the request's body.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let object =
            if bytes.is_empty() { Object::empty(Self::FIELDS) } else { Object::parse(bytes, Self::FIELDS)? };
        let number = |name, low, high| object.optional(name).map(|v| v.whole_u32(low, high)).transpose();
        Ok(Self {
            max: number("max", 1, RECEIVE_MESSAGES_MAX)?.unwrap_or(MAX_DEFAULT),
            wait_s: number("wait_s", 0, WAIT_S_MAX)?.unwrap_or(0),
            lease_s: number("lease_s", 1, LEASE_S_MAX)?,
            max_priority: object.optional("max_priority").map(|v| v.level()).transpose()?,
            worker: object.optional("worker").map(worker).transpose()?,
        })
    }

    /// The receive as it goes to the servers.
    pub(crate) fn into_wire(self, queue: String) -> Receive {
        Receive {
            queue,
            max: self.max,
            wait_s: self.wait_s,
            lease_s: self.lease_s,
            max_priority: self.max_priority,
            worker: self.worker,
        }
    }
}

fn worker(value: super::object::Value<'_>) -> Result<String, Fault> {
    const WORKER: &str = "must be text of at most 128 bytes";
    let text = value.text(WORKER)?;
    if text.len() > WORKER_BYTES_MAX { Err(value.fault(WORKER)) } else { Ok(text.into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_body_means_defaults() {
        for body in
            ["", "{}", r#"{"max":null,"wait_s":null,"lease_s":null,"max_priority":null,"worker":null}"#]
        {
            let read = ReceiveRequest::parse(body.as_bytes()).unwrap().into_wire("q".into());
            let want = Receive {
                queue: "q".into(),
                max: 10,
                wait_s: 0,
                lease_s: None,
                max_priority: None,
                worker: None,
            };
            assert_eq!(read, want);
        }
    }

    #[test]
    fn ranges_are_kept() {
        let read = |json: &str| ReceiveRequest::parse(json.as_bytes()).map(|r| r.into_wire("q".into()));
        let full = read(r#"{"max":1000,"wait_s":20,"lease_s":43200,"max_priority":4,"worker":"w"}"#).unwrap();
        assert_eq!(
            (full.max, full.wait_s, full.lease_s, full.max_priority),
            (1000, 20, Some(43_200), Some(4))
        );
        assert_eq!(full.worker.as_deref(), Some("w"));
        let long = format!("\"{}\"", "ä".repeat(65));
        for (field, bad) in [
            ("max", "0"),
            ("max", "1001"),
            ("wait_s", "21"),
            ("wait_s", "-1"),
            ("lease_s", "0"),
            ("lease_s", "43201"),
            ("max_priority", "-1"),
            ("max_priority", "0.5"),
            ("worker", "1"),
            ("worker", &long),
            ("maxx", "1"),
        ] {
            let fault = read(&format!("{{\"{field}\":{bad}}}")).unwrap_err();
            assert_eq!(fault.field.as_deref(), Some(field), "{fault}");
        }
    }
}
