//! Links and commands in Markdown pages.

use std::collections::BTreeSet;

use clap::CommandFactory;

use super::Finding;
use crate::tree::Tree;

/// Help texts that the command line's tests compare with, so that they are what the program prints.
pub(crate) const HELP_SNAPSHOTS: [&str; 2] =
    ["crates/headway-cli/tests/golden/help-", "crates/headway-lab/tests/golden/help-"];

/// Relative links that lead nowhere.
pub(crate) fn check_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (number, line) in prose(text) {
            for target in links(&without_code_spans(line)) {
                let is_dead = resolve(path, &target).is_some_and(|file| file.is_none_or(|file| !tree.exists(&file)));
                if is_dead {
                    let message = format!("link to `{target}`, which is not in the repository, use an existing file");
                    findings.push(Finding::new(path, number, message));
                }
            }
        }
    }
    findings
}

/// Tests that the page on security names, and that its packages do not have.
pub(crate) fn check_named_tests(tree: &Tree) -> Vec<Finding> {
    let page = "docs/security.md";
    let Some((_, text)) = tree.texts().find(|(path, _)| *path == page) else { return Vec::new() };
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", _, package, tests, ""] = cells[..] else { continue };
        // The folder of a package may have another name.
        let name = format!("name = \"{package}\"");
        let is_its = |(path, text): (&'_ str, &'_ str)| {
            path.strip_suffix("Cargo.toml").filter(|_| text.lines().any(|line| line == name)).map(str::to_owned)
        };
        let folder = tree.texts().find_map(is_its).unwrap_or_else(|| format!("crates/{package}/"));
        for test in tests.split('`').skip(1).step_by(2) {
            let wanted = format!("fn {test}(");
            if !tree.texts().any(|(path, source)| path.starts_with(&folder) && source.contains(&wanted)) {
                let message = format!("`{package}` has no test `{test}`, use one that it has");
                findings.push(Finding::new(page, number, message));
            }
        }
    }
    findings
}

/// Flags of the program that its help does not list. `known` are those of the program and of `cargo xtask`.
pub(crate) fn check_flags(tree: &Tree, known: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_page =
        |path: &str| path.ends_with(".md") && (path == "README.md" || path.starts_with("docs/") || is_generated(path));
    for (path, text) in tree.texts().filter(|(path, _)| is_page(path)) {
        for (number, command) in commands(text) {
            for flag in flags(own_arguments(command)).into_iter().filter(|flag| !known.contains(flag)) {
                let message = format!("there is no flag `{flag}`, use one that `--help` lists");
                findings.push(Finding::new(path, number, message));
            }
        }
    }
    findings
}

/// Every flag of the help texts and of `cargo xtask`; `None` if there are no help texts yet.
pub(crate) fn documented_flags(tree: &Tree) -> Option<BTreeSet<String>> {
    let snapshots: Vec<_> = tree
        .texts()
        .filter(|(path, _)| HELP_SNAPSHOTS.iter().any(|start| path.starts_with(start)))
        .map(|(_, text)| text)
        .collect();
    if snapshots.is_empty() {
        return None;
    }
    let mut known: BTreeSet<_> = snapshots.into_iter().flat_map(flags).collect();
    for command in crate::Cli::command().get_subcommands() {
        known.extend(command.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?))));
    }
    known.extend(["--help".to_owned(), "--version".to_owned()]);
    Some(known)
}

/// Pages that are made from kept runs.
fn is_generated(path: &str) -> bool {
    path.strip_prefix("bench/").is_some_and(|name| !name.contains('/'))
}

/// Lines outside fenced code, with their numbers.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Code spans of prose and lines of fenced code, with their numbers.
fn commands(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut commands = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            commands.push((number, line));
        } else {
            commands.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span)));
        }
    }
    commands
}

/// The part of a command line that our programs read: what follows `headway`, `cargo xtask` or `cargo run ... --`, or a
/// flag that stands alone.
fn own_arguments(command: &str) -> &str {
    let command = command.trim().trim_start_matches("$ ");
    let own = if let Some(rest) = command.strip_prefix("headway ").or_else(|| command.strip_prefix("cargo xtask ")) {
        rest
    } else if command.starts_with("cargo run ") {
        command.split_once(" -- ").map_or("", |(_, rest)| rest)
    } else if command.starts_with("--") {
        command
    } else {
        ""
    };
    // After another `--` stands somebody else's command, after `#` a comment.
    let own = own.split_once(" -- ").map_or(own, |(ours, _)| ours);
    own.split_once(" #").map_or(own, |(ours, _)| ours)
}

