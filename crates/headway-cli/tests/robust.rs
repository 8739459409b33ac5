//! What goes wrong is told once, with the object, the fact and a remedy, by an exit status, and leaves nothing behind.

use std::fs;
use std::io::pipe;
use std::path::Path;
use std::process::Command;

use crate::common::{
    Answer, command, fails, headway, install, is_one_error, on_a_small_disk, place, told_to_end, tree, with_more_rights,
};

const ENCRYPT: &str = "workloads/encrypt.toml";

/// `headway run encrypt.toml --backend sim` with more arguments.
fn sim<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["run", ENCRYPT, "--backend", "sim"], more].concat()
}

/// Writes the shipped workload with one replacement.
fn edited(folder: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(folder.join(ENCRYPT)).unwrap();
    assert!(text.contains(from));
    fs::write(folder.join("edited.toml"), text.replacen(from, to, 1)).unwrap();
}

#[test]
fn without_libcuda_the_cuda_backend_names_the_library_and_what_works_instead() {
    let place = place();
    let args = ["run", ENCRYPT, "--backend", "cuda"];
    fails(place.path(), &args, 2, &["cuda backend", "no libcuda.so.1", "install the NVIDIA driver", "--backend sim"]);
}

#[test]
fn a_libcuda_that_is_no_library_is_an_error_for_cuda_and_a_warning_otherwise() {
    let place = place();
    let text = place.path().join("libcuda.txt");
    fs::write(&text, "not a library\n").unwrap();
    let before = tree(place.path());
    let run = |backend: &str| -> Answer {
        let mut command = command(place.path());
        command.env("HEADWAY_LIBCUDA", &text).args(["run", ENCRYPT, "--backend", backend, "--duration", "10 ms"]);
        command.output().unwrap().into()
    };
    is_one_error(&run("cuda"), 2, &["cuda backend", "libcuda.txt", "install the NVIDIA driver", "--backend sim"]);
    assert_eq!(tree(place.path()), before);
    let simulated = run("auto").exits(0);
    assert!(simulated.err.starts_with("warning: simulating") && simulated.err.contains("libcuda.txt"), "{simulated:?}");
}

#[test]
fn a_workload_that_cannot_be_read_is_named_with_the_reason() {
    let place = place();
    for command in ["plan", "run"] {
        fails(place.path(), &[command, "missing.toml"], 2, &["`missing.toml`", "No such file", "help: check the path"]);
        fails(place.path(), &[command, "workloads"], 2, &["`workloads`", "Is a directory", "help: give a file"]);
    }
    fs::write(place.path().join("binary.toml"), [0xFF, 0xFE, 0x00]).unwrap();
    fails(place.path(), &["plan", "binary.toml"], 2, &["`binary.toml`", "UTF-8", "help: give a text file"]);
}

#[test]
fn what_is_wrong_in_a_workload_is_shown_at_its_place() {
    let place = place();
    edited(place.path(), "packet = \"2432 B\"", "paket = \"2432 B\"");
    let caret = "\n   | ^^^^^\nhelp: did you mean `packet`?";
    fails(place.path(), &["run", "edited.toml"], 2, &["edited.toml:18:1: unknown key `paket`", caret]);
    edited(place.path(), "\"aes128-cbc\"", "\"rot13\"");
    fails(
        place.path(),
        &["run", "edited.toml"],
        2,
        &["edited.toml:21:", "`rot13`", "help: write one of: aes128-cbc", "add a `[[kernel]]` with `id = \"rot13\"`"],
    );
    edited(place.path(), "id = \"s00\"", "id = \"s00\"\ngpu = \"gpu9\"");
    fails(place.path(), &["run", "edited.toml"], 2, &["edited.toml:18:", "`gpu9`", "write one of: gpu0, gpu1", "^^^"]);
    fs::write(
        place.path().join("far.toml"),
        TOO_MUCH.replacen("host -> gpu\" }, { copy = \"gpu", "host -> gpu7\" }, { copy = \"gpu7", 1),
    )
    .unwrap();
    let caret = format!("\n  |{}^^^^^^^^^^^^^^\nhelp: write one of: host, gpu0", " ".repeat(19));
    fails(place.path(), &["plan", "far.toml"], 2, &["far.toml:7:19: stream `a` names `gpu7`", &caret]);
    edited(place.path(), "period = \"4 ms\"", "period = 4");
    fails(place.path(), &["plan", "edited.toml"], 2, &["edited.toml:19:10", "unit", "\"4 ms\""]);
}

