//! Which crate may name which: the table of ARCHITECTURE.md against `cargo metadata`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::Finding;
use crate::tree::Tree;

/// What one crate may name of ours.
struct Row {
    name: &'static str,
    /// Its folder, from the root.
    folder: &'static str,
    may_name: May,
}

enum May {
    Only(&'static [&'static str]),
    /// Every crate that `headway` is made of.
    Below,
    /// `headway`, what it is made of but for the CUDA backend, and these.
    WithHeadway(&'static [&'static str]),
}

const fn row(name: &'static str, folder: &'static str, may_name: May) -> Row {
    Row { name, folder, may_name }
}

/// The package of the library `headway`: on crates.io `headway` is another project.
const LIBRARY: &str = "headway-gpu";

/// The arrows. A crate that is not here is an error; one that does not exist is fine.
const TABLE: [Row; 18] = [
    row("headway-core", "crates/headway-core", May::Only(&[])),
    row("headway-sim", "crates/headway-sim", May::Only(&["headway-core"])),
    row("headway-os", "crates/headway-os", May::Only(&["headway-core"])),
    row("headway-device", "crates/headway-device", May::Only(&["headway-core", "headway-os"])),
    row("headway-cuda", "crates/headway-cuda", May::Only(&["headway-core", "headway-os", "headway-device"])),
    row("headway-kernels", "crates/headway-kernels", May::Only(&["headway-core", "headway-device"])),
    row(
        "headway-runtime",
        "crates/headway-runtime",
        May::Only(&["headway-core", "headway-os", "headway-device", "headway-broker"]),
    ),
    row("headway-broker", "crates/headway-broker", May::Only(&["headway-core", "headway-os"])),
    row("headway-trace", "crates/headway-trace", May::Only(&["headway-core"])),
    row(LIBRARY, "crates/headway", May::Below),
    row("headway-measure", "crates/headway-measure", May::WithHeadway(&[])),
    row("headway-cli", "crates/headway-cli", May::Only(&[LIBRARY, "headway-measure"])),
    row("headway-lab", "crates/headway-lab", May::WithHeadway(&["headway-measure", "headway-cli"])),
    row("headway-fuzz", "crates/headway-fuzz", May::WithHeadway(&["headway-capi", "headway-lab"])),
    row("headway-capi", "crates/headway-capi", May::Only(&[LIBRARY])),
    row("headway-preload", "crates/headway-preload", May::Only(&["headway-core", LIBRARY])),
    row("headway-python", "python", May::Only(&[LIBRARY])),
    row("xtask", "xtask", May::Only(&[])),
];

/// What `headway` is made of.
const BELOW: [&str; 9] = [
    "headway-core",
    "headway-sim",
    "headway-os",
    "headway-device",
    "headway-cuda",
    "headway-kernels",
    "headway-runtime",
    "headway-broker",
    "headway-trace",
];

/// The backend that only `headway` names.
const CUDA: &str = "headway-cuda";

/// Its tests drive the whole product on a GPU, so they may name any crate.
const TESTS_NAME_ANY: &str = CUDA;

/// Whose tests name what else: they read workload files of the applications that ship and run their kernels, or try kernels on a GPU.
const TESTS_NAME: [(&str, &str); 4] = [
    ("headway-core", "headway-kernels"),
    ("headway-sim", "headway-kernels"),
    ("headway-runtime", "headway-kernels"),
    ("headway-lab", CUDA),
];

/// One crate of the workspace.
#[cfg_attr(test, derive(Default))]
pub(crate) struct Package {
    pub(crate) name: String,
    /// From the root, with `/`.
    pub(crate) folder: String,
    dependencies: Vec<Dependency>,
}

impl Package {
    /// The crates of `packages` that this one is built of, itself included; those of its tests `for_tests`.
    pub(crate) fn needs<'a>(&'a self, packages: &'a [Self], for_tests: bool) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::from([self.name.as_str()]);
        let mut open = vec![self];
        while let Some(package) = open.pop() {
            let counts = |it: &&Dependency| !it.is_for_tests || for_tests && package.name == self.name;
            for dependency in package.dependencies.iter().filter(counts) {
                let next = packages.iter().find(|it| it.name == dependency.name);
                open.extend(next.filter(|it| found.insert(it.name.as_str())));
            }
        }
        found
    }
}

