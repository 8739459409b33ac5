//! `docs/dependencies.md`: what is known of each crate, and what somebody has written of its unsafe code.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;

use super::Crate;
use crate::source::Source;

const BEGIN: &str = "\
# Dependencies

Every crate of others that Headway is built of on Linux. `cargo xtask dependencies` writes this page from `Cargo.lock` and from the sources, but
for the last column, which people write and the command keeps. `cargo xtask tidy` fails if the page is not current, or if a crate with `unsafe`
has no review.

- *unsafe*: how often the word stands in the code of that version, without tests, benchmarks and examples; also in code for other systems.
- *features*: those that a build of the whole workspace has. A release has the same or fewer.
- *named by*: who needs it. A crate of ours says in its manifest why, where it is not obvious.
- A review says what kind of unsafe code there is and what makes it sound. It is no audit of every line.
- A version with more or fewer `unsafe` than the reviewed one asks for another look.

Which licences are allowed is in [deny.toml](../deny.toml); the licences themselves are in [NOTICE](../NOTICE). A release has a list of its parts with their checksums
(CycloneDX): [headway.cdx.json](../python/headway.cdx.json). `cargo xtask release-build` makes its programs and libraries, with checksums: the same bytes in every folder, for every
user, with the same version of Rust and of the linker. `--check` builds them twice and compares.
";
const HEAD: &str = "| crate | version | kept at | unsafe | features | named by | why, and what its unsafe code does |\n|---|---|---|---:|---|---|---|\n";
/// What stands where a review is missing.
const MISSING: &str = "not reviewed";

/// What the page had of one version.
struct Reviewed<'a> {
    version: &'a str,
    count: &'a str,
    text: &'a str,
}

/// The page, with the counts and reviews of the `earlier` one where they still hold.
pub(super) fn page(crates: &[&Crate], earlier: &str) -> anyhow::Result<String> {
    let mut reviews: BTreeMap<&str, Vec<Reviewed<'_>>> = BTreeMap::new();
    for row in earlier.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        if let [name, version, _, count, _, _, text] = cells[..] {
            reviews.entry(name.trim_matches('`')).or_default().push(Reviewed { version, count, text });
        }
    }
    let mut page = BEGIN.to_owned();
    for (title, is_released) in
        [("In releases", true), ("Only while crates are built, in tests and in the laboratory", false)]
    {
        page.push_str(&format!("\n## {title}\n\n{HEAD}"));
        for it in crates.iter().filter(|it| it.is_released == is_released) {
            page.push_str(&row(it, reviews.get(it.name.as_str()).map(Vec::as_slice).unwrap_or_default())?);
        }
    }
    Ok(page)
}

fn row(it: &Crate, reviews: &[Reviewed<'_>]) -> anyhow::Result<String> {
    // The sources of a published version never change, and counting takes long.
    let count = match reviews.iter().find(|review| review.version == it.version) {
        Some(review) => review.count.to_owned(),
        None => count(&it.folder)?.to_string(),
    };
    let same = reviews.iter().find(|review| review.version == it.version || review.count == count);
    let text = match same {
        _ if count == "0" => "-".to_owned(),
        Some(review) => review.text.to_owned(),
        None => reviews.first().map_or_else(
            || MISSING.to_owned(),
            |review| format!("{MISSING} since {}: {}", review.version, review.text),
        ),
    };
    let place = it.repository.trim_start_matches("https://");
    let place = format!("[{}]({})", place.trim_start_matches("github.com/"), it.repository);
    let list = |names: Vec<&str>| if names.is_empty() { "-".to_owned() } else { names.join(", ") };
    let features = list(it.features.iter().map(String::as_str).filter(|name| *name != "default").collect());
    let users = list(it.users.iter().map(String::as_str).collect());
    Ok(format!("| `{}` | {} | {place} | {count} | {features} | {users} | {text} |\n", it.name, it.version))
}

/// How often `unsafe` stands in the code that users of the crate in `folder` compile.
fn count(folder: &Path) -> anyhow::Result<usize> {
    let mut sum = 0;
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !["tests", "benches", "examples", "fuzz"].contains(&name.as_str()) {
                open.push(path);
            } else if name.ends_with(".rs") {
                let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let source = Source::new("", &String::from_utf8_lossy(&text));
                sum += source.words("unsafe").into_iter().filter(|at| !source.is_test(*at)).count();
            }
        }
    }
    Ok(sum)
}

/// Lines of the page where a review is missing, and what to do.
pub(super) fn missing(page: &str) -> Vec<(usize, String)> {
    let rows = (1..).zip(page.lines()).filter(|(_, line)| line.contains(&format!("| {MISSING}")));
    let message = "a dependency with `unsafe` is not reviewed, use the last column to say what that code does";
    rows.map(|(number, _)| (number, message.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn libloading(version: &str) -> Crate {
        let crates = super::super::read(&crate::root()).unwrap();
        let found = crates.into_values().find(|it| it.name == "libloading").unwrap();
        Crate {
            version: version.to_owned(),
            is_released: true,
            users: BTreeSet::from(["headway-cuda".to_owned()]),
            ..found
        }
    }

    #[test]
    fn a_dependency_without_a_review_is_found_and_a_review_is_kept() {
        let current = page(&[&libloading("1.0.0")], "").unwrap();
        assert_eq!(missing(&current).len(), 1, "{current}");
        let reviewed = current.replace(MISSING, "Opens libraries.");
        assert!(missing(&reviewed).is_empty());
        assert_eq!(page(&[&libloading("1.0.0")], &reviewed).unwrap(), reviewed);
    }

    #[test]
    fn a_version_with_another_count_is_to_be_reviewed_again() {
        let reviewed = page(&[&libloading("1.0.0")], "").unwrap().replace(MISSING, "Opens libraries.");
        let same = page(&[&libloading("1.0.1")], &reviewed).unwrap();
        assert!(same.contains("| 1.0.1 |") && missing(&same).is_empty(), "{same}");
        let count =
            reviewed.lines().find(|line| line.starts_with("| `")).unwrap().split(" | ").nth(3).unwrap().to_owned();
        let fewer = reviewed.replace(&format!(" | {count} | "), " | 3 | ");
        let changed = page(&[&libloading("1.0.1")], &fewer).unwrap();
        assert!(
            changed.contains("not reviewed since 1.0.0: Opens libraries.") && missing(&changed).len() == 1,
            "{changed}"
        );
    }
}