#[test]
fn a_block_of_a_message_that_goes_to_no_gpu_is_shown_at_the_name() {
    let place = place();
    let text = "name = \"m\"\n[[message]]\nid = \"slow\"\nperiod = \"25 ms\"\n\
                blocks = [{ from = \"host\", to = \"gpu7\", bytes = \"1 MB\" }]\n";
    fs::write(place.path().join("m.toml"), text).unwrap();
    let caret = format!("\n  |{}^^^^^^\nhelp: write one of: host", " ".repeat(33));
    fails(place.path(), &["plan", "m.toml"], 2, &["m.toml:5:33: message `slow` names `gpu7`", &caret]);
}

/// Two streams that each ask a GPU for a multiple of what its links carry.
const TOO_MUCH: &str = r#"name = "much"
[[stream]]
id = "a"
packet = "100 MB"
period = "2 us"
deadline = "4 us"
steps = [{ copy = "host -> gpu" }, { copy = "gpu -> host" }]
[[stream]]
id = "b"
packet = "100 MB"
period = "2 ms"
deadline = "20 ms"
steps = [{ copy = "host -> gpu" }, { copy = "gpu -> host" }]
"#;

#[test]
fn a_refused_plan_names_every_server_that_fails_and_no_margin_where_there_is_none() {
    let place = place();
    fs::write(place.path().join("much.toml"), TOO_MUCH).unwrap();
    let plan = headway(place.path(), &["plan", "much.toml", "--strategy", "partitioned"]).exits(1).out;
    assert!(!plan.contains("0.00x") && !plan.contains("\nmargin  "), "{plan}");
    let line = plan.lines().find(|line| line.starts_with("servers   4 of 4 servers fail")).unwrap();
    let at = ["gpu0.h2d", "gpu0.d2h", "gpu1.h2d", "gpu1.d2h"].map(|server| line.find(&format!("`{server}`")).unwrap());
    assert!(at.is_sorted(), "the fullest comes first: {line}");
    let run = ["run", "much.toml", "--strategy", "partitioned", "--backend", "sim"];
    let failing = line.trim_start_matches("servers   ");
    assert!(headway(place.path(), &run).exits(1).err.contains(&format!("  cause: {failing}\n")), "{failing}");
}

#[test]
fn a_plan_says_which_kernel_a_run_lacks_and_the_run_begins_nothing() {
    let place = place();
    let machine = headway(place.path(), &["machines", "h200-x1"]).exits(0).out;
    let own = machine.replacen("id = \"aes128-cbc\"", "id = \"rot13\"", 1);
    assert_ne!(own, machine);
    fs::write(place.path().join("own.toml"), own).unwrap();
    let text = TOO_MUCH.replace("100 MB", "4 KiB").replace("2 us", "2 ms").replace("4 us", "20 ms");
    let text = text.replacen("}, {", "}, { compute = \"rot13\" }, {", 1);
    fs::write(place.path().join("rot.toml"), text).unwrap();
    let plan = headway(place.path(), &["plan", "rot.toml", "--machine", "own.toml"]).exits(0);
    let said = "\nnote      kernel `rot13` is not in this program, which can plan it but not run it; it has aes128-cbc";
    assert!(plan.out.contains(said), "{}", plan.out);
    let run = ["run", "rot.toml", "--machine", "own.toml", "--backend", "sim"];
    fails(place.path(), &run, 2, &["`rot13`", "aes128-cbc"]);
    let other = headway(place.path(), &["plan", ENCRYPT]).exits(0).out;
    assert!(!other.contains("is not in this program"), "{other}");
}

