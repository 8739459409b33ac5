//! What the commands print, compared with the committed texts in `golden/`. `SNAPSHOTS=overwrite` writes them anew.

use crate::common;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{command, headway, place, root, subcommands};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use snapbox::data::{Data, DataFormat};
use toml::de::DeTable;

/// Compares `text` with a committed file.
#[track_caller]
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let expected = Data::read_from(&path, Some(DataFormat::Text)).raw();
    snapbox::Assert::new().action_env("SNAPSHOTS").eq(Data::text(without_hashes(text)).raw(), expected);
}

/// `text` without hashes of files: they change with every comment in a machine file.
fn without_hashes(text: &str) -> String {
    let hash = |word: &str| word.len() == 16 && word.chars().all(|c| c.is_ascii_hexdigit() && !c.is_uppercase());
    let words = text.split_inclusive(|c: char| !c.is_alphanumeric());
    let masked = words.map(|word| {
        let bare = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        if hash(bare) { word.replace(bare, "[HASH]") } else { word.to_owned() }
    });
    masked.collect()
}

#[test]
fn verner_fig2_1_ends_after_21_33_ms_in_text_and_after_21333334_ns_in_json() {
    let place = place();
    let args = ["plan", "workloads/verner-fig2.1.toml", "--machine", "tyan-ft72b7015"];
    let text = headway(place.path(), &args).exits(0).out;
    assert!(text.contains("predicted 21.33 ms, worst case 24 ms"), "{text}");
    golden("plan-verner-fig2.1.txt", &text);
    let answer = headway(place.path(), &[&args[..], &["--format", "json"]].concat()).exits(0);
    golden("plan-verner-fig2.1.json", &answer.out);
    assert_eq!(answer.json()["batches"][0]["predicted"], 21_333_334);
}

#[test]
fn np_edf_miss_is_refused_with_its_interval_and_its_blocker() {
    let place = place();
    let args = ["plan", "workloads/np-edf-miss.toml", "--machine", "tyan-ft72b7015"];
    let answer = headway(place.path(), &args).exits(1);
    assert!(
        answer.out.contains("interval of 2.000001 ms") && answer.out.contains("`b`, begun just before"),
        "{answer:?}"
    );
    assert_eq!(answer.err, "");
    golden("plan-np-edf-miss.txt", &answer.out);
    let json = headway(place.path(), &[&args[..], &["--format", "json"]].concat()).exits(1).json();
    let violation = &json["verdict"]["violation"];
    assert_eq!((&violation["interval"], &violation["blocker"]), (&2_000_001.into(), &"b".into()), "{violation}");
}

#[test]
fn three_models_stand_side_by_side_where_known_offsets_or_costs_change_the_answer() {
    let place = place();
    let answers = |name: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.toml"));
        let args = ["plan", file.to_str().unwrap(), "--machine", "tyan-ft72b7015"];
        golden(&format!("plan-{name}.txt"), &headway(place.path(), &args).exits(1).out);
        let json = headway(place.path(), &[&args[..], &["--format", "json"]].concat()).exits(1).json();
        json["models"].clone()
    };
    let outcomes = |models: &Value| -> Vec<String> {
        models.as_array().unwrap().iter().map(|m| m["outcome"].as_str().unwrap().to_owned()).collect()
    };
    // A long job released just after a short one never comes between two of them.
    let offsets = answers("offsets");
    assert_eq!(outcomes(&offsets), ["not-schedulable", "schedulable", "schedulable"]);
    assert_eq!((&offsets[1]["strength"], &offsets[2]["strength"]), (&"exact".into(), &"necessary".into()));
    // The synchronous set of Nasri and Brandenburg's kind: a job that ends early lets a long one in.
    let exact = answers("exact-costs");
    assert_eq!(outcomes(&exact), ["not-schedulable", "not-schedulable", "schedulable"]);
    let late = &exact[1]["evidence"]["late"];
    assert_eq!(
        (&late["name"], &late["deadline"], &late["finish"]),
        (&"a".into(), &6_000_000.into(), &7_999_999.into())
    );
}

