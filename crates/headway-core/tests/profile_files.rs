//! What copies cost, as machine files say it: what is read, what is refused, and that what is written reads back.

use headway_core::files::machine::{EndpointId, Machine, SHIPPED, parse, shipped, write};
use headway_core::models::transfer::{
    BackgroundLoad, Curve, CurveKey, CurvePoint, Direction, HostMemory, Method, PricedTuning, Profile, Stamp,
    Statistic, Stores, Tuning, TuningKey, WindowMapping,
};
use headway_core::units::{Bytes, Nanos};
use proptest::prelude::*;

const BASE: &str = r#"name = "node"
[[memory]]
id = "host"
[[gpu]]
id = "gpu0"
[[gpu]]
id = "gpu1"
[[gpu]]
id = "gpu2"
[profile]
source = "cuda"
driver = "580.159.04"
gpus = ["GPU-a", "GPU-b", "GPU-c"]
pcie = ["5.0 x16", "5.0 x16", "5.0 x8"]
cpus = "0-15"
commit = "0123abc"
date = "2026-11-21"
[[curve]]
method = "dma"
direction = "d2h"
points = [[1, 1000, 6000, 6100, 9000], [1_024, 1000, 6200, 6400, 12000]]
[[curve]]
gpus = ["gpu0", "gpu2"]
method = "window"
via = "vulkan"
direction = "h2d"
memory = "warm"
load = "bulk-same"
active = 2
pieces = 16
points = [[64, 100, 900]]
[[curve]]
gpu = "gpu0"
method = "window"
via = "vulkan"
direction = "h2d"
posted = true
points = [[64, 100, 50, 60]]
[[curve]]
peer = "gpu1"
method = "peer"
direction = "peer"
points = [[4096, 0, 6700]]
[[staging]]
gpu = "gpu1"
direction = "d2h"
memory = "fresh"
active = 4
threads = 3
buffer = "4 MiB"
stores = "non-temporal"
in_flight = 2
[[staging]]
direction = "h2d"
threads = 6
buffer = "1 MiB"
stores = "plain"
in_flight = 1
"#;

fn base() -> Machine {
    parse("node.toml", BASE).unwrap_or_else(|e| panic!("{e}"))
}

/// Replaces the first `old` after the first `within`; the error must stand at `at`, the text under the caret.
#[track_caller]
fn check(within: &str, old: &str, new: &str, at: &str, message: &str, help: &str) {
    let from = BASE.find(within).expect(within);
    assert!(BASE[from..].contains(old), "{old}");
    let text = format!("{}{}", &BASE[..from], BASE[from..].replacen(old, new, 1));
    let error = parse("node.toml", &text).expect_err(new);
    assert_eq!(error.message, message);
    assert_eq!(error.help.as_deref().unwrap_or_default(), help);
    let under: String = error.source_line.chars().skip(error.column - 1).take(error.width).collect();
    assert_eq!(under, at, "{error}");
    assert!(error.line >= BASE[..from].matches('\n').count(), "{error}");
}

const DMA: &str = "method = \"dma\"";
const WINDOW: &str = "gpus = [\"gpu0\", \"gpu2\"]";
const POSTED: &str = "gpu = \"gpu0\"\nmethod";
const PEER: &str = "peer = \"gpu1\"";
const STAGING: &str = "gpu = \"gpu1\"\ndirection";