#[test]
fn a_strategy_is_chosen_among_those_that_the_help_names() {
    let place = place();
    let help = headway(place.path(), &["plan", "--help"]).exits(0).out;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "[default: of serial, partitioned and, for messages and wafers, combined, the accepted one with the greatest \
                margin; serial for a machine that is not calibrated]";
    assert!(help.contains(said), "{help}");
    for (workload, machine, tried) in [
        (ENCRYPT, "h200-x4", &["serial", "partitioned"][..]),
        ("workloads/verner-fig2.1.toml", "tyan-ft72b7015", &["serial"]),
        ("workloads/wafer.toml", "h200-x4", &["serial", "combined", "partitioned"]),
        ("message.toml", "h200-x4", &["serial", "combined", "partitioned"]),
    ] {
        let message = "name = \"m\"\n[[message]]\nid = \"m\"\nperiod = \"25 ms\"\n\
                       blocks = [{ from = \"host\", to = \"gpu0\", bytes = \"1 MB\" }]\n";
        fs::write(place.path().join("message.toml"), message).unwrap();
        let plan = headway(place.path(), &["plan", workload, "--machine", machine, "--format", "json"]).json();
        let others = plan["alternatives"].as_array().unwrap();
        assert_eq!(
            others.iter().map(|other| other["strategy"].as_str().unwrap()).collect::<Vec<_>>(),
            tried,
            "{workload}"
        );
        let accepted = others.iter().filter(|other| other["outcome"] == "schedulable");
        let best = accepted.map(|other| other["margin_ppm"].as_u64().unwrap()).max();
        assert!(best.is_none() || plan["verdict"]["margin_ppm"].as_u64() == best, "{workload}");
    }
}

#[test]
fn an_unknown_machine_is_answered_with_those_that_are_shipped() {
    let place = place();
    let words = ["`h300`", "`h200-x1`, `h200-x4`", "help:"];
    fails(place.path(), &["plan", ENCRYPT, "--machine", "h300"], 2, &words);
    fails(place.path(), &sim(&["--machine", "h300"]), 2, &words);
    fails(place.path(), &["machines", "h300"], 2, &words);
    fails(place.path(), &sim(&["--machine", "workloads"]), 2, &["`workloads`", "Is a directory", "help:"]);
    fails(place.path(), &sim(&["--machine", ENCRYPT]), 2, &["encrypt.toml:12:2: this is a workload file", "has `run`"]);
}

#[test]
fn input_that_cannot_be_used_is_named_with_the_reason() {
    let place = place();
    let path = place.path();
    fs::write(path.join("empty"), "").unwrap();
    fs::create_dir(path.join("folder")).unwrap();
    fs::write(path.join("short"), [7; 100]).unwrap();
    let fails = |more: &[&str], words: &[&str]| fails(path, &sim(&[more, &["--out", "a/b/c"]].concat()), 2, words);
    fails(&["--input", "missing"], &["input `missing`", "No such file", "help: check the path"]);
    fails(&["--input", "empty"], &["input `empty` is empty", "leave out `--input`"]);
    fails(&["--input", "folder"], &["input `folder` is empty", "leave out `--input`"]);
    fails(&["--input", "/dev/null"], &["`/dev/null` is neither a file nor a folder", "save"]);
    let words = ["`short` holds 100 bytes", "1 s of 64 streams need 31948512", "shorten `--duration`"];
    fails(&["--input", "short", "--duration", "1 s"], &words);
    fs::write(path.join("folder/one"), [7; 100]).unwrap();
    let words = ["stream `s00` hold 100 bytes", "1 s of it need 608000", "shorten `--duration`"];
    fails(&["--input", "folder", "--duration", "1 s"], &words);
}

#[test]
fn absurd_durations_are_refused_before_they_fill_the_disk() {
    let place = place();
    for (duration, words) in [("0 s", "would have 0 bytes"), ("18446744073 s", "would have 589")] {
        fails(place.path(), &sim(&["--duration", duration]), 2, &[words, "`--duration`", "`--input`"]);
    }
    fails(place.path(), &sim(&["--duration", "5"]), 2, &["'5'", "has no unit", "5 ms"]);
}

