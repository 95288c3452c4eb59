//! The configuration file: keys, their ranges, and errors that name the line.

use crate::peer::{self, Peer};
use crate::text;
use overtake_base::limits::{CORES_MAX, RATE_MAX, SHARDS_MAX, TENANT_NAME_BYTES_MAX};
use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// The keys of the file; `example.toml` explains them.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    pub data: Option<PathBuf>,
    pub http: Option<SocketAddr>,
    pub quic: Option<SocketAddr>,
    #[serde(default, deserialize_with = "cores")]
    pub cores: Option<u16>,
    #[serde(default, deserialize_with = "shards")]
    pub shards: Option<u16>,
    pub auto_create: Option<bool>,
    #[serde(default, deserialize_with = "peer::node_id")]
    pub node_id: Option<u64>,
    #[serde(default, deserialize_with = "peer::zone")]
    pub zone: Option<String>,
    #[serde(default)]
    pub join: Vec<String>,
    pub peer_advertise: Option<String>,
    pub peer_listen: Option<SocketAddr>,
    pub cert_dir: Option<PathBuf>,
    pub client_certificates: Option<bool>,
    #[serde(default)]
    pub peers: Vec<Spanned<Peer>>,
    #[serde(default)]
    pub tokens: Vec<Token>,
    #[serde(default)]
    pub tenants: Vec<Tenant>,
}

/// A bearer token: whose it is and what it may do.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// The secret.
    #[serde(deserialize_with = "token")]
    pub token: Spanned<String>,
    /// Whose queues it sees.
    #[serde(deserialize_with = "tenant_name")]
    pub tenant: Spanned<String>,
    /// What it may do; not empty.
    #[serde(deserialize_with = "rights")]
    pub rights: BTreeSet<Right>,
}

impl fmt::Debug for Token {
    /// Without the secret, so that it reaches no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("tenant", self.tenant.get_ref()).field("rights", &self.rights).finish()
    }
}

/// What a token may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Store messages.
    Enqueue,
    /// Receive and settle.
    Receive,
    /// Look, without changing anything.
    Read,
    /// Change and delete queues, messages and dead letters.
    Admin,
}

/// Limits of one tenant.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name.
    #[serde(deserialize_with = "tenant_name")]
    pub name: Spanned<String>,
    /// Messages a second that it may store; no limit where absent.
    #[serde(default, deserialize_with = "rate")]
    pub enqueue_per_s: Option<u64>,
}

/// What is wrong with a file, and where. Shown as `12: message`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}

impl ConfigFile {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let file: Self = toml::from_str(text).map_err(|error| Wrong {
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            message: error.message().replace('\n', " "),
        })?;
        unique(text, "token", file.tokens.iter().map(|token| &token.token))?;
        unique(text, "name", file.tenants.iter().map(|tenant| &tenant.name))?;
        let mut ids = BTreeSet::new();
        if let Some(twice) = file.peers.iter().find(|peer| !ids.insert(peer.get_ref().id)) {
            let line = line_of(text, twice.span().start);
            return Err(Wrong {
                line,
                message: format!("peer {} stands here a second time", twice.get_ref().id),
            });
        }
        Ok(file)
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// Refuses the second of two equal values; the value itself stays out of the message, it may be a secret.
fn unique<'a>(text: &str, key: &str, values: impl Iterator<Item = &'a Spanned<String>>) -> Result<(), Wrong> {
    let mut seen = BTreeSet::new();
    for value in values {
        if !seen.insert(value.get_ref()) {
            let line = line_of(text, value.span().start);
            return Err(Wrong { line, message: format!("the same {key} stands here a second time") });
        }
    }
    Ok(())
}

pub(crate) fn bounded<'de, D: Deserializer<'de>>(input: D, low: u64, high: u64) -> Result<u64, D::Error> {
    let value = i64::deserialize(input)?;
    u64::try_from(value).ok().filter(|value| (low..=high).contains(value)).ok_or_else(|| {
        D::Error::invalid_value(Unexpected::Signed(value), &format!("{low}..={high}").as_str())
    })
}

pub(crate) fn bounded_u16<'de, D: Deserializer<'de>>(input: D, high: u16) -> Result<Option<u16>, D::Error> {
    let value = bounded(input, 1, u64::from(high))?;
    u16::try_from(value).map(Some).map_err(D::Error::custom)
}

pub(crate) fn cores<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u16>, D::Error> {
    bounded_u16(input, CORES_MAX)
}

fn shards<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u16>, D::Error> {
    bounded_u16(input, SHARDS_MAX)
}

fn rate<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    bounded(input, 0, RATE_MAX).map(Some)
}

fn token<'de, D: Deserializer<'de>>(input: D) -> Result<Spanned<String>, D::Error> {
    let text = Spanned::<String>::deserialize(input)?;
    text::token(text.get_ref()).map_err(D::Error::custom)?;
    Ok(text)
}

