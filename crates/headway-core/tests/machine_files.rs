//! Machine files: what is read, what is refused and where the error points.

use headway_core::files::error::FileError;
use headway_core::files::machine::{
    CapacityId, CapacityKind, EndpointId, EngineClass, Machine, RouteId, SHIPPED, parse, shipped, write,
};
use headway_core::models::cpu::{ChunkWatch, DelayStatistics, DriverWatch};
use headway_core::models::transfer::{Direction, Method};
use headway_core::units::{Nanos, Rate};

const BASE: &str = r#"name = "node"
[[memory]]
id = "host"
[[gpu]]
id = "gpu0"
[[gpu]]
id = "gpu1"
[[link]]
id = "in0"
from = "host"
to = "gpu0"
rate = "8 GB/s"
opposite = "out0"
rate_both = "7 GB/s"
[[link]]
id = "out0"
from = "gpu0"
to = "host"
rate = "8 GB/s"
opposite = "in0"
[[link]]
id = "peer"
from = "gpu0"
to = "gpu1"
rate = "20 GB/s"
rate_low = "19 GB/s"
[[limit]]
id = "io"
rate = "9 GB/s"
use = { host = "1.057", "gpu0->host" = 2 }
[[engine]]
id = "e0"
gpu = "gpu0"
serves = ["h2d", "d2h", "peer"]
[[engine]]
id = "x1"
gpu = "gpu1"
serves = ["ee"]
lanes = 2
[[route]]
from = "host"
to = "gpu0"
engines = ["e0"]
links = ["in0"]
weight = 645
setup = "7.3 us"
setup_queued = "2.6 us"
[[route]]
from = "gpu0"
to = "host"
engines = ["e0"]
links = ["out0"]
setup = "5 us"
[[route]]
from = "gpu0"
to = "gpu1"
engines = ["e0"]
links = ["peer"]
setup = "0 ns"
[[kernel]]
id = "k"
gpus = ["gpu1"]
setup = "1 us"
rate = "2 GB/s"
chain_rate = "20 MB/s"
[calibration]
sets = 9
repeats = 5
sigma = 1.02
margin_ppm = 50_000
jitter = "200 us"
median_ppm = 1
p95_ppm = 2
max_ppm = 3
date = "2026-11-21"
driver = "580"
[[set]]
routes = ["gpu0->host", "host -> gpu0"]
rates = ["4 GB/s", "5 GB/s"]
"#;

fn base() -> Machine {
    parse("node.toml", BASE).unwrap_or_else(|e| panic!("{e}"))
}

/// The error of [`BASE`] with the first `old` replaced by `new`.
fn refused(old: &str, new: &str) -> FileError {
    assert!(BASE.contains(old), "{old}");
    parse("node.toml", &BASE.replacen(old, new, 1)).expect_err(new)
}

