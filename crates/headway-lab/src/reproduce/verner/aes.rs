//! Application 2: how many streams two nodes encrypt under each policy.

use crate::simulation::verner::pools::{KINDS, Reading, SEEDS};
use crate::simulation::verner::{BorderPoint, BorderStudy, GainCurve, with_setup};
use crate::simulation::verner::{STRATEGIES, Site, SiteError, best_split};
use headway_core::files::machine::Machine;
use headway_core::interconnect::{BatchBlock, Network};
use headway_core::plan::Strategy;
use headway_core::units::{Bytes, Nanos};

use super::{
    ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, outcome, raw_figures, said, shipped,
    silent,
};
use crate::Error;
use headway::cores::on_all_cores;

/// The nodes: the extremes of sharing that the text permits, then an interconnect with a limit for each direction, without and with
/// one for both.
const NODES: [&str; 4] = ["verner-r1", "verner-r2", "verner-two-way", "verner-two-way-14"];
/// Overhead of an operation in the second part of the table: none is stated.
const OVERHEAD: Nanos = Nanos(10_000);
/// Pools of each workload whose streams differ.
const POOLS: u64 = 5;
/// Nodes and CPU are slower by this factor, so that there are as many streams fewer: shares of time stay the same.
pub(super) const SCALE: u64 = 4;
/// How far the mean gain of the fitted node may be from the paper's, in points.
const NEAR: f64 = 5.0;

pub(in super::super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let full = BorderStudy { seeds: SEEDS.take(POOLS as usize).collect(), scale: SCALE, ..BorderStudy::full() };
    let study = if setting.quick { BorderStudy::quick() } else { full };
    let machines = NODES.map(shipped);
    let usable = "the shipped machines have GPUs, routes and the kernel";
    let plain: Vec<Site> = machines.iter().map(|machine| study.site(machine).expect(usable)).collect();
    let loaded =
        machines.iter().map(|machine| study.site(&with_setup(machine, OVERHEAD)).expect(usable)).collect::<Vec<_>>();
    let names =
        machines.iter().map(|machine| format!("{} {}", machine.name, machine.hash)).collect::<Vec<_>>().join(", ");
    let rates = "every route of the shipped machines has a rate";
    let mut points = Vec::new();
    for kind in &study.kinds {
        let own = BorderStudy { kinds: vec![*kind], ..study.clone() };
        points.extend(borders(&own, &plain, &STRATEGIES, 0).expect(rates));
        let own = BorderStudy { readings: vec![Reading::Truncate], ..own };
        points.extend(borders(&own, &loaded, &STRATEGIES, NODES.len()).expect(rates));
        setting.keep("verner-aes", "sim", &names, vec![streams(&points)]);
    }
    let margins = margins(&study, &plain, &points).expect(rates);
    let mut rows = vec![bracket(&points), fitted_node(&points)];
    rows.extend([2, 3].map(|node| margins_row(&margins, node)));
    rows.extend((0..2 * NODES.len()).map(|at| gains(&points, at)));
    rows.extend([sampling(&points), pairs()]);
    let mut outcome = outcome("verner-aes", names, setting, rows);
    outcome.tables = vec![streams(&points), per_workload(&points), margins_table(&margins)];
    outcome.notes = notes(&study);
    Ok(outcome)
}

/// The borders of one workload on sites whose numbers begin with `first`, on all cores.
pub(super) fn borders(
    study: &BorderStudy,
    sites: &[Site],
    policies: &[Strategy],
    first: usize,
) -> Result<Vec<BorderPoint>, SiteError> {
    let mut pieces = Vec::new();
    for kind in &study.kinds {
        let seeds = if kind.is_constant() { &study.seeds[..study.seeds.len().min(1)] } else { &study.seeds[..] };
        for &reading in &study.readings {
            pieces.extend(seeds.iter().map(|&seed| (*kind, reading, seed)));
        }
    }
    let found = on_all_cores(pieces.len(), |at| {
        let (kind, reading, seed) = pieces[at];
        BorderStudy { kinds: vec![kind], readings: vec![reading], seeds: vec![seed], ..study.clone() }
            .run(sites, policies)
    })?;
    Ok(found.into_iter().flatten().map(|point| BorderPoint { site: point.site + first, ..point }).collect())
}

