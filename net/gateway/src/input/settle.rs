//! Ends, extensions and returns of leases.

use super::fault::Fault;
use super::object::Object;
use super::object::Value;
use overtake_base::Receipt;
use overtake_base::limits::{DELAY_S_MAX, LEASE_S_MAX, SETTLE_RECEIPTS_MAX};
use overtake_wire::message::{Extend, Release, Settle};
use std::collections::HashSet;
use utoipa::ToSchema;

/// Receipts to settle, each named once; 3000 at most in all.
#[derive(ToSchema)]
#[schema(as = SettleRequest, examples(json!({
    "ack": ["r_3_1001_1"],
    "extend": [{ "receipt": "r_3_1002_1", "lease_s": 60 }],
    "release": ["r_3_1003_1", { "receipt": "r_3_1004_2", "delay_s": 30, "error": "smtp timeout" }]
})))]
pub(crate) struct SettleRequest {
    /// Delete these messages: they are done.
    #[schema(value_type = Option<Vec<String>>)]
    ack: Vec<String>,
    /// Set a new expiry from now.
    #[schema(value_type = Option<Vec<ExtendItem>>)]
    extend: Vec<Extend>,
    /// Return these messages to their queue.
    #[schema(value_type = Option<Vec<ReleaseItem>>)]
    release: Vec<Release>,
}

/// One extension.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only the schema is used: the wire's own type is filled")]
pub(crate) struct ExtendItem {
    /// The lease.
    receipt: String,
    /// Seconds from now.
    #[schema(minimum = 1, maximum = 43_200)]
    lease_s: u32,
}

/// A receipt, or a receipt with a delay and the error that made the work fail.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only the schema is used: the wire's own type is filled")]
pub(crate) enum ReleaseItem {
    /// Returns at once, or after the queue's back-off.
    Receipt(String),
    /// Returns when told.
    Release {
        /// The lease.
        receipt: String,
        /// Seconds until it may be delivered again; the queue's back-off, or at once, where absent.
        #[schema(minimum = 0, maximum = 31_622_400)]
        delay_s: Option<u64>,
        /// Kept with the message; what is longer than 4096 bytes is cut at its end.
        error: Option<String>,
    },
}

const RECEIPT: &str = "must be a receipt as text";

impl SettleRequest {
    pub(crate) const FIELDS: &'static [&'static str] = &["ack", "extend", "release"];

    /// Reads the request's body.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let object =
            if bytes.is_empty() { Object::empty(Self::FIELDS) } else { Object::parse(bytes, Self::FIELDS)? };
        let mut request = Self { ack: Vec::new(), extend: Vec::new(), release: Vec::new() };
        let list = |name, each: &mut dyn FnMut(Value<'_>) -> Result<(), Fault>| match object.optional(name) {
            Some(value) => value.list(0, SETTLE_RECEIPTS_MAX, each),
            None => Ok(()),
        };
        list("ack", &mut |item| {
            request.ack.push(receipt(item)?);
            Ok(())
        })?;
        list("extend", &mut |item| {
            request.extend.push(extend(item)?);
            Ok(())
        })?;
        list("release", &mut |item| {
            request.release.push(release(item)?);
            Ok(())
        })?;
        request.check()?;
        Ok(request)
    }

    /// The receipts in the order of the request: what the results are keyed by.
    pub(crate) fn receipts(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let ack = self.ack.iter().map(|receipt| ("ack", receipt));
        let extend = self.extend.iter().map(|item| ("extend", &item.receipt));
        ack.chain(extend).chain(self.release.iter().map(|item| ("release", &item.receipt)))
    }

    fn check(&self) -> Result<(), Fault> {
        let mut seen = HashSet::new();
        for (field, receipt) in self.receipts() {
            if !seen.insert(receipt.as_str()) {
                let shown: String = receipt.chars().take(64).collect();
                return Err(Fault::of(field, format!("must name each receipt once; {shown} is named twice")));
            }
        }
        if seen.len() > SETTLE_RECEIPTS_MAX {
            return Err(Fault::request(format!(
                "ack, extend and release must be {SETTLE_RECEIPTS_MAX} receipts at most"
            )));
        }
        Ok(())
    }

    /// The request as it goes to the servers, and the receipts as they came.
    pub(crate) fn into_wire(self, queue: String) -> (Settle, Vec<String>) {
        let receipts = self.receipts().map(|(_, receipt)| receipt.clone()).collect();
        // Whatever was sent for a receipt may be long; a malformed one goes as a short text that no other one has, for
        // the servers to answer `unknown`.
        let mut place = 0;
        let mut sent = |receipt: String| {
            place += 1;
            if receipt.parse::<Receipt>().is_ok() { receipt } else { format!("-{place}") }
        };
        let settle = Settle {
            queue,
            ack: self.ack.into_iter().map(&mut sent).collect(),
            extend: self.extend.into_iter().map(|e| Extend { receipt: sent(e.receipt), ..e }).collect(),
            release: self.release.into_iter().map(|r| Release { receipt: sent(r.receipt), ..r }).collect(),
        };
        (settle, receipts)
    }
}

