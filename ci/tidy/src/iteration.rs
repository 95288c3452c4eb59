//! Deterministic crates never iterate over hash maps and sets: their order is arbitrary, and would decide something.
//!
//! The check knows names, not types. It follows fields, which are known in their file and, behind `self`, in their whole
//! crate (unless the same name is a field of another type there too), and parameters and variables, of which the last
//! declaration counts; and it finds loops over them and calls of what iterates.

use crate::Finding;
use crate::source::Token;
use std::collections::{BTreeMap, BTreeSet};

const TYPES: [&str; 4] = ["Map", "Set", "HashMap", "HashSet"];

const ITERATES: [&str; 12] = [
    "iter",
    "iter_mut",
    "keys",
    "values",
    "values_mut",
    "drain",
    "into_iter",
    "into_keys",
    "into_values",
    "extract_if",
    "difference",
    "intersection",
];

/// Fields that a file or a crate declares.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fields<'a> {
    /// Hash maps and sets.
    pub hashed: BTreeSet<&'a str>,
    /// Everything else.
    pub others: BTreeSet<&'a str>,
}

/// Reads the fields of a file's structs.
#[must_use]
pub fn fields<'a>(tokens: &[Token<'a>]) -> Fields<'a> {
    let mut out = Fields::default();
    let structs = tokens.iter().enumerate().filter(|(_, token)| token.text == "struct");
    for (start, _) in structs {
        let body = tokens[start..].iter().position(|t| matches!(t.text, "{" | ";" | "("));
        let Some(open) = body.map(|body| start + body).filter(|at| text(tokens, *at) == "{") else {
            continue;
        };
        let mut depth = 0_usize;
        for at in open..tokens.len() {
            match text(tokens, at) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                name if depth == 1 && names_type(tokens, at) => {
                    let hashed = is_hashed_type(&tokens[at + 2..]);
                    if hashed {
                        out.hashed.insert(name)
                    } else {
                        out.others.insert(name)
                    };
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    out
}

/// Whether the token at `at` is a name, a single colon after it, and so a type after that.
fn names_type(tokens: &[Token<'_>], at: usize) -> bool {
    text(tokens, at + 1) == ":"
        && text(tokens, at + 2) != ":"
        && text(tokens, at.wrapping_sub(1)) != ":"
        && is_name(text(tokens, at))
}

/// What the declaration of a variable or parameter at `at` says of its type; `None` where there is none.
fn variable(tokens: &[Token<'_>], at: usize) -> Option<bool> {
    let before = text(tokens, at.wrapping_sub(1));
    let is_let = before == "let" || (before == "mut" && text(tokens, at.wrapping_sub(2)) == "let");
    if names_type(tokens, at) {
        return Some(is_hashed_type(&tokens[at + 2..]));
    }
    let value = || path(&tokens[at + 2..]);
    (is_let && text(tokens, at + 1) == "=").then(|| value().iter().any(|segment| TYPES.contains(segment)))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_lowercase() || c == '_')
}

fn is_hashed_type(tokens: &[Token<'_>]) -> bool {
    let start =
        tokens.iter().take_while(|t| t.text == "&" || t.text == "mut" || t.text.starts_with('\'')).count();
    let path = path(&tokens[start..]);
    path.last().is_some_and(|last| TYPES.contains(last))
}

/// The segments of the path that starts here, up to its first generic argument.
fn path<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(segment) =
        tokens.get(at).filter(|t| t.text.starts_with(|c: char| c.is_alphabetic() || c == '_'))
    {
        out.push(segment.text);
        if text(tokens, at + 1) != ":" || text(tokens, at + 2) != ":" {
            break;
        }
        at += 3;
    }
    out
}

/// Finds iteration in a file, over its variables, its fields and those of its crate.
#[must_use]
pub fn check(path: &str, tokens: &[Token<'_>], file: &Fields<'_>, krate: &Fields<'_>) -> Vec<Finding> {
    let mut variables = BTreeMap::new();
    let mut findings = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if let Some(hashed) = variable(tokens, at) {
            variables.insert(token.text, hashed);
        }
        let called = text(tokens, at + 1) == "." && text(tokens, at + 3) == "(";
        let over = if called && ITERATES.contains(&text(tokens, at + 2)) {
            Some(at)
        } else if token.text == "for" {
            looped_over(&tokens[at..]).map(|offset| at + offset)
        } else {
            None
        };
        let Some(over) = over else { continue };
        let name = text(tokens, over);
        let hashed = if text(tokens, over.wrapping_sub(1)) == "." {
            let own = text(tokens, over.wrapping_sub(2)) == "self";
            file.hashed.contains(name) || (own && krate.hashed.contains(name) && !krate.others.contains(name))
        } else {
            variables.get(name) == Some(&true)
        };
        if hashed {
            let problem =
                format!("iterates over the hash map or set `{name}`; keep an ordered index beside it");
            findings.push(Finding::new(format!("{path}:{}", token.line), problem));
        }
    }
    findings
}

/// Where the field or variable stands that the `for` loop at the start runs over, where it is one.
fn looped_over(tokens: &[Token<'_>]) -> Option<usize> {
    let open = tokens.iter().position(|t| t.text == "{")?;
    let start = tokens[..open].iter().position(|t| t.text == "in")? + 1;
    let expression = &tokens[start..open];
    let plain = expression.iter().all(|t| {
        matches!(t.text, "&" | "mut" | "." | "self")
            || t.text.starts_with(|c: char| c.is_lowercase() || c == '_')
    });
    (plain && start < open).then(|| open - 1)
}

fn text<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tokens;

    fn count(source: &str) -> usize {
        let tokens = tokens(source);
        let file = fields(&tokens);
        check("x.rs", &tokens, &file, &file).len()
    }

    #[test]
    fn iteration_over_what_is_declared_hashed_is_found() {
        for method in ITERATES {
            assert_eq!(count(&format!("struct A {{ b: Map<u8, u8> }} fn f() {{ self.b.{method}(); }}")), 1);
        }
        for source in [
            "struct A { pub b: overtake_base::hash::Set<u8> } fn f() { for x in &self.b { } }",
            "fn f(b: &mut Map<u8, u8>) { for (_, x) in b { } }",
            "fn f<'a>(b: &'a HashMap<u8, u8>) { b\n.values()\n.sum() }",
            "fn f() { let mut b = Set::default(); for x in b { } }",
            "struct A { x: [u8; 3], b: Map<u8, u8> } fn f(a: &A) { let b = 1; a.b.iter() }",
            "fn f() { let b = hash::Map::<u8, u8>::with_capacity(1); b.keys(); }",
        ] {
            assert_eq!(count(source), 1, "{source}");
        }
    }

    #[test]
    fn look_ups_and_ordered_maps_are_let_be() {
        for source in [
            "struct A { b: Map<u8, u8> } fn f() { self.b.get(&1); self.b.insert(2, 3); self.b.len(); }",
            "struct A { b: BTreeMap<u8, u8> } fn f() { for x in &self.b { } self.b.iter(); }",
            "struct A { b: Vec<Map<u8, u8>> } fn f() { self.b.iter(); }",
            "struct A { b: Map<u8, u8>, c: Vec<u8> } fn f() { for x in &self.c { self.b.get(x); } }",
            "impl Set for A { fn f() { for x in 0..3 { } } }",
            "struct A { b: Map<u8, u8> } fn f() { let b = self.c.iter(); for x in b { } }",
            "fn f(b: &Map<u8, u8>) { let b = sorted(b); b.iter() }",
            "fn f() -> Map<u8, u8> { let b: Vec<u8> = x; b.iter().map(|x| Map::new()).collect() }",
        ] {
            assert_eq!(count(source), 0, "{source}");
        }
    }

    #[test]
    fn a_field_is_known_in_its_crate_unless_its_name_is_ambiguous() {
        let user = tokens("fn f() { for x in &self.b { } }");
        let file = fields(&user);
        let hashed = tokens("struct A { b: Map<u8, u8> }");
        assert_eq!(check("x.rs", &user, &file, &fields(&hashed)).len(), 1);
        let foreign = tokens("fn f(g: &Foreign) { for x in &g.b { } }");
        assert_eq!(check("x.rs", &foreign, &file, &fields(&hashed)).len(), 0);
        let both = tokens("struct A { b: Map<u8, u8> } struct C { b: Vec<u8> }");
        assert_eq!(check("x.rs", &user, &file, &fields(&both)).len(), 0);
    }
}