/// With how many times the cost of everything a policy still carries the streams, parts per million; 0 = not even once.
struct Margin {
    node: usize,
    kind: u32,
    streams: usize,
    by_policy: [u64; 4],
}

/// The policies whose margins are compared, in the order that the text of V-B implies.
const COMPARED: [Strategy; 4] = [Strategy::Serial, Strategy::Lockstep, Strategy::Combined, Strategy::Partitioned];

/// Margins with half the streams that `serial` carries, workload by workload, first pool of reading A.
fn margins(study: &BorderStudy, sites: &[Site], points: &[BorderPoint]) -> Result<Vec<Margin>, SiteError> {
    let pieces: Vec<_> = (0..sites.len()).flat_map(|node| study.kinds.iter().map(move |kind| (node, *kind))).collect();
    on_all_cores(pieces.len(), |at| {
        let (node, kind) = pieces[at];
        let seed = study.seeds[0];
        let is_serial = |point: &&BorderPoint| {
            (point.site, point.kind, point.reading, point.seed, point.policy)
                == (node, kind.number, Reading::Truncate, seed, Strategy::Serial)
        };
        let streams = points.iter().find(is_serial).map_or(0, |point| point.streams) / 2;
        let pool = study.pool(&kind, Reading::Truncate, seed);
        let mut by_policy = [0; COMPARED.len()];
        for (margin, policy) in by_policy.iter_mut().zip(COMPARED) {
            *margin = best_split(&sites[node], policy, &pool, streams)?.map_or(0, |split| split.margin_ppm);
        }
        Ok(Margin { node, kind: kind.number, streams, by_policy })
    })
}

fn margins_row(margins: &[Margin], node: usize) -> PaperRow {
    let own: Vec<&Margin> = margins.iter().filter(|margin| margin.node == node).collect();
    let factors = |at: usize| {
        let each = own.iter().map(|margin| format!("{:.2}", margin.by_policy[at] as f64 / 1e6));
        format!("{} {}", COMPARED[at].name(), each.collect::<Vec<_>>().join(" "))
    };
    // Serial, lockstep and combined are the first three.
    let ordered = own.iter().filter(|margin| margin.by_policy[..3].is_sorted_by(|less, more| less < more)).count();
    let verdict = PaperVerdict::fitted(ordered == own.len() && !own.is_empty());
    PaperRow {
        what: format!("{}: margins with half the streams that `serial` carries, workloads 1 to 12", NODES[node]),
        paper: said("V-B", "overlapping transfers in opposite directions for different GPUs gives the highest bandwidth"),
        ours: (0..COMPARED.len()).map(factors).collect::<Vec<_>>().join("; "),
        verdict,
        why: verdict.why(
            "`lockstep`, which overlaps equal directions, must be ahead of `serial`, and `combined`, which overlaps opposite ones, ahead of both for \
             every workload; that each direction has a limit of its own is our reading",
            format!("so it is in {ordered} of {} workloads", own.len()),
        ),
    }
}

fn margins_table(margins: &[Margin]) -> RawFigures {
    raw_figures!("margins", margins, |margin| {
        let [serial, lockstep, combined, partitioned] = margin.by_policy;
        Columns {
            machine: NODES[margin.node],
            workload: margin.kind,
            streams: margin.streams,
            serial_ppm: serial,
            lockstep_ppm: lockstep,
            combined_ppm: combined,
            partitioned_ppm: partitioned,
        }
    })
}

/// The node whose total was fitted to system 1.
fn fitted_node(points: &[BorderPoint]) -> PaperRow {
    const NODE: usize = 3;
    let gain = mean(points, NODE, Reading::Truncate, Strategy::Combined);
    let verdict = PaperVerdict::fitted((gain - 74.0).abs() <= NEAR);
    PaperRow {
        what: format!("{}: more streams than with classic scheduling, mean of 12 workloads", NODES[NODE]),
        paper: said("V-B", "74 % more in system 1"),
        ours: format!("{gain:+.1} % in reading A, {:+.1} % in B", mean(points, NODE, Reading::Clip, Strategy::Combined)),
        verdict,
        why: verdict.why(
            "the total of the interconnect was fitted by a closed form for equal streams; with all workloads, deadlines and blocking the mean must \
             come within 5 points",
            "with the total that the closed form for equal streams gives, the mean is off by more than 5 points",
        ),
    }
}