#[test]
fn a_full_disk_ends_a_run_at_any_file_and_nothing_is_kept() {
    let place = place();
    fs::write(place.path().join("data"), [3; 100_000]).unwrap();
    let before = tree(place.path());
    let sample = sim(&["--duration", "50 ms", "--out", "a/results"]);
    let log = sim(&["--input", "data", "--out", "a/results"]);
    let one = ["run", "one.toml", "--backend", "sim", "--input", "data", "--out", "a/results"];
    let text = fs::read_to_string(place.path().join(ENCRYPT)).unwrap();
    let end = text.match_indices("[[stream]]").nth(1).unwrap().0;
    fs::write(place.path().join("one.toml"), &text[..end]).unwrap();
    for (kib, args, file) in [(64, &sample[..], "sample.bin"), (16, &log, "run.jsonl"), (32, &one, "streams/s00.bin")] {
        let answer = on_a_small_disk(place.path(), kib, args);
        let name = format!("cannot write `a/results/{file}`");
        is_one_error(&answer, 2, &[&name, "File too large", "help: nothing was kept; free space"]);
    }
    fs::remove_file(place.path().join("one.toml")).unwrap();
    assert_eq!(tree(place.path()), before);
}

#[test]
fn results_go_nowhere_but_to_a_free_place_or_over_earlier_results() {
    let place = place();
    let path = place.path();
    fs::write(path.join("file"), "").unwrap();
    fs::create_dir(path.join("thesis")).unwrap();
    fs::write(path.join("thesis/summary.json"), "{}").unwrap();
    fs::write(path.join("thesis/thesis.tex"), "years of work").unwrap();
    let to = |out: &'static str| sim(&["--duration", "10 ms", "--out", out]);
    fails(path, &to("thesis"), 2, &["`thesis` exists and holds `thesis.tex`", "`--out`"]);
    fails(path, &to("file"), 2, &["`file` exists and is not a folder", "`--out`"]);
    fails(path, &to("file/x"), 2, &["`file/x`", "not a directory", "help: nothing was kept; choose another folder"]);
    fails(path, &to("."), 2, &["`.` exists", "`--out`"]);
    for _ in 0..2 {
        headway(path, &to("results")).exits(0);
    }
    fs::write(path.join("results/notes"), "mine").unwrap();
    fails(path, &to("results"), 2, &["holds `notes`, which Headway did not write", "`--out`"]);
    fails(path, &["report", "results", "--out", "thesis"], 2, &["`thesis` exists"]);
}

#[test]
fn values_that_mean_nothing_are_refused_before_anything_is_done() {
    let place = place();
    for (line, words) in [
        ("measure --backend emu --gpus 0", "from 1 on"),
        ("measure --backend emu --sizes 0B", "above zero"),
        ("bench transfers --backend emu --sizes 0B", "above zero"),
        ("bench transfers --backend emu --gpus 0", "from 1 on"),
        ("broker --watchdog 0s", "above zero"),
        ("broker --chunk 0B", "above zero"),
        ("broker --log-size 0B", "above zero"),
        ("run workloads/encrypt.toml --backend sim --trace-max 0", "0 is not in 1.."),
        ("plan workloads/encrypt.toml --gpus -1", "invalid digit"),
        ("explain --bytes 4KiB --direction h2d --active 99", "which has fewer"),
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let before = tree(place.path());
        let answer = headway(place.path(), &args).exits(2);
        assert!(answer.err.contains(words) && !answer.err.contains("panicked"), "{line}: {}", answer.err);
        assert_eq!(tree(place.path()), before, "{line}");
    }
}

#[test]
fn a_program_that_cannot_be_started_ends_as_under_env_and_timeout() {
    let place = place();
    let status = |command: &[&str]| headway(place.path(), &[&["exec"], command].concat()).status;
    fs::write(place.path().join("text"), "no program").unwrap();
    assert_eq!(status(&["--", "sh", "-c", "exit 3"]), Some(3));
    assert_eq!(status(&["sh", "-c", "exit 4"]), Some(4));
    assert_eq!(status(&["--", "no-such-program"]), Some(127));
    assert_eq!(status(&["--", "./text"]), Some(126));
    assert_eq!(status(&["--yield=1KiB", "--", "true"]), Some(125));
}

