//! What a published crate carries: its licences and every file that its code includes.

use super::arrows::Package;
use super::source::{Source, sources};
use super::{Finding, Tree};

/// Files that lie in the folder of each published crate.
const CARRIED: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// Macros that read a file while a crate is built.
const INCLUDES: [&str; 2] = ["include_str", "include_bytes"];

pub(crate) fn check(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let Some(text) = tree.text(&manifest) else { continue };
        if text.lines().any(|line| line.trim() == "publish = false") {
            continue;
        }
        for file in CARRIED {
            if !tree.exists(&format!("{}/{file}", package.folder)) {
                findings.push(Finding::new(&manifest, 1, format!("no {file} to publish, use a link to the root's")));
            }
        }
    }
    let pairs = sources(tree).into_iter().filter_map(|source| tree.text(&source.path).map(|text| (text, source)));
    findings.extend(pairs.flat_map(|(text, source)| leaving(text, &source)));
    findings
}

/// Files that the product code of a crate includes from outside its folder: a packaged crate lacks them.
fn leaving(text: &str, source: &Source) -> Vec<Finding> {
    let Some((folder, _)) = source.path.split_once("/src/") else { return Vec::new() };
    let depth = source.path[folder.len() + 1..].matches('/').count();
    let mut findings = Vec::new();
    for at in INCLUDES.iter().flat_map(|name| source.words(name)).filter(|at| !source.is_test(*at)) {
        let Some(path) = text[at..].split('"').nth(1) else { continue };
        if path.matches("../").count() > depth {
            let message = format!("`{path}` lies outside the crate, use a copy or a link inside it");
            findings.push(Finding::new(&source.path, source.line(at), message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        leaving(text, &Source::new(path, text)).len()
    }

    #[test]
    fn files_included_from_outside_the_crate_are_found() {
        let inside = "const A: &str = include_str!(\"../../ptx/a.ptx\");";
        assert_eq!(found("crates/x/src/window/ping.rs", inside), 0);
        assert_eq!(found("crates/x/src/ping.rs", inside), 1);
        assert_eq!(found("crates/x/src/ping.rs", &format!("#[cfg(test)]\nmod tests {{\n    {inside}\n}}\n")), 0);
        assert_eq!(found("crates/x/tests/ping.rs", inside), 0);
    }
}