struct Dependency {
    name: String,
    is_for_tests: bool,
}

/// The crates of the workspace, as cargo sees them.
///
/// # Errors
/// `cargo metadata` fails.
pub(crate) fn packages(root: &Path) -> anyhow::Result<Vec<Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--no-deps", "--format-version", "1"];
    let done = Command::new(cargo).args(arguments).current_dir(root).output().context("start cargo metadata")?;
    ensure!(done.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&done.stderr));
    let metadata = serde_json::from_slice(&done.stdout).context("cargo metadata is not JSON")?;
    parse(&metadata).context("cargo metadata lacks a field")
}

fn parse(metadata: &Value) -> Option<Vec<Package>> {
    let root = metadata["workspace_root"].as_str()?;
    let package = |value: &Value| {
        let manifest = value["manifest_path"].as_str()?.strip_prefix(root)?;
        let dependencies = value["dependencies"].as_array()?.iter();
        Some(Package {
            name: value["name"].as_str()?.to_owned(),
            folder: manifest.trim_matches('/').trim_end_matches("Cargo.toml").trim_end_matches('/').to_owned(),
            dependencies: dependencies.map(dependency).collect::<Option<_>>()?,
        })
    };
    metadata["packages"].as_array()?.iter().map(package).collect()
}

fn dependency(value: &Value) -> Option<Dependency> {
    Some(Dependency { name: value["name"].as_str()?.to_owned(), is_for_tests: value["kind"].as_str() == Some("dev") })
}

pub(crate) fn check(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let Some(row) = TABLE.iter().find(|row| row.name == package.name) else {
            let message =
                format!("crate `{}` is not in the table of crates, use a module of one that is", package.name);
            findings.push(Finding::new(&manifest, 1, message));
            continue;
        };
        if package.folder != row.folder {
            let message = format!("crate `{}` lies in {}, use the folder {}", row.name, package.folder, row.folder);
            findings.push(Finding::new(&manifest, 1, message));
        }
        let ours = |name: &str| packages.iter().any(|other| other.name == name);
        for wrong in package.dependencies.iter().filter(|it| ours(&it.name) && !allowed(row, it)) {
            let line = tree.text(&manifest).and_then(|text| line_naming(text, &wrong.name)).unwrap_or(1);
            let message = format!("`{}` may not name `{}`, use {}", row.name, wrong.name, choices(row));
            findings.push(Finding::new(&manifest, line, message));
        }
    }
    findings
}

fn allowed(row: &Row, dependency: &Dependency) -> bool {
    let for_tests = row.name == TESTS_NAME_ANY || TESTS_NAME.contains(&(row.name, dependency.name.as_str()));
    if dependency.is_for_tests && for_tests {
        return true;
    }
    let name = dependency.name.as_str();
    match row.may_name {
        May::Only(names) => names.contains(&name),
        May::Below => BELOW.contains(&name),
        May::WithHeadway(others) => {
            name == LIBRARY || others.contains(&name) || (BELOW.contains(&name) && name != CUDA)
        }
    }
}

fn choices(row: &Row) -> String {
    match row.may_name {
        May::Only([]) => "no crate of ours".to_owned(),
        May::Only(names) => format!("only {}", names.join(", ")),
        May::Below => format!("only {}", BELOW.join(", ")),
        May::WithHeadway(_) => format!("only `headway` and what it is made of, but for {CUDA}"),
    }
}