#[test]
fn curves_are_spread_over_their_gpus_and_defaults_filled_in() {
    let Profile { stamp, curves, posted, tunings, prices, .. } = base().profile;
    assert!(prices.is_empty(), "files of earlier versions have none");
    let stamp = stamp.expect("it has one");
    assert_eq!((stamp.gpus.len(), stamp.pcie[2].as_str(), stamp.cpus.as_str()), (3, "5.0 x8", "0-15"));
    let gpus = [1, 2, 3].map(EndpointId);
    let plain = |gpu, method, direction| CurveKey {
        gpu,
        peer: None,
        method,
        direction,
        memory: HostMemory::Pinned,
        load: BackgroundLoad::Alone,
        active: 1,
        pieces: 1,
    };
    for gpu in gpus {
        let curve = &curves[&plain(gpu, Method::Dma, Direction::D2h)];
        assert_eq!(curve.at(Bytes(1024), Statistic::P99), Nanos(6_400));
    }
    let window = Method::Window(Some(WindowMapping::Vulkan));
    let busy = |gpu| CurveKey {
        memory: HostMemory::Touched,
        load: BackgroundLoad::BulkSame,
        active: 2,
        pieces: 16,
        ..plain(gpu, window, Direction::H2d)
    };
    let point = curves[&busy(gpus[2])].points()[0];
    assert_eq!((point.median, point.p99, point.max), (Nanos(900), Nanos::MAX, Nanos::MAX));
    assert!(!curves.contains_key(&busy(gpus[1])));
    let point = posted[&plain(gpus[0], window, Direction::H2d)].points()[0];
    assert_eq!((point.p99, point.max), (Nanos(60), Nanos::MAX));
    let peers: Vec<_> = curves.keys().filter(|key| key.peer == Some(gpus[1])).map(|key| key.gpu).collect();
    assert_eq!(peers, [gpus[0], gpus[2]], "all but the target");
    assert_eq!(curves.len(), 3 + 2 + 2);
    let tuning = |gpu, direction, memory, active| tunings[&TuningKey { gpu, direction, memory, active }];
    assert_eq!(tuning(gpus[1], Direction::D2h, HostMemory::Untouched, 4).stores, Stores::NonTemporal);
    assert_eq!(tuning(gpus[2], Direction::H2d, HostMemory::Touched, 1).buffer, Bytes(1 << 20));
    assert_eq!(tunings.len(), 4);
}

#[test]
fn words_and_forms_that_do_not_belong_are_refused() {
    check(DMA, "\"dma\"", "\"dna\"", "\"dna\"", "`method = \"dna\"` is not a known value", "did you mean `dma`?");
    check(
        WINDOW,
        "\"vulkan\"",
        "\"hub\"",
        "\"hub\"",
        "`window` has no form `hub`",
        "its forms are gdrdrv, vulkan and dma-buf",
    );
    check(
        WINDOW,
        "method = \"window\"",
        "method = \"staged\"",
        "\"vulkan\"",
        "`staged` has no form `vulkan`",
        "leave `via` out",
    );
    check(
        WINDOW,
        "\"bulk-same\"",
        "\"bulk\"",
        "\"bulk\"",
        "`load = \"bulk\"` is not a known value",
        "known values: `alone`, `bulk-same`, `bulk-opposite`, `bulk-both`",
    );
    check(WINDOW, "memory =", "memroy =", "memroy", "unknown key `memroy` in [[curve]]", "did you mean `memory`?");
    check(
        WINDOW,
        "active = 2",
        "active = 0",
        "0",
        "`active = 0` is outside 1 to 4294967295",
        "write an integer from 1 to 4294967295",
    );
    check(
        POSTED,
        "posted = true",
        "posted = 1",
        "1",
        "`posted = 1` is an integer, not true or false",
        "write for example `posted = true`",
    );
    check(
        POSTED,
        "\"h2d\"",
        "\"d2h\"",
        "true",
        "only stores through a window are posted, not window vulkan d2h",
        "leave `posted` out",
    );
    check(DMA, "direction = \"d2h\"\n", "", "[[curve]]", "[[curve]] has no `direction`", "add `direction = \"h2d\"`");
    check("[profile]", "cpus = \"0-15\"\n", "", "[profile]", "[profile] has no `cpus`", "add `cpus = \"0-15\"`");
    check(
        "[profile]",
        "cpus = \"0-15\"",
        "cpus = 15",
        "15",
        "`cpus = 15` is an integer, not a text",
        "write for example `cpus = \"0-15\"`",
    );
}

