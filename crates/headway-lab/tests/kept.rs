//! What results replace, where they go if nobody says, and what an interrupt keeps.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Answer, command, headway, interrupt, tree, wait_until};

const FIGURE: [&str; 3] = ["verner-fig2.1", "--backend", "sim"];

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn an_experiment_replaces_its_own_results_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let to = |out: &'static str| [&FIGURE[..], &["--out", out]].concat();
    fs::create_dir(folder.join("thesis")).unwrap();
    fs::write(folder.join("thesis/rates.csv"), "mine").unwrap();
    fs::write(folder.join("file"), "mine").unwrap();
    for (out, words) in [("thesis", "holds `rates.csv`"), ("file", "is not a folder"), (".", "holds `")] {
        let before = tree(folder);
        let answer = headway(folder, &to(out)).exits(2);
        assert!(answer.err.starts_with(&format!("error: `{out}` exists, and {words}")), "{answer:#?}");
        assert!(
            answer.err.contains("help: nothing is replaced but earlier results of \"verner-fig2.1\": choose another")
        );
        assert_eq!(tree(folder), before);
    }
    assert_eq!(read(folder, "thesis/rates.csv"), "mine");
    headway(folder, &to("results")).exits(0);
    fs::write(folder.join("results/notes.txt"), "mine").unwrap();
    headway(folder, &to("results")).exits(0);
    assert_eq!(read(folder, "results/notes.txt"), "mine");
    for other in [
        &["np-edf", "--quick", "--out", "results"][..],
        &["combine", "--quick", "--out", "results"],
        &["interconnect", "--backend", "sim", "--batches", "1", "--out", "results"],
        &["broker", "--quick", "--out", "results"],
    ] {
        let answer = headway(folder, other).exits(2);
        assert!(answer.err.contains("its `summary.md` is of something else"), "{answer:#?}");
    }
}

#[test]
fn results_of_other_options_have_a_folder_of_their_own() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    headway(folder, &FIGURE).exits(0);
    headway(folder, &[&FIGURE[..], &["--seed", "2"]].concat()).exits(0);
    assert!(read(folder, "out/verner-fig2.1-sim/summary.md").contains("seed 1."));
    assert!(read(folder, "out/verner-fig2.1-sim-seed-2/summary.md").contains("seed 2."));
}

#[test]
fn an_interrupted_experiment_keeps_its_raw_figures_and_says_that_they_are_incomplete() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    // The first figures come after milliseconds, the last after hours.
    let args = ["join-leave", "--backend", "sim", "--out", "results"];
    let mut patience = Duration::from_millis(200);
    while !folder.join("results").exists() {
        let mut child = command(folder).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let catches_it = || {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
            caught.is_some_and(|mask| u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & 2 != 0))
        };
        wait_until(&mut child, catches_it);
        std::thread::sleep(patience);
        interrupt(&child);
        let answer: Answer = Answer::from(child.wait_with_output().unwrap()).exits(130);
        let kept = answer.err.contains("warning: interrupted: `results` keeps the figures so far");
        assert!(kept || answer.err.contains("interrupted; nothing was kept"), "{answer:#?}");
        assert_eq!(folder.join("results").exists(), kept);
        patience *= 2;
        assert!(patience < Duration::from_secs(60), "nothing is ever kept");
    }
    let results = folder.join("results");
    assert!(read(&results, "histories.csv").lines().count() > 1);
    assert!(
        read(&results, "summary.md").contains("INCOMPLETE: interrupted") && results.join("INCOMPLETE.txt").is_file()
    );
    assert!(!read(&results, "summary.md").contains("| what |"), "a part is judged");
    // A whole one takes its place.
    headway(folder, &[&args[..], &["--quick"]].concat()).exits(0);
    assert!(!results.join("INCOMPLETE.txt").exists() && !read(&results, "summary.md").contains("INCOMPLETE"));
}

#[test]
fn an_interrupted_benchmark_keeps_what_it_measured_and_is_no_success() {
    let place = tempfile::tempdir().unwrap();
    let mut command = command(place.path());
    let args = ["combine", "--out", "results"];
    let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("combining") {
        assert!(err.read_line(&mut said).unwrap() > 0, "{said}");
    }
    interrupt(&child);
    err.read_to_string(&mut said).unwrap();
    let answer: Answer = Answer::from(child.wait_with_output().unwrap()).exits(130);
    assert!(said.contains("warning: INCOMPLETE: interrupted") && answer.out.contains("results/summary.md"), "{said}");
    let results = place.path().join("results");
    assert!(
        read(&results, "summary.md").contains("INCOMPLETE: interrupted") && results.join("INCOMPLETE.txt").is_file()
    );
    assert!(read(&results, "rows.csv").lines().count() > 1);
}