#[test]
fn windows_that_fail_and_are_the_planners_choice_are_no_proof_of_a_no() {
    let place = place();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/uneven-windows.toml");
    let args = ["plan", file.to_str().unwrap(), "--gpus", "2"];
    let answer = headway(place.path(), &args).exits(3);
    assert!(answer.out.contains("verdict   not with these windows") && !answer.out.contains(", exact\n"), "{answer:?}");
    assert!(!answer.out.contains("exact: yes"), "{answer:?}");
    let json = headway(place.path(), &[&args[..], &["--format", "json"]].concat()).exits(3).json();
    assert_eq!(
        (&json["verdict"]["outcome"], &json["models"][1]["outcome"]),
        (&"undecided".into(), &"undecided".into())
    );
    // A little more time, and the deadline can be divided by what the engines need; what runs so is in time.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(place.path().join("longer.toml"), text.replace("1 ms", "1250 us")).unwrap();
    let answer = headway(place.path(), &["plan", "longer.toml", "--gpus", "2"]).exits(0);
    assert!(answer.out.contains("uneven") && answer.out.contains("divided unevenly"), "{answer:?}");
    let run = ["run", "longer.toml", "--gpus", "2", "--backend", "sim", "--out", "out", "--quiet", "--format", "json"];
    let json = headway(place.path(), &run).exits(0).json();
    assert!(json["summary"]["streams"].as_array().unwrap().iter().all(|of| of["misses"] == 0), "{json}");
    headway(place.path(), &["replay", "out"]).exits(0);
}

#[test]
fn plan_says_how_many_batches_stand_behind_the_margin() {
    let workload = root().join("workloads/encrypt.toml");
    let args = ["plan", workload.to_str().unwrap(), "--machine", "h200-x1"];
    let answer = headway(&root(), &args).exits(0);
    assert!(answer.out.contains("\ncosts     no batch of copies checked the 1.06 % and 100 us"), "{answer:?}");
    let json = headway(&root(), &[&args[..], &["--format", "json"]].concat()).exits(0).json();
    assert_eq!((&json["confidence"]["batches"], &json["confidence"]["excess_ppm"]), (&0.into(), &Value::Null));
}

#[test]
fn a_copy_in_no_pieces_is_refused_and_its_size_is_shown_as_it_was_given() {
    let ask = ["explain", "--bytes", "4 KiB", "--direction", "d2h", "--host", "pinned"];
    assert!(headway(&root(), &ask).exits(0).out.starts_with("4 KiB d2h"));
    for option in ["--pieces", "--active"] {
        let answer = headway(&root(), &[&ask[..], &[option, "0"]].concat()).exits(2);
        assert!(answer.err.contains(option), "{answer:?}");
    }
}

#[test]
fn a_small_workload_on_h200_x1_has_the_committed_plan() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/small.toml");
    let args = ["plan", file.to_str().unwrap(), "--machine", "h200-x1"];
    golden("plan-small.txt", &headway(&root(), &args).exits(0).out);
}

#[test]
fn the_machines_shipped_are_listed_and_each_file_is_printed() {
    let listed = headway(&root(), &["machines"]).exits(0).out;
    golden("machines.txt", &listed);
    let json = headway(&root(), &["machines", "--format", "json"]).exits(0).json();
    let machines = json["machines"].as_array().unwrap();
    assert!(machines.len() >= 5);
    for machine in machines {
        let name = machine["name"].as_str().unwrap();
        let file = headway(&root(), &["machines", name]).exits(0).out;
        let parsed = DeTable::parse(&file).unwrap().into_inner();
        assert_eq!(parsed.get("name").and_then(|name| name.get_ref().as_str()), Some(name));
    }
}