#[test]
fn gpus_and_peers_that_contradict_each_other_are_refused() {
    check(
        POSTED,
        "gpu = \"gpu0\"",
        "gpu = \"gpu0\"\ngpus = [\"gpu1\"]",
        "gpu",
        "`gpu` and `gpus` are both there",
        "keep one of them; without either the table is for all GPUs",
    );
    check(WINDOW, "[\"gpu0\", \"gpu2\"]", "[]", "[]", "`gpus` names no GPU", "name GPUs, or leave `gpus` out for all");
    check(WINDOW, "\"gpu2\"", "\"gpu0\"", "\"gpu0\"", "`gpu0` is named twice", "");
    check(
        WINDOW,
        "\"gpu2\"",
        "\"gpu9\"",
        "\"gpu9\"",
        "`gpu9` is not among the memories and GPUs",
        "did you mean `gpu0`?",
    );
    check(POSTED, "\"gpu0\"", "\"host\"", "\"host\"", "`host` is a memory, not a GPU", "GPUs: `gpu0`, `gpu1`, `gpu2`");
    check(
        PEER,
        "peer = \"gpu1\"",
        "peer = \"gpu1\"\ngpu = \"gpu1\"",
        "\"gpu1\"",
        "a peer copy from `gpu1` to `gpu1` goes nowhere",
        "name two GPUs",
    );
    check(
        PEER,
        "peer = \"gpu1\"\n",
        "",
        "[[curve]]",
        "a curve of peer copies names no target",
        "add for example `peer = \"gpu1\"`",
    );
    check(
        PEER,
        "direction = \"peer\"",
        "direction = \"h2d\"",
        "\"h2d\"",
        "method `peer` does not copy h2d",
        "write `direction = \"peer\"`",
    );
    check(
        PEER,
        "method = \"peer\"\ndirection = \"peer\"",
        "method = \"dma\"\ndirection = \"h2d\"",
        "peer",
        "a copy h2d has no peer",
        "leave `peer` out, or write `direction = \"peer\"`",
    );
    check(
        WINDOW,
        "memory = \"warm\"\nload = \"bulk-same\"\nactive = 2\npieces = 16\npoints = [[64, 100, 900]]\n[[curve]]\ngpu = \"gpu0\"",
        "points = [[64, 100, 900]]\n[[curve]]\nmethod = \"window\"\nvia = \"vulkan\"\ndirection = \"h2d\"\npoints = [[1, 1, 1]]\n[[curve]]",
        "[[curve]]",
        "`gpu0` has two curves of window vulkan h2d for this situation",
        "give one for each GPU, method and situation",
    );
}

#[test]
fn points_that_are_none_or_out_of_order_are_refused() {
    let shape = "a point is [bytes, samples, median, p99, max], times in ns; p99 and max may be left out";
    let all = "[[1, 1000, 6000, 6100, 9000], [1_024, 1000, 6200, 6400, 12000]]";
    check(
        DMA,
        all,
        "[]",
        "[]",
        "the curve has no points",
        "write for example `points = [[4096, 1000, 6500, 6900, 9100]]`",
    );
    check(DMA, "[1, 1000, 6000, 6100, 9000]", "[1, 1000]", "[1, 1000]", "`[1, 1000]` is not a point", shape);
    check(
        DMA,
        "[1, 1000, 6000, 6100, 9000]",
        "[1, 2, 3, 4, 5, 6]",
        "[1, 2, 3, 4, 5, 6]",
        "`[1, 2, 3, 4, 5, 6]` is not a point",
        shape,
    );
    check(
        DMA,
        "[1, 1000, 6000, 6100, 9000]",
        "1",
        "1",
        "`1` is an integer, not a list",
        "write for example `points = [4096, 1000, 6500, 6900, 9100]`",
    );
    check(
        DMA,
        "[1_024,",
        "[1,",
        "[1, 1000, 6200, 6400, 12000]",
        "`[1, 1000, 6200, 6400, 12000]` is not above the 1 bytes before it",
        "sort the points by size",
    );
    let order = "p99 is at least the median, max at least p99";
    check(
        DMA,
        "[1, 1000, 6000, 6100, 9000]",
        "[1, 9, 7, 6, 8]",
        "[1, 9, 7, 6, 8]",
        "`[1, 9, 7, 6, 8]` has median, p99 and max that fall",
        order,
    );
    check(
        DMA,
        "[1, 1000, 6000, 6100, 9000]",
        "[1, 9, 5, 8, 7]",
        "[1, 9, 5, 8, 7]",
        "`[1, 9, 5, 8, 7]` has median, p99 and max that fall",
        order,
    );
    check(
        DMA,
        "6000",
        "-1",
        "-1",
        "`-1` is outside 0 to 31622400000000000",
        "write an integer from 0 to 31622400000000000",
    );
    check(
        DMA,
        "[1,",
        "[1125899906842625,",
        "1125899906842625",
        "`1125899906842625` is outside 0 to 1125899906842624",
        "write an integer from 0 to 1125899906842624",
    );
    check(
        DMA,
        "6000",
        "\"6 us\"",
        "\"6 us\"",
        "`\"6 us\"` is a text, not an integer",
        "write for example `points = 0`",
    );
}