fn notes(study: &BorderStudy) -> Vec<String> {
    vec![
        "None of the nodes is the paper's: the rates of Figure V.1 are not available. verner-r1 and verner-r2 use only what \
         the text states and share the interconnect as little and as much as that allows; the two others have a limit for each direction. The bars \
         of Figure V.2 are not available either, so no workload can be compared by itself."
            .into(),
        format!(
            "{} pools a workload (one where all streams are alike), borders to {} stream(s), node and CPU slower by a factor \
             of {}. Reading A draws numbers outside \
             the range again, B moves them to its end. The seed of the command changes nothing: pools are shipped. Overheads in reading A only.",
            study.seeds.len(),
            study.step,
            study.scale
        ),
        "The mean over workloads counts each workload once. Without overheads half of what the links carry, plus the CPU, is \
         the most that can be gained: +94.1 % on verner-r1 and verner-two-way, +74.1 % on verner-two-way-14 and +18.8 % on verner-r2."
            .into(),
        "`combined` is Algorithm 1 itself: a message for every block, one per GPU, direction and class of cycles, combined greedily by the sum of \
         utilisations; of the sets met on the way the one with the least sum that passes the test. With several classes it is also applied to blocks \
         split over the shortest cycles (IV-B), which it does not do itself where that saves nothing."
            .into(),
    ]
}

fn mean(points: &[BorderPoint], at: usize, reading: Reading, policy: Strategy) -> f64 {
    GainCurve::of(points, reading, (at, policy), (at, Strategy::Serial)).mean() * 100.0
}

/// The paper's two figures and what the extremes of sharing give.
fn bracket(points: &[BorderPoint]) -> PaperRow {
    let gain = |at, reading| mean(points, at, reading, Strategy::Combined);
    let inside = |reading| gain(1, reading) <= 31.0 && 74.0 <= gain(0, reading);
    PaperRow {
        what: "more streams than with classic scheduling, mean of 12 workloads".into(),
        paper: said("V-B", "74 % more in system 1, 31 % more in system 2"),
        ours: format!(
            "between +{:.1} % (verner-r2) and +{:.1} % (verner-r1) in reading A, +{:.1} % and +{:.1} % in B",
            gain(1, Reading::Truncate),
            gain(0, Reading::Truncate),
            gain(1, Reading::Clip),
            gain(0, Reading::Clip)
        ),
        verdict: PaperVerdict::fitted(Reading::ALL.into_iter().all(inside)),
        why: "both figures of the paper must lie between those of our two nodes; the paper's nodes are drawn in Figure V.1 only".into(),
    }
}

fn gains(points: &[BorderPoint], at: usize) -> PaperRow {
    let (node, overhead) = label(at);
    let name = if overhead == 0 { node.to_owned() } else { format!("{node}, {} us an operation", overhead / 1000) };
    let others = [Strategy::Combined, Strategy::Partitioned, Strategy::Lockstep, Strategy::Generation];
    let of = |reading: Reading| {
        let figures = others.map(|policy| {
            let curve = GainCurve::of(points, reading, (at, policy), (at, Strategy::Serial));
            let (low, high) = curve.spread();
            let [mean, low, high] = [curve.mean(), low, high].map(|gain| gain * 100.0);
            format!("{} {mean:+.1} % ({low:+.1} to {high:+.1} over seeds)", policy.name())
        });
        format!("{}: {}", reading.name(), figures.join(", "))
    };
    PaperRow {
        what: format!("{name}: streams against `serial`"),
        paper: silent("not stated for this node"),
        ours: readings(at).iter().map(|reading| of(*reading)).collect::<Vec<_>>().join("; "),
        verdict: PaperVerdict::NotComparable,
        why: "only figures: the node is ours".into(),
    }
}

