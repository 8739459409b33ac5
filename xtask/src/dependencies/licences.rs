//! Which licences a dependency may have, and the texts that go with a release.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, ensure};
use toml::de::{DeTable, DeValue};

use super::{CRATES_IO, Crate};

const BEGIN: &str = "\
Headway is licensed under either of the Apache License 2.0 (LICENSE-APACHE) and the MIT license (LICENSE-MIT), at your option.

Its programs, its libraries and its wheel contain the standard library of Rust, copyright The Rust Project Contributors, under the same two
licenses, and the crates below. Of licenses that a crate offers as alternatives, the text that is here is the one under which Headway
distributes it. `cargo xtask dependencies` writes this file.
";

/// The crates whose licence `rules`, the text of `deny.toml`, does not allow, or that are from no registry.
pub(super) fn refused(crates: &BTreeMap<String, Crate>, rules: &str) -> anyhow::Result<Vec<String>> {
    let table = DeTable::parse(rules).context("deny.toml is not TOML")?;
    let licences = table.get_ref().get("licenses").and_then(|it| it.get_ref().as_table());
    let licences = licences.context("deny.toml has no table `licenses`")?;
    let words = |value: &DeValue<'_>| -> Vec<String> {
        let values = value.as_array().into_iter().flatten();
        values.filter_map(|it| Some(it.get_ref().as_str()?.to_owned())).collect()
    };
    let allowed = licences.get("allow").map(|it| words(it.get_ref())).unwrap_or_default();
    let mut exceptions = BTreeMap::new();
    let listed = licences.get("exceptions").and_then(|it| it.get_ref().as_array()).into_iter().flatten();
    for entry in listed.filter_map(|it| it.get_ref().as_table()) {
        let (name, allow) = (entry.get("crate"), entry.get("allow"));
        let name = name.and_then(|it| it.get_ref().as_str()).context("an exception of deny.toml names no crate")?;
        exceptions.insert(name.to_owned(), allow.map(|it| words(it.get_ref())).unwrap_or_default());
    }
    let mut refused = Vec::new();
    for it in crates.values().filter(|it| !it.is_ours()) {
        let more = exceptions.get(&it.name).map(Vec::as_slice).unwrap_or_default();
        if !holds(&it.licence, &|name| allowed.iter().chain(more).any(|allowed| allowed == name)) {
            let message = "is not allowed, use another crate, or say in `licenses` why it may be used";
            refused.push(format!("licence `{}` of {} {} {message}", it.licence, it.name, it.version));
        }
        if it.source.as_deref() != Some(CRATES_IO) {
            refused.push(format!("{} {} is not from crates.io, use a published version", it.name, it.version));
        }
    }
    Ok(refused)
}

/// Whether an SPDX expression can be fulfilled by licences that are `allowed`.
fn holds(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let any = |parts: Vec<&str>| parts.into_iter().any(|part| holds(part, allowed));
    let all = |parts: Vec<&str>| parts.into_iter().all(|part| holds(part, allowed));
    let expression = expression.trim();
    match (split(expression, " OR "), split(expression, " AND ")) {
        (parts, _) if parts.len() > 1 => any(parts),
        (_, parts) if parts.len() > 1 => all(parts),
        _ => match expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
            Some(inner) => holds(inner, allowed),
            None => allowed(expression),
        },
    }
}

/// The parts of an expression between operators that stand in no parentheses.
fn split<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let depth = |at: usize| {
        let before = &expression[..at];
        before.matches('(').count() - before.matches(')').count()
    };
    let ends = expression.match_indices(operator).map(|(at, _)| at).filter(|at| depth(*at) == 0);
    let mut begin = 0;
    let mut parts = Vec::new();
    for end in ends {
        parts.push(&expression[begin..end]);
        begin = end + operator.len();
    }
    parts.push(&expression[begin..]);
    parts
}

/// The licence texts of `crates`, each once.
pub(super) fn notice(crates: &[&Crate]) -> anyhow::Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for it in crates {
        texts.entry(text(it)?).or_default().push(format!("{} {} ({})", it.name, it.version, it.licence));
    }
    let mut by_crates: Vec<_> = texts.into_iter().map(|(text, crates)| (crates, text)).collect();
    by_crates.sort();
    let parts = by_crates
        .into_iter()
        .map(|(crates, text)| format!("\n{}\n{}\n\n{text}\n", "-".repeat(100), crates.join(",\n")));
    Ok(BEGIN.to_owned() + &parts.collect::<String>())
}

/// The licence that `it` brings along, where it offers several the shortest usual one.
fn text(it: &Crate) -> anyhow::Result<String> {
    let entries = fs::read_dir(&it.folder).with_context(|| format!("cannot list {}", it.folder.display()))?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| ["LICENSE", "LICENCE", "COPYING"].iter().any(|begin| name.starts_with(begin)));
    names.sort_by_key(|name| (!name.contains("MIT"), name.contains("APACHE"), name.clone()));
    ensure!(
        !it.licence.contains(" AND "),
        "{} has several licences at once; have the notice name all of them",
        it.name
    );
    let name = names.first().with_context(|| format!("{} brings no licence text along; add it by hand", it.name))?;
    let text =
        fs::read_to_string(it.folder.join(name)).with_context(|| format!("cannot read {name} of {}", it.name))?;
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    Ok(lines.join("\n").trim_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_holds_if_allowed_licences_fulfil_it() {
        let allowed = |name: &str| ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].contains(&name);
        for expression in
            ["MIT", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception OR GPL-3.0"]
        {
            assert!(holds(expression, &allowed), "{expression}");
        }
        for expression in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-3.0) AND (GPL-3.0 OR GPL-2.0)", "Apache-2.0"]
        {
            assert!(!holds(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn a_crate_with_a_licence_that_is_not_allowed_is_found_unless_it_is_an_exception() {
        let crates = super::super::read(&crate::root()).unwrap();
        let found = |rules: &str| refused(&crates, rules).unwrap();
        let only_mit = found("[licenses]\nallow = [\"MIT\"]\n");
        assert!(only_mit.iter().any(|it| it.starts_with("licence `ISC` of libloading ")), "{only_mit:?}");
        let excepted =
            found("[licenses]\nallow = [\"MIT\"]\nexceptions = [{ crate = \"libloading\", allow = [\"ISC\"] }]\n");
        assert_eq!(excepted.len() + 1, only_mit.len());
        assert!(refused(&crates, "[bans]\n").is_err());
    }
}
