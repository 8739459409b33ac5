//! What results replace, and where they go if nobody says.

use std::fs;

use crate::common::{headway, place, tree};

#[test]
fn results_of_other_options_have_a_folder_of_their_own() {
    let place = place();
    let folder = place.path();
    let run = ["run", "workloads/verner-fig2.1.toml", "--backend", "sim", "--machine", "tyan-ft72b7015"];
    for (options, name) in [
        (&[][..], "verner-fig2.1-sim-machine-tyan-ft72b7015"),
        (&["--seed", "7"], "verner-fig2.1-sim-machine-tyan-ft72b7015-seed-7"),
        (
            &["--seed", "7", "--strategy", "serial", "--duration", "100 ms"],
            "verner-fig2.1-sim-machine-tyan-ft72b7015-strategy-serial-duration-100ms-seed-7",
        ),
        // What changes nothing of what is found does not name a folder.
        (&["--no-verify", "--force", "--quiet", "--format", "text"], "verner-fig2.1-sim-machine-tyan-ft72b7015"),
    ] {
        let answer = headway(folder, &[&run[..], options].concat()).exits(0);
        assert!(answer.out.contains(&format!("\nresults   out/{name}\n")), "{name}\n{}", answer.out);
        // The command that repeats the run writes to the same folder.
        let again = answer.out.lines().find_map(|line| line.strip_prefix("again     headway ")).unwrap();
        assert!(again.contains(&format!(" --out out/{name}")), "{again}");
    }
    let interconnect = ["bench", "interconnect", "--backend", "sim", "--batches", "1", "--seed", "5"];
    let answer = headway(folder, &interconnect);
    assert!(answer.out.contains("out/interconnect-backend-sim-batches-1-seed-5/summary.md"), "{answer:#?}");
}

#[test]
fn a_benchmark_replaces_its_own_results_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    fs::create_dir(folder.join("thesis")).unwrap();
    fs::write(folder.join("thesis/rates.csv"), "mine").unwrap();
    let before = tree(folder);
    let to = |out: &'static str| ["bench", "interconnect", "--backend", "sim", "--batches", "1", "--out", out];
    let answer = headway(folder, &to("thesis")).exits(2);
    assert!(answer.err.starts_with("error: `thesis` exists, and holds `rates.csv`"), "{answer:#?}");
    assert_eq!(tree(folder), before);
    for _ in 0..2 {
        assert!(matches!(headway(folder, &to("results")).status, Some(0 | 1)));
    }
    for other in [
        &["bench", "broker", "--quick", "--out", "results"][..],
        &["bench", "transfers", "--backend", "emu", "--quick", "--out", "results"],
    ] {
        let answer = headway(folder, other).exits(2);
        assert!(answer.err.contains("its `summary.md` is of something else"), "{answer:#?}");
    }
}
