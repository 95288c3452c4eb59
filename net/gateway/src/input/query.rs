//! Query parameters: known ones only, each once.

use super::fault::Fault;
use super::number::Scaled;
use super::object::{LEVEL, level};
use overtake_base::limits::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX};
use overtake_wire::message::PeekStates;
use overtake_wire::validate::CURSOR_BYTES_MAX;
use utoipa::IntoParams;

/// One page of a listing.
#[derive(IntoParams, PartialEq, Eq, Debug)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page {
    /// Entries at most; default 100.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    pub(crate) limit: u32,
    /// Where to go on: `next` of the page before.
    #[param(max_length = 512)]
    pub(crate) after: Option<String>,
}

/// What a peek shows.
#[derive(IntoParams, PartialEq, Eq, Debug)]
#[into_params(parameter_in = Query)]
pub(crate) struct PeekQuery {
    /// A comma list of `visible`, `delayed`, `leased`; default all three.
    #[param(value_type = Option<String>, example = "visible,delayed")]
    pub(crate) state: PeekStates,
    /// Only this level.
    #[param(minimum = 0, maximum = 99)]
    pub(crate) priority: Option<u32>,
    /// Documented beside this type, as every listing has it.
    #[param(ignore)]
    pub(crate) page: Page,
}

/// Refuses every parameter.
pub(crate) fn none(query: Option<&str>) -> Result<(), Fault> {
    Parameters::parse(query, &[]).map(drop)
}

impl Page {
    pub(crate) const NAMES: &'static [&'static str] = &["limit", "after"];

    /// Reads a listing's parameters.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, Fault> {
        Self::read(&Parameters::parse(query, Self::NAMES)?)
    }

    fn read(parameters: &Parameters) -> Result<Self, Fault> {
        let limit = match parameters.get("limit") {
            None => LIST_LIMIT_DEFAULT,
            Some(text) => Scaled::parse(text, 0)
                .and_then(|n| n.whole_in(1, u64::from(LIST_LIMIT_MAX)))
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| Fault::of("limit", format!("must be a whole number 1..={LIST_LIMIT_MAX}")))?,
        };
        let after = parameters.get("after").map(ToOwned::to_owned);
        if after.as_ref().is_some_and(|cursor| cursor.len() > CURSOR_BYTES_MAX) {
            return Err(Fault::of("after", "must be the next of the page before"));
        }
        Ok(Self { limit, after })
    }
}

impl PeekQuery {
    pub(crate) const NAMES: &'static [&'static str] = &["state", "priority", "limit", "after"];

    /// Reads a peek's parameters.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, Fault> {
        let parameters = Parameters::parse(query, Self::NAMES)?;
        let priority = parameters.get("priority");
        let priority = priority.map(|text| level(text).ok_or_else(|| Fault::of("priority", LEVEL)));
        Ok(Self {
            state: parameters.get("state").map_or(Ok(ALL_STATES), states)?,
            priority: priority.transpose()?,
            page: Page::read(&parameters)?,
        })
    }
}

const ALL_STATES: PeekStates = PeekStates { visible: true, delayed: true, leased: true };

fn states(text: &str) -> Result<PeekStates, Fault> {
    let mut states = PeekStates { visible: false, delayed: false, leased: false };
    for name in text.split(',') {
        match name {
            "visible" => states.visible = true,
            "delayed" => states.delayed = true,
            "leased" => states.leased = true,
            _ => return Err(Fault::of("state", "must be a comma list of visible, delayed, leased")),
        }
    }
    Ok(states)
}

struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn parse(query: Option<&str>, names: &[&str]) -> Result<Self, Fault> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if !names.contains(&&*name) {
                let shown: String = name.chars().take(128).collect();
                let known =
                    if names.is_empty() { "there are none here".to_owned() } else { names.join(", ") };
                return Err(Fault::of(shown, format!("is not a known query parameter; known: {known}")));
            }
            if parameters.iter().any(|(known, _)| *known == name) {
                return Err(Fault::of(name, "is given twice"));
            }
            parameters.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(parameters))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_defaults_and_bounds() {
        assert_eq!(Page::parse(None), Ok(Page { limit: 100, after: None }));
        assert_eq!(Page::parse(Some("")), Ok(Page { limit: 100, after: None }));
        let page = Page { limit: 1_000, after: Some("a&b".into()) };
        assert_eq!(Page::parse(Some("after=a%26b&limit=1000")), Ok(page));
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("limit=", "limit"),
            ("limit=-1", "limit"),
            ("limit=1.5", "limit"),
            ("limit=5&limit=6", "limit"),
            ("Limit=5", "Limit"),
            ("state=visible", "state"),
        ] {
            assert_eq!(Page::parse(Some(query)).unwrap_err().field.as_deref(), Some(field), "{query}");
        }
        let long = format!("after={}", "x".repeat(1_025));
        assert_eq!(Page::parse(Some(&long)).unwrap_err().field.as_deref(), Some("after"));
    }

    #[test]
    fn peeks_choose_states() {
        let all = PeekQuery::parse(None).unwrap();
        assert_eq!((all.state, all.priority), (ALL_STATES, None));
        let some = PeekQuery::parse(Some("state=visible,leased&priority=3&limit=2")).unwrap();
        assert_eq!(some.state, PeekStates { visible: true, delayed: false, leased: true });
        assert_eq!((some.priority, some.page.limit), (Some(3), 2));
        for (query, field) in
            [("state=", "state"), ("state=dead", "state"), ("priority=-1", "priority"), ("x=1", "x")]
        {
            assert_eq!(PeekQuery::parse(Some(query)).unwrap_err().field.as_deref(), Some(field), "{query}");
        }
        assert!(none(Some("x")).is_err() && none(None).is_ok());
    }
}
