//! `cargo xtask site`: README and pages as a site, with the Python package's docstrings, below `target/site`.
//!
//! The pages keep their places in the repository. What they link to and the site does not have is linked to in the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::tidy::{links, prose, resolve};
use crate::tree::Tree;
use crate::venv;

const SETTINGS: &str = "xtask/site/zensical.toml";
const REPOSITORY: &str = "https://github.com/headway-project/headway";
/// Pages outside of `docs` that are for users.
const PAGES: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "bench/papers.md",
    "bench/results.md",
];
const STYLES: &str = "xtask/site/extra.css";

/// Installs what builds the site, so that a failure to do that can be told from mistakes in pages; returns its environment.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    venv::install("site-venv", "xtask/site-requirements.txt", &["--only-binary=:all:"])
}

/// Builds the site by what [`install`] has installed in `venv`. Links that lead nowhere are errors.
pub(crate) fn build(venv: &Path) -> anyhow::Result<()> {
    let root = crate::root();
    let site = crate::target().join("site");
    let tree = Tree::read(&root)?;
    lay_out(&tree, &root, &site)?;
    let mut command = Command::new(venv.join("bin/zensical"));
    let done = command.args(["build", "--strict", "--clean"]).current_dir(&site).output();
    let done = done.with_context(|| format!("start {command:?}"))?;
    let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    // A mistake is also an exception of its own, with a trace through its code.
    let mistakes = without_colours(said.split("Traceback (").next().unwrap_or(&said));
    ensure!(done.status.success(), "zensical found mistakes in {}:\n{mistakes}", site.join("pages").display());
    println!("{}", site.join("html/index.html").display());
    Ok(())
}

/// Writes settings and pages to `site`, in place of those of an earlier call.
fn lay_out(tree: &Tree, root: &Path, site: &Path) -> anyhow::Result<()> {
    let settings = tree.text(SETTINGS).with_context(|| format!("there is no {SETTINGS}"))?;
    let pages = pages(tree);
    for page in pages.iter().filter(|page| page.ends_with(".md") && !page.starts_with("docs/decisions/2")) {
        ensure!(settings.contains(&format!("\"{page}\"")), "{SETTINGS} has no place for {page}, use a line of `nav`");
    }
    if site.exists() {
        fs::remove_dir_all(site).with_context(|| format!("remove {}", site.display()))?;
    }
    let write = |name: &str, bytes: &[u8]| -> anyhow::Result<()> {
        let to = site.join(name);
        fs::create_dir_all(to.parent().unwrap_or(site))?;
        fs::write(&to, bytes).with_context(|| format!("write {}", to.display()))
    };
    write("zensical.toml", settings.replace("PACKAGE", &root.join("python").display().to_string()).as_bytes())?;
    for page in &pages {
        let to = format!("pages/{page}");
        match tree.text(page).filter(|_| page.ends_with(".md")) {
            Some(text) => write(&to, linked(page, text, tree, &pages)?.as_bytes())?,
            None => write(&to, &fs::read(root.join(page)).with_context(|| format!("read {page}"))?)?,
        }
    }
    write("pages/extra.css", tree.text(STYLES).with_context(|| format!("there is no {STYLES}"))?.as_bytes())
}

/// Every file of the repository that the site has: pages, and pictures beside them.
fn pages(tree: &Tree) -> BTreeSet<&str> {
    let is_picture = |path: &str| path.ends_with(".png") || path.ends_with(".svg");
    let is_ours = |path: &str| {
        PAGES.contains(&path) || (path.starts_with("docs/") && (path.ends_with(".md") || is_picture(path)))
    };
    tree.paths().filter(|path| is_ours(path)).collect()
}

/// The text of a page whose links lead to pages of the site, or else into the repository.
fn linked(page: &str, text: &str, tree: &Tree, pages: &BTreeSet<&str>) -> anyhow::Result<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (number, line) in prose(text) {
        for target in links(line) {
            let Some(file) = resolve(page, &target) else { continue };
            let Some(file) = file.filter(|file| tree.exists(file)) else {
                bail!("{page}:{number}: link to `{target}`, which is not in the repository, use an existing file");
            };
            if pages.contains(file.as_str()) {
                continue;
            }
            let kind = if tree.paths().any(|path| path == file) { "blob" } else { "tree" };
            let anchor = target.split_once('#').map_or(String::new(), |(_, anchor)| format!("#{anchor}"));
            let address = format!("{REPOSITORY}/{kind}/main/{file}{anchor}");
            lines[number - 1] = lines[number - 1].replace(&format!("]({target})"), &format!("]({address})"));
        }
    }
    Ok(lines.join("\n") + "\n")
}

/// Without the terminal's escapes, which zensical also writes into pipes.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    first + &parts.filter_map(|part| Some(part.split_once('m')?.1)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_left_out() {
        assert_eq!(without_colours("\u{1b}[33mWarning:\u{1b}[0m page\u{1b}[38;5;240m m"), "Warning: page m");
    }

    #[test]
    fn links_to_what_the_site_lacks_lead_into_the_repository() {
        let text = "[a](../bench/runs/one/summary.md#x), [b](cpu.md#y), [c](../crates), [d](https://a.org)\n```\n[e](../crates)\n```\n";
        let files =
            [("docs/a.md", text), ("docs/cpu.md", ""), ("bench/runs/one/summary.md", ""), ("crates/a/src/lib.rs", "")];
        let tree = Tree::of(files);
        let written = linked("docs/a.md", text, &tree, &pages(&tree)).unwrap();
        assert_eq!(
            written,
            format!(
                "[a]({REPOSITORY}/blob/main/bench/runs/one/summary.md#x), [b](cpu.md#y), [c]({REPOSITORY}/tree/main/crates), \
                 [d](https://a.org)\n```\n[e](../crates)\n```\n"
            )
        );
        let dead = linked("docs/a.md", "[a](nothing.md)\n", &tree, &pages(&tree)).unwrap_err().to_string();
        assert!(dead.starts_with("docs/a.md:1: link to `nothing.md`"), "{dead}");
    }
}