#[test]
fn more_gpus_than_there_are_and_none_at_all_are_refused() {
    let place = place();
    fails(place.path(), &sim(&["--gpus", "99"]), 2, &["`h200-x4` has 4 GPUs, not 99", "from 1 to 4"]);
    fails(place.path(), &["plan", ENCRYPT, "--gpus", "0"], 2, &["`h200-x4` has 4 GPUs, not 0", "from 1 to 4"]);
    let emulated = ["run", ENCRYPT, "--backend", "emu", "--gpus", "5"];
    fails(place.path(), &emulated, 2, &["`h200-x4` has 4 GPUs", "--machine"]);
}

#[test]
fn a_plan_that_is_not_accepted_runs_only_when_forced_and_then_misses() {
    let place = place();
    // A machine without a calibration: costs have no margin, as in the workload's source.
    let machine = ["--machine", "tyan-ft72b7015"];
    let run = ["run", "workloads/np-edf-miss.toml", "--backend", "sim", "--duration", "20 ms", "--out", "results"];
    let run = [&run[..], &machine].concat();
    let words = [
        "not accepted",
        "  cause: in an interval of 2 ms on `engine`",
        "2 ms too much",
        "`headway plan` shows",
        "`--force`",
    ];
    fails(place.path(), &run, 1, &words);
    let forced = headway(place.path(), &[&run[..], &["--force"]].concat()).exits(1);
    assert!(forced.out.starts_with("3 of 16 deadlines missed [sim]"), "{}", forced.out);
    assert_eq!(forced.err, "warning: running although deadlines can be missed\n");
}

#[test]
fn messages_and_flows_bring_their_own_bytes() {
    let place = place();
    let run = ["run", "workloads/verner-fig2.1.toml", "--machine", "tyan-ft72b7015", "--out", "results"];
    let emulated = headway(place.path(), &[&run[..], &["--backend", "emu"]].concat());
    // Deadlines depend on how fast this machine is, bytes do not.
    assert!(matches!(emulated.status, Some(0 | 1)) && emulated.out.contains("all as they were sent"), "{emulated:#?}");
    fs::write(place.path().join("data"), "bytes for nobody").unwrap();
    let input = [&run[..], &["--backend", "sim", "--input", "data"]].concat();
    fails(place.path(), &input, 2, &["no streams", "`--input`"]);
    headway(place.path(), &[&run[..], &["--backend", "sim"]].concat()).exits(0);
    headway(place.path(), &["replay", "results"]).exits(0);
}

#[test]
fn logs_that_are_none_are_named_with_the_reason() {
    let place = place();
    fs::create_dir(place.path().join("folder")).unwrap();
    for command in ["replay", "report"] {
        fails(place.path(), &[command, "missing"], 2, &["`missing`", "No such file", "help:"]);
        fails(place.path(), &[command, "folder"], 2, &["`folder` is a folder without a log", "help:"]);
        fails(
            place.path(),
            &[command, ENCRYPT],
            2,
            &["line 1 is not a valid line of a log", "written by `headway run`"],
        );
    }
}

#[test]
fn a_reader_that_closes_the_pipe_changes_neither_the_answer_nor_stderr() {
    let place = place();
    let run = ["run", ENCRYPT, "--backend", "sim", "--duration", "10 ms", "--out", "results"];
    let plan = ["plan", ENCRYPT, "--machine", "h200-x4", "--format", "json"];
    let cases: [(&[&str], i32); 6] = [
        (&run, 0),
        (&plan, 0),
        (&["plan", "workloads/np-edf-miss.toml"], 1),
        (&["machines"], 0),
        (&["completions", "bash"], 0),
        (&["--help"], 0),
    ];
    for (args, status) in cases {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let answer: Answer = command(place.path()).args(args).stdout(writer).output().unwrap().into();
        assert_eq!((answer.status, answer.err.as_str()), (Some(status), ""), "{args:?}");
    }
    assert!(place.path().join("results/page.html").is_file());
}