#[test]
fn a_table_is_as_wide_as_the_terminal_unless_the_environment_says_otherwise() {
    let (place, args) = (place(), ["run", "workloads/encrypt.toml", "--backend", "sim"]);
    let run = |columns: &str| command(place.path()).args(args).env("COLUMNS", columns).output().unwrap().stdout;
    let (narrow, wide) = (run("60"), run("100"));
    assert_ne!(narrow, wide);
    assert_eq!(in_a_terminal(command(place.path()).args(args).env_remove("COLUMNS"), 60), narrow);
    assert_eq!(in_a_terminal(command(place.path()).args(args).env("COLUMNS", "100"), 60), wide);
}

/// What `command` prints to a terminal with so many columns.
fn in_a_terminal(command: &mut Command, columns: u16) -> Vec<u8> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).and_then(|()| unlockpt(&ours)).unwrap();
    tcsetwinsize(&ours, Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = File::options().write(true).open(name.to_str().unwrap()).unwrap();
    let mut child = command.stdout(theirs).spawn().unwrap();
    // The command has a copy of the terminal: only without it does reading come to an end.
    command.stdout(Stdio::null());
    let mut printed = Vec::new();
    // The end is an error (`EIO`).
    let _ = File::from(ours).read_to_end(&mut printed);
    assert!(child.wait().unwrap().success());
    printed.retain(|byte| *byte != b'\r');
    printed
}

#[test]
fn completions_name_every_subcommand() {
    for shell in ["bash", "zsh", "fish"] {
        let script = headway(&root(), &["completions", shell]).exits(0).out;
        for command in subcommands() {
            assert!(script.contains(&command), "`{command}` is missing for {shell}");
        }
    }
}

#[test]
fn doctor_without_a_gpu_says_so_with_a_remedy_once_and_exits_0() {
    let place = place();
    let answer = headway(place.path(), &["doctor"]).exits(0);
    assert!(
        answer.out.contains("missing  CUDA driver") && answer.out.contains("`--backend sim` is used"),
        "{answer:?}"
    );
    assert_eq!(answer.out.matches("install the NVIDIA driver, or name").count(), 1, "{answer:?}");
    assert!(answer.out.contains("missing  methods of copying none is available: there is no GPU"), "{answer:?}");
    assert!(answer.out.contains("pageable, dma, "), "{answer:?}");
    // With `--backend cuda` the answer is "no".
    assert!(headway(place.path(), &["doctor", "--backend", "cuda"]).exits(1).out.contains("missing  CUDA driver"));
    let json = headway(place.path(), &["doctor", "--format", "json"]).exits(0).json();
    let check = &json["checks"][0];
    assert_eq!((&check["what"], &check["state"]), (&"CUDA driver".into(), &"missing".into()));
    assert!(check["remedy"].as_str().unwrap().contains("install the NVIDIA driver"), "{check}");
}

#[test]
fn every_json_document_is_one_document_with_a_schema() {
    let place = place();
    let run =
        ["run", "workloads/encrypt.toml", "--backend", "sim", "--duration", "20 ms", "--out", "results", "--force"];
    let plan = ["plan", "workloads/encrypt.toml", "--machine", "h200-x1"];
    let others: [&[&str]; 6] = [
        &["replay", "results"],
        &["report", "results"],
        &["machines"],
        &["machines", "h200-x1"],
        &["doctor"],
        &["report", "results", "--out", "report"],
    ];
    for args in [&run[..], &plan].into_iter().chain(others) {
        let answer = headway(place.path(), &[args, &["--format", "json", "--quiet"]].concat());
        assert_eq!(answer.json()["schema"], Value::from(1), "{args:?}");
        assert_eq!(answer.err, "", "{args:?}");
    }
}