fn tenant_name<'de, D: Deserializer<'de>>(input: D) -> Result<Spanned<String>, D::Error> {
    let text = Spanned::<String>::deserialize(input)?;
    let name = text.get_ref();
    let ok = (1..=TENANT_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    if ok {
        Ok(text)
    } else {
        Err(D::Error::custom(format!("a tenant is 1..={TENANT_NAME_BYTES_MAX} of A-Z a-z 0-9 _ . -")))
    }
}

fn rights<'de, D: Deserializer<'de>>(input: D) -> Result<BTreeSet<Right>, D::Error> {
    let rights = BTreeSet::deserialize(input)?;
    if rights.is_empty() {
        return Err(D::Error::custom(
            "rights must name at least one of \"enqueue\", \"receive\", \"read\", \"admin\"",
        ));
    }
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EXAMPLE;

    /// The example with every key switched on.
    fn example_uncommented() -> String {
        EXAMPLE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(key) if !key.is_empty() && !key.starts_with(' ') => key,
                _ => line,
            })
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn the_example_is_valid_as_it_is_and_says_nothing() {
        assert_eq!(ConfigFile::parse(EXAMPLE), Ok(ConfigFile::default()));
    }

    #[test]
    fn every_key_of_the_example_parses() {
        let file = ConfigFile::parse(&example_uncommented()).unwrap();
        // Destructured, so that a new key without a place in the example does not compile away unseen.
        let ConfigFile {
            data,
            http,
            quic,
            cores,
            shards,
            auto_create,
            node_id,
            zone,
            join,
            peer_advertise,
            peer_listen,
            cert_dir,
            client_certificates,
            peers,
            tokens,
            tenants,
        } = file;
        assert!(data.is_some() && http.is_some() && quic.is_some() && cores.is_some());
        assert_eq!((shards, auto_create), (Some(8), Some(false)));
        assert_eq!(client_certificates, Some(false));
        assert!(join.len() == 1 && peer_advertise.is_some());
        assert!(node_id.is_some() && zone.is_some() && peer_listen.is_some() && cert_dir.is_some());
        let Peer { id, address: _, zone, cores, http } = peers[0].get_ref();
        assert!(*id > 0 && zone.is_some() && cores.is_some() && http.is_some());
        assert_eq!(tokens[0].rights.len(), 4, "every right is shown");
        assert_eq!(tenants[0].enqueue_per_s, Some(5_000));
    }

    #[test]
    fn unknown_keys_are_refused_with_their_line_and_the_known_ones() {
        for (text, line, known) in [
            ("data = 'x'\nhtp = '127.0.0.1:1'", 2, "`http`"),
            ("[[tenants]]\nname = 'a'\nenqueue_per_s = 1\nextra = 1", 4, "`enqueue_per_s`"),
            ("[[tokens]]\ntoken = 'a'\ntenant = 'a'\nrights = ['fly']", 4, "`admin`"),
            ("[[peers]]\nid = 2\naddress = 'a:1'\nport = 7", 4, "`address`"),
        ] {
            let wrong = ConfigFile::parse(text).unwrap_err();
            assert_eq!(wrong.line, line, "{wrong}");
            assert!(wrong.message.contains(known), "{wrong}");
            assert!(!wrong.to_string().contains('\n'));
        }
    }

    #[test]
    fn values_out_of_range_say_what_is_allowed() {
        for (text, line, allowed) in [
            ("\ncores = 0", 2, "1..=64"),
            ("shards = 1025", 1, "1..=1024"),
            ("cores = -1", 1, "1..=64"),
            ("http = 'localhost'", 1, "socket address"),
            ("[[tenants]]\nname = ''\nenqueue_per_s = 1", 2, "1..=64"),
            ("[[tenants]]\nname = 'a'\nenqueue_per_s = 1000000001", 3, "0..=1000000000"),
            ("[[tokens]]\ntoken = 'a b'\ntenant = 'a'\nrights = ['read']", 2, "1..=256"),
            ("[[tokens]]\ntoken = 'a'\ntenant = 'a'\nrights = []", 4, "at least one"),
            ("[[tokens]]\ntoken = 'a'\ntenant = 'a'", 1, "rights"),
            ("node_id = 0", 1, "1..="),
            ("zone = 'a b'", 1, "a zone is"),
            ("[[peers]]\nid = 2\naddress = 'a'", 3, "a name or an address"),
            ("[[peers]]\nid = 2\naddress = 'a:1'\ncores = 65", 4, "1..=64"),
            ("[[peers]]\nid = 2", 1, "address"),
            ("data = ", 1, ""),
        ] {
            let wrong = ConfigFile::parse(text).unwrap_err();
            assert_eq!(wrong.line, line, "{text}: {wrong}");
            assert!(wrong.message.contains(allowed), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_token_or_tenant_named_twice_is_refused_without_showing_the_secret() {
        let token = "[[tokens]]\ntoken = 'secret'\ntenant = 'a'\nrights = ['read']\n";
        let wrong = ConfigFile::parse(&token.repeat(2)).unwrap_err();
        assert_eq!(wrong.line, 6);
        assert!(!wrong.message.contains("secret"));
        let file = ConfigFile::parse(token).unwrap();
        assert!(!format!("{file:?}").contains("secret"));

        let peer = "[[peers]]\nid = 2\naddress = 'a:1'\n";
        assert!(ConfigFile::parse(&peer.repeat(2)).unwrap_err().message.contains("peer 2 stands"));
        let tenant = "[[tenants]]\nname = 'a'\nenqueue_per_s = 1\n";
        assert_eq!(ConfigFile::parse(&tenant.repeat(2)).unwrap_err().line, 5);
    }
}