/// The line of a manifest whose key is `name`, counted from 1.
fn line_naming(manifest: &str, name: &str) -> Option<usize> {
    let names_it = |line: &str| {
        let rest = line.trim().trim_start_matches('"').strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=', '"']))
    };
    manifest.lines().position(names_it).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(packages: &Value) -> Vec<String> {
        let metadata = json!({ "workspace_root": "/r", "packages": packages });
        let tree = Tree::of([(
            "crates/headway-sim/Cargo.toml",
            "[dependencies]\nserde = \"1\"\nheadway-os.workspace = true\n",
        )]);
        check(&tree, &parse(&metadata).unwrap()).iter().map(ToString::to_string).collect()
    }

    /// The folder of a package has its name, but for the library, whose folder has the name that programs use.
    fn folder(package: &str) -> &str {
        if package == LIBRARY { "headway" } else { package }
    }

    fn package(name: &str, dependencies: &Value) -> Value {
        let manifest = format!("/r/crates/{}/Cargo.toml", folder(name));
        json!({ "name": name, "manifest_path": manifest, "dependencies": dependencies })
    }

    fn arrow(from: &str, to: &str, kind: &Value) -> Vec<String> {
        let dependencies = json!([{ "name": to, "kind": kind }, { "name": "serde", "kind": null }]);
        found(&json!([package(from, &dependencies), package(to, &json!([]))]))
    }

    #[test]
    fn an_arrow_that_is_not_in_the_table_is_found_with_its_line() {
        assert_eq!(
            arrow("headway-sim", "headway-os", &json!(null)),
            ["crates/headway-sim/Cargo.toml:3: error: `headway-sim` may not name `headway-os`, use only headway-core"]
        );
        assert_eq!(arrow("headway-sim", "headway-os", &json!("dev")).len(), 1);
        assert_eq!(arrow("headway-core", "headway-sim", &json!("build")).len(), 1);
        assert!(arrow("headway-sim", "headway-core", &json!(null)).is_empty());
    }

    #[test]
    fn only_the_public_library_names_the_cuda_backend() {
        for row in TABLE.iter().filter(|row| row.folder.starts_with("crates/") && row.name != "headway-cuda") {
            let expected = usize::from(row.name != LIBRARY);
            assert_eq!(arrow(row.name, "headway-cuda", &json!(null)).len(), expected, "{}", row.name);
        }
        assert_eq!(arrow(LIBRARY, "headway-cli", &json!(null)).len(), 1);
    }

    #[test]
    fn a_library_user_links_neither_measurements_nor_the_laboratory() {
        for name in ["headway-measure", "headway-lab"] {
            assert_eq!(arrow(LIBRARY, name, &json!(null)).len(), 1, "{name}");
            assert_eq!(arrow("headway-capi", name, &json!(null)).len(), 1, "{name}");
        }
        assert!(arrow("headway-cli", "headway-measure", &json!(null)).is_empty());
        assert_eq!(arrow("headway-cli", "headway-lab", &json!(null)).len(), 1);
        assert!(arrow("headway-lab", "headway-measure", &json!(null)).is_empty());
        assert_eq!(arrow("headway-measure", "headway-lab", &json!(null)).len(), 1);
    }

    #[test]
    fn tests_of_the_cuda_backend_name_any_crate() {
        assert!(arrow("headway-cuda", "headway-runtime", &json!("dev")).is_empty());
        assert_eq!(arrow("headway-cuda", "headway-runtime", &json!(null)).len(), 1);
    }

    #[test]
    fn only_tests_of_the_core_name_kernels() {
        assert!(arrow("headway-core", "headway-kernels", &json!("dev")).is_empty());
        assert_eq!(arrow("headway-core", "headway-kernels", &json!(null)).len(), 1);
        assert_eq!(arrow("headway-core", "headway-sim", &json!("dev")).len(), 1);
        assert_eq!(arrow("headway-cli", "headway-core", &json!("dev")).len(), 1);
    }

    #[test]
    fn an_unknown_crate_and_a_wrong_folder_are_found() {
        assert!(found(&json!([package("headway-utils", &json!([]))]))[0].contains("not in the table"));
        let misplaced = json!({ "name": "headway-os", "manifest_path": "/r/crates/os/Cargo.toml", "dependencies": [] });
        assert!(found(&json!([misplaced]))[0].contains("use the folder crates/headway-os"));
    }

    #[test]
    fn every_row_lies_in_the_folder_of_its_package() {
        for row in TABLE.iter().filter(|row| row.folder.starts_with("crates/")) {
            assert_eq!(row.folder, format!("crates/{}", folder(row.name)));
        }
    }
}
