//! `cargo xtask where FILE`: what a change of a source file touches: its tests, the pages that describe it.
//!
//! It reads the tree as text: a test program or a page counts if it names something that the file makes public, or the file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::tree::Tree;

/// Names that many files have.
const COMMON: [&str; 4] = ["Error", "Limits", "Options", "Report"];
/// Test programs and pages that are shown, those with the most names first.
const SHOWN: usize = 12;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A source file of the repository
    file: PathBuf,
}

/// What names the file, or something in it.
struct Mention {
    place: String,
    names: BTreeSet<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    let path = args.file.canonicalize().with_context(|| format!("find `{}`", args.file.display()))?;
    let file = path.strip_prefix(root.canonicalize()?).context("the file lies outside the repository")?;
    ensure!(
        file.extension().is_some_and(|kind| kind == "rs"),
        "`{}` is not a Rust source file; after a change of a CUDA source run `cargo xtask ptx`, after one of a page `cargo xtask tidy`",
        file.display()
    );
    let file = file.to_str().context("the path is not UTF-8")?;
    print!("{}", describe(&Tree::read(&root)?, file)?);
    Ok(())
}

fn describe(tree: &Tree, file: &str) -> anyhow::Result<String> {
    let text = tree.text(file).with_context(|| format!("`{file}` is no text that git knows"))?;
    let mut out = format!("{file}\n");
    for line in text.lines().take_while(|line| line.starts_with("//!")) {
        out += &format!("  {}\n", line.trim_start_matches("//!").trim());
    }
    let names = public_names(text);
    let (package, module) = place(file);
    out += "\nTests\n";
    let tests_file = file.trim_end_matches(".rs").to_owned() + "/tests.rs";
    if text.contains("#[cfg(test)]") || tree.text(&tests_file).is_some() {
        out += &format!("  cargo test -p {package} --lib {module}\n");
    }
    let is_test = |path: &str| path.ends_with(".rs") && path.contains("/tests/") && path != file;
    let tests = mentions(tree, &names, file, is_test);
    if tests.is_empty() {
        out += &format!("  cargo test -p {package}   # all of it: no test program names anything in this file\n");
    }
    for mention in tests.iter().take(SHOWN) {
        let (package, _) = place(&mention.place);
        let program = program(tree, &mention.place);
        out += &format!("  cargo test -p {package} --test {program}   # {}\n", join(&mention.names));
    }
    let is_page = |path: &str| path.ends_with(".md") && !path.starts_with("bench/runs") && path != "CHANGELOG.md";
    let pages = mentions(tree, &names, file, is_page);
    if !pages.is_empty() {
        out += "\nPages\n";
    }
    for mention in pages.iter().take(SHOWN) {
        out += &format!("  {}   # {}\n", mention.place, join(&mention.names));
    }
    Ok(out)
}

/// What the file makes public: types, traits, functions, constants.
fn public_names(text: &str) -> BTreeSet<String> {
    let before_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut names = BTreeSet::new();
    for line in before_tests.lines() {
        let Some(rest) = line.trim_start().strip_prefix("pub ") else { continue };
        let mut words = rest.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let kinds = ["struct", "enum", "trait", "fn", "const", "static", "type"];
        if words.by_ref().any(|word| kinds.contains(&word))
            && let Some(name) = words.find(|word| *word != "fn")
            && tells(name)
        {
            names.insert(name.to_owned());
        }
    }
    names
}

/// Whether a name is rarely a word of ordinary text: one of a type, or of several words.
fn tells(name: &str) -> bool {
    let is_type = name.starts_with(char::is_uppercase);
    (is_type || name.contains('_')) && !COMMON.contains(&name)
}

/// The package of a source file, and its module.
fn place(file: &str) -> (String, String) {
    let mut parts = file.split('/');
    let package = match parts.next() {
        Some("crates") => parts.next().unwrap_or_default(),
        other => other.unwrap_or_default(),
    };
    let module: Vec<&str> = parts.skip_while(|part| *part == "src").collect();
    let module = module.join("::");
    let module = module.trim_end_matches(".rs").trim_end_matches("::mod");
    (package.to_owned(), if matches!(module, "lib" | "main") { String::new() } else { module.to_owned() })
}

