//! `cargo xtask dependencies`: what of others Headway is built from: a review of each crate, the licences that go with releases, and the list
//! of parts (SBOM) that goes with them.
//!
//! All comes from `cargo metadata` and from the sources that cargo has downloaded, so that the same `Cargo.lock` gives the same files.

mod licences;
mod review;
mod sbom;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

const REVIEW: &str = "docs/dependencies.md";
pub(crate) const NOTICE: &str = "NOTICE";
pub(crate) const SBOM: &str = "python/headway.cdx.json";
const RULES: &str = "deny.toml";

/// What releases are built for. Crates for other systems are never built, and not looked at.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The crates of the workspace whose programs and libraries make a release: the program, the libraries for guests and for C, the wheel.
const RELEASED: [&str; 4] = ["headway-cli", "headway-preload", "headway-capi", "headway-python"];
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A crate that some crate of the workspace is built of.
struct Crate {
    name: String,
    version: String,
    /// As SPDX writes it.
    licence: String,
    repository: String,
    folder: PathBuf,
    features: Vec<String>,
    /// Where cargo has it from; `None` for our own.
    source: Option<String>,
    /// Whether code of it is in a release: not if it runs only while crates are built or tested.
    is_released: bool,
    /// Ids of the crates that it is linked with.
    links: Vec<String>,
    /// Names of the crates that name it.
    users: BTreeSet<String>,
}

impl Crate {
    fn is_ours(&self) -> bool {
        self.source.is_none()
    }

    /// Name and version, as in package URLs.
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }
}

pub(crate) fn run() -> anyhow::Result<()> {
    let root = crate::root();
    for (path, text) in files(&root)? {
        fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// Paths, lines and what is wrong there: files that are not as `Cargo.lock` makes them, licences that are not allowed, missing reviews.
pub(crate) fn wrong(root: &Path) -> anyhow::Result<Vec<(&'static str, usize, String)>> {
    let mut wrong = Vec::new();
    for (path, text) in files(root)? {
        if fs::read_to_string(root.join(path)).unwrap_or_default() != text {
            wrong.push((path, 1, "not what Cargo.lock gives, use `cargo xtask dependencies`".to_owned()));
        }
        if path == REVIEW {
            wrong.extend(review::missing(&text).into_iter().map(|(line, message)| (path, line, message)));
        }
    }
    let rules = fs::read_to_string(root.join(RULES)).with_context(|| format!("cannot read {RULES}"))?;
    wrong.extend(licences::refused(&read(root)?, &rules)?.into_iter().map(|message| (RULES, 1, message)));
    Ok(wrong)
}

/// The generated files.
fn files(root: &Path) -> anyhow::Result<[(&'static str, String); 3]> {
    let crates = read(root)?;
    let earlier = fs::read_to_string(root.join(REVIEW)).unwrap_or_default();
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let others = || crates.values().filter(|it| !it.is_ours());
    Ok([
        (REVIEW, review::page(&others().collect::<Vec<_>>(), &earlier)?),
        (NOTICE, licences::notice(&others().filter(|it| it.is_released).collect::<Vec<_>>())?),
        (SBOM, sbom::document(&crates, &lock)?),
    ])
}

/// Every crate that the workspace is built of, by its id.
fn read(root: &Path) -> anyhow::Result<BTreeMap<String, Crate>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]).current_dir(root);
    let done = command.output().with_context(|| format!("start {command:?}"))?;
    ensure!(done.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&done.stderr));
    let metadata: Value = serde_json::from_slice(&done.stdout).context("cargo metadata is not JSON")?;
    parse(&metadata).context("cargo metadata lacks a field")
}

fn parse(metadata: &Value) -> Option<BTreeMap<String, Crate>> {
    let mut crates = BTreeMap::new();
    let mut macros = BTreeSet::new();
    let nodes = metadata["resolve"]["nodes"].as_array()?;
    let features: BTreeMap<&str, &Value> =
        nodes.iter().map(|node| Some((node["id"].as_str()?, &node["features"]))).collect::<Option<_>>()?;
    for package in metadata["packages"].as_array()? {
        let id = package["id"].as_str()?;
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        if package["targets"].as_array()?.iter().any(|target| target["kind"][0] == "proc-macro") {
            macros.insert(id.to_owned());
        }
        let features = features.get(id).and_then(|it| it.as_array()).into_iter().flatten();
        let it = Crate {
            name: text("name"),
            version: text("version"),
            // Before SPDX was usual a slash meant "or".
            licence: text("license").replace('/', " OR "),
            repository: text("repository").trim_end_matches('/').trim_end_matches(".git").to_owned(),
            folder: Path::new(package["manifest_path"].as_str()?).parent()?.to_owned(),
            features: features.filter_map(|feature| Some(feature.as_str()?.to_owned())).collect(),
            source: package["source"].as_str().map(str::to_owned),
            is_released: false,
            links: Vec::new(),
            users: BTreeSet::new(),
        };
        crates.insert(id.to_owned(), it);
    }
    for node in nodes {
        let id = node["id"].as_str()?;
        let user = crates.get(id)?.name.clone();
        for dependency in node["deps"].as_array()? {
            let used = dependency["pkg"].as_str()?;
            crates.get_mut(used)?.users.insert(user.clone());
            let is_linked = dependency["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].is_null());
            if is_linked && !macros.contains(used) {
                crates.get_mut(id)?.links.push(used.to_owned());
            }
        }
    }
    let mut open: Vec<String> = crates
        .iter()
        .filter(|(_, it)| it.is_ours() && RELEASED.contains(&it.name.as_str()))
        .map(|(id, _)| id.clone())
        .collect();
    while let Some(id) = open.pop() {
        let it = crates.get_mut(&id)?;
        if !it.is_released {
            it.is_released = true;
            open.extend(it.links.iter().cloned());
        }
    }
    Some(crates)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_only_builds_or_tests_a_released_crate_is_not_released() {
        let package = |name: &str, kind: &str| {
            json!({
                "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "manifest_path": format!("/r/{name}/Cargo.toml"),
                "targets": [{ "kind": [kind] }], "source": if name.starts_with("headway") { json!(null) } else { json!(CRATES_IO) },
                "repository": format!("https://example.org/{name}.git"),
            })
        };
        let edge = |to: &str, kind: &Value| json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [
                package("headway-cli", "lib"), package("xtask", "bin"), package("linked", "lib"), package("below", "lib"),
                package("derive", "proc-macro"), package("cc", "lib"), package("checks", "lib"),
            ],
            "resolve": { "nodes": [
                { "id": "headway-cli", "features": [], "deps": [
                    edge("linked", &json!(null)), edge("derive", &json!(null)), edge("cc", &json!("build")), edge("checks", &json!("dev")),
                ] },
                { "id": "linked", "features": ["std"], "deps": [edge("below", &json!(null))] },
                { "id": "below", "features": [], "deps": [] },
            ] },
        });
        let crates = parse(&metadata).unwrap();
        let released: Vec<_> = crates.iter().filter(|(_, it)| it.is_released).map(|(id, _)| id.as_str()).collect();
        assert_eq!(released, ["below", "headway-cli", "linked"]);
        let linked = &crates["linked"];
        assert_eq!(
            (linked.licence.as_str(), linked.features.as_slice()),
            ("MIT OR Apache-2.0", &["std".to_owned()][..])
        );
        assert_eq!((linked.repository.as_str(), linked.users.len()), ("https://example.org/linked", 1));
    }
}