fn receipt(value: Value<'_>) -> Result<String, Fault> {
    value.text(RECEIPT).map(|text| text.into_owned())
}

fn extend(item: Value<'_>) -> Result<Extend, Fault> {
    item.object(&["receipt", "lease_s"], |object| {
        Ok(Extend {
            receipt: receipt(object.required("receipt", RECEIPT)?)?,
            lease_s: object
                .required("lease_s", "must be a whole number 1..=43200")?
                .whole_u32(1, LEASE_S_MAX)?,
        })
    })
}

fn release(item: Value<'_>) -> Result<Release, Fault> {
    if !item.is_object() {
        let text = item.text("must be a receipt as text, or an object of receipt, delay_s, error")?;
        return Ok(Release { receipt: text.into_owned(), ..Release::default() });
    }
    item.object(&["receipt", "delay_s", "error"], |object| {
        Ok(Release {
            receipt: receipt(object.required("receipt", RECEIPT)?)?,
            delay_s: object.optional("delay_s").map(|v| v.whole(0, DELAY_S_MAX)).transpose()?,
            error: object
                .optional("error")
                .map(|v| v.text("must be text").map(|text| overtake_wire::cut_error(&text).to_owned()))
                .transpose()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<(Settle, Vec<String>), Fault> {
        SettleRequest::parse(json.as_bytes()).map(|r| r.into_wire("q".into()))
    }

    #[test]
    fn lists_arrive_in_order() {
        let (settle, receipts) = read(
            r#"{"ack":["r_1_2_3","bad"],"extend":[{"receipt":"r_1_3_1","lease_s":60}],
                "release":["r_1_4_1",{"receipt":"r_1_5_1","delay_s":9,"error":"smtp"},{"receipt":"r_1_6_1","error":null}]}"#,
        )
        .unwrap();
        assert_eq!(receipts, ["r_1_2_3", "bad", "r_1_3_1", "r_1_4_1", "r_1_5_1", "r_1_6_1"]);
        assert_eq!(settle.ack, ["r_1_2_3", "-2"]);
        assert_eq!(settle.extend, [Extend { receipt: "r_1_3_1".into(), lease_s: 60 }]);
        assert_eq!(settle.release[1].delay_s, Some(9));
        assert_eq!(settle.release[1].error.as_deref(), Some("smtp"));
        assert_eq!(settle.release[2], Release { receipt: "r_1_6_1".into(), delay_s: None, error: None });
    }

    #[test]
    fn faults_name_the_item() {
        for (json, field) in [
            (r#"{"ack":[1]}"#, "ack[0]"),
            (r#"{"ack":["a","a"]}"#, "ack"),
            (r#"{"ack":["a"],"release":[{"receipt":"a"}]}"#, "release"),
            (r#"{"extend":["a"]}"#, "extend[0]"),
            (r#"{"extend":[{"receipt":"a"}]}"#, "extend[0].lease_s"),
            (r#"{"extend":[{"receipt":"a","lease_s":1},{"receipt":"b","lease_s":0}]}"#, "extend[1].lease_s"),
            (r#"{"extend":[{"receipt":"a","lease_s":1,"x":1}]}"#, "extend[0].x"),
            (r#"{"release":[{"delay_s":1}]}"#, "release[0].receipt"),
            (r#"{"release":[{"receipt":"a","delay_s":31622401}]}"#, "release[0].delay_s"),
            (r#"{"release":[{"receipt":"a","error":5}]}"#, "release[0].error"),
            (r#"{"release":[5]}"#, "release[0]"),
            (r#"{"nack":[]}"#, "nack"),
        ] {
            assert_eq!(read(json).unwrap_err().field.as_deref(), Some(field), "{json}");
        }
        let many: Vec<String> = (0..3_001).map(|i| format!("\"r_1_{i}_1\"")).collect();
        assert!(read(&format!("{{\"ack\":[{}]}}", many.join(","))).is_err());
        let (first, rest) = many.split_at(1_500);
        assert!(
            read(&format!("{{\"ack\":[{}],\"release\":[{}]}}", first.join(","), rest.join(","))).is_err()
        );
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let (settle, _) =
            read(&format!(r#"{{"release":[{{"receipt":"a","error":"x{}"}}]}}"#, "ä".repeat(4_096))).unwrap();
        assert_eq!(settle.release[0].error.as_ref().map(String::len), Some(4_095));
    }
}
