//! What deterministic crates may not contain: anything through which the machine they run on could decide something.
//!
//! The check reads paths, also inside of grouped `use`s. It is meant to catch what slips in, not who hides.

use crate::Finding;
use crate::layers::Package;
use crate::source::Token;

/// Paths, as consecutive segments, and what each would bring in.
const FORBIDDEN: [(&[&str], &str); 26] = [
    (&["glommio"], "a runtime"),
    (&["tokio"], "a runtime"),
    (&["std", "fs"], "files"),
    (&["std", "env"], "the process environment"),
    (&["std", "process"], "processes"),
    (&["std", "thread"], "threads"),
    (&["thread_local"], "threads"),
    (&["TcpStream"], "sockets"),
    (&["TcpListener"], "sockets"),
    (&["UdpSocket"], "sockets"),
    (&["UnixStream"], "sockets"),
    (&["UnixListener"], "sockets"),
    (&["UnixDatagram"], "sockets"),
    (&["ToSocketAddrs"], "name look-ups"),
    (&["Instant", "now"], "a clock"),
    (&["SystemTime", "now"], "a clock"),
    (&["rand", "rng"], "the machine's randomness"),
    (&["thread_rng"], "the machine's randomness"),
    (&["OsRng"], "the machine's randomness"),
    (&["SystemRandom"], "the machine's randomness"),
    (&["getrandom"], "the machine's randomness"),
    (&["RandomState"], "a randomly seeded hash"),
    (&["HashMap"], "a randomly seeded hash map; use a BTreeMap, or overtake_base::hash::Map for look-ups"),
    (&["HashSet"], "a randomly seeded hash set; use a BTreeSet, or overtake_base::hash::Set for look-ups"),
    (&["async"], "async"),
    (&["await"], "async"),
];

/// Dependencies that no deterministic crate has: what they are for is forbidden anyway.
const FORBIDDEN_DEPENDENCIES: [&str; 27] = [
    "async-std",
    "axum",
    "chrono",
    "crossbeam-channel",
    "fastrand",
    "futures",
    "getrandom",
    "glommio",
    "hyper",
    "io-uring",
    "libc",
    "mio",
    "nix",
    "notify",
    "parking_lot",
    "quinn",
    "quinn-udp",
    "rand",
    "rayon",
    "reqwest",
    "rustix",
    "smol",
    "socket2",
    "tempfile",
    "time",
    "tokio",
    "tonic",
];

/// Files that may hold one of the forbidden names, and why.
const EXCEPTIONS: [(&str, &str); 3] = [
    // Where the fixed seeds are set, so that nobody else needs to name these.
    ("engine/base/src/hash.rs", "RandomState"),
    ("engine/base/src/hash.rs", "HashMap"),
    ("engine/base/src/hash.rs", "HashSet"),
];

/// Checks the tokens of one file of a deterministic crate.
#[must_use]
pub fn check_source(path: &str, tokens: &[Token<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (segments, line) in paths(tokens) {
        for (forbidden, brings) in FORBIDDEN {
            let holds = segments.windows(forbidden.len()).any(|window| window == forbidden);
            let name = forbidden.join("::");
            if holds && !EXCEPTIONS.contains(&(path, name.as_str())) {
                let problem = format!("`{name}` brings {brings} into a deterministic crate");
                findings.push(Finding::new(format!("{path}:{line}"), problem));
            }
        }
    }
    findings
}

/// Checks the dependencies of a deterministic crate.
#[must_use]
pub fn check_dependencies(package: &Package) -> Vec<Finding> {
    let forbidden = package.normal.iter().filter(|name| FORBIDDEN_DEPENDENCIES.contains(&name.as_str()));
    forbidden
        .map(|name| {
            Finding::new(&package.name, format!("`{name}` is no dependency for a deterministic crate"))
        })
        .collect()
}

/// All paths, grouped `use`s written out, each with its line. A single identifier is a path too.
fn paths<'a>(tokens: &[Token<'a>]) -> Vec<(Vec<&'a str>, usize)> {
    let mut out = Vec::new();
    let mut groups: Vec<Vec<&str>> = Vec::new();
    let mut path: Vec<&str> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at];
        let is_word = token.text.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_word {
            path.push(token.text);
            if text(tokens, at + 1) == ":" && text(tokens, at + 2) == ":" {
                at += 3;
                continue; // The path goes on.
            }
        }
        // `a::{` opens a group under what came before; any other brace one under nothing.
        if token.text == "{" {
            let outer = groups.last().filter(|_| !path.is_empty()).cloned().unwrap_or_default();
            groups.push(outer.into_iter().chain(path.drain(..)).collect());
        } else if !path.is_empty() {
            let whole = groups.last().into_iter().flatten().copied().chain(path.drain(..)).collect();
            out.push((whole, token.line));
        }
        if token.text == "}" {
            groups.pop();
        }
        at += 1;
    }
    out
}

fn text<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tokens;

    fn count(source: &str) -> usize {
        check_source("engine/queue/src/x.rs", &tokens(source)).len()
    }

    #[test]
    fn every_forbidden_path_is_found() {
        for (forbidden, _) in FORBIDDEN {
            assert_eq!(count(&format!("fn f() {{ {}(); }}", forbidden.join("::"))), 1, "{forbidden:?}");
        }
        for source in [
            "use std::fs;",
            "use std::{fmt, fs::File};",
            "use std::{collections::{BTreeMap, HashMap}, fmt};",
            "use std::{net::{SocketAddr, UdpSocket}};",
            "let t = std :: time :: Instant :: now ( ) ;",
            "struct A { b: std::collections::HashMap<u8, u8> }",
            "async fn f() {}",
            "fn f() { g().await }",
            "use std::fs::*;",
            "let m = HashMap::<u8, u8>::new();",
            "use ::tokio::net;",
        ] {
            assert_eq!(count(source), 1, "{source}");
        }
    }

    #[test]
    fn what_is_allowed_is_not_found() {
        for source in [
            "use std::net::SocketAddr; use std::time::Instant; fn f(now: Instant) {}",
            "use std::{fmt, collections::BTreeMap};",
            "/// Like `HashMap`, not async.\nfn fs() { \"tokio\"; self.env; }",
            "fn std() {} mod x { fn fs() {} }",
            "use std::collections::hash_map::Entry;",
            "match x { A { fs } => std::mem::drop(fs), B => { thread } }",
        ] {
            assert_eq!(count(source), 0, "{source}");
        }
    }

    #[test]
    fn an_exception_is_for_one_file() {
        let source = tokens("type Map = std::collections::HashMap<u8, u8>;");
        assert!(check_source("engine/base/src/hash.rs", &source).is_empty());
        assert_eq!(check_source("engine/base/src/other.rs", &source).len(), 1);
    }

    #[test]
    fn a_forbidden_dependency_is_found() {
        let package = |normal: &[&str]| Package {
            name: "overtake-queue".into(),
            folder: "engine/queue".into(),
            normal: normal.iter().map(|name| (*name).to_owned()).collect(),
            others: vec!["tokio".into()],
        };
        assert_eq!(check_dependencies(&package(&["bytes", "tokio", "rand"])).len(), 2);
        assert!(check_dependencies(&package(&["bytes"])).is_empty());
    }
}