#[test]
fn tunings_that_cannot_be_used_are_refused() {
    check(
        STAGING,
        "\"fresh\"",
        "\"pinned\"",
        "\"pinned\"",
        "pinned memory needs no staging",
        "write warm, fresh or file",
    );
    check(STAGING, "\"d2h\"", "\"peer\"", "\"peer\"", "staging is between a host and a GPU", "write h2d or d2h");
    check(
        STAGING,
        "threads = 3",
        "threads = 0",
        "0",
        "`threads = 0` is outside 1 to 1024",
        "write an integer from 1 to 1024",
    );
    check(
        STAGING,
        "in_flight = 2",
        "in_flight = 65",
        "65",
        "`in_flight = 65` is outside 1 to 64",
        "write an integer from 1 to 64",
    );
    check(STAGING, "buffer = \"4 MiB\"", "buffer = 4", "4", "`buffer = 4` has no unit", "write `buffer = \"4 B\"`");
    check(
        STAGING,
        "buffer = \"4 MiB\"",
        "buffer = \"0 B\"",
        "\"0 B\"",
        "`buffer = \"0 B\"` is zero",
        "write for example `buffer = \"4 MiB\"`",
    );
    check(
        STAGING,
        "stores = \"non-temporal\"\n",
        "",
        "[[staging]]",
        "[[staging]] has no `stores`",
        "add `stores = \"plain\"`",
    );
    check(
        STAGING,
        "direction = \"d2h\"\nmemory = \"fresh\"\nactive = 4\n",
        "direction = \"h2d\"\n",
        "[[staging]]",
        "`gpu1` has two tunings of staging h2d for this situation",
        "give one for each GPU and situation",
    );
}

#[test]
fn restricting_keeps_the_figures_of_the_gpus_that_stay() {
    let profile = base().with_gpus(2).expect("it has three").profile;
    let stamp = profile.stamp.expect("it had one");
    assert_eq!((stamp.gpus, stamp.pcie), (vec!["GPU-a".to_owned(), "GPU-b".to_owned()], vec!["5.0 x16".to_owned(); 2]));
    let gpus: Vec<_> = profile.curves.keys().map(|key| (key.gpu.0, key.peer.map(|peer| peer.0))).collect();
    assert_eq!(gpus, [(1, None), (1, None), (1, Some(2)), (2, None)]);
    assert_eq!((profile.posted.len(), profile.tunings.len()), (1, 3));
    assert_eq!(base().with_gpus(1).expect("it has three").profile.curves.len(), 2, "no peer is left");
}

