//! `cargo xtask older-runs`: kept runs that later ones follow lie in one archive, with an index.
//!
//! `bench/runs` has the newest complete run of each experiment and source, and that of each claim and kind of machine. Of the others
//! those stay that are neither, and those that a test or a command on a page reads. The page of claims counts the runs of the archive, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::must_succeed;
use crate::run_archive::{ARCHIVE, INDEX, RUNS, Rival, names, unpacked};
use crate::{claims, papers};

/// A complete run is worth more than an interrupted one; then the day counts, with which names begin, and on one day the time of the
/// program's commit.
fn rank<'a>(rival: &'a Rival, commits: &Commits) -> (bool, &'a str, u64) {
    (rival.is_complete, rival.run.get(..10).unwrap_or_default(), commits.time(&rival.commit))
}

/// When commits were made, as far as the history here goes.
struct Commits(Vec<(String, u64)>);

impl Commits {
    fn read(root: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new("git");
        command.arg("-C").arg(root).args(["log", "--format=%H %ct"]);
        let done = command.output().with_context(|| format!("start {command:?}"))?;
        let text = String::from_utf8(done.stdout).context("git prints text")?;
        let times = text.lines().filter_map(|line| line.split_once(' '));
        Ok(Self(times.filter_map(|(commit, time)| Some((commit.to_owned(), time.parse().ok()?))).collect()))
    }

    /// A commit that nobody knows here may be the last: its run stays.
    fn time(&self, commit: &str) -> u64 {
        let found = self.0.iter().find(|(known, _)| !commit.is_empty() && known.starts_with(commit));
        found.map_or(u64::MAX, |(_, time)| *time)
    }
}

pub(crate) fn run() -> anyhow::Result<()> {
    let moved = archive(&crate::root())?;
    println!("moved {moved} runs into {ARCHIVE}; `cargo xtask tidy` names links that must follow to {INDEX}");
    Ok(())
}