/// The test program that a file under `tests` belongs to; where it is one of several modules, also which.
fn program(tree: &Tree, file: &str) -> String {
    let (package, behind) = file.split_once("/tests/").unwrap_or(("", file));
    let name = behind.split('/').next().unwrap_or(behind).trim_end_matches(".rs");
    if tree.is_module_of_tests(package, name) { format!("it {name}::") } else { name.to_owned() }
}

/// Files that name the file, or one of `names`; those with the most names first.
fn mentions(tree: &Tree, names: &BTreeSet<String>, file: &str, counts: impl Fn(&str) -> bool) -> Vec<Mention> {
    let mut found = Vec::new();
    for (place, text) in tree.texts().filter(|(path, _)| counts(path)) {
        let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let mut named: BTreeSet<String> = names.iter().filter(|name| words.contains(name.as_str())).cloned().collect();
        if text.contains(file) || short(file).is_some_and(|short| text.contains(&short)) || is_test_of(place, file) {
            named.insert(file.rsplit('/').next().unwrap_or(file).to_owned());
        }
        if !named.is_empty() {
            found.push(Mention { place: place.to_owned(), names: named });
        }
    }
    found.sort_by(|a, b| b.names.len().cmp(&a.names.len()).then_with(|| a.place.cmp(&b.place)));
    found
}

/// The path as ARCHITECTURE.md writes it: `core/plan.rs` for `crates/headway-core/src/plan.rs`.
fn short(file: &str) -> Option<String> {
    let (package, inside) = file.strip_prefix("crates/")?.split_once("/src/")?;
    Some(format!("`{}/{inside}`", package.strip_prefix("headway-").unwrap_or(package)))
}

/// Whether `place` is the file of the same name below the `tests` of the same package.
fn is_test_of(place: &str, file: &str) -> bool {
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let package = |path: &str, folder: &str| path.split_once(folder).map(|(package, _)| package.to_owned());
    package(place, "/tests/").is_some_and(|of| package(file, "/src/") == Some(of)) && name(place) == name(file)
}

fn join(names: &BTreeSet<String>) -> String {
    const MOST: usize = 4;
    let shown: Vec<&str> = names.iter().take(MOST).map(String::as_str).collect();
    let rest = names.len().saturating_sub(MOST);
    if rest == 0 { shown.join(", ") } else { format!("{} and {rest} more", shown.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_names_are_those_that_others_can_use() {
        let text = "pub struct Cuts;\npub(crate) struct Hidden;\n    pub const fn with_huge_parts(self) {}\n\
                    #[cfg(test)]\nmod tests { pub fn of_a_test() {} }\n";
        assert_eq!(public_names(text).into_iter().collect::<Vec<_>>(), ["Cuts", "with_huge_parts"]);
        assert_eq!(public_names("pub fn count() {}\npub struct Error;\n"), BTreeSet::new());
    }

    #[test]
    fn pages_may_write_a_path_in_short_and_a_test_may_have_the_files_name() {
        assert_eq!(short("crates/headway-core/src/plan/block.rs").as_deref(), Some("`core/plan/block.rs`"));
        assert_eq!(short("crates/headway/src/copy.rs").as_deref(), Some("`headway/copy.rs`"));
        assert_eq!(short("xtask/src/ci.rs"), None);
        let lint = "crates/headway-preload/src/observers/lint.rs";
        assert!(is_test_of("crates/headway-preload/tests/guests/lint.rs", lint));
        assert!(!is_test_of("crates/headway-cli/tests/lint.rs", lint));
        assert!(!is_test_of("crates/headway-preload/tests/guests/log.rs", lint));
    }

    #[test]
    fn a_file_of_the_core_has_its_tests_and_pages() {
        let tree = Tree::read(&crate::root()).unwrap();
        let of = |file: &str| describe(&tree, file).unwrap();
        let cuts = of("crates/headway-core/src/decisions/staging/cuts.rs");
        assert!(cuts.contains("cargo test -p headway-core --lib decisions::staging::cuts\n"), "{cuts}");
        let machine = of("crates/headway-core/src/files/machine.rs");
        assert!(machine.contains("cargo test -p headway-core --test it machine_files::"), "{machine}");
        assert!(machine.contains("  docs/"), "{machine}");
    }
}