#[test]
fn explain_lays_out_every_method_with_its_reason() {
    let ask = |args: &[&str]| headway(&root(), &[&["explain", "--direction", "d2h"], args].concat()).exits(0);
    golden("explain-large.txt", &ask(&["--bytes", "1 GiB", "--long"]).out);
    golden("explain-small-pinned.txt", &ask(&["--bytes", "4096", "--host", "pinned"]).out);
    let json = ask(&["--bytes", "1 GiB", "--exclude", "no-threads", "--format", "json"]).json();
    assert_eq!(json["schema"], 1);
    let chosen = &json["rows"][0];
    assert_eq!((&chosen["method"], &chosen["verdict"]), (&"pageable".into(), &"chosen".into()), "{json}");
    let staged = json["rows"].as_array().unwrap().iter().find(|row| row["method"] == "staged").unwrap();
    assert!(staged["verdict"].as_str().unwrap().contains("no threads"), "{staged}");
}

#[test]
fn explain_names_the_gpus_that_there_are() {
    let answer = headway(&root(), &["explain", "--bytes", "1 KiB", "--direction", "h2d", "--gpu", "gpu9"]).exits(2);
    assert!(answer.err.contains("gpu9") && answer.err.contains("gpu0, gpu1, gpu2, gpu3"), "{answer:?}");
    let answer = headway(&root(), &["explain", "--bytes", "1 KB/s", "--direction", "h2d"]).exits(2);
    assert!(answer.err.contains("unknown unit `KB/s`"), "{answer:?}");
}

#[test]
fn measuring_without_a_gpu_says_what_is_missing_and_leaves_nothing() {
    let place = place();
    let before = common::tree(place.path());
    for args in [&["measure"][..], &["bench", "transfers"]] {
        let answer = headway(place.path(), args).exits(2);
        assert!(answer.err.contains("cannot use the cuda backend"), "{answer:?}");
    }
    let answer = headway(place.path(), &["measure"]).exits(2);
    assert!(answer.err.contains("`headway machines`") && answer.err.contains("`--backend emu`"), "{answer:?}");
    assert_eq!(common::tree(place.path()), before);
}

#[test]
fn measure_refuses_to_replace_a_file_and_its_file_explains() {
    let place = place();
    let args = ["measure", "--backend", "emu", "--quick", "--sizes", "64 B,4 KiB", "--out", "node.toml"];
    let report = headway(place.path(), &args).exits(0);
    assert!(report.out.contains("source emu") && report.out.contains("h2d warm"), "{report:?}");
    let again = headway(place.path(), &args).exits(2);
    assert!(again.err.contains("`node.toml` exists") && again.err.contains("--force"), "{again:?}");
    let ask = ["explain", "--bytes", "64", "--direction", "h2d", "--machine", "node.toml", "--long"];
    let answer = headway(place.path(), &ask).exits(0);
    assert!(answer.out.contains("source emu of ") && answer.out.contains("chosen"), "{answer:?}");
    let json = headway(place.path(), &[&args[..], &["--force", "--format", "json", "--quiet"]].concat()).exits(0);
    assert_eq!((json.json()["schema"].clone(), json.err.as_str()), (1.into(), ""));
}

#[test]
fn doctor_tries_every_method_where_there_is_a_gpu_or_an_emulated_one() {
    let place = place();
    let answer = headway(place.path(), &["doctor", "--backend", "emu"]).exits(0);
    for method in ["pageable", "dma", "staged", "window vulkan", "resident hub", "kernel"] {
        assert!(answer.out.contains(&format!("gpu0 {method}: tried, copies rightly")), "{method}: {answer:?}");
    }
    assert!(answer.out.contains("gpu0 window gdrdrv: the form `gdrdrv` on "), "{answer:?}");
    assert!(!headway(place.path(), &["doctor"]).exits(0).out.contains("copies rightly"));
}

