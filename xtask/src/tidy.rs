//! `cargo xtask tidy`: the repository's own rules, those that neither rustc nor clippy knows.
//!
//! Every check is a function from the files to findings, so that its tests need no repository.

mod arrows;
mod circles;
mod docs;
mod layout;
mod names;
mod numbers;
mod packaging;
mod pages;
mod rust;

use std::fmt;

use anyhow::bail;

use crate::tree::Tree;
use crate::{claims, dependencies, json, older_runs, papers};

pub(crate) use arrows::{Package, packages};
pub(crate) use pages::{links, prose, resolve};

/// One line of one file that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    /// What is wrong and, after ", use", what to write.
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: error: {}", self.path, self.line, self.message)
    }
}

/// Prints every finding to standard output; an error if there is one.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = crate::root();
    let tree = Tree::read(&root)?;
    let packages = packages(&root)?;

    let mut findings = arrows::check(&tree, &packages);
    findings.extend(layout::check(&tree, &packages));
    findings.extend(layout::check_tests(&tree, &packages));
    findings.extend(packaging::check(&tree, &packages));
    findings.extend(packaging::check_version(&tree, &packages));
    findings.extend(rust::check(&tree));
    findings.extend(circles::check(&tree));
    findings.extend(docs::check(&tree));
    findings.extend(names::check(&tree));
    findings.extend(layout::check_text(&tree));
    findings.extend(layout::check_places(&tree));
    findings.extend(pages::check_links(&tree));
    findings.extend(pages::check_named_tests(&tree));
    findings.extend(numbers::check(&tree));
    findings.extend(claims::stale(&root)?.map(|message| Finding::new(claims::path(), 1, message)));
    findings.extend(json::stale(&root)?.map(|message| Finding::new(json::path(), 1, message)));
    findings.extend(older_runs::stale(&root)?.map(|message| Finding::new(older_runs::path(), 1, message)));
    findings.extend(papers::stale(&root)?.map(|message| Finding::new(papers::path(), 1, message)));
    let wrong = dependencies::wrong(&root)?;
    findings.extend(wrong.into_iter().map(|(path, line, message)| Finding::new(path, line, message)));
    match pages::documented_flags(&tree) {
        Some(known) => findings.extend(pages::check_flags(&tree, &known)),
        None => println!("note: flags named in pages are not checked: there is no {}*.txt", pages::HELP_SNAPSHOTS[0]),
    }

    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} errors in {} files", findings.len(), tree.paths().count());
    }
    println!("tidy: {} files and {} crates follow the rules", tree.paths().count(), packages.len());
    Ok(())
}
