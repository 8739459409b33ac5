//! `cargo xtask mutants`: breaks the code in known ways, one at a time, and demands that a named test notices.
//!
//! A mutation is a file `xtask/mutants/NAME.patch`: a patch below two lines that say what it breaks and which command must fail with it.
//! `cargo xtask tidy` checks that each still applies.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::tree::Tree;

/// Where the patches are.
const FOLDER: &str = "xtask/mutants/";
/// How their names end.
const ENDING: &str = ".patch";
/// Begins the line that says what is broken.
const BREAKS: &str = "Breaks: ";
/// Begins the line with the command that must fail.
const NOTICED_BY: &str = "Noticed by: ";

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Try only these mutations
    names: Vec<String>,
    /// List the mutations, what each breaks and what must notice it
    #[arg(long)]
    list: bool,
    /// First run each command without the mutation: it must pass
    #[arg(long)]
    sound: bool,
}

/// One way to break the code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    name: String,
    breaks: String,
    /// The arguments of cargo, as written.
    noticed_by: String,
    patch: String,
}

impl Mutant {
    /// Of the file `path`; what is wrong with it otherwise, with the line.
    fn parse(path: &str, text: &str) -> Result<Self, (usize, String)> {
        let name = path.strip_prefix(FOLDER).and_then(|name| name.strip_suffix(ENDING));
        let name = name.ok_or_else(|| (1, format!("its name must end with `{ENDING}`")))?.to_owned();
        let head = |begin: &str| {
            let lines = text.lines().take_while(|line| !line.starts_with("--- "));
            lines.filter_map(|line| line.strip_prefix(begin)).map(str::trim).find(|rest| !rest.is_empty())
        };
        let absent = |what: &str| (1, format!("a line is missing above the patch, use `{what}...`"));
        let breaks = head(BREAKS).ok_or_else(|| absent(BREAKS))?.to_owned();
        let noticed_by = head(NOTICED_BY).ok_or_else(|| absent(NOTICED_BY))?.to_owned();
        if !noticed_by.starts_with("cargo test -p ") {
            let line = text.lines().position(|line| line.starts_with(NOTICED_BY)).map_or(1, |at| at + 1);
            return Err((line, "the command must be `cargo test -p CRATE ...`".into()));
        }
        let start = text.find("\n--- ").ok_or_else(|| (1, "there is no patch".to_owned()))? + 1;
        Ok(Self { name, breaks, noticed_by, patch: text[start..].to_owned() })
    }
}

/// All mutations of `tree`, and what is wrong with others: path, line, message.
pub(crate) fn all(tree: &Tree) -> (Vec<Mutant>, Vec<(String, usize, String)>) {
    let (mut mutants, mut wrong) = (Vec::new(), Vec::new());
    for (path, text) in tree.texts().filter(|(path, _)| path.starts_with(FOLDER) && !path.ends_with(".md")) {
        match Mutant::parse(path, text) {
            Ok(mutant) => mutants.push(mutant),
            Err((line, message)) => wrong.push((path.to_owned(), line, message)),
        }
    }
    (mutants, wrong)
}