#[test]
fn a_standard_output_that_cannot_be_written_is_an_error() {
    let Ok(full) = fs::File::options().write(true).open("/dev/full") else {
        eprintln!("skipped: this system has no /dev/full");
        return;
    };
    let mut command = command(Path::new("."));
    let answer: Answer = command.arg("machines").stdout(full).output().unwrap().into();
    is_one_error(&answer, 2, &["cannot write to the standard output", "No space left"]);
}

#[test]
fn an_interrupt_before_a_run_begins_leaves_nothing_behind() {
    let place = place();
    let before = tree(place.path());
    // Writing this sample would take much longer than it takes to send a signal.
    is_one_error(
        &told_to_end(command(place.path()).args(sim(&["--duration", "60 s"])), place.path(), &["INT"], ""),
        130,
        &["interrupted; nothing was kept"],
    );
    assert_eq!(tree(place.path()), before);
}

#[test]
fn a_machine_in_place_of_a_workload_and_the_reverse_are_told_apart() {
    let place = place();
    let file = headway(place.path(), &["machines", "h200-x1"]).exits(0).out;
    fs::write(place.path().join("node.toml"), file).unwrap();
    fails(place.path(), &["plan", "node.toml"], 2, &["this is a machine file, not a workload file", "`--machine`"]);
    let swapped = ["plan", "workloads/encrypt.toml", "--machine", "workloads/messages.toml"];
    fails(place.path(), &swapped, 2, &["this is a workload file, not a machine file", "`headway machines`"]);
}

#[test]
fn a_text_that_is_not_closed_is_shown_with_its_remedy() {
    let place = place();
    fs::write(place.path().join("open.toml"), "name = \"open\n").unwrap();
    fails(place.path(), &["plan", "open.toml"], 2, &["open.toml:1:", "close the text with a double quote"]);
}

#[test]
fn a_folder_of_several_runs_is_answered_with_the_runs_inside() {
    let place = place();
    for seed in ["1", "2"] {
        let to = format!("out/seed-{seed}");
        headway(place.path(), &sim(&["--duration", "10 ms", "--seed", seed, "--out", &to])).exits(0);
    }
    for command in ["replay", "report"] {
        fails(place.path(), &[command, "out"], 2, &["`out` is a folder without a log", "`out/seed-1`, `out/seed-2`"]);
        fails(place.path(), &[command, "workloads"], 2, &["`workloads` is a folder without a log", "`headway run`"]);
    }
}

#[test]
fn counts_of_a_statically_linked_program_are_answered_with_why_there_are_none() {
    let place = place();
    // The headers of an ELF file with one segment, which names no loader; too little to run.
    let mut program = vec![0u8; 64 + 56];
    program[..6].copy_from_slice(b"\x7fELF\x02\x01");
    program[32..40].copy_from_slice(&64u64.to_le_bytes());
    program[54..58].copy_from_slice(&[56, 0, 1, 0]);
    program[64] = 1;
    let headers = place.path().join("headers");
    fs::write(&headers, program).unwrap();
    install(&headers, &place.path().join("static"));
    let counted = headway(place.path(), &["exec", "--stats", "--", "./static"]);
    assert!(counted.err.contains("`./static` is statically linked, so no library is loaded into it"), "{counted:?}");
    assert!(!headway(place.path(), &["exec", "--", "./static"]).err.contains("statically linked"));
    assert!(!headway(place.path(), &["exec", "--stats", "--", "true"]).exits(0).err.contains("statically linked"));
}

#[test]
fn a_program_with_more_rights_than_its_caller_loads_nothing_that_the_caller_names() {
    let place = place();
    let Some(privileged) = with_more_rights(place.path()) else { return };
    let named = place.path().join("named.so");
    let loaded = |program: &Path| {
        let mut doctor = Command::new(program);
        let answer = doctor.arg("doctor").env("HEADWAY_LIBCUDA", &named).current_dir("/").output().unwrap();
        String::from_utf8_lossy(&answer.stdout).contains("named.so")
    };
    assert!(loaded(Path::new(crate::PROGRAM)), "the variable counts for a program with the rights of its caller");
    assert!(!loaded(&privileged), "it does not for a set-group-ID program");
}

