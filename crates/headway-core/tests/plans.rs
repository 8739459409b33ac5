//! Plans change only on purpose: the verdict and a hash of every plan, compared with `golden/plans.txt`.
//!
//! `SNAPSHOTS=overwrite cargo test -p headway-core --test it plans::` writes the file anew; the commit that does so says why.
#![expect(clippy::disallowed_methods, reason = "the workloads and the committed plans are files")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use headway_core::files::machine::Machine;
use headway_core::files::workload::Workload;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome, Strategy};
use sha2::{Digest, Sha256};

use crate::planner::{Draw, random_workload, shipped};

/// Strategy, outcome, margin and hash; or `error` and the hash of its text.
fn line(machine: &Machine, workload: &Workload, strategy: Option<Strategy>) -> String {
    let hash = |bytes: &[u8]| Sha256::digest(bytes)[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let name = strategy.map_or("best", Strategy::name);
    let mut found = match plan(machine, workload, PlanOptions { strategy }) {
        Ok(found) => found,
        Err(error) => return format!("  {name:<11} error            {}", hash(error.to_string().as_bytes())),
    };
    // Comments in the files do not change a plan.
    found.workload.hash.clear();
    found.machine.hash.clear();
    let outcome = match found.verdict.outcome {
        Outcome::Schedulable => "yes",
        Outcome::NotSchedulable => "no",
        Outcome::Undecided => "open",
    };
    let margin = found.verdict.margin_ppm.map_or_else(|| "-".to_owned(), |ppm| format!("{:.4}", ppm as f64 / 1e6));
    let plan = serde_json::to_vec(&found).expect("plans are serialisable");
    format!("  {name:<11} {outcome:<4} {margin:>11} {}", hash(&plan))
}

fn workloads(machine: &Machine) -> Vec<(String, Workload)> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads");
    let mut files: Vec<PathBuf> = place.read_dir().expect("the folder is there").map(|of| of.unwrap().path()).collect();
    // Modules of workloads lie in folders.
    files.retain(|path| path.is_file());
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("it can be read");
        all.push((name.clone(), headway_kernels::workload::parse(&name, &text).expect("it parses").value));
    }
    let mut draw = Draw(29);
    all.extend((0..12).map(|number| (format!("generated {number}"), random_workload(machine, &mut draw))));
    all
}

#[test]
fn plans_are_those_of_the_committed_file() {
    let mut text = String::new();
    for name in ["h200-x4", "tyan-ft72b7015"] {
        let machine = shipped(name);
        for (title, workload) in workloads(&machine) {
            writeln!(text, "{title} on {name}").unwrap();
            for strategy in [None].into_iter().chain(Strategy::ALL.map(Some)) {
                writeln!(text, "{}", line(&machine, &workload, strategy)).unwrap();
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plans.txt");
    if std::env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
        std::fs::write(&path, &text).expect("it can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("the file is committed");
    let differ = committed.lines().zip(text.lines()).filter(|(old, new)| old != new);
    let differ: Vec<String> = differ.map(|(old, new)| format!("- {old}\n+ {new}")).collect();
    assert!(
        committed == text,
        "plans changed; `SNAPSHOTS=overwrite cargo test -p headway-core --test it plans::` writes them anew:\n{}",
        differ.join("\n")
    );
}
