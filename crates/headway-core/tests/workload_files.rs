//! Workload files: what is read, what is refused and where the error points.

use std::collections::BTreeSet;

use headway_core::files::error::{FileError, Loaded};
use headway_core::files::workload::{
    CopyEndpoint, Cycle, Grouping, OnMiss, Otherwise, StreamPlacement, StreamStep, UnplannedKind, Urgent, Workload,
};
use headway_core::units::{Bytes, Nanos};
use headway_kernels::Cipher;
use headway_kernels::workload::parse;

const BASE: &str = r#"name = "w"
[run]
duration = "2 s"
seed = 7
cycle = "paper"
grouping = "each"
[[stream]]
id = "cam"
packet = "16 KiB"
period = "4 ms"
deadline = "40 ms"
start = "1 ms"
gpu = "gpu1"
on_miss = "stop"
steps = [{ copy = "host -> gpu" }, { compute = "aes128-cbc" }, { copy = "gpu1->cpu1" }]
key = "000102030405060708090a0b0c0d0e0f"
iv = "0F0e0d0c0b0a09080706050403020100"
[[stream]]
id = "log"
packet = "32 B"
period = "1 ms"
deadline = "9 ms"
steps = [{ copy = "gpu -> host" }]
[[message]]
id = "fig2.1"
period = "30 ms"
blocks = [{ from = "cpu0", to = "gpu0", bytes = "128 MB" }, { from = "cpu0", to = "gpu2", bytes = "64 MB" }]
[[demand]]
id = "a"
cost = "1 ms"
period = "2 ms"
"#;

fn base() -> Loaded<Workload> {
    parse("w.toml", BASE).unwrap_or_else(|e| panic!("{e}"))
}

/// The error of [`BASE`] with the first `old` replaced by `new`.
fn refused(old: &str, new: &str) -> FileError {
    assert!(BASE.contains(old), "{old}");
    parse("w.toml", &BASE.replacen(old, new, 1)).expect_err(new)
}

#[track_caller]
fn check(old: &str, new: &str, at: (usize, usize, usize), message: &str, help: &str) {
    let error = refused(old, new);
    assert_eq!(error.message, message);
    assert_eq!(error.help.as_deref().unwrap_or_default(), help);
    assert_eq!((error.line, error.column, error.width), at, "{error}");
}

#[test]
fn a_file_becomes_streams_messages_and_flows() {
    let w = base().value;
    assert_eq!((w.duration, w.seed, w.cycle, w.grouping), (Nanos(2_000_000_000), 7, Cycle::Paper, Grouping::Each));
    let cam = &w.streams[0];
    assert_eq!((cam.packet, cam.period, cam.deadline), (Bytes(16_384), Nanos(4_000_000), Nanos(40_000_000)));
    assert_eq!(
        (cam.start, &cam.gpu, cam.on_miss),
        (Nanos(1_000_000), &StreamPlacement::Gpu("gpu1".into()), OnMiss::Stop)
    );
    assert_eq!(cam.steps[0], StreamStep::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu });
    assert_eq!(cam.steps[1], StreamStep::Compute { kernel: "aes128-cbc".into() });
    assert_eq!(
        cam.steps[2],
        StreamStep::Copy { from: CopyEndpoint::Named("gpu1".into()), to: CopyEndpoint::Named("cpu1".into()) }
    );
    let cipher = Cipher::of(&cam.parameters).expect("it has one");
    assert_eq!((cipher.key[1], cipher.key[15], cipher.iv[0], cipher.iv[15]), (1, 15, 15, 0));
    let log = &w.streams[1];
    assert_eq!((log.start, &log.gpu, log.on_miss), (Nanos::ZERO, &StreamPlacement::Auto, OnMiss::Finish));
    assert_eq!(Cipher::of(&log.parameters), None);
    assert_eq!((w.messages[0].period, w.messages[0].blocks.len()), (Nanos(30_000_000), 2));
    assert_eq!((w.messages[0].blocks[1].to.as_str(), w.messages[0].blocks[1].bytes), ("gpu2", Bytes(64_000_000)));
    let flow = &w.demands[0];
    assert_eq!((flow.server.as_str(), flow.cost, flow.deadline), ("engine", Nanos(1_000_000), Nanos(2_000_000)));
    assert_eq!(w.hash.len(), 16);
}

