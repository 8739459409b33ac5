//! What results replace, and where they go if nobody says.

use crate::common::{headway, place};

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
    let transfers = ["bench", "transfers", "--backend", "emu", "--quick", "--sizes", "64B"];
    let answer = headway(folder, &transfers);
    assert!(answer.out.contains("out/transfers-backend-emu-sizes-64B-quick/summary.md"), "{answer:#?}");
}