#[test]
fn a_measured_set_has_its_routes_in_order_and_may_not_contradict_itself() {
    let m = base();
    let set = &m.sets[0];
    assert_eq!((m.sets.len(), &set.routes[..]), (1, &[RouteId(0), RouteId(1)][..]));
    assert_eq!(set.rates, [Rate(5_000_000_000), Rate(4_000_000_000)]);
    let (routes, rates) = (r#"["gpu0->host", "host -> gpu0"]"#, r#"["4 GB/s", "5 GB/s"]"#);
    let says = |old: &str, new: &str| refused(old, new).message;
    assert_eq!(says(rates, r#"["4 GB/s"]"#), "a set has 2 routes and 1 rates");
    assert_eq!(says(routes, r#"["gpu0->host", "gpu0->host"]"#), "`\"gpu0->host\"` is there twice");
    assert_eq!(
        says(routes, r#"["gpu0->host", "gpu0->gpu1"]"#),
        "`gpu0->gpu1` is no `dma` route between a memory and a GPU"
    );
    assert_eq!(says("4 GB/s", "4 kB/s"), "`\"4 kB/s\"` is below 1 MB/s");
    let again = format!("{BASE}[[set]]\nroutes = {routes}\nrates = {rates}\n");
    let error = parse("node.toml", &again).expect_err("the same set again");
    assert_eq!(error.message, "a set of the same routes was there before");
}

#[track_caller]
fn check(old: &str, new: &str, at: (usize, usize, usize), message: &str, help: &str) {
    let error = refused(old, new);
    assert_eq!(error.message, message);
    assert_eq!(error.help.as_deref().unwrap_or_default(), help);
    assert_eq!((error.line, error.column, error.width), at, "{error}");
}

#[test]
fn a_file_becomes_indices_integers_and_defaults() {
    let m = base();
    assert_eq!((m.name.as_str(), m.endpoints.len(), m.capacities.len()), ("node", 3, 4));
    assert_eq!(m.hash.len(), 16);
    let CapacityKind::Link { opposite, .. } = &m.capacities[0].kind else { panic!("a link") };
    assert_eq!(*opposite, Some((CapacityId(1), Rate(7_000_000_000))));
    let CapacityKind::Link { opposite, .. } = &m.capacities[1].kind else { panic!("a link") };
    assert_eq!(
        *opposite,
        Some((CapacityId(0), Rate(8_000_000_000))),
        "without rate_both the other direction costs nothing"
    );
    assert_eq!(m.capacities[0].rate_low, m.capacities[0].rate);
    assert_eq!(m.capacities[2].rate_low, Rate(19_000_000_000));
    assert_eq!(m.engines[1].parallel, 2);
    let [h2d, d2h, peer] = [&m.routes[0], &m.routes[1], &m.routes[2]];
    assert_eq!((h2d.weight, h2d.setup, h2d.setup_queued), (645, Nanos(7_300), Nanos(2_600)));
    assert_eq!((d2h.weight, d2h.setup_queued, d2h.method), (1_000, Nanos(5_000), Method::Dma));
    assert_eq!((h2d.submit, d2h.submit), (Nanos(0), Nanos(0)));
    let text = BASE.replacen("setup = \"5 us\"\n", "setup = \"5 us\"\nsubmit = \"1.5 us\"\n", 1);
    assert_eq!(parse("node.toml", &text).unwrap().routes[1].submit, Nanos(1_500));
    assert_eq!(peer.method, Method::Peer);
    assert_eq!(h2d.uses, [(CapacityId(0), 1_000_000), (CapacityId(3), 1_057_000)]);
    assert_eq!(d2h.uses, [(CapacityId(1), 1_000_000), (CapacityId(3), 2_000_000)], "a route's own key beats `host`");
    assert_eq!(peer.uses, [(CapacityId(2), 1_000_000)]);
    let calibration = m.calibration.as_ref().expect("it has one");
    assert_eq!((calibration.sigma_ppm, calibration.margin_ppm), (1_020_000, 50_000));
    assert_eq!(calibration.driver_watch, None);
    assert!(m.kernel("k", EndpointId(2)).is_some() && m.kernel("k", EndpointId(1)).is_none());
}

#[test]
fn errors_render_with_line_caret_and_help() {
    let error = refused("weight = 645", "wieght = 645");
    let expected = "node.toml:45:1: unknown key `wieght` in [[route]]
   |
45 | wieght = 645
   | ^^^^^^
help: did you mean `weight`?";
    assert_eq!(error.to_string(), expected);
    let error = refused("rate = \"9 GB/s\"", "rate = 9");
    let expected = "node.toml:29:8: `rate = 9` has no unit
   |
29 | rate = 9
   |        ^
help: write `rate = \"9 GB/s\"`";
    assert_eq!(error.to_string(), expected);
    let error = refused("engines = [\"e0\"]", "engines = [\"e0\", \"e9\"]");
    let expected = "node.toml:43:18: `e9` is not among the engines
   |
43 | engines = [\"e0\", \"e9\"]
   |                  ^^^^
help: engines: `e0`, `x1`";
    assert_eq!(error.to_string(), expected);
    let error = refused("rate = \"8 GB/s\"", "rate = 8 GB/s");
    let expected = "node.toml:12:8: string values must be quoted, expected literal string
   |
12 | rate = 8 GB/s
   |        ^^^^^^
help: put the value in double quotes; a value with a unit is a text";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn errors_are_written_as_json_with_all_their_parts() {
    let json = serde_json::to_value(refused("lanes = 2", "lanes = 0")).expect("plain data");
    let expected = serde_json::json!({
        "file": "node.toml", "line": 39, "column": 9, "width": 1, "source_line": "lanes = 0",
        "message": "`lanes = 0` is outside 1 to 64", "help": "write an integer from 1 to 64"
    });
    assert_eq!(json, expected);
}

#[test]
fn names_that_dangle_clash_or_cannot_be_names_are_refused() {
    check(
        "to = \"gpu1\"\nengines",
        "to = \"gpu2\"\nengines",
        (56, 6, 6),
        "`gpu2` is not among the memories and GPUs",
        "did you mean `gpu0`?",
    );
    check(
        "links = [\"peer\"]",
        "links = [\"pear\"]",
        (58, 10, 6),
        "`pear` is not among the links and limits",
        "did you mean `peer`?",
    );
    check(
        "links = [\"peer\"]",
        "links = [\"io\"]",
        (58, 10, 4),
        "`io` is a limit, not a link",
        "a limit names its routes itself, in its `use`",
    );
    check(
        "gpus = [\"gpu1\"]",
        "gpus = [\"host\"]",
        (62, 9, 6),
        "`host` is a memory, not a GPU",
        "GPUs: `gpu0`, `gpu1`",
    );
    check(
        "opposite = \"out0\"",
        "opposite = \"out9\"",
        (13, 12, 6),
        "`out9` is not among the links and limits",
        "did you mean `out0`?",
    );
    check(
        "id = \"gpu1\"",
        "id = \"gpu0\"",
        (7, 6, 6),
        "`gpu0` is already taken, in line 5",
        "give each part its own id",
    );
    check("id = \"io\"", "id = \"in0\"", (28, 6, 5), "`in0` is already taken, in line 9", "give each part its own id");
    check("id = \"x1\"", "id = \"e0\"", (36, 6, 4), "`e0` is already taken, in line 32", "give each part its own id");
    check(
        "id = \"gpu1\"",
        "id = \"gpu\"",
        (7, 6, 5),
        "`gpu` cannot name a memory or GPU",
        "`gpu` has its own meaning in workload files; write for example `gpu0`",
    );
    check(
        "id = \"gpu1\"",
        "id = \"\"",
        (7, 6, 2),
        "`id = \"\"` is not a name",
        "names have 1 to 64 letters, digits and `_`, `-`, `.`, `:`, `/`",
    );
    check(
        "id = \"gpu1\"",
        "id = \"a->b\"",
        (7, 6, 6),
        "`id = \"a->b\"` is not a name",
        "names have 1 to 64 letters, digits and `_`, `-`, `.`, `:`, `/`",
    );
    check(
        "serves = [\"ee\"]",
        "serves = [\"eee\"]",
        (38, 11, 5),
        "`\"eee\"` is not a known value",
        "did you mean `ee`?",
    );
}

#[test]
fn rates_that_contradict_each_other_or_are_too_low_are_refused() {
    check(
        "rate_low = \"19 GB/s\"",
        "rate_low = \"21 GB/s\"",
        (26, 12, 9),
        "`rate_low = \"21 GB/s\"` is above the `rate` of 20 GB/s",
        "lower it to at most 20 GB/s, or raise `rate`",
    );
    check(
        "rate_both = \"7 GB/s\"",
        "rate_both = \"9 GB/s\"",
        (14, 13, 8),
        "`rate_both = \"9 GB/s\"` is above the `rate` of 8 GB/s",
        "lower it to at most 8 GB/s, or raise `rate`",
    );
    check(
        "rate = \"9 GB/s\"",
        "rate = \"999999 B/s\"",
        (29, 8, 12),
        "`rate = \"999999 B/s\"` is below 1 MB/s",
        "write at least 1 MB/s; rates are in bytes per second, B/s, unless they say bit/s",
    );
    check(
        "rate = \"9 GB/s\"",
        "rate = \"9 GB\"",
        (29, 8, 6),
        "`rate = \"9 GB\"` has the unknown unit `GB`",
        "units here: B/s, kB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s, kbit/s, Mbit/s, Gbit/s",
    );
    check(
        "rate = \"2 GB/s\"",
        "rate = \"0 GB/s\"",
        (64, 8, 8),
        "`rate = \"0 GB/s\"` is zero",
        "write for example `rate = \"2 GB/s\"`",
    );
    check(
        "rate = \"2 GB/s\"",
        "rate = true",
        (64, 8, 4),
        "`rate = true` is a boolean, not a text with a unit",
        "write for example `rate = \"2 GB/s\"`",
    );
}

#[test]
fn opposites_that_do_not_belong_together_are_refused() {
    check(
        "opposite = \"in0\"\n",
        "",
        (13, 12, 6),
        "link `in0` names `out0` as its opposite, but not the reverse",
        "add `opposite = \"in0\"` to link `out0`",
    );
    check(
        "opposite = \"in0\"",
        "opposite = \"out0\"",
        (13, 12, 6),
        "link `in0` names `out0` as its opposite, but not the reverse",
        "add `opposite = \"in0\"` to link `out0`",
    );
    check(
        "from = \"gpu0\"\nto = \"host\"\nrate",
        "from = \"gpu1\"\nto = \"host\"\nrate",
        (13, 12, 6),
        "link `out0` goes from `gpu1` to `host`",
        "the opposite of a link from `host` to `gpu0` goes from `gpu0` to `host`",
    );
    check(
        "opposite = \"out0\"\n",
        "",
        (13, 1, 9),
        "link `in0` has `rate_both` but no `opposite`",
        "name the link of the other direction: `opposite = \"...\"`",
    );
}

#[test]
fn routes_without_a_fitting_engine_or_path_are_refused() {
    check(
        "engines = [\"e0\"]\nlinks = [\"in0\"]",
        "engines = []\nlinks = [\"in0\"]",
        (43, 11, 2),
        "route `host->gpu0` has no engine",
        "list the engine that serves it",
    );
    check(
        "engines = [\"e0\"]\nlinks = [\"in0\"]",
        "links = [\"in0\"]",
        (40, 1, 9),
        "[[route]] has no `engines`",
        "add `engines = [\"gpu0.h2d\"]`",
    );
    check(
        "\"d2h\", ",
        "",
        (51, 12, 4),
        "engine `e0` does not serve d2h as route `gpu0->host` needs",
        "name an engine that serves d2h, or add \"d2h\" to its `serves`",
    );
    check(
        "gpu = \"gpu0\"",
        "gpu = \"gpu1\"",
        (43, 12, 4),
        "engine `e0` is of `gpu1`, which is at no end of route `host->gpu0`",
        "name an engine of a GPU at its ends",
    );
    check(
        "links = [\"in0\"]",
        "links = []",
        (44, 9, 2),
        "route `host->gpu0` has no links",
        "list the links it crosses, from end to end",
    );
    check(
        "links = [\"in0\"]",
        "links = [\"out0\"]",
        (44, 10, 6),
        "link `out0` starts at `gpu0`, but the path is at `host`",
        "list the links of route `host->gpu0` in path order, from `host` to `gpu0`",
    );
    check(
        "links = [\"in0\"]",
        "links = [\"in0\", \"peer\"]",
        (44, 9, 15),
        "the links of route `host->gpu0` end at `gpu1`",
        "add the links from `gpu1` to `gpu0`",
    );
    check(
        "to = \"gpu0\"\nengines",
        "to = \"host\"\nengines",
        (40, 1, 9),
        "route `host->host` goes nowhere",
        "name two endpoints",
    );
    check(
        "to = \"gpu1\"\nengines",
        "to = \"host\"\nengines",
        (54, 1, 9),
        "route `gpu0->host` is there twice with the same method",
        "a pair of endpoints has one route for each method",
    );
    check(
        "weight = 645",
        "method = \"peer\"",
        (45, 10, 6),
        "`method = \"peer\"` does not fit h2d",
        "`peer` is for two GPUs; `dma` and `pageable` for a memory and a GPU",
    );
    let two = "[[memory]]\nid = \"nic\"\n[[gpu]]\nid = \"gpu0\"";
    let error = parse(
        "n",
        &BASE.replacen("[[gpu]]\nid = \"gpu0\"", two, 1).replacen("to = \"gpu0\"\nengines", "to = \"nic\"\nengines", 1),
    )
    .expect_err("two memories");
    assert_eq!((error.line, error.message.as_str()), (42, "route `host->nic` joins two memories"));
}

#[test]
fn what_watches_of_threads_saw_is_kept() {
    let lateness = |count, p99, max| DelayStatistics { count, median: Nanos(1_003), p99, max: Nanos(max), beyond: 0 };
    let mut machine = shipped("h200-x1").expect("shipped");
    let calibration = machine.calibration.as_mut().expect("it is calibrated");
    calibration.driver_watch = Some(DriverWatch {
        time: Nanos(1_000_000_000),
        class: "SCHED_OTHER nice -20".to_owned(),
        woken: lateness(500, Some(Nanos(60_001)), 4_464_001),
        noticed: lateness(99, None, 8_000_003),
    });
    let watch = |max| ChunkWatch {
        time: Nanos(1_000_000_001),
        class: "SCHED_FIFO priority 1".to_owned(),
        chunks: 30_003,
        slower_ppm: 12_003,
        each: Nanos(4_001),
        together: Nanos(120_002),
        max: Nanos(max),
    };
    calibration.chunk_watch = [(Direction::D2h, watch(99_003)), (Direction::H2d, watch(99_004))].into();
    let again = parse("m.toml", &write(&machine, &[])).expect("what was written can be read");
    assert_eq!(again.calibration, machine.calibration);
}

#[test]
fn weights_uses_and_calibrations_outside_their_range_are_refused() {
    check(
        "weight = 645",
        "weight = 0",
        (45, 10, 1),
        "`weight = 0` is outside 1 to 1000000",
        "write an integer from 1 to 1000000",
    );
    check(
        "weight = 645",
        "weight = 1_000_001",
        (45, 10, 9),
        "`weight = 1_000_001` is outside 1 to 1000000",
        "write an integer from 1 to 1000000",
    );
    check(
        "weight = 645",
        "weight = -1",
        (45, 10, 2),
        "`weight = -1` is outside 1 to 1000000",
        "write an integer from 1 to 1000000",
    );
    check(
        "\"1.057\"",
        "\"0\"",
        (30, 16, 3),
        "`host = \"0\"` is outside 0.000001 to 100",
        "write a number from 0.000001 to 100",
    );
    check(
        "\"1.057\"",
        "1.0570001",
        (30, 16, 9),
        "`host = 1.0570001` is not such a number",
        "write a decimal number with at most 6 digits behind the point, for example \"1.057\"",
    );
    check(
        "host = \"1.057\"",
        "hots = \"1.057\"",
        (30, 9, 4),
        "`hots` names no routes",
        "keys of `use` are h2d, d2h, peer, host (both h2d and d2h) or a route such as \"host->gpu0\"",
    );
    check(
        "\"gpu0->host\"",
        "\"gpu0->hots\"",
        (30, 25, 12),
        "`hots` is not among the memories and GPUs",
        "memories and GPUs: `gpu0`, `gpu1`, `host`",
    );
    check(
        "\"gpu0->host\"",
        "\"gpu1->host\"",
        (30, 25, 12),
        "no route is called `gpu1->host`",
        "remove it from the `use` of limit `io`, or add the route",
    );
    check(
        "sigma = 1.02",
        "sigma = \"0.99\"",
        (69, 9, 6),
        "`sigma = \"0.99\"` is outside 1 to 100",
        "write a number from 1 to 100",
    );
    check("jitter = \"200 us\"\n", "", (66, 1, 13), "[calibration] has no `jitter`", "add `jitter = \"200 us\"`");
}

#[test]
fn kernels_with_two_costs_for_one_gpu_are_refused() {
    check(
        "[calibration]",
        "[[kernel]]\nid = \"k\"\nsetup = \"0 ns\"\nrate = \"1 B/s\"\n[calibration]",
        (67, 6, 3),
        "kernel `k` has two costs for the same GPU",
        "give one entry for each kernel and GPU; an entry without `gpus` is for all",
    );
}

#[test]
fn a_file_that_describes_nothing_or_has_the_wrong_shape_is_refused() {
    let error = parse("e.toml", "name = \"x\"\n").expect_err("empty");
    assert_eq!((error.line, error.message.as_str()), (1, "the machine is empty"));
    let error = parse("e.toml", "").expect_err("nothing");
    assert_eq!(error.message, "the top level has no `name`");
    check("[[limit]]", "[limit]", (27, 1, 7), "`limit` is one table, not a list", "write `[[limit]]`");
    check(
        "serves = [\"ee\"]",
        "serves = []",
        (38, 10, 2),
        "engine `x1` serves nothing",
        "list some of h2d, d2h, peer, ee",
    );
    check(
        "use = { host = \"1.057\", \"gpu0->host\" = 2 }",
        "use = {}",
        (27, 1, 9),
        "limit `io` is used by nothing",
        "add `use = { host = \"1\" }`",
    );
    check(
        "name = \"node\"",
        "name = \"node\"\nname = \"n\"",
        (2, 1, 4),
        "duplicate key",
        "a key stands once in its table; remove one, or begin another table",
    );
}

#[test]
fn every_shipped_file_parses_under_its_own_name() {
    for (name, text) in SHIPPED {
        let machine = parse(name, text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(machine.name, *name);
        assert_eq!(shipped(name).as_ref(), Some(&machine));
        assert!(machine.gpus().all(|gpu| machine.execution_engine(gpu).is_some()), "{name}");
        assert!(text.starts_with("# "), "{name} says where its numbers are from");
    }
    assert_eq!(shipped("unheard-of"), None);
}

fn route(m: &Machine, from: &str, to: &str) -> RouteId {
    let end = |id| m.endpoint(id).expect("it is there");
    m.route(end(from), end(to)).expect("it is there")
}

#[test]
fn verner_figure_2_1_shares_one_qpi_link_of_9_6_between_two_buses_of_8() {
    let m = shipped("tyan-ft72b7015").expect("shipped");
    let uses = |to| &m.routes[route(&m, "cpu0", to).at()].uses;
    let (first, second) = (uses("gpu0"), uses("gpu2"));
    let shared: Vec<_> = first.iter().filter(|u| second.contains(u)).map(|(c, _)| &m.capacities[c.at()]).collect();
    let rates: Vec<_> = shared.iter().map(|c| (c.id.as_str(), c.rate)).collect();
    assert_eq!(rates, [("qpi0.out", Rate(9_600_000_000)), ("cpu0.memory", Rate(32_000_000_000))]);
    for own in [first, second] {
        let own = own.iter().map(|(c, _)| &m.capacities[c.at()]).filter(|c| !shared.contains(c));
        assert_eq!(own.map(|c| c.rate).min(), Some(Rate(8_000_000_000)));
    }
    assert!(m.calibration.is_none());
}

#[test]
fn a_file_may_vouch_for_its_rates_instead_of_a_measurement() {
    let bare = write(&Machine { calibration: None, ..shipped("tyan-ft72b7015").expect("shipped") }, &[]);
    let with = |lines: &str| parse("m.toml", &format!("{bare}\n[calibration]\n{lines}"));
    let vouched = with("vouched = true\njitter = \"50 us\"").unwrap();
    let calibration = vouched.calibration.clone().unwrap();
    assert!(calibration.is_vouched());
    assert_eq!((calibration.margin_ppm, calibration.jitter, calibration.sigma_ppm), (0, Nanos(50_000), 1_000_000));
    assert!(vouched.confidence().statement.contains("vouches for its rates"));
    assert_eq!(parse("m.toml", &write(&vouched, &[])).unwrap().calibration, Some(calibration));
    for (lines, message) in [
        ("vouched = false", "says nothing unless it is true"),
        ("vouched = true\nsets = 1", "for a machine that was measured"),
        ("margin_ppm = 0", "sets"),
    ] {
        assert!(with(lines).unwrap_err().to_string().contains(message), "{lines}");
    }
}

#[test]
fn fujii_gtx480_has_one_engine_for_both_directions_and_kernels() {
    let m = shipped("fujii-gtx480").expect("shipped");
    assert_eq!(m.engines[0].serves, [EngineClass::H2d, EngineClass::D2h, EngineClass::Ee]);
    assert_eq!(m.engines.len(), 1);
}

#[test]
fn gpusync_platform_copies_between_gpus_only_under_one_hub() {
    let m = shipped("gpusync-8xgtx470").expect("shipped");
    let gpus: Vec<_> = m.gpus().collect();
    for (i, a) in gpus.iter().enumerate() {
        for (j, b) in gpus.iter().enumerate() {
            let links = m.route(*a, *b).map(|r| m.routes[r.at()].uses.len());
            let expected = if i == j || i / 4 != j / 4 { None } else { Some(if i / 2 == j / 2 { 2 } else { 4 }) };
            assert_eq!(links, expected, "gpu{i} to gpu{j}");
        }
    }
    assert_eq!(gpus.len(), 8);
    assert!(m.engines.iter().all(|e| e.serves.contains(&EngineClass::Ee) || e.serves.len() == 3));
}

#[test]
fn the_files_of_h200_nodes_are_measured_ones() {
    for (name, gpus) in [("h200-x1", 1), ("h200-x4", 4)] {
        let machine = shipped(name).expect("shipped");
        assert_eq!(machine.gpus().count(), gpus);
        for gpu in machine.gpus() {
            for direction in [Direction::H2d, Direction::D2h] {
                // In whichever form.
                let has = |method: Method| {
                    let same = |other| std::mem::discriminant(&method) == std::mem::discriminant(other);
                    let mut keys = machine.profile.curves.keys();
                    keys.any(|key| (key.gpu, key.direction) == (gpu, direction) && same(&key.method))
                };
                let methods =
                    [Method::Pageable, Method::Dma, Method::Staged, Method::Window(None), Method::Resident(None)];
                assert!(methods.into_iter().all(has), "{name}, {direction}");
                let mut tunings = machine.profile.tunings.keys();
                assert!(tunings.any(|key| (key.gpu, key.direction) == (gpu, direction)), "{name}, {direction}");
            }
        }
        let calibration = machine.calibration.as_ref().expect("it is calibrated");
        assert!(calibration.jitter > Nanos::ZERO);
    }
}

#[test]
fn h200_x4_pairs_peers_both_ways_on_different_engines() {
    let m = shipped("h200-x4").expect("shipped");
    let engines = |from, to| m.routes[route(&m, from, to).at()].engines.clone();
    for (from, to) in [("gpu0", "gpu1"), ("gpu3", "gpu2")] {
        assert_eq!(engines(from, to).len(), 2);
        assert!(engines(from, to).iter().all(|e| !engines(to, from).contains(e)));
    }
    // PCIe 5.0 x16 carries no more; all four together are held back by what they share.
    let capacity = |id: &str| m.capacities.iter().find(|c| c.id == id).expect("it is there").rate;
    assert!((Rate(50_000_000_000)..Rate(60_000_000_000)).contains(&capacity("gpu2.in")));
    assert!((Rate(110_000_000_000)..Rate(4 * 56_000_000_000)).contains(&capacity("io")));
}

#[test]
fn restricting_keeps_every_index_in_place() {
    for (name, _) in SHIPPED {
        let full = shipped(name).expect("shipped");
        let total = full.gpus().count();
        assert_eq!(full.with_gpus(0), None);
        assert_eq!(full.with_gpus(total + 1), None);
        assert_eq!(full.with_gpus(total).as_ref(), Some(&full));
        for count in 1..total {
            let part = full.with_gpus(count).expect("fewer");
            assert_eq!(part.gpus().count(), count);
            for r in &part.routes {
                let ends = [r.from, r.to].map(|e| part.endpoints[e.at()].id.as_str());
                let whole = &full.routes[full
                    .routes
                    .iter()
                    .position(|w| {
                        ends == [w.from, w.to].map(|e| full.endpoints[e.at()].id.as_str()) && w.method == r.method
                    })
                    .expect("it was there")];
                let names = |m: &Machine, uses: &[(CapacityId, u32)]| {
                    uses.iter().map(|(c, p)| (m.capacities[c.at()].id.clone(), *p)).collect::<Vec<_>>()
                };
                assert_eq!(names(&part, &r.uses), names(&full, &whole.uses), "{name}");
                assert!(
                    r.engines
                        .iter()
                        .zip(&whole.engines)
                        .all(|(a, b)| part.engines[a.at()].id == full.engines[b.at()].id)
                );
            }
            for (i, c) in part.capacities.iter().enumerate() {
                if let CapacityKind::Link { opposite: Some((o, _)), .. } = &c.kind {
                    let CapacityKind::Link { opposite: Some((back, _)), .. } = &part.capacities[o.at()].kind else {
                        panic!("mutual")
                    };
                    assert_eq!(back.at(), i);
                }
            }
        }
    }
}