#[test]
fn a_flow_may_start_later() {
    let text = "name = \"w\"\n[[demand]]\nid = \"a\"\nstart = \"3 us\"\ncost = \"1 ns\"\nperiod = \"1 ns\"\n";
    assert_eq!(parse("w", text).expect("complete").value.demands[0].start, Nanos(3_000));
}

/// Files of before December 2026 call a demand `flow`.
#[test]
fn a_demand_is_read_under_its_earlier_name() {
    let text = "name = \"w\"\n[[demand]]\nid = \"a\"\ncost = \"1 ms\"\nperiod = \"2 ms\"\n";
    let of = |text: &str| parse("w", text).expect("complete").value.demands;
    assert_eq!(of(&text.replace("demand", "flow")), of(text));
}

/// A flow, since a run ends with its last window, and what follows it.
fn beside_a_flow(text: &str) -> String {
    format!("name = \"w\"\n[[demand]]\nid = \"a\"\ncost = \"1 ns\"\nperiod = \"1 ns\"\n{text}")
}

#[test]
fn transfers_without_windows_and_late_producers() {
    let bulk = "[[bulk]]\nid = \"b\"\nfrom = \"host\"\nto = \"gpu0\"\n";
    let urgent = "[[urgent]]\nid = \"u\"\nfrom = \"gpu0\"\nto = \"host\"\nbytes = \"1 kB\"\ndeadline = \"2 ms\"\n";
    let late = "[[message]]\nid = \"m\"\nperiod = \"1 ms\"\nlate = \"3 us\"\nblocks = [{ from = \"host\", to = \"gpu0\", bytes = \"1 B\" }]\n";
    let all = beside_a_flow(&format!("{bulk}bytes = \"5 MB\"\nstart = \"1 ms\"\n{urgent}{late}"));
    let w = parse("w", &all).expect("complete").value;
    assert_eq!(
        (w.unplanned[0].kind, w.unplanned[0].start),
        (UnplannedKind::Bulk(Some(Bytes(5_000_000))), Nanos(1_000_000))
    );
    let of = Urgent { bytes: Bytes(1_000), deadline: Nanos(2_000_000), every: None, otherwise: Otherwise::Refuse };
    assert_eq!((w.unplanned[1].kind, w.unplanned[1].to.as_str()), (UnplannedKind::Urgent(of), "host"));
    assert_eq!(w.messages[0].late, Some(Nanos(3_000)));
    let more = format!("{urgent}every = \"3 ms\"\notherwise = \"best-effort\"\n");
    let w = parse("w", &beside_a_flow(&format!("{bulk}{more}"))).expect("complete").value;
    assert_eq!(w.unplanned[0].kind, UnplannedKind::Bulk(None));
    let of = Urgent { every: Some(Nanos(3_000_000)), otherwise: Otherwise::BestEffort, ..of };
    assert_eq!(w.unplanned[1].kind, UnplannedKind::Urgent(of));
}