/// Every `--word` of a text.
fn flags(text: &str) -> Vec<String> {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let starts = text.match_indices("--").filter(|(at, _)| !text[..*at].ends_with(|before: char| is_part(before)));
    let words = starts.map(|(at, _)| {
        let rest = &text[at..];
        &rest[..rest.find(|letter| !is_part(letter)).unwrap_or(rest.len())]
    });
    words.filter(|word| word.len() > 2).map(|word| word.trim_end_matches('-').to_owned()).collect()
}

fn without_code_spans(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Targets of `[text](target)` and `[name]: target`.
pub(crate) fn links(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let named = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
    inline.chain(named).map(|target| target.trim_matches(['<', '>']).to_owned()).collect()
}

/// Path from the root that a relative link of `page` names; `Some(None)` if it leaves the repository, `None` if the link
/// is not to a file.
pub(crate) fn resolve(page: &str, target: &str) -> Option<Option<String>> {
    let file = target.split('#').next().filter(|file| !file.is_empty())?;
    if file.contains("://") || file.starts_with("mailto:") {
        return None;
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return Some(None),
            ".." => {}
            part => parts.push(part),
        }
    }
    Some(Some(parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(page: &str, text: &str) -> usize {
        check_links(&Tree::of([(page, text), ("docs/testing.md", ""), ("LICENSE-MIT", "")])).len()
    }

    #[test]
    fn a_test_that_a_package_does_not_have_is_found() {
        let page = "| promise | package | test |\n|---|---|---|\n| one | a | `it_holds` |\n| two | b | `it_holds`, `it_is_gone` |\n";
        let source = "#[test]\nfn it_holds() {}\n";
        let tree = Tree::of([
            ("docs/security.md", page),
            ("crates/first/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("crates/first/tests/it.rs", source),
            ("crates/b/src/lib.rs", source),
        ]);
        let lines: Vec<_> = check_named_tests(&tree).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [4]);
    }

    #[test]
    fn dead_links_are_found() {
        assert_eq!(dead("README.md", "[a](docs/nothing.md) and [b](docs/testing.md#x)"), 1);
        assert_eq!(dead("docs/a.md", "![a](testing.md), [b](../LICENSE-MIT), [c](../../outside)"), 1);
        assert_eq!(dead("README.md", "[a]: docs/nothing.md\n[b]: docs/"), 1);
    }

    #[test]
    fn code_and_addresses_are_not_links() {
        let text = "`a[0](b)` [a](https://a.org) [b](#b) [c](mailto:a@b)\n```\n[d](e)\n```\n";
        assert_eq!(dead("README.md", text), 0);
    }

    fn unknown(text: &str) -> Vec<String> {
        let tree = Tree::of([
            ("README.md", text),
            (
                "crates/headway-cli/tests/golden/help-run.txt",
                "  -f, --format <FORMAT>  text or json\n      --seed <SEED>\n",
            ),
        ]);
        let known = documented_flags(&tree).unwrap();
        check_flags(&tree, &known).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn flags_that_the_help_does_not_list_are_found() {
        let there_is_none = |line, flag| {
            vec![format!("README.md:{line}: error: there is no flag `{flag}`, use one that `--help` lists")]
        };
        assert_eq!(unknown("a `headway run a.toml --sede 1`"), there_is_none(1, "--sede"));
        assert_eq!(unknown("a\n```\ncargo run --release -- run --frmat=json\n```\n"), there_is_none(3, "--frmat"));
        assert_eq!(unknown("with `--sed`"), there_is_none(1, "--sed"));
        assert_eq!(unknown("`cargo xtask ptx --chekc`"), there_is_none(1, "--chekc"));
    }

    #[test]
    fn known_flags_and_those_of_other_programs_are_accepted() {
        assert!(unknown("`headway run --seed 1 --format=json --help`, `--seed`, `cargo xtask ptx --check`").is_empty());
        assert!(unknown("`cargo run --release -- run`, `git log --oneline`, `headway exec -- a --b`").is_empty());
        assert!(unknown("```\nheadway run a.toml # as with --other\n```\n").is_empty());
    }

    #[test]
    fn without_help_texts_no_flag_is_known() {
        assert!(documented_flags(&Tree::of([("README.md", "")])).is_none());
    }
}