#[test]
fn a_path_cannot_command_the_terminal_that_shows_it() {
    let place = place();
    for args in [&["status", "--socket", "\x1b[2Ja"][..], &["plan", "\x1b]0;title\x07.toml"]] {
        let answer = headway(place.path(), args).exits(2);
        assert!(answer.err.contains("\\u{1b}") && !answer.err.contains('\x1b'), "{answer:#?}");
    }
}

#[test]
fn an_imported_set_is_judged_as_stated_where_no_machine_is_named() {
    let place = place();
    // `headway-lab import` writes this file.
    fs::write(place.path().join("set.toml"), include_str!("golden/imported.toml")).unwrap();
    let plan = headway(place.path(), &["plan", "set.toml"]).exits(0);
    assert!(plan.out.contains("costs of demands are as stated, and nothing is released late"), "{}", plan.out);
    let row = |name: &str| plan.out.lines().rfind(|line| line.starts_with(name)).unwrap().split_whitespace();
    // For any offsets, then for those of the file.
    assert_eq!(row("task1").collect::<Vec<_>>(), ["task1", "9.999", "us", "2", "us", "10", "us"]);
    assert_eq!(row("task2").collect::<Vec<_>>(), ["task2", "10", "us", "10", "us", "30", "us"]);
    headway(place.path(), &["run", "set.toml", "--backend", "sim", "--duration", "1 ms", "--out", "set"]).exits(0);
    let named = headway(place.path(), &["plan", "set.toml", "--machine", "h200-x4"]).exits(1);
    assert!(named.out.contains("every cost includes 191639 ppm and 100 us"), "{}", named.out);
}

/// What a shell sees of the program that it starts, with and without `headway exec` in front of it.
fn as_started(place: &Path, before: &str, program: &str) -> [String; 2] {
    let headway = env!("CARGO_BIN_EXE_headway");
    ["", "HEADWAY exec --stats --fast=off --yield=never -- "].map(|prefix| {
        let prefix = prefix.replace("HEADWAY", headway);
        let line = format!("{before} {prefix}{program}");
        let output = Command::new("sh").args(["-c", &line]).current_dir(place).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    })
}

#[test]
fn a_guest_gets_the_signals_and_descriptors_that_it_was_started_with() {
    let place = place();
    let signals = "grep -E '^Sig(Ign|Blk)' /proc/self/status";
    for before in ["", "trap '' PIPE;", "trap '' PIPE XFSZ;", "trap '' INT;"] {
        let [alone, guest] = as_started(place.path(), before, signals);
        assert_eq!(alone, guest, "{before}");
    }
    let open = "sh -c 'for fd in 0 2; do test -e /proc/$$/fd/$fd && echo $fd; done; true' 0<&- 2>&-";
    let [alone, guest] = as_started(place.path(), "", open);
    assert_eq!((alone.as_str(), guest.as_str()), ("", ""));
}

#[test]
fn a_guest_gets_each_entry_of_the_environment_as_it_was() {
    // Python's own `exec` drops what has no name or occurs twice.
    let program = "import ctypes, os, sys
texts = [b'A=1', b'A=2', b'no sign', b'=nameless', b'LD_PRELOAD=', None]
environment = (ctypes.c_char_p * len(texts))(*texts)
line = [word.encode() for word in sys.argv[1:]] + [None]
ctypes.CDLL(None).execve(line[0], (ctypes.c_char_p * len(line))(*line), environment)";
    let headway = env!("CARGO_BIN_EXE_headway");
    let read = ["/bin/cat", "/proc/self/environ"];
    let entries = |line: &[&str]| {
        let output = Command::new("python3").args(["-c", program]).args(line).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let entries = output.stdout.split(|byte| *byte == 0).map(|entry| String::from_utf8(entry.to_vec()).unwrap());
        let ours = |entry: &String| entry.starts_with("LD_PRELOAD=") || entry.starts_with("HEADWAY_");
        entries.filter(|entry| !ours(entry)).collect::<Vec<_>>()
    };
    let guest = entries(&[&[headway, "exec", "--"][..], &read].concat());
    assert_eq!(guest, entries(&read));
    assert_eq!(guest[..4], ["A=1", "A=2", "no sign", "=nameless"]);
}