#[test]
fn every_message_has_response_times_of_its_own_below_its_bound_also_where_messages_are_combined() {
    let place = place();
    for workload in ["workloads/messages.toml", "workloads/exchange.toml"] {
        let out = workload.replace('/', "-");
        let run = ["run", workload, "--backend", "sim", "--machine", "h200-x4", "--out", &out, "--force"];
        let text = headway(place.path(), &run).exits(0).out;
        let json = headway(place.path(), &[&run[..], &["--format", "json"]].concat()).exits(0).json();
        let summary = &json["summary"];
        let messages = summary["messages"].as_array().unwrap();
        let jobs: u64 = messages.iter().map(|of| of["jobs"].as_u64().unwrap()).sum();
        assert_eq!(jobs, summary["totals"]["message_jobs"].as_u64().unwrap(), "{summary}");
        for of in messages {
            let number = |value: &Value| value.as_u64().unwrap();
            let (longest, bound, deadline) = (&of["response"]["max"], &of["bound"], &of["deadline"]);
            assert!(number(longest) <= number(bound) && number(bound) <= number(deadline), "{of}");
            assert!(number(&of["response"]["median"]) <= number(longest) && of["misses"] == 0, "{of}");
            assert!(text.contains(&format!("\n  {} ", of["id"].as_str().unwrap())), "{text}");
        }
        assert!(text.contains("\nMessages, response times in ms [sim]\n"), "{text}");
    }
}

#[test]
fn who_names_no_machine_is_told_which_one_was_taken() {
    let place = place();
    let run = ["run", "workloads/messages.toml", "--backend", "sim", "--out", "results", "--force"];
    for args in [&["plan", "workloads/messages.toml"][..], &run] {
        let told = |more: &[&str]| {
            let text = headway(place.path(), &[args, more].concat()).exits(0).out;
            let line = text.lines().find(|line| line.starts_with("machine   "));
            line.is_some_and(|line| line.contains("h200-x4") && line.ends_with("; `headway machines` lists others"))
        };
        assert!(told(&[]) && !told(&["--machine", "h200-x1"]), "{args:?}");
    }
    let ask = ["explain", "--bytes", "1 MiB", "--direction", "d2h"];
    let answer = headway(place.path(), &ask).exits(0);
    assert!(answer.out.contains("\nmachine h200-x4, as no `--machine` was given; "), "{answer:?}");
    let answer = headway(place.path(), &[&ask[..], &["--machine", "h200-x1"]].concat()).exits(0);
    assert!(answer.out.contains("\nmachine h200-x1\n"), "{answer:?}");
}

#[test]
fn a_plan_says_where_jitter_is_most_of_a_cost() {
    let place = place();
    let shipped = headway(place.path(), &["machines", "h200-x1"]).exits(0).out;
    let jitter = shipped.lines().find(|line| line.starts_with("jitter = ")).unwrap().to_owned();
    let noisy = shipped.replacen(&jitter, "jitter = \"1 ms\"", 1);
    std::fs::write(place.path().join("noisy.toml"), noisy).unwrap();
    std::fs::write(place.path().join("quiet.toml"), shipped.replacen(&jitter, "jitter = \"1 us\"", 1)).unwrap();
    let plan = |machine: &str| headway(place.path(), &["plan", "workloads/messages.toml", "--machine", machine]).out;
    let said = plan("noisy.toml");
    assert!(said.contains("more than half of the cost is the machine's jitter in 2 of 2 steps: 1 ms"), "{said}");
    assert!(said.contains("measure again on a quiet node (`headway measure`)"), "{said}");
    // What every measurement assumes at least is no sign of a noisy node.
    let said = headway(place.path(), &["plan", "workloads/messages.toml", "--machine", "h200-x1"]).exits(0).out;
    assert!(said.contains("it is the least that `headway measure` assumes"), "{said}");
    assert!(!plan("quiet.toml").contains("machine's jitter in"));
}

