//! What a published crate carries: its licences and every file that its code includes; and that a release has one version.

use super::Finding;
use super::arrows::Package;
use crate::source::{Source, sources};
use crate::tree::Tree;

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

/// Places that name another version than `Cargo.toml` gives the workspace: crates, the wheel, the changelog, the page of what a release runs on.
pub(crate) fn check_version(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let root = tree.text("Cargo.toml").unwrap_or_default();
    let version =
        root.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"')).unwrap_or_default();
    let of_crates = (1..).zip(root.lines()).filter(|(_, line)| line.contains("path = \"crates/"));
    let other = of_crates.filter(|(_, line)| !line.contains(&format!("version = \"{version}\"")));
    let mut findings: Vec<Finding> = other
        .map(|(number, _)| Finding::new("Cargo.toml", number, format!("another version than {version}, use the same")))
        .collect();
    let manifests = packages.iter().map(|package| format!("{}/Cargo.toml", package.folder));
    let needed = manifests.map(|path| (path, "version.workspace = true".to_owned())).chain([
        ("python/pyproject.toml".to_owned(), "dynamic = [\"version\"]".to_owned()),
        ("docs/compatibility.md".to_owned(), format!("version {version}")),
    ]);
    for (path, text) in needed.filter(|(path, text)| !tree.text(path).unwrap_or_default().contains(text.as_str())) {
        findings.push(Finding::new(&path, 1, format!("not of the version in the root's Cargo.toml, use `{text}`")));
    }
    let headings = (1..).zip(tree.text("CHANGELOG.md").unwrap_or_default().lines());
    let newest = headings.into_iter().find(|(_, line)| line.starts_with("## [") && !line.contains("Unreleased"));
    if newest.is_none_or(|(_, line)| !line.starts_with(&format!("## [{version}]"))) {
        let message = format!("the newest version is not {version} of Cargo.toml, use the same");
        findings.push(Finding::new("CHANGELOG.md", newest.map_or(1, |(number, _)| number), message));
    }
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
    fn places_with_another_version_are_found() {
        let found = |dependency: &str, changelog: &str, page: &str| {
            let root = format!(
                "version = \"0.2.0\"\nheadway-core = {{ path = \"crates/headway-core\", version = \"{dependency}\" }}\n"
            );
            let wheel = "dynamic = [\"version\"]\n";
            let files = [
                ("Cargo.toml", root.as_str()),
                ("CHANGELOG.md", changelog),
                ("docs/compatibility.md", page),
                ("python/pyproject.toml", wheel),
            ];
            check_version(&Tree::of(files), &[])
                .into_iter()
                .map(|it| format!("{}:{}", it.path, it.line))
                .collect::<Vec<_>>()
        };
        assert!(
            found("0.2.0", "## [Unreleased]\n\n## [0.2.0] - 2026-11-28\n## [0.1.0]\n", "Of version 0.2.0.").is_empty()
        );
        assert_eq!(found("0.1.0", "## [0.2.0]", "Of version 0.2.0."), ["Cargo.toml:2"]);
        assert_eq!(
            found("0.2.0", "# Changelog\n## [0.1.0]", "Of version 0.1.0."),
            ["docs/compatibility.md:1", "CHANGELOG.md:2"]
        );
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