/// The readings that a site was asked about.
fn readings(at: usize) -> &'static [Reading] {
    if at < NODES.len() { &Reading::ALL } else { &[Reading::Truncate] }
}

/// Workloads 9 and 11 are the same distribution when draws are repeated: their difference is the sampling error.
fn sampling(points: &[BorderPoint]) -> PaperRow {
    let curve = GainCurve::of(points, Reading::Truncate, (0, Strategy::Combined), (0, Strategy::Serial));
    let gain = |kind: u32| {
        let seeds = curve.gains.iter().find(|(number, _)| *number == kind).map_or(&[][..], |(_, seeds)| &seeds[..]);
        seeds.iter().sum::<f64>() / seeds.len().max(1) as f64 * 100.0
    };
    PaperRow {
        what: "workloads 9 and 11, one distribution in reading A".into(),
        paper: said("Figure V.2", "two workloads: std 1.0 truncated at 5, std 0.2 truncated at 1"),
        ours: format!("+{:.2} % and +{:.2} % on verner-r1: their difference is the sampling error", gain(9), gain(11)),
        verdict: PaperVerdict::NotComparable,
        why: "only figures: the bars of the paper are not available".into(),
    }
}

/// "Overlapping transfers in opposite directions for different GPUs gives the highest bandwidth. Overlapping all four
/// transfers was not possible" (V-B).
fn pairs() -> PaperRow {
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
    let (shared, split) = (rates(&shipped("verner-r2")), rates(&shipped("verner-two-way")));
    let text = |rates: [f64; 4]| {
        let each = PAIRS.iter().zip(rates).map(|((name, _), rate)| format!("{name} {rate:.1}"));
        each.collect::<Vec<_>>().join(", ")
    };
    PaperRow {
        what: "which transfers to overlap".into(),
        paper: said("V-B", "opposite directions for different GPUs give the highest bandwidth; all transfers at once is not possible"),
        ours: format!(
            "GB/s with 9.6 in each direction: {}; with 9.6 in all (verner-r2) pairs on different GPUs are equal: {}; never \
             more than two at a time, one per DMA engine",
            text(split),
            text(shared)
        ),
        verdict: PaperVerdict::fitted(split[2] > split[0] && split[2] > split[1] && split[3] <= split[2] + 0.01),
        why: "that each direction has a limit of its own is our reading: with one limit for both all pairs of different GPUs are equal".into(),
    }
}

/// Site number to the name of its machine and its overhead.
fn label(site: usize) -> (&'static str, u64) {
    (NODES[site % NODES.len()], if site < NODES.len() { 0 } else { OVERHEAD.0 })
}

fn streams(points: &[BorderPoint]) -> RawFigures {
    raw_figures!("streams", points, |point| {
        let (machine, overhead) = label(point.site);
        Columns {
            machine: machine,
            overhead_ns: overhead,
            workload: point.kind,
            reading: point.reading.name(),
            policy: point.policy.name(),
            seed: point.seed,
            streams: point.streams,
            bits_per_s: point.bits_per_second,
        }
    })
}

fn per_workload(points: &[BorderPoint]) -> RawFigures {
    let percent = |gain: f64| format!("{:.2}", gain * 100.0);
    let mut table = RawFigures::default();
    for at in 0..2 * NODES.len() {
        let (machine, overhead) = label(at);
        for &reading in readings(at) {
            for policy in STRATEGIES {
                let gains = GainCurve::of(points, reading, (at, policy), (at, Strategy::Serial)).gains;
                table.add(raw_figures!("gains", gains, |(kind, seeds)| Columns {
                    machine: machine,
                    overhead_ns: overhead,
                    workload: kind,
                    draws: KINDS.iter().find(|known| known.number == kind).map_or("", |known| known.text),
                    reading: reading.name(),
                    policy: policy.name(),
                    pools: seeds.len(),
                    gain_mean_percent: percent(seeds.iter().sum::<f64>() / seeds.len() as f64),
                    gain_min_percent: percent(seeds.iter().copied().fold(f64::INFINITY, f64::min)),
                    gain_max_percent: percent(seeds.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
                }));
            }
        }
    }
    table
}