#[test]
fn transfers_without_windows_need_somebody_who_has_some() {
    for (text, expected) in [
        ("name = \"w\"\n[[bulk]]\nid = \"b\"\nfrom = \"host\"\nto = \"gpu0\"\n".to_owned(), "this workload has none"),
        (beside_a_flow("[[bulk]]\nid = \"b\"\nfrom = \"host\"\nto = \"host\"\n"), "`b` stays at `host`"),
        (beside_a_flow("[[urgent]]\nid = \"b\"\nfrom = \"host\"\nto = \"gpu0\"\n"), "bytes"),
    ] {
        let error = parse("w", &text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_is_not_written_has_a_default() {
    let w = parse("w", "name = \"w\"\n[[demand]]\nid = \"a\"\ncost = \"1 ns\"\nperiod = \"1 ns\"\n")
        .expect("complete")
        .value;
    assert_eq!(w.demands[0].start, Nanos::ZERO);
    assert_eq!((w.duration, w.seed, w.cycle, w.grouping), (Nanos(1_000_000_000), 1, Cycle::Auto, Grouping::Class));
}

#[test]
fn later_stages_can_point_at_any_part() {
    let loaded = base();
    let at = |key: &str| {
        let error = loaded.error_at(key, "m", None);
        (error.line, error.column, error.width)
    };
    assert_eq!(at("stream.cam"), (8, 6, 5));
    assert_eq!(at("stream.cam.gpu"), (13, 7, 6));
    assert_eq!(at("stream.cam.steps.1"), (15, 36, 26));
    assert_eq!(at("stream.cam.key"), (16, 7, 34));
    assert_eq!(at("stream.log.gpu"), (19, 6, 5), "not written: the stream");
    assert_eq!(at("message.fig2.1.blocks.1"), (27, 61, 47));
    assert_eq!(at("message.fig2.1.blocks.9"), (27, 10, 99));
    assert_eq!(at("demand.a.cost"), (30, 8, 6));
    assert_eq!(at("run.seed"), (4, 8, 1));
    assert_eq!(at("nothing"), (1, 1, 1));
    let error = loaded.error_at("stream.cam.gpu", "the machine has no GPU `gpu1`", Some("write \"auto\"".into()));
    let expected = "w.toml:13:7: the machine has no GPU `gpu1`
   |
13 | gpu = \"gpu1\"
   |       ^^^^^^
help: write \"auto\"";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn errors_render_with_line_caret_and_help() {
    let expected = "w.toml:10:10: `period = 4` has no unit
   |
10 | period = 4
   |          ^
help: write `period = \"4 ms\"`";
    assert_eq!(refused("period = \"4 ms\"", "period = 4").to_string(), expected);
    let expected = "w.toml:10:1: unknown key `perid` in [[stream]]
   |
10 | perid = \"4 ms\"
   | ^^^^^
help: did you mean `period`?";
    assert_eq!(refused("period = \"4 ms\"", "perid = \"4 ms\"").to_string(), expected);
    let expected = "w.toml:5:9: `cycle = \"papr\"` is not a known value
  |
5 | cycle = \"papr\"
  |         ^^^^^^
help: did you mean `paper`?";
    assert_eq!(refused("\"paper\"", "\"papr\"").to_string(), expected);
    let expected = "w.toml:3:1: unknown key `colour` in [run]
  |
3 | colour = 1
  | ^^^^^^
help: known keys: `duration`, `seed`, `cycle`, `grouping`, `transform`";
    assert_eq!(refused("duration = \"2 s\"", "colour = 1").to_string(), expected);
}

#[test]
fn times_and_sizes_that_make_no_sense_are_refused() {
    check(
        "\"4 ms\"",
        "\"4 MB\"",
        (10, 10, 6),
        "`period = \"4 MB\"` has the unknown unit `MB`",
        "units here: ns, us, ms, s, min",
    );
    check("\"4 ms\"", "\"4\"", (10, 10, 3), "`period = \"4\"` has no unit", "write `period = \"4 ms\"`");
    check("\"4 ms\"", "\"0 ms\"", (10, 10, 6), "`period = \"0 ms\"` is zero", "write for example `period = \"4 ms\"`");
    check(
        "\"4 ms\"",
        "\"-4 ms\"",
        (10, 10, 7),
        "`period = \"-4 ms\"` is negative",
        "write for example `period = \"10 ms\"`",
    );
    check("\"4 ms\"", "-4", (10, 10, 2), "`period = -4` is negative", "write for example `period = \"10 ms\"`");
    check(
        "\"4 ms\"",
        "\"ms\"",
        (10, 10, 4),
        "`period = \"ms\"` does not start with a number",
        "write for example `period = \"10 ms\"`",
    );
    check(
        "\"4 ms\"",
        "\"0.5 ns\"",
        (10, 10, 8),
        "`period = \"0.5 ns\"` is not a whole number of nanoseconds",
        "the nearest is `period = \"1 ns\"`",
    );
    check(
        "\"4 ms\"",
        "\"59.94 fps\"",
        (10, 10, 11),
        "`period = \"59.94 fps\"` is a frequency",
        "as a time it is `period = \"16683350 ns\"`",
    );
    check(
        "\"4 ms\"",
        "\"999999999999999 s\"",
        (10, 10, 19),
        "`period = \"999999999999999 s\"` is too large",
        "values must fit 64 bits",
    );
    check(
        "\"4 ms\"",
        "\"9999999999 s\"",
        (10, 10, 14),
        "`period = \"9999999999 s\"` is above 366 days",
        "write at most 366 days",
    );
    check(
        "\"4 ms\"",
        "[4]",
        (10, 10, 3),
        "`period = [4]` is a list, not a text with a unit",
        "write for example `period = \"10 ms\"`",
    );
    check("\"16 KiB\"", "\"0 B\"", (9, 10, 5), "`packet = \"0 B\"` is zero", "write for example `packet = \"16 KiB\"`");
    check(
        "\"16 KiB\"",
        "\"16 ms\"",
        (9, 10, 7),
        "`packet = \"16 ms\"` has the unknown unit `ms`",
        "units here: B, kB, MB, GB, KiB, MiB, GiB",
    );
    check(
        "\"16 KiB\"",
        "\"1048577 GiB\"",
        (9, 10, 13),
        "`packet = \"1048577 GiB\"` is above 1048576 GiB",
        "write at most 1048576 GiB",
    );
    check(
        "\"40 ms\"",
        "\"0 ms\"",
        (11, 12, 6),
        "`deadline = \"0 ms\"` is zero",
        "write for example `deadline = \"40 ms\"`",
    );
    check("\"2 s\"", "\"0 s\"", (3, 12, 5), "`duration = \"0 s\"` is zero", "write for example `duration = \"2 s\"`");
    check(
        "seed = 7",
        "seed = 0.5",
        (4, 8, 3),
        "`seed = 0.5` is a number with a point, not an integer",
        "write for example `seed = 0`",
    );
}

#[test]
fn deadlines_that_no_machine_can_meet_are_refused() {
    check(
        "\"40 ms\"",
        "\"3 ns\"",
        (11, 12, 6),
        "`deadline = \"3 ns\"` is too short for 3 steps",
        "write at least `deadline = \"4 ns\"`: a nanosecond for gathering and each step",
    );
    assert!(parse("w", &BASE.replacen("\"40 ms\"", "\"4 ns\"", 1)).is_ok());
    check(
        "\"1 ms\"\nperiod = \"2 ms\"",
        "\"3 ms\"\nperiod = \"2 ms\"",
        (30, 8, 6),
        "`cost = \"3 ms\"` is more than the deadline of 2 ms",
        "lower the cost to at most 2 ms, or raise the deadline of demand `a`",
    );
    check(
        "period = \"2 ms\"",
        "period = \"2 ms\"\ndeadline = \"0.5 ms\"",
        (30, 8, 6),
        "`cost = \"1 ms\"` is more than the deadline of 500 us",
        "lower the cost to at most 500 us, or raise the deadline of demand `a`",
    );
    check(
        "cost = \"1 ms\"",
        "cost = \"0 ms\"",
        (30, 8, 6),
        "`cost = \"0 ms\"` is zero",
        "write for example `cost = \"1 ms\"`",
    );
}

#[test]
fn ids_are_names_and_unique_over_the_file() {
    let help = "give each stream, message, demand and task its own id";
    check("id = \"log\"", "id = \"cam\"", (19, 6, 5), "a stream is already called `cam`, in line 8", help);
    check("id = \"fig2.1\"", "id = \"log\"", (25, 6, 5), "a stream is already called `log`, in line 19", help);
    check("id = \"a\"", "id = \"fig2.1\"", (29, 6, 8), "a message is already called `fig2.1`, in line 25", help);
    check(
        "id = \"log\"",
        "id = \"lo g\"",
        (19, 6, 6),
        "`id = \"lo g\"` is not a name",
        "names have 1 to 64 letters, digits and `_`, `-`, `.`, `:`, `/`",
    );
    check(
        "id = \"log\"",
        "id = \"\"",
        (19, 6, 2),
        "`id = \"\"` is not a name",
        "names have 1 to 64 letters, digits and `_`, `-`, `.`, `:`, `/`",
    );
    check("id = \"log\"\n", "", (18, 1, 10), "[[stream]] has no `id`", "add `id = \"a\"`");
}

#[test]
fn names_that_lead_out_of_the_folder_of_results_are_refused() {
    let help = "leave out `/`, and do not begin with `.`; `--out` puts results into any folder";
    for (name, width) in [("../../evil", 12), ("/etc/w", 8), ("a/b", 5), (".", 3), ("..", 4), (".w", 4)] {
        let message = format!("`name = \"{name}\"` cannot name the folder of the results, `out/NAME-SOURCE`");
        check("name = \"w\"", &format!("name = \"{name}\""), (1, 8, width), &message, help);
    }
    for name in ["a.b", "a:b", "w..", "größe"] {
        assert!(parse("w.toml", &BASE.replacen("\"w\"", &format!("\"{name}\""), 1)).is_ok(), "{name}");
    }
}

#[test]
fn streams_whose_results_could_be_one_file_are_refused() {
    let other = refused("id = \"log\"", "id = \"CAM\"");
    assert_eq!(other.message, "stream `CAM` differs from stream `cam` in upper and lower case only");
    assert_eq!((other.line, other.column, other.width), (19, 6, 5));
    // Messages and flows become no files.
    assert!(parse("w.toml", &BASE.replacen("id = \"a\"", "id = \"FIG2.1\"", 1)).is_ok());
    // Characters that files cannot have in their names, and those that would make the name too long.
    for id in ["a\\u0000", "a\\n", "a b", "a%2Fb", "a\\u0301", "a*", "a\\\\b"] {
        assert!(parse("w.toml", &BASE.replacen("\"log\"", &format!("\"{id}\""), 1)).is_err(), "{id}");
    }
    let long = "\u{20000}".repeat(64);
    let error = refused("id = \"log\"", &format!("id = \"{long}\""));
    assert!(error.help.as_deref().is_some_and(|help| help.ends_with("at most 192 bytes; this one has 256")), "{error}");
    assert!(parse("w.toml", &BASE.replacen("\"log\"", &format!("\"{}\"", "\u{20000}".repeat(48)), 1)).is_ok());
}

#[test]
fn steps_that_do_not_connect_are_refused() {
    check(
        "steps = [{ copy = \"gpu -> host\" }]",
        "steps = []",
        (23, 9, 2),
        "the stream has no steps",
        "write for example `steps = [{ copy = \"host -> gpu\" }]`",
    );
    check(
        "{ copy = \"host -> gpu\" }, ",
        "",
        (15, 22, 12),
        "the step computes before the data reached a GPU",
        "put `{ copy = \"host -> gpu\" }` before it, or write `on = \"cpu\"`",
    );
    check(
        "{ copy = \"host -> gpu\" }, ",
        "{ copy = \"gpu -> host\" }, ",
        (15, 48, 12),
        "the step computes before the data reached a GPU",
        "put `{ copy = \"host -> gpu\" }` before it, or write `on = \"cpu\"`",
    );
    check(
        "\"host -> gpu\"",
        "\"host -> gpu2\"",
        (15, 74, 12),
        "the step copies from `gpu1`, but the data is at `gpu2`",
        "start it at `gpu2`, or add a copy from there to `gpu1`",
    );
    check(
        "\"gpu1->cpu1\"",
        "\"host->cpu1\"",
        (15, 73, 12),
        "the step copies from `host`, but the data is at `gpu`",
        "start it at `gpu`, or add a copy from there to `host`",
    );
    check("\"gpu1->cpu1\"", "\"gpu->gpu1\"", (15, 73, 11), "`copy = \"gpu->gpu1\"` goes nowhere", "name two places");
    check(
        "\"gpu1->cpu1\"",
        "\"gpu to host\"",
        (15, 73, 13),
        "`copy = \"gpu to host\"` is not of the form FROM -> TO",
        "write for example `copy = \"host -> gpu\"`, or names of the machine file",
    );
    check(
        "copy = \"gpu1->cpu1\"",
        "copy = \"gpu->host\", compute = \"k\"",
        (15, 64, 37),
        "a step is one `copy` or one `compute`",
        "write `{ copy = \"host -> gpu\" }` or `{ compute = \"KERNEL\" }`; lists of both, each element for one part, go together",
    );
    check(
        "copy = \"gpu1->cpu1\"",
        "move = \"gpu->host\"",
        (15, 66, 4),
        "unknown key `move` in a step",
        "known keys: `copy`, `compute`, `on`, `exchange`",
    );
    check(
        "gpu = \"gpu1\"",
        "gpu = \"host\"",
        (13, 7, 6),
        "`gpu = \"host\"` names no GPU",
        "write \"auto\", or the name of a GPU in the machine file",
    );
}

#[test]
fn streams_that_encrypt_need_whole_blocks_and_their_own_key() {
    check(
        "\"16 KiB\"",
        "\"100 B\"",
        (9, 10, 7),
        "`packet = \"100 B\"` is not a multiple of 16 bytes as `aes128-cbc` needs",
        "write for example `packet = \"112 B\"`",
    );
    check(
        "key = \"000102030405060708090a0b0c0d0e0f\"\niv = \"0F0e0d0c0b0a09080706050403020100\"\n",
        "",
        (15, 48, 12),
        "stream `cam` encrypts but has no key",
        "add `key` and `iv`, 32 hexadecimal digits each, to the stream",
    );
    check(
        "iv = \"0F0e0d0c0b0a09080706050403020100\"\n",
        "",
        (16, 1, 3),
        "stream `cam` has `key` but no `iv`",
        "add `iv`, 32 hexadecimal digits",
    );
    check(
        "key = \"000102030405060708090a0b0c0d0e0f\"\n",
        "",
        (16, 1, 2),
        "stream `cam` has `iv` but no `key`",
        "add `key`, 32 hexadecimal digits",
    );
    let help = "write 16 bytes as hexadecimal digits, for example from `openssl rand -hex 16`";
    for (bad, width) in [
        ("00010203", 10),
        ("000102030405060708090a0b0c0d0e0g", 34),
        ("000102030405060708090a0b0c0d0e0f0", 35),
        ("000102030405060708090a0b0c0d0e0f!", 35),
        ("00010203040506070809\u{e4}0b0c0d0e0f0", 34),
    ] {
        check("000102030405060708090a0b0c0d0e0f", bad, (16, 7, width), "`key` is not 32 hexadecimal digits", help);
    }
    let same = "id = \"log\"\nkey = \"000102030405060708090A0B0C0D0E0F\"\niv = \"0f0e0d0c0b0a09080706050403020100\"";
    check(
        "id = \"log\"",
        same,
        (20, 7, 34),
        "stream `log` has the same key and iv as stream `cam`",
        "draw a new random `iv`, and a `key` of its own, for each stream: with the same pair, packets that begin alike encrypt alike, and whoever sees the ciphertexts can tell",
    );
    let other_iv = same.replace("0f0e", "0f0f");
    assert!(parse("w", &BASE.replacen("id = \"log\"", &other_iv, 1)).is_ok());
}

#[test]
fn messages_need_blocks_that_move() {
    check(
        "to = \"gpu0\"",
        "to = \"cpu0\"",
        (27, 33, 6),
        "the block stays at `cpu0`",
        "name two endpoints of the machine",
    );
    check("\"128 MB\"", "\"0 MB\"", (27, 49, 6), "`bytes = \"0 MB\"` is zero", "write for example `bytes = \"1 MB\"`");
    check("\"128 MB\"", "128", (27, 49, 3), "`bytes = 128` has no unit", "write `bytes = \"128 B\"`");
    let error =
        parse("w", "name = \"w\"\n[[message]]\nid = \"m\"\nperiod = \"1 ms\"\nblocks = []\n").expect_err("no blocks");
    assert_eq!((error.line, error.column, error.message.as_str()), (5, 10, "message `m` has no blocks"));
}

#[test]
fn a_deadline_of_a_message_is_refused_with_what_says_when_it_is_due() {
    let error = parse("w", "name = \"w\"\n[[message]]\nid = \"m\"\nperiod = \"2 ms\"\ndeadline = \"1 ms\"\n")
        .expect_err("no such key");
    assert_eq!((error.line, error.message.as_str()), (5, "unknown key `deadline` in [[message]]"));
    assert!(error.help.unwrap().starts_with("a message is due at the end of its `period`"));
}

#[test]
fn a_workload_that_asks_for_nothing_is_refused() {
    let error = parse("w", "name = \"w\"\n[run]\nseed = 1\n").expect_err("empty");
    assert_eq!(error.message, "the workload is empty");
    assert_eq!(error.help.as_deref(), Some("add at least one `[[stream]]`, `[[message]]`, `[[demand]]` or `[[task]]`"));
}

fn shipped(name: &str, text: &str) -> Workload {
    let w = parse(name, text).unwrap_or_else(|e| panic!("{e}")).value;
    assert_eq!(format!("{}.toml", w.name), name);
    w
}

#[test]
fn encrypt_has_64_streams_with_keys_of_their_own() {
    let w = shipped("encrypt.toml", include_str!("../../../workloads/encrypt.toml"));
    assert_eq!(w.streams.len(), 64);
    let ciphers: Vec<_> = w.streams.iter().map(|s| Cipher::of(&s.parameters).expect("each has one")).collect();
    assert_eq!(ciphers.iter().map(|c| c.key).collect::<BTreeSet<_>>().len(), 64);
    assert_eq!(ciphers.iter().map(|c| c.iv).collect::<BTreeSet<_>>().len(), 64);
    for (i, s) in w.streams.iter().enumerate() {
        assert_eq!(s.id, format!("s{i:02}"));
        assert!((256..=16_384).contains(&s.packet.0) && s.packet.0 % 16 == 0, "{}", s.id);
        assert!((1_000_000..=20_000_000).contains(&s.period.0), "{}", s.id);
        assert!((16_000_000..=200_000_000).contains(&s.deadline.0), "{}", s.id);
        let bits_per_second = s.packet.0 * 8 * 1_000_000_000 / s.period.0;
        assert!((200_000..=40_000_000).contains(&bits_per_second), "{}", s.id);
    }
}

#[test]
fn verner_figure_2_1_moves_128_and_64_mb_at_once() {
    let w = shipped("verner-fig2.1.toml", include_str!("../../../workloads/verner-fig2.1.toml"));
    let sizes: Vec<_> = w.messages[0].blocks.iter().map(|b| (b.from.as_str(), b.to.as_str(), b.bytes)).collect();
    assert_eq!(sizes, [("cpu0", "gpu0", Bytes(128_000_000)), ("cpu0", "gpu2", Bytes(64_000_000))]);
}

#[test]
fn np_edf_miss_is_the_set_2_1_8_3_9_1() {
    let w = shipped("np-edf-miss.toml", include_str!("../../../workloads/np-edf-miss.toml"));
    let ms: Vec<_> =
        w.demands.iter().map(|f| (f.period.0 / 1_000_000, f.cost.0 / 1_000_000, f.deadline == f.period)).collect();
    assert_eq!(ms, [(2, 1, true), (8, 3, true), (9, 1, true)]);
}
