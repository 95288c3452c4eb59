//! A redrive of dead letters.

use super::fault::Fault;
use super::object::{Object, Value};
use overtake_base::MessageId;
use overtake_base::limits::{RATE_MAX, REDRIVE_IDS_MAX};
use overtake_wire::message::{Redrive, RedriveSelection};
use utoipa::ToSchema;

/// Which dead letters return. Exactly one of `ids`, `all` and `from_priority` is given.
#[derive(ToSchema)]
#[schema(as = RedriveRequest, examples(json!({ "from_priority": 2, "priority": 4, "max_per_s": 50 })))]
pub(crate) struct RedriveRequest {
    /// Those with these ids, 1..=1000.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 1000)]
    ids: Option<Vec<MessageId>>,
    /// All of them; true where given.
    #[schema(value_type = Option<bool>)]
    all: bool,
    /// Those that had this level.
    #[schema(minimum = 0, maximum = 99)]
    from_priority: Option<u32>,
    /// The level they get; their old one where absent.
    #[schema(minimum = 0, maximum = 99)]
    priority: Option<u32>,
    /// At most so many a second; 0 pauses.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    max_per_s: Option<u64>,
    /// Only count, move nothing; default false.
    #[schema(value_type = Option<bool>)]
    dry_run: bool,
}

const ID: &str = "must be m_ and a ULID of 26 upper-case Crockford base32 characters";

impl RedriveRequest {
    pub(crate) const FIELDS: &'static [&'static str] =
        &["ids", "all", "from_priority", "priority", "max_per_s", "dry_run"];

    /// Reads the request's body.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let object = Object::parse(bytes, Self::FIELDS)?;
        Ok(Self {
            ids: object.optional("ids").map(ids).transpose()?,
            all: object.optional("all").map(all).transpose()?.is_some(),
            from_priority: object.optional("from_priority").map(Value::level).transpose()?,
            priority: object.optional("priority").map(Value::level).transpose()?,
            max_per_s: object.optional("max_per_s").map(|v| v.whole(0, RATE_MAX)).transpose()?,
            dry_run: object.optional("dry_run").map(Value::boolean).transpose()?.unwrap_or(false),
        })
    }

    /// The redrive as it goes to the servers.
    pub(crate) fn into_wire(self, queue: String) -> Result<Redrive, Fault> {
        let selection = match (self.ids, self.all, self.from_priority) {
            (Some(ids), false, None) => RedriveSelection::Ids(ids),
            (None, true, None) => RedriveSelection::All,
            (None, false, Some(level)) => RedriveSelection::FromPriority(level),
            _ => return Err(Fault::request("give exactly one of ids, all and from_priority")),
        };
        Ok(Redrive {
            queue,
            selection,
            priority: self.priority,
            max_per_s: self.max_per_s,
            dry_run: self.dry_run,
        })
    }
}

fn ids(value: Value<'_>) -> Result<Vec<MessageId>, Fault> {
    let mut ids = Vec::new();
    value.list(1, REDRIVE_IDS_MAX, |item| {
        ids.push(item.text(ID)?.parse().map_err(|_| item.fault(ID))?);
        Ok(())
    })?;
    Ok(ids)
}

fn all(value: Value<'_>) -> Result<(), Fault> {
    match value.boolean() {
        Ok(true) => Ok(()),
        _ => Err(value.fault("must be true; leave it out to choose by ids or from_priority")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Redrive, Fault> {
        RedriveRequest::parse(json.as_bytes()).and_then(|r| r.into_wire("q".into()))
    }

    #[test]
    fn exactly_one_selection() {
        let id = "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX";
        let all = read(r#"{"all":true,"ids":null,"priority":1,"max_per_s":0,"dry_run":true}"#).unwrap();
        assert_eq!(
            (all.selection, all.priority, all.max_per_s, all.dry_run),
            (RedriveSelection::All, Some(1), Some(0), true)
        );
        let ids = read(&format!("{{\"ids\":[\"{id}\"]}}")).unwrap();
        assert_eq!(ids.selection, RedriveSelection::Ids(vec![id.parse().unwrap()]));
        assert_eq!(read(r#"{"from_priority":2}"#).unwrap().selection, RedriveSelection::FromPriority(2));
        for bad in ["{}", r#"{"all":true,"from_priority":1}"#, r#"{"priority":1}"#] {
            assert!(read(bad).unwrap_err().to_string().starts_with("give exactly one"), "{bad}");
        }
        for (field, bad) in [
            ("all", "false"),
            ("all", "1"),
            ("ids", "[]"),
            ("ids[0]", "x"),
            ("from_priority", "-1"),
            ("priority", "\"1\""),
            ("max_per_s", "1000000001"),
            ("max_per_s", "0.5"),
            ("dry_run", "0"),
        ] {
            let json =
                if bad == "x" { r#"{"ids":["x"]}"#.to_owned() } else { format!("{{\"{field}\":{bad}}}") };
            assert_eq!(read(&json).unwrap_err().field.as_deref(), Some(field), "{json}");
        }
    }
}
