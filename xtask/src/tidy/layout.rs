//! What every crate has, and what no file holds.

use super::arrows::Package;
use super::{Finding, rust};
use crate::tree::Tree;

/// Languages beside Rust whose leftovers are looked for.
const OTHER_LANGUAGES: [&str; 6] = [".c", ".cu", ".h", ".py", ".sh", ".toml"];

/// First folders of the machines this is developed on. In two halves, so that this file does not name them.
const MACHINE_FOLDERS: [&str; 3] = [concat!("/wo", "rk"), concat!("/ro", "ot"), concat!("/tmp/", "bash")];

/// What the root has; what else lies there is a result that somebody left.
const PLACES: [&str; 19] = [
    ".cargo",
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "NOTICE",
    "README.md",
    "SECURITY.md",
    "bench",
    "crates",
    "deny.toml",
    "docs",
    "python",
    "rustfmt.toml",
    "workloads",
    "xtask",
];

/// Files at the root, or in folders there, that are not known.
pub(crate) fn check_places(tree: &Tree) -> Vec<Finding> {
    let place = |path: &str| path.split('/').next().unwrap_or(path).to_owned();
    let is_known = |path: &str| PLACES.contains(&place(path).as_str()) || path.starts_with("LICENSE-");
    let unknown = tree.paths().filter(|path| !is_known(path));
    unknown.map(|path| Finding::new(path, 1, format!("`{}` is no place of this tree, use one", place(path)))).collect()
}

/// A page and the shared lints for every crate.
pub(crate) fn check(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        if !tree.exists(&format!("{}/README.md", package.folder)) {
            findings.push(Finding::new(&manifest, 1, "no README.md, use one that says what the crate is for"));
        }
        if !tree.text(&manifest).is_some_and(shares_lints) {
            findings.push(Finding::new(&manifest, 1, "lints are not shared, use `[lints]` with `workspace = true`"));
        }
    }
    findings
}

/// Every file in `tests` is run where they are one program: it names them as modules, or `Cargo.toml` as programs of their own.
pub(crate) fn check_tests(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = tree.text(&format!("{}/Cargo.toml", package.folder)).unwrap_or_default();
        if !manifest.contains("autotests = false") {
            continue;
        }
        let folder = format!("{}/tests/", package.folder);
        for path in tree.paths().filter(|path| path.starts_with(&folder)) {
            let Some(name) = path[folder.len()..].strip_suffix(".rs").filter(|name| !name.contains('/')) else {
                continue;
            };
            let is_program = manifest.contains(&format!("path = \"tests/{name}.rs\""));
            if !is_program && !tree.is_module_of_tests(&package.folder, name) {
                findings.push(Finding::new(path, 1, "no test program has this file, use `mod` in `tests/it.rs`"));
            }
        }
    }
    findings
}

fn shares_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    lines.find(|line| !line.is_empty() && !line.starts_with('#')) == Some("workspace = true")
}

/// Paths of one machine, in every text file, and leftovers in languages other than Rust.
pub(crate) fn check_text(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for (line, number) in text.lines().zip(1..) {
            if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| names_folder(line, folder)) {
                let message = format!("names `{folder}` of one machine, use a path relative to the repository");
                findings.push(Finding::new(path, number, message));
            }
        }
        if OTHER_LANGUAGES.iter().any(|ending| path.ends_with(ending)) {
            findings.extend(rust::check_other_language(path, text));
        }
    }
    findings
}

/// Whether an absolute path in `line` begins with `folder`.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        let continues_path = |letter: char| letter.is_alphanumeric() || "/._-}>*".contains(letter);
        let continues_name = |letter: char| letter.is_alphanumeric() || letter == '-';
        !before.is_some_and(continues_path) && !after.is_some_and(continues_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_folders_are_found() {
        let [work, root, scratch] = MACHINE_FOLDERS;
        for line in [format!("cd {work}/x"), format!("`{root}`"), format!("\"{scratch}_jobs/x\""), format!("={work}")] {
            assert_eq!(check_text(&Tree::of([("a.md", &line)])).len(), 1, "{line}");
        }
    }

    #[test]
    fn relative_paths_and_longer_names_are_not_machine_folders() {
        let [work, root, _] = MACHINE_FOLDERS;
        for line in [
            format!("docs{work}/x"),
            format!("{work}loads/a.toml"),
            format!("https://a.org{root}"),
            format!("$HOME/..{root}"),
        ] {
            assert!(check_text(&Tree::of([("a.md", &line)])).is_empty(), "{line}");
        }
    }

    #[test]
    fn results_left_at_the_root_are_found() {
        let found =
            check_places(&Tree::of([("gpu/run.log", ""), ("note", ""), ("crates/a/b.rs", ""), ("LICENSE-MIT", "")]));
        assert_eq!(found.iter().map(|finding| finding.path.as_str()).collect::<Vec<_>>(), ["gpu/run.log", "note"]);
    }

    #[test]
    fn a_file_of_tests_that_no_program_has_is_found() {
        let manifest =
            "[package]\nautotests = false\n\n[[test]]\npath = \"tests/it.rs\"\n\n[[test]]\npath = \"tests/own.rs\"\n";
        let tree = Tree::of([
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/tests/it.rs", "mod one;\n"),
            ("crates/a/tests/one.rs", ""),
            ("crates/a/tests/own.rs", ""),
            ("crates/a/tests/lost.rs", ""),
            ("crates/a/tests/support/mod.rs", ""),
            ("crates/b/Cargo.toml", "[package]\n"),
            ("crates/b/tests/found.rs", ""),
        ]);
        let package = |name: &str| {
            let mut package = Package::default();
            (package.name, package.folder) = (name.to_owned(), format!("crates/{name}"));
            package
        };
        let found = check_tests(&tree, &[package("a"), package("b")]);
        assert_eq!(found.iter().map(|finding| finding.path.as_str()).collect::<Vec<_>>(), ["crates/a/tests/lost.rs"]);
    }

    #[test]
    fn lints_are_shared_by_one_key() {
        assert!(shares_lints("[package]\n\n[lints]\n# as everywhere\nworkspace = true\n"));
        assert!(!shares_lints("[package]\n\n[lints]\n"));
        assert!(!shares_lints("[dependencies]\nworkspace = true\n"));
    }

    #[test]
    fn other_languages_are_searched_for_leftovers_and_pages_are_not() {
        let line = "TODO\n";
        assert_eq!(check_text(&Tree::of([("a.py", line), ("a.md", line), ("a.txt", line)])).len(), 1);
    }
}