#[test]
fn remarks_that_cannot_be_written_are_no_reason_to_fail() {
    let place = place();
    let headway = env!("CARGO_BIN_EXE_headway");
    let run = |line: &str| {
        let line = line.replace("headway", headway);
        Command::new("sh").args(["-c", &line]).current_dir(place.path()).output().unwrap().status.code()
    };
    for line in [
        "headway exec --stats --fast=off -- true 2>/dev/full",
        "ulimit -f 0; headway exec --stats --fast=off -- true 2>stats",
        "headway run workloads/encrypt.toml --duration '10 ms' >/dev/null 2>/dev/full",
    ] {
        assert_eq!(run(line), Some(0), "{line}");
    }
}

#[test]
fn a_pipe_that_nobody_writes_and_a_tiny_stack_are_errors_with_a_remedy() {
    let place = place();
    let pipe = place.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for verb in ["report", "replay"] {
        fails(place.path(), &[verb, "pipe"], 2, &["`pipe`", "it is a pipe", "write it to a file"]);
    }
    let generated = format!("cat {ENCRYPT} > pipe & exec {} plan pipe", env!("CARGO_BIN_EXE_headway"));
    let planned = Command::new("sh").args(["-c", &generated]).current_dir(place.path()).output().unwrap();
    assert_eq!(planned.status.code(), Some(0), "{planned:?}");
    let tiny = format!("ulimit -s 64; exec {} plan {ENCRYPT}", env!("CARGO_BIN_EXE_headway"));
    let refused = Command::new("sh").args(["-c", &tiny]).current_dir(place.path()).output().unwrap();
    is_one_error(&refused.into(), 2, &["the limit of the stack is 64 KiB", "`ulimit -s 8192`"]);
    let guest =
        format!("ulimit -s 64; exec {} exec --no-cache -- sh -c 'ulimit -s; exit 7'", env!("CARGO_BIN_EXE_headway"));
    let guest = Answer::from(Command::new("sh").args(["-c", &guest]).current_dir(place.path()).output().unwrap());
    assert_eq!((guest.status, guest.out.trim(), guest.err.as_str()), (Some(7), "64", ""));
}

#[test]
fn an_input_whose_name_is_no_text_is_read_and_named_as_well_as_it_can_be() {
    use std::os::unix::ffi::OsStrExt;
    let place = place();
    let name = std::ffi::OsStr::from_bytes(b"in\xffput");
    fs::write(place.path().join(name), [7; 1 << 19]).unwrap();
    let mut run = command(place.path());
    run.args([
        "run",
        ENCRYPT,
        "--backend",
        "sim",
        "--duration",
        "10 ms",
        "--format",
        "json",
        "--out",
        "out",
        "--input",
    ]);
    let answer = Answer::from(run.arg(name).output().unwrap()).exits(0);
    let manifest = fs::read_to_string(place.path().join("out/manifest.json")).unwrap();
    assert!(manifest.contains("in\u{fffd}put"), "{manifest}");
    assert!(answer.out.contains("\"folder\": \"out\""), "{}", answer.out);
}

#[test]
fn the_log_of_a_guest_can_be_drawn_again_and_commands_no_terminal() {
    let place = place();
    let log = concat!(
        r#"{"kind":"guest","schema":1,"commit":"unknown","version":"0.1.0","pid":1,"command":["a","\u001b[2J"],"options":"fast","began_unix":0}"#,
        "\n"
    );
    fs::write(place.path().join("guest.jsonl"), log).unwrap();
    for _ in 0..2 {
        let told = headway(place.path(), &["report", "guest.jsonl", "--out", "drawn"]).exits(0);
        assert!(told.out.contains("process 1: a \\u{1b}[2J") && !told.out.contains('\u{1b}'), "{told:?}");
    }
}
