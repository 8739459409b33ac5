//! Application 2: how many streams two nodes encrypt under each policy.

use headway_core::files::machine::{Machine, SHIPPED, parse};
use headway_core::models::interconnect::{BatchBlock, Network};
use headway_core::plan::Strategy;
use headway_core::plan::stream::STRATEGIES;
use headway_core::plan::stream::Site;
use headway_core::units::{Bytes, Nanos};
use headway_sim::verner::pools::{KINDS, Reading};
use headway_sim::verner::{Curve, Point, Study, with_setup};

use super::{Outcome, Row, Setting, Table, Verdict, outcome, shipped};
use crate::Error;

/// Overhead of an operation in the second half of the table: none is stated.
const OVERHEAD: Nanos = Nanos(10_000);

pub(in super::super) fn run(setting: &Setting) -> Result<Outcome, Error> {
    let study = if setting.quick { Study::quick() } else { Study::full() };
    let machines = [shipped("verner-r1"), shipped("verner-r2")];
    let loaded = machines.clone().map(|machine| with_setup(&machine, OVERHEAD));
    let usable = "the shipped machines have GPUs, routes and the kernel";
    let sites: Vec<Site> = machines.iter().chain(&loaded).map(|machine| study.site(machine).expect(usable)).collect();
    let names = format!("verner-r1 {}, verner-r2 {}", machines[0].hash, machines[1].hash);
    let mut points = Vec::new();
    for policy in STRATEGIES {
        points.extend(study.run(&sites, &[policy]).expect("every route of the shipped machines has a rate"));
        setting.keep("verner-aes", "sim", &names, vec![streams(&points)]);
    }
    let mut rows = vec![bracket(&points)];
    for (at, name) in ["verner-r1", "verner-r2", "verner-r1, 10 us an operation", "verner-r2, 10 us an operation"]
        .into_iter()
        .enumerate()
    {
        rows.push(gains(&points, at, name));
    }
    rows.extend([sampling(&points), pairs()]);
    let mut outcome = outcome("verner-aes", names, setting, rows);
    outcome.tables = vec![streams(&points), per_workload(&points)];
    outcome.notes = notes(&study);
    Ok(outcome)
}

fn notes(study: &Study) -> Vec<String> {
    vec![
        "verner-r1 and verner-r2 are not the paper's systems: the rates of Figure V.1 are not available. They use only what \
         the text states and share the interconnect as little and as much as that allows. The bars of Figure V.2 are not \
         available either, so no workload can be compared by itself."
            .into(),
        format!(
            "{} pools a workload (one where all streams are alike), borders to {} stream(s), node and CPU slower by a factor \
             of {}. Reading A draws numbers outside \
             the range again, B moves them to its end. The seed of the command changes nothing: pools are shipped.",
            study.seeds.len(),
            study.step,
            study.scale
        ),
        "The mean over workloads counts each workload once. Without overheads half of what the links carry, plus the CPU, is \
         the most that can be gained: +94.1 % on verner-r1 and +18.8 % on verner-r2."
            .into(),
        "`combined` takes one class of cycles where that passes, as one batch a cycle or as two of opposite directions; with \
         more classes also in parts that go with the shortest one."
            .into(),
    ]
}

fn mean(points: &[Point], at: usize, reading: Reading, policy: Strategy) -> f64 {
    Curve::of(points, reading, (at, policy), (at, Strategy::Serial)).mean() * 100.0
}

/// The paper's two figures and what the extremes of sharing give.
fn bracket(points: &[Point]) -> Row {
    let gain = |at, reading| mean(points, at, reading, Strategy::Combined);
    let inside = |reading| gain(1, reading) <= 31.0 && 74.0 <= gain(0, reading);
    Row {
        what: "more streams than with classic scheduling, mean of 12 workloads".into(),
        paper: "+74 % in system 1, +31 % in system 2".into(),
        ours: format!(
            "between +{:.1} % (verner-r2) and +{:.1} % (verner-r1) in reading A, +{:.1} % and +{:.1} % in B",
            gain(1, Reading::Truncate),
            gain(0, Reading::Truncate),
            gain(1, Reading::Clip),
            gain(0, Reading::Clip)
        ),
        verdict: Verdict::fitted(Reading::ALL.into_iter().all(inside)),
    }
}

fn gains(points: &[Point], at: usize, name: &str) -> Row {
    let others = [Strategy::Combined, Strategy::Partitioned, Strategy::Lockstep, Strategy::Generation];
    let of = |reading: Reading| {
        let figures = others.map(|policy| {
            let curve = Curve::of(points, reading, (at, policy), (at, Strategy::Serial));
            let (low, high) = curve.spread();
            let [mean, low, high] = [curve.mean(), low, high].map(|gain| gain * 100.0);
            format!("{} {mean:+.1} % ({low:+.1} to {high:+.1} over seeds)", policy.name())
        });
        format!("{}: {}", reading.name(), figures.join(", "))
    };
    Row {
        what: format!("{name}: streams against `serial`"),
        paper: "not stated for this node".into(),
        ours: Reading::ALL.map(of).join("; "),
        verdict: Verdict::NotComparable,
    }
}

/// Workloads 9 and 11 are the same distribution when draws are repeated: their difference is the sampling error.
fn sampling(points: &[Point]) -> Row {
    let curve = Curve::of(points, Reading::Truncate, (0, Strategy::Combined), (0, Strategy::Serial));
    let gain = |kind: u32| {
        let seeds = curve.gains.iter().find(|(number, _)| *number == kind).map_or(&[][..], |(_, seeds)| &seeds[..]);
        seeds.iter().sum::<f64>() / seeds.len().max(1) as f64 * 100.0
    };
    Row {
        what: "workloads 9 and 11, one distribution in reading A".into(),
        paper: "listed as two".into(),
        ours: format!("+{:.2} % and +{:.2} % on verner-r1: their difference is the sampling error", gain(9), gain(11)),
        verdict: Verdict::NotComparable,
    }
}