/// Moves runs into the archive; how many.
fn archive(root: &Path) -> anyhow::Result<usize> {
    let older = older(root)?;
    if !older.is_empty() {
        let folder = unpacked(root)?;
        for name in &older {
            copy_folder(&root.join(RUNS).join(name), &folder.join(name))?;
        }
        pack(root, &folder)?;
        // It has more than the archive that it was unpacked from.
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    // The archive is whole before a folder goes.
    for name in &older {
        let folder = root.join(RUNS).join(name);
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::write(root.join(INDEX), index(&unpacked(root)?)?).with_context(|| format!("cannot write {INDEX}"))?;
    Ok(older.len())
}

/// Why the committed archive and its index are not what they should be; `None` if they are.
pub(crate) fn stale(root: &Path) -> anyhow::Result<Option<String>> {
    if let Some(name) = older(root)?.first() {
        return Ok(Some(format!("{RUNS}/{name} is followed by later runs, use `cargo xtask older-runs`")));
    }
    let committed = fs::read_to_string(root.join(INDEX)).unwrap_or_default();
    let differs = index(&unpacked(root)?)? != committed;
    Ok(differs.then(|| "not what the archive has, use `cargo xtask older-runs`".to_owned()))
}

/// Path of the index, for findings.
pub(crate) const fn path() -> &'static str {
    INDEX
}

/// Packs `folder` so that the same runs make the same bytes.
fn pack(root: &Path, folder: &Path) -> anyhow::Result<()> {
    let partial = root.join(format!("{ARCHIVE}.partial"));
    let mut command = Command::new("tar");
    command.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    command.args(["--use-compress-program", "gzip -9n", "-cf"]).arg(&partial).arg("-C").arg(folder);
    command.args(names(folder)?);
    must_succeed(&mut command)?;
    fs::rename(&partial, root.join(ARCHIVE)).with_context(|| format!("cannot write {ARCHIVE}"))
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().context("a file without a name")?;
        if path.is_dir() {
            copy_folder(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).with_context(|| format!("copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// Runs that are for the archive and are not there yet.
fn older(root: &Path) -> anyhow::Result<Vec<String>> {
    let commits = Commits::read(root)?;
    let mut stays = read_elsewhere(root)?;
    let mut followed = BTreeSet::new();
    for rivals in [papers::rivals(root)?, claims::rivals(root)?].into_iter().flat_map(BTreeMap::into_values) {
        let last = rivals.iter().map(|rival| rank(rival, &commits)).max();
        let newest = rivals.iter().filter(|rival| Some(rank(rival, &commits)) == last);
        stays.extend(newest.map(|rival| rival.run.clone()));
        followed.extend(rivals.into_iter().map(|rival| rival.run));
    }
    let followed = followed.into_iter().filter(|name| !stays.contains(name));
    Ok(followed.filter(|name| root.join(RUNS).join(name).is_dir()).collect())
}

/// Runs that tests read, and commands on pages.
fn read_elsewhere(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let names = names(&root.join(RUNS))?;
    let mut found = BTreeSet::new();
    for text in sources(&root.join("crates"))? {
        found.extend(names.iter().filter(|name| text.contains(&format!("\"{name}\""))).cloned());
        found.extend(names.iter().filter(|name| text.contains(&format!("{RUNS}/{name}/"))).cloned());
    }
    for text in sources(&root.join("docs"))? {
        // Behind a parenthesis stands a link, which may lead to the index.
        found.extend(names.iter().filter(|name| text.contains(&format!(" {RUNS}/{name}/"))).cloned());
    }
    Ok(found)
}

/// Texts of the sources and pages below `folder`.
fn sources(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            texts.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
            texts.push(fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(texts)
}

/// What the runs in `folder` are.
fn index(folder: &Path) -> anyhow::Result<String> {
    let mut text = format!(
        "# Older runs\n\nWritten by `cargo xtask older-runs`. Later runs of the same kind on the same kind of machine follow these; \
         [results.md](results.md) counts them all. They are in [older-runs.tar.gz](older-runs.tar.gz): \
         `tar -xzf {ARCHIVE} NAME` unpacks one. [bench/runs](runs/README.md) says what to know of single runs.\n"
    );
    for name in names(folder)? {
        let page = fs::read_to_string(folder.join(&name).join("summary.md")).unwrap_or_default();
        let about = page.lines().find(|line| line.starts_with("Source `") || line.contains("[cuda]"));
        let about = about.map_or_else(
            || "Raw figures only.".to_owned(),
            |line| format!("{}.", unlinked(line.trim()).trim_end_matches('.')),
        );
        let mut files = fs::read_dir(folder.join(&name))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect::<Vec<_>>();
        files.sort();
        text.push_str(&format!("\n### {name}\n\n{about} Files: {}.\n", files.join(", ")));
    }
    Ok(text)
}

/// The line with the words of its links only: they lead to files that are in the archive.
fn unlinked(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        let words = link.split_once("](").and_then(|(words, end)| Some((words, end.split_once(')')?.1)));
        let Some((words, after)) = words.filter(|(words, _)| !words.contains(['[', ']'])) else {
            text.push('[');
            rest = link;
            continue;
        };
        text.push_str(words);
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_summary_are_words_in_the_index() {
        assert_eq!(unlinked("a [b.csv](b.csv); [c] in [d](e/d.md), [f"), "a b.csv; [c] in d, [f");
    }

    fn folder(root: &Path, run: &str, complete: bool) {
        let path = root.join(RUNS).join(run);
        fs::create_dir_all(&path).unwrap();
        let outcome = format!(
            "{{\"complete\":{complete},\"experiment\":\"fujii\",\"source\":\"cuda\",\"machine\":\"NVIDIA H200\",\"commit\":\"c\",\"rows\":[]}}"
        );
        fs::write(path.join("outcome.json"), outcome).unwrap();
        fs::write(path.join("summary.md"), format!("# {run}\n\nSource `cuda`, commit c.\n")).unwrap();
    }

    #[test]
    fn only_the_newest_complete_run_stays_and_the_others_can_be_read_again() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for (run, complete) in [
            ("2026-01-01-h200x1-fujii", true),
            ("2026-01-02-h200x1-fujii", true),
            ("2026-01-03-h200x1-fujii", false),
            ("2026-01-04-h200x1-fujii", true),
            ("2026-01-05-h200x1-fujii", false),
        ] {
            folder(root, run, complete);
        }
        // Without an outcome, by its name; and one of which there is no other.
        for run in ["2026-01-06-h200x1-quick-fujii", "2026-01-01-h200x1-alone"] {
            fs::create_dir_all(root.join(RUNS).join(run)).unwrap();
        }
        fs::create_dir_all(root.join("crates")).unwrap();
        fs::create_dir_all(root.join("docs")).unwrap();
        fs::write(root.join("docs/a.md"), "`headway-lab plot bench/runs/2026-01-02-h200x1-fujii/rows.csv`\n").unwrap();
        assert_eq!(older(root).unwrap().len(), 4);
        assert!(stale(root).unwrap().unwrap().contains("2026-01-01-h200x1-fujii is followed by later runs"));
        archive(root).unwrap();
        assert_eq!(
            names(&root.join(RUNS)).unwrap(),
            ["2026-01-01-h200x1-alone", "2026-01-02-h200x1-fujii", "2026-01-04-h200x1-fujii"]
        );
        assert_eq!(stale(root).unwrap(), None);
        // A later one moves the newest of before into the same archive.
        folder(root, "2026-01-07-h200x1-fujii", true);
        archive(root).unwrap();
        let kept = unpacked(root).unwrap();
        assert_eq!(names(&kept).unwrap().len(), 5);
        let page = fs::read_to_string(kept.join("2026-01-04-h200x1-fujii/summary.md")).unwrap();
        assert!(page.contains("Source `cuda`"));
        let index = fs::read_to_string(root.join(INDEX)).unwrap();
        assert!(
            index
                .contains("### 2026-01-04-h200x1-fujii\n\nSource `cuda`, commit c. Files: outcome.json, summary.md.\n")
        );
    }
}