/// Reads back what is written of `machine`.
fn reread(machine: &Machine) -> Machine {
    let text = write(machine, &["how it was made", "", "with\nwhat"]);
    assert!(text.starts_with("# how it was made\n#\n# with what\nname = "), "{text}");
    let read = parse("written.toml", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Machine { hash: machine.hash.clone(), ..read }
}

#[test]
fn every_shipped_machine_reads_back_as_it_was_written() {
    for (name, _) in SHIPPED {
        let machine = shipped(name).expect("shipped");
        assert_eq!(reread(&machine), machine, "{name}");
        let part = machine.with_gpus(1).expect("it has one");
        assert_eq!(reread(&part).routes.len(), part.routes.len(), "{name}");
    }
    assert_eq!(reread(&base()), base());
}

#[test]
fn curves_that_gpus_share_are_written_once_and_texts_are_escaped() {
    let mut machine = base();
    machine.description = "a \"quoted\" back\\slash, tab\t and \u{7f}\u{1b}".to_owned();
    machine.endpoints[1].uuid = Some("GPU-\u{1f600}\n".to_owned());
    assert_eq!(reread(&machine), machine);
    let text = write(&machine, &[]);
    assert_eq!(text.matches("[[curve]]").count(), 4);
    assert_eq!(text.matches("[[staging]]").count(), 2);
    assert!(
        text.contains("[[curve]]\nmethod = \"dma\"\ndirection = \"d2h\"\npoints = [\n  [1, 1000, 6000, 6100, 9000],\n")
    );
}

fn of<T: Copy + std::fmt::Debug + 'static>(words: &'static [(&'static str, T)]) -> impl Strategy<Value = T> {
    (0..words.len()).prop_map(|at| words[at].1)
}

fn any_method() -> impl Strategy<Value = Method> {
    (0..Method::ALL.len()).prop_map(|at| Method::ALL[at])
}

fn any_key() -> impl Strategy<Value = CurveKey> {
    let counts = (1..4_u32, prop_oneof![Just(1), 1..=u32::MAX]);
    let kinds = (of(Direction::WORDS), of(HostMemory::WORDS), of(BackgroundLoad::WORDS));
    (any_method(), kinds, 0..3_u32, 1..3_u32, counts).prop_map(
        |(method, (direction, memory, load), gpu, other, counts)| {
            let direction = if method == Method::Peer { Direction::Peer } else { direction };
            let peer = (direction == Direction::Peer).then_some(EndpointId(1 + (gpu + other) % 3));
            CurveKey {
                gpu: EndpointId(1 + gpu),
                peer,
                method,
                direction,
                memory,
                load,
                active: counts.0,
                pieces: counts.1,
            }
        },
    )
}

fn any_curve() -> impl Strategy<Value = Curve> {
    const TIME_MAX: u64 = 366 * 86_400 * 1_000_000_000;
    let time = || prop_oneof![0..100_u64, 0..=TIME_MAX];
    let point = (0..=1_u64 << 50, any::<u32>(), [time(), time(), time()], 0..3_usize);
    proptest::collection::vec(point, 1..4).prop_map(|mut points| {
        points.sort_unstable();
        points.dedup_by_key(|point| point.0);
        let point = |(bytes, n, mut times, missing): (u64, u32, [u64; 3], usize)| {
            times.sort_unstable();
            times[3 - missing..].fill(u64::MAX);
            let [median, p99, max] = times.map(Nanos);
            CurvePoint { bytes: Bytes(bytes), n, median, p99, max }
        };
        Curve::new(points.into_iter().map(point).collect()).expect("sorted")
    })
}

fn any_tunings() -> impl Strategy<Value = std::collections::BTreeMap<TuningKey, Tuning>> {
    let key = (0..3_u32, any::<bool>(), of(HostMemory::WORDS), 1..5_u32);
    let tuning = (1..=1_024_u32, 1..=1_u64 << 50, of(Stores::WORDS), 1..=64_u32);
    let key = key.prop_filter_map("pinned", |(gpu, out, memory, active)| {
        let direction = if out { Direction::D2h } else { Direction::H2d };
        let key = TuningKey { gpu: EndpointId(1 + gpu), direction, memory, active };
        (memory != HostMemory::Pinned).then_some(key)
    });
    let tuning = tuning.prop_map(|(threads, buffer, stores, in_flight)| Tuning {
        threads,
        buffer: Bytes(buffer),
        stores,
        in_flight,
    });
    proptest::collection::btree_map(key, tuning, 0..6)
}

fn any_prices() -> impl Strategy<Value = Vec<PricedTuning>> {
    let figures = (1..=1_u64 << 50, of(Stores::WORDS), 1..=64_u32, 1..=1_u64 << 50, 1..=1_u64 << 50, 1..=1_u64 << 50);
    let priced = figures.prop_map(|(buffer, stores, in_flight, bytes, time, cpu)| PricedTuning {
        tuning: Tuning { threads: 1, buffer: Bytes(buffer), stores, in_flight },
        bytes: Bytes(bytes),
        time: Nanos(time),
        cpu: Nanos(cpu),
    });
    // No tuning has two prices.
    let apart = |(at, mut one): (usize, PricedTuning)| {
        one.tuning.threads = 1 + at as u32;
        one
    };
    proptest::collection::vec(priced, 0..4).prop_map(move |all| all.into_iter().enumerate().map(apart).collect())
}

#[test]
fn prices_of_tunings_that_cannot_be_are_refused() {
    let with = |prices: &str| format!("in_flight = 1\nprices = {prices}");
    let base = BASE.replacen("in_flight = 1", &with("[[6, 8388608, \"plain\", 3, 1000, 10, 60]]"), 1);
    assert_ne!(base, BASE);
    let machine = parse("x", &base).unwrap();
    let prices: Vec<_> = machine.profile.prices.values().flatten().collect();
    assert_eq!((prices[0].tuning.threads, prices[0].time, prices[0].cpu), (6, Nanos(10), Nanos(60)));
    for (prices, said) in [
        ("[[6, 8388608, \"plain\", 3, 1000, 10]]", "is not the price of a tuning"),
        ("[[0, 8388608, \"plain\", 3, 1000, 10, 60]]", "0"),
        ("[[6, 8388608, \"plaid\", 3, 1000, 10, 60]]", "plaid"),
        ("[[6, 8388608, \"plain\", 3, 0, 10, 60]]", "0"),
        ("[[6, 1, \"plain\", 3, 9, 10, 60], [6, 1, \"plain\", 3, 9, 11, 50]]", "is the second price of this tuning"),
        ("7", "7"),
    ] {
        let error = parse("x", &BASE.replacen("in_flight = 1", &with(prices), 1)).unwrap_err().to_string();
        assert!(error.contains(said), "{prices}: {error}");
    }
}

proptest! {
    #[test]
    fn any_profile_reads_back_as_it_was_written(
        curves in proptest::collection::btree_map(any_key(), any_curve(), 0..8),
        shared in any_curve(),
        tunings in any_tunings(),
        prices in proptest::collection::vec(any_prices(), 6),
        texts in proptest::collection::vec("\\PC{0,8}|[\u{0}-\u{ff}]{0,4}", 6),
    ) {
        let mut machine = base();
        let stamp = |t: &[String]| Stamp {
            source: t[0].clone(),
            driver: t[1].clone(),
            gpus: t[2..4].to_vec(),
            pcie: Vec::new(),
            cpus: t[4].clone(),
            commit: t[5].clone(),
            date: t[0].clone(),
        };
        let posts = |key: &CurveKey| key.direction == Direction::H2d && matches!(key.method, Method::Window(_));
        let posted = curves.iter().filter(|(key, _)| posts(key)).map(|(key, curve)| (key.clone(), curve.clone()));
        let posted = posted.collect();
        let mut curves = curves;
        if let Some(key) = curves.keys().find(|key| key.peer.is_none()).cloned() {
            curves.extend((1..3).map(|gpu| (CurveKey { gpu: EndpointId(gpu), ..key.clone() }, shared.clone())));
        }
        let prices = tunings.keys().copied().zip(prices).filter(|(_, prices)| !prices.is_empty()).collect();
        machine.profile = Profile { stamp: Some(stamp(&texts)), curves, posted, tunings, prices, ..Profile::default() };
        prop_assert_eq!(reread(&machine), machine);
    }
}