/// verner-r2 with one interconnect limit per direction.
fn by_direction() -> Machine {
    let text = SHIPPED.iter().find(|(name, _)| *name == "verner-r2").map_or("", |(_, text)| *text);
    let both = "[[limit]]\nid = \"interconnect\"\nrate = \"9.6 GB/s\"\nuse = { \"host->gpu0\" = \"1\", \"host->gpu1\" = \"1\", \
                \"gpu0->host\" = \"1\", \"gpu1->host\" = \"1\" }";
    let limit = |id, first, second| {
        format!(
            "[[limit]]\nid = \"{id}\"\nrate = \"9.6 GB/s\"\nuse = {{ \"{first}\" = \"1\", \"{second}\" = \"1\" }}\n"
        )
    };
    let two = limit("to-gpus", "host->gpu0", "host->gpu1") + &limit("from-gpus", "gpu0->host", "gpu1->host");
    parse("verner-r2 by direction", &text.replace(both, &two)).expect("the shipped file with another limit parses")
}

/// "Overlapping transfers in opposite directions for different GPUs gives the highest bandwidth. Overlapping all four
/// transfers was not possible" (V-B).
fn pairs() -> Row {
    const PAIRS: [(&str, &[usize]); 4] = [
        ("one GPU, both directions", &[0, 1]),
        ("two GPUs, same direction", &[0, 2]),
        ("two GPUs, opposite directions", &[0, 3]),
        ("all four", &[0, 3, 1, 2]),
    ];
    let rates = |machine: &Machine| {
        let network = Network::new(machine);
        let host = machine.memories().next().expect("the shipped machine has a memory");
        let of_gpu = |gpu| [machine.route(host, gpu), machine.route(gpu, host)];
        let routes: Vec<_> = machine.gpus().flat_map(of_gpu).flatten().collect();
        PAIRS.map(|(_, members)| {
            let bytes = Bytes(96_000_000);
            let blocks: Vec<_> = members.iter().map(|&at| BatchBlock { route: routes[at], bytes }).collect();
            let time = network.completion(&blocks).expect("every route of the shipped machine has a rate").finish;
            (bytes.0 * members.len() as u64) as f64 / time.0 as f64
        })
    };
    let (shared, split) = (rates(&shipped("verner-r2")), rates(&by_direction()));
    let text = |rates: [f64; 4]| {
        let each = PAIRS.iter().zip(rates).map(|((name, _), rate)| format!("{name} {rate:.1}"));
        each.collect::<Vec<_>>().join(", ")
    };
    Row {
        what: "which transfers to overlap".into(),
        paper: "opposite directions on different GPUs; all four at once is not possible".into(),
        ours: format!(
            "GB/s with 9.6 in each direction: {}; with 9.6 in all (verner-r2) pairs on different GPUs are equal: {}; never \
             more than two at a time, one per DMA engine",
            text(split),
            text(shared)
        ),
        verdict: Verdict::fitted(split[2] > split[0] && split[2] > split[1] && split[3] <= split[2] + 0.01),
    }
}

/// Site number to the name of its machine and its overhead.
fn label(site: usize) -> (&'static str, u64) {
    (if site.is_multiple_of(2) { "verner-r1" } else { "verner-r2" }, if site < 2 { 0 } else { OVERHEAD.0 })
}

fn streams(points: &[Point]) -> Table {
    let line = |point: &Point| {
        let (machine, overhead) = label(point.site);
        let numbers = [point.seed, point.streams as u64, point.bits_per_second].map(|number| number.to_string());
        let words = [machine.to_owned(), overhead.to_string(), point.kind.to_string(), point.reading.name().to_owned()];
        words.into_iter().chain([point.policy.name().to_owned()]).chain(numbers).collect()
    };
    Table {
        name: "streams".into(),
        columns: vec!["machine", "overhead_ns", "workload", "reading", "policy", "seed", "streams", "bits_per_s"],
        lines: points.iter().map(line).collect(),
    }
}

fn per_workload(points: &[Point]) -> Table {
    let mut lines = Vec::new();
    for at in 0..4 {
        let (machine, overhead) = label(at);
        for reading in Reading::ALL {
            for policy in STRATEGIES {
                for (kind, seeds) in Curve::of(points, reading, (at, policy), (at, Strategy::Serial)).gains {
                    let text = KINDS.iter().find(|known| known.number == kind).map_or("", |known| known.text);
                    let low = seeds.iter().copied().fold(f64::INFINITY, f64::min);
                    let high = seeds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let mean = seeds.iter().sum::<f64>() / seeds.len() as f64;
                    let figures = [mean, low, high].map(|gain| format!("{:.2}", gain * 100.0));
                    let words = [machine.to_owned(), overhead.to_string(), kind.to_string(), text.to_owned()];
                    let names = [reading.name().to_owned(), policy.name().to_owned(), seeds.len().to_string()];
                    lines.push(words.into_iter().chain(names).chain(figures).collect());
                }
            }
        }
    }
    Table {
        name: "gains".into(),
        columns: vec![
            "machine",
            "overhead_ns",
            "workload",
            "draws",
            "reading",
            "policy",
            "pools",
            "gain_mean_percent",
            "gain_min_percent",
            "gain_max_percent",
        ],
        lines,
    }
}