#[test]
fn a_plan_says_what_combining_gave_only_where_it_gave_something() {
    let place = place();
    let plan = ["plan", "workloads/messages.toml", "--machine", "h200-x4"];
    let text = headway(place.path(), &plan).exits(0).out;
    assert!(text.contains("4 blocks of messages in 1 batch: utilisation 18.49 % instead of 20.82 %"), "{text}");
    assert!(!text.contains("1 block of messages in 1 batch"), "{text}");
}

#[test]
fn the_version_names_the_commit_and_a_manual_page_its_program() {
    let place = place();
    let version = headway(place.path(), &["--version"]).exits(0).out;
    assert!(
        version.starts_with("headway ") && version.contains(" (") && version.trim_end().ends_with(')'),
        "{version}"
    );
    let page = headway(place.path(), &["man", "bench", "transfers"]).exits(0).out;
    let head = page.lines().find(|line| line.starts_with(".TH")).unwrap();
    assert!(head.contains("\"headway ") && !head.contains("\"transfers "), "{head}");
}

#[test]
fn a_plan_holds_beside_as_many_other_programs_as_it_was_made_for() {
    let place = place();
    let shipped = headway(place.path(), &["machines", "h200-x1"]).exits(0).out;
    let turns = ["h2d", "d2h"].map(|direction| {
        format!(
            "\n[[arbitration]]\ndirection = \"{direction}\"\ntime = \"20 ms\"\nwhole = [1073741824, 1000000, 100, 20000000]\n\
             process = [200, 1055181, 1062854, 1080704]\n"
        )
    });
    std::fs::write(place.path().join("node.toml"), shipped + &turns.concat()).unwrap();
    std::fs::write(
        place.path().join("camera.toml"),
        "name = \"camera\"\n[[stream]]\nid = \"camera\"\npacket = \"1 MiB\"\nperiod = \"20 ms\"\ndeadline = \"30 ms\"\n\
         steps = [{ copy = \"host -> gpu\" }, { copy = \"gpu -> host\" }]\n",
    )
    .unwrap();
    let plan = |others: &str, code: i32| {
        headway(place.path(), &["plan", "camera.toml", "--machine", "node.toml", "--others", others]).exits(code).out
    };
    assert!(!plan("0", 0).contains("other programs"));
    assert!(plan("2", 0).contains("holds beside 2 other programs"));
    assert!(plan("20", 1).contains("holds beside 20 other programs"), "more than fit are refused");
    let run =
        ["run", "camera.toml", "--backend", "sim", "--machine", "node.toml", "--others", "2", "--duration", "1 s"];
    let out = headway(place.path(), &run).exits(0).out;
    assert!(out.contains("deadlines held"), "{out}");
    let unknown = headway(place.path(), &["plan", "camera.toml", "--machine", "h200-x1", "--others", "1"]).exits(2);
    assert!(unknown.err.contains("machine `h200-x1` does not say how long another process keeps a copy engine"));
    assert!(unknown.err.contains("headway measure"), "{}", unknown.err);
}

#[test]
fn a_plan_says_which_urgent_copies_it_would_always_refuse() {
    let place = place();
    let text = "name = \"robot\"\n[[stream]]\nid = \"camera\"\npacket = \"2 MiB\"\nperiod = \"16 ms\"\ndeadline = \"5 ms\"\n\
                steps = [{ copy = \"host -> gpu\" }]\n[[urgent]]\nid = \"order\"\nfrom = \"host\"\nto = \"gpu0\"\nbytes = \"900 MB\"\n\
                deadline = \"200 us\"\nevery = \"3 ms\"\n";
    let plan = |text: &str| {
        std::fs::write(place.path().join("robot.toml"), text).unwrap();
        headway(place.path(), &["plan", "robot.toml", "--machine", "h200-x1"]).exits(0).out
    };
    assert!(plan(text).contains("`order` is refused whenever it is asked for: it takes up to"));
    assert!(!plan(&text.replace("900 MB", "4 KiB").replace("200 us", "2 ms")).contains("is refused whenever"));
}