/// Why the patch of `mutant` does not apply to the files below `root`, if it does not.
pub(crate) fn misfit(root: &Path, mutant: &Mutant) -> anyhow::Result<Option<String>> {
    let done = apply(root, &mutant.patch, &["--check"])?;
    Ok((!done.status.success()).then(|| String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; ")))
}

impl Mutant {
    /// Its file.
    pub(crate) fn path(&self) -> String {
        format!("{FOLDER}{}{ENDING}", self.name)
    }
}

fn apply(root: &Path, patch: &str, options: &[&str]) -> anyhow::Result<Output> {
    let mut git = Command::new("git")
        .args(["apply", "--recount"])
        .args(options)
        .arg("-")
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start git")?;
    git.stdin.take().context("git takes the patch on its standard input")?.write_all(patch.as_bytes())?;
    git.wait_with_output().context("wait for git")
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    let (mut mutants, wrong) = all(&Tree::read(&root)?);
    if let Some((path, line, message)) = wrong.first() {
        bail!("{path}:{line}: {message}");
    }
    if let Some(unknown) = args.names.iter().find(|name| mutants.iter().all(|mutant| mutant.name != **name)) {
        bail!("there is no mutation `{unknown}`; `cargo xtask mutants --list` lists them");
    }
    mutants.retain(|mutant| args.names.is_empty() || args.names.contains(&mutant.name));
    if args.list {
        for mutant in &mutants {
            println!("{}\n    breaks: {}\n    noticed by: {}", mutant.name, mutant.breaks, mutant.noticed_by);
        }
        return Ok(());
    }
    let worktree = Worktree::make(&root)?;
    let mut lived = Vec::new();
    for mutant in &mutants {
        let began = Instant::now();
        let verdict = worktree.try_one(mutant, args.sound).with_context(|| format!("mutation {}", mutant.name))?;
        println!("{:<10} {:<40} {:>5} s", verdict.word(), mutant.name, began.elapsed().as_secs());
        if let Verdict::Lived = verdict {
            lived.push(mutant.name.as_str());
        }
    }
    ensure!(lived.is_empty(), "no test noticed {}: {}", lived.len(), lived.join(", "));
    println!("all {} mutations were noticed", mutants.len());
    Ok(())
}

/// What became of one mutation.
enum Verdict {
    /// The test failed, as it must.
    Noticed,
    /// The test passed.
    Lived,
}

impl Verdict {
    const fn word(&self) -> &'static str {
        match self {
            Self::Noticed => "noticed",
            Self::Lived => "LIVED",
        }
    }
}

/// A second working tree with the files of this one, with a build folder that is kept; removed when dropped.
struct Worktree {
    root: PathBuf,
    path: PathBuf,
    target: PathBuf,
}

impl Worktree {
    /// The files as they are now, changes that are not committed included.
    fn make(root: &Path) -> anyhow::Result<Self> {
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let folder = target.join("mutants");
        let made = Self { root: root.to_owned(), path: folder.join("tree"), target: folder.join("target") };
        made.remove();
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        git(root, &["worktree", "add", "--quiet", "--detach", &made.path.to_string_lossy(), "HEAD"])?;
        let changes = git(root, &["diff", "--binary", "HEAD"])?;
        if !changes.is_empty() {
            let done = apply(&made.path, &changes, &[])?;
            ensure!(done.status.success(), "changes do not apply: {}", String::from_utf8_lossy(&done.stderr));
        }
        for new in git(root, &["ls-files", "--others", "--exclude-standard"])?.lines() {
            let to = made.path.join(new);
            std::fs::create_dir_all(to.parent().context("a file has a folder")?)?;
            std::fs::copy(root.join(new), to).with_context(|| format!("copy {new}"))?;
        }
        Ok(made)
    }

    fn remove(&self) {
        // There may be none, or one of a run that was interrupted.
        let _ = git(&self.root, &["worktree", "remove", "--force", &self.path.to_string_lossy()]);
    }

    fn try_one(&self, mutant: &Mutant, sound: bool) -> anyhow::Result<Verdict> {
        if sound {
            let done = self.test(mutant)?;
            ensure!(done.status.success(), "without it `{}` fails: {}", mutant.noticed_by, tail(&done));
        }
        let done = apply(&self.path, &mutant.patch, &[])?;
        ensure!(done.status.success(), "it does not apply: {}", String::from_utf8_lossy(&done.stderr));
        let tested = self.test(mutant);
        let done = apply(&self.path, &mutant.patch, &["--reverse"])?;
        ensure!(done.status.success(), "it cannot be taken back: {}", String::from_utf8_lossy(&done.stderr));
        let tested = tested?;
        let said = String::from_utf8_lossy(&tested.stdout);
        // Neither a build that fails nor a name that no test has says anything.
        ensure!(ran(&said), "no test ran: {}", tail(&tested));
        Ok(if tested.status.success() { Verdict::Lived } else { Verdict::Noticed })
    }

    fn test(&self, mutant: &Mutant) -> anyhow::Result<Output> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let arguments = mutant.noticed_by.split_whitespace().skip(1);
        Command::new(cargo)
            .args(arguments)
            .current_dir(&self.path)
            .env("CARGO_TARGET_DIR", &self.target)
            .output()
            .context("start cargo")
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Whether any test ran.
fn ran(said: &str) -> bool {
    said.lines().any(|line| line.starts_with("running ") && line != "running 0 tests")
}

fn tail(done: &Output) -> String {
    let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// What git prints.
fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let done = Command::new("git").args(arguments).current_dir(root).output().context("start git")?;
    ensure!(done.status.success(), "git {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).context("git printed no UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "Breaks: a fence\nNoticed by: cargo test -p x --lib y\n\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n";

    #[test]
    fn a_mutation_says_what_it_breaks_and_what_must_notice() {
        let mutant = Mutant::parse("xtask/mutants/fence.patch", GOOD).unwrap();
        assert_eq!((mutant.name.as_str(), mutant.breaks.as_str()), ("fence", "a fence"));
        assert_eq!(mutant.noticed_by, "cargo test -p x --lib y");
        assert!(mutant.patch.starts_with("--- a/f\n") && mutant.patch.ends_with("+b\n"));
        assert_eq!(mutant.path(), "xtask/mutants/fence.patch");
    }

    #[test]
    fn what_is_missing_is_named_with_its_line() {
        let wrong = |path: &str, text: &str| Mutant::parse(path, text).unwrap_err();
        assert!(wrong("xtask/mutants/fence.diff", GOOD).1.contains(".patch"));
        assert!(wrong("xtask/mutants/f.patch", &GOOD.replace("Breaks", "Does")).1.contains("Breaks: "));
        assert!(wrong("xtask/mutants/f.patch", &GOOD.replace("Noticed by", "Test")).1.contains("Noticed by: "));
        let (line, text) = wrong("xtask/mutants/f.patch", &GOOD.replace("cargo test -p x", "rm"));
        assert_eq!((line, text.as_str()), (2, "the command must be `cargo test -p CRATE ...`"));
        assert_eq!(wrong("xtask/mutants/f.patch", "Breaks: a\nNoticed by: cargo test -p x\n").1, "there is no patch");
    }

    #[test]
    fn a_patch_that_does_not_apply_is_told_from_one_that_does() {
        let folder = env::temp_dir().join(format!("headway-mutants-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("f"), "a\n").unwrap();
        let mutant = Mutant::parse("xtask/mutants/f.patch", GOOD).unwrap();
        assert_eq!(misfit(&folder, &mutant).unwrap(), None);
        std::fs::write(folder.join("f"), "c\n").unwrap();
        assert!(misfit(&folder, &mutant).unwrap().unwrap().contains("does not apply"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
