//! Rules for names: a public type's name belongs to one type of the workspace, so that it makes sense without its module.

use std::collections::BTreeMap;

use super::Finding;
use crate::source::sources;
use crate::tree::Tree;

/// Names that several types may have, with the reason.
const SHARED: [(&str, &str); 2] = [
    ("Copier", "the C library's type is named after the one that it wraps"),
    ("Error", "every crate has the error of its calls"),
];
/// What a public type begins with.
const TYPES: [&str; 6] = ["pub struct", "pub enum", "pub trait", "pub unsafe trait", "pub type", "pub union"];

/// Where a public type is declared.
struct Owner {
    path: String,
    line: usize,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut owners: BTreeMap<String, Vec<Owner>> = BTreeMap::new();
    for source in sources(tree) {
        if !source.path.starts_with("crates/") || !source.path.contains("/src/") {
            continue;
        }
        let mut at = 0;
        for (number, line) in source.code.lines().enumerate() {
            let is_test = source.is_test(at);
            at += line.len() + 1;
            if let Some(name) = declared(line).filter(|name| !name.is_empty() && !is_test) {
                let owner = Owner { path: source.path.clone(), line: number + 1 };
                owners.entry(name.to_owned()).or_default().push(owner);
            }
        }
    }
    let mut findings = Vec::new();
    for (name, owners) in owners {
        if owners.len() == 1 || SHARED.iter().any(|(shared, _)| *shared == name) {
            continue;
        }
        for owner in &owners {
            let message =
                format!("`{name}` is the name of {} public types, use one that makes sense alone", owners.len());
            findings.push(Finding::new(&owner.path, owner.line, message));
        }
    }
    findings
}

/// The name of the public type that a line of code declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = TYPES.iter().find_map(|start| line.strip_prefix(start)?.strip_prefix(' '))?;
    let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "crates/headway-core/src/one.rs";
    const OTHER: &str = "crates/headway-os/src/other.rs";

    fn found(one: &str, other: &str) -> Vec<String> {
        check(&Tree::of([(ONE, one), (OTHER, other)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_of_two_public_types_is_found_at_both() {
        let found = found("\npub enum Job {}\n", "    pub type Job<'a> = u8;\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with(&format!("{ONE}:2: error: `Job` is the name of 2 public types")), "{found:?}");
        assert!(found[1].starts_with(&format!("{OTHER}:1: error: ")), "{found:?}");
    }

    #[test]
    fn private_types_reexports_tests_and_accepted_names_may_share_one() {
        let nothing = [""; 0];
        assert_eq!(found("pub struct Job;\n", "struct Job;\npub(crate) struct Job;\n"), nothing);
        assert_eq!(found("pub struct Job;\n", "pub use one::Job;\n// pub struct Job;\n"), nothing);
        assert_eq!(found("pub struct Job;\n", "#[cfg(test)]\nmod tests {\n    pub struct Job;\n}\n"), nothing);
        assert_eq!(found("pub struct Error;\n", "pub enum Error {}\n"), nothing);
        assert_eq!(found("pub struct Job;\n", "pub struct JobId;\n"), nothing);
    }
}
