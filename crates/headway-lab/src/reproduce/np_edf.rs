//! Non-preemptive EDF on one engine: what is accepted over utilisation, by how much is known of a set and by its chunks.

mod hardware;

use headway_core::analysis::schedulability::{
    ChunkFlow, ConcreteTask, JobCosts, RecurrentTask, TestOutcome, TestViolation, Ties, chunked, concrete,
    flow_chunk_sizes, jeffay, sporadic,
};
use headway_core::units::{Bytes, Nanos, Rate};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::{
    ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, Said, raw_figures, said, silent,
};
use crate::Error;
use headway::run::Backend;
use headway_measure::plot::{Figure, PlotLine};

/// Divisors of 60 ms: hyperperiods stay short.
const PERIODS_MS: [u64; 11] = [2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60];
const HYPERPERIOD: u64 = 60_000_000;
const TASKS: usize = 5;
/// Flows on one engine, and what its copies cost: an H200's H2D engine with two chunks queued.
const FLOWS: usize = 10;
const SETUP: Nanos = Nanos(2_400);
const RATE: Rate = Rate(55_500_000_000);
/// Longest chunk; none means whole copies.
const CHUNKS: [(&str, Option<Nanos>); 4] = [
    ("whole copies", None),
    ("2 ms", Some(Nanos(2_000_000))),
    ("0.6 ms", Some(Nanos(600_000))),
    ("0.2 ms", Some(Nanos(200_000))),
];
const GRANULE: Bytes = Bytes(4096);
const MACHINE: &str = "one server; copies as on an engine of the shipped h200-x4";

pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    if matches!(setting.backend, Backend::Emu | Backend::Cuda) {
        return hardware::run(setting);
    }
    let mut draw = Draw(Pcg64::seed_from_u64(setting.seed));
    let (sets, points): (usize, &[u64]) =
        if setting.quick { (40, &[30, 60, 90]) } else { (200, &[10, 20, 30, 40, 50, 60, 70, 80, 90, 95]) };
    let (mut models, mut chunks) = (Vec::new(), Vec::new());
    for &percent in points {
        models.push(Models::of(&mut draw, percent, sets));
        setting.keep("np-edf", "sim", MACHINE, tables(&models, &chunks));
    }
    for &percent in points {
        chunks.push(Chunks::of(&mut draw, percent, sets));
        setting.keep("np-edf", "sim", MACHINE, tables(&models, &chunks));
    }
    Ok(ExperimentResults {
        rows: rows(&models, &chunks),
        notes: vec![
            format!(
                "{sets} sets a point. Models: {TASKS} tasks, periods from the divisors of 60 ms, shares uniform on the \
                 simplex, offsets uniform in the period. Chunks: {FLOWS} flows, periods log-uniform from 1 to 100 ms, \
                 {SETUP} a chunk, {RATE}, utilisation counted without set-ups."
            ),
            "The papers name the test and give no figures for random sets, so every row is a check of ours.".to_owned(),
        ],
        tables: tables(&models, &chunks),
        figures: figures(&models, &chunks),
        ..ExperimentResults::new("np-edf", "sim", MACHINE.to_owned(), setting.seed)
    })
}

struct Draw(Pcg64);

impl Draw {
    /// From `low` to `high`, both included.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next_u64() % (high - low + 1)
    }

    /// `count` shares in parts per million, uniform among those with this sum.
    fn shares(&mut self, count: usize, sum_ppm: u64) -> Vec<u64> {
        let mut cuts: Vec<u64> = (1..count).map(|_| self.between(0, sum_ppm)).collect();
        cuts.extend([0, sum_ppm]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn set(&mut self, percent: u64) -> Vec<ConcreteTask> {
        let shares = self.shares(TASKS, percent * 10_000);
        let task = |share: u64| {
            let period = PERIODS_MS[self.between(0, PERIODS_MS.len() as u64 - 1) as usize] * 1_000_000;
            let cost = (period / 1_000_000 * share).max(1);
            let offset = self.between(0, period / 1_000 - 1) * 1_000;
            ConcreteTask::at(Nanos(offset), RecurrentTask::whole(Nanos(cost), Nanos(period), Nanos(period)))
        };
        shares.into_iter().map(task).collect()
    }

    fn flows(&mut self, percent: u64) -> Vec<ChunkFlow> {
        let shares = self.shares(FLOWS, percent * 10_000);
        let flow = |share: u64| {
            let exponent = self.between(0, 1 << 20) as f64 / f64::from(1 << 20);
            let period = (1e6 * 100f64.powf(exponent)) as u64;
            let bytes = u128::from(period) * u128::from(share) * u128::from(RATE.0) / 1_000_000_000_000_000;
            let bytes = Bytes(u64::try_from(bytes).unwrap_or(u64::MAX).max(1));
            ChunkFlow { bytes, setup: SETUP, rate: RATE, period: Nanos(period), deadline: Nanos(period) }
        };
        shares.into_iter().map(flow).collect()
    }
}

/// What the three models say of the sets of one utilisation.
#[derive(Default)]
struct Models {
    percent: u64,
    sets: usize,
    sporadic: usize,
    concrete: usize,
    exact: usize,
    undecided: usize,
    /// Sets that an earlier model accepts and a later one refuses.
    contradictions: usize,
    /// Tasks of accepted sets whose longest simulated response was compared with its bound; those above it.
    compared: usize,
    above: usize,
}

impl Models {
    fn of(draw: &mut Draw, percent: u64, sets: usize) -> Self {
        let mut models = Self { percent, sets, ..Self::default() };
        for _ in 0..sets {
            let tasks = draw.set(percent);
            let known = concrete(&tasks, JobCosts::UpToWorst, Ties::Any);
            let exact = concrete(&tasks, JobCosts::Exact, Ties::Any).verdict;
            let yes = [sporadic(&tasks).is_schedulable(), known.verdict.is_schedulable(), exact.is_schedulable()];
            models.sporadic += usize::from(yes[0]);
            models.concrete += usize::from(yes[1]);
            models.exact += usize::from(yes[2]);
            let undecided = matches!(known.verdict.outcome, TestOutcome::Undecided(_))
                || matches!(exact.outcome, TestOutcome::Undecided(_));
            models.undecided += usize::from(undecided);
            models.contradictions += usize::from(!undecided && (yes[0] && !yes[1] || yes[1] && !yes[2]));
            if yes[1] {
                let longest = simulate(&tasks, draw);
                models.compared += tasks.len();
                models.above += longest.iter().zip(&known.bounds).filter(|(run, bound)| **run > bound.0).count();
            }
        }
        models
    }
}

/// The longest response of each task in 20 hyperperiods of non-preemptive EDF with random costs.
fn simulate(tasks: &[ConcreteTask], draw: &mut Draw) -> Vec<u64> {
    let mut next: Vec<u64> = tasks.iter().map(|t| t.offset.0).collect();
    let (mut free, mut longest) = (0, vec![0; tasks.len()]);
    while free < 20 * HYPERPERIOD {
        let now = next.iter().copied().min().map_or(free, |first| free.max(first));
        let ready = (0..tasks.len()).filter(|&n| next[n] <= now);
        let Some(first) = ready.min_by_key(|&n| (next[n] + tasks[n].task.deadline.0, n)) else { break };
        let most = tasks[first].task.cost.0;
        free = now + if draw.between(0, 2) == 0 { draw.between(0, most) } else { most };
        longest[first] = longest[first].max(free - next[first]);
        next[first] += tasks[first].task.period.0;
    }
    longest
}

/// How many sets of one utilisation pass with chunks of each size, and with the sizes that are searched.
struct Chunks {
    percent: u64,
    sets: usize,
    accepted: [usize; CHUNKS.len()],
    one_size: usize,
    own_size: usize,
}

impl Chunks {
    fn of(draw: &mut Draw, percent: u64, sets: usize) -> Self {
        let mut chunks = Self { percent, sets, accepted: [0; CHUNKS.len()], one_size: 0, own_size: 0 };
        for _ in 0..sets {
            let flows = draw.flows(percent);
            for (accepted, (_, longest)) in chunks.accepted.iter_mut().zip(CHUNKS) {
                // As many bytes as move in the chunk's time beside its set-up.
                let of = |time: Nanos| u128::from(time.saturating_sub(SETUP).0) * u128::from(RATE.0) / 1_000_000_000;
                let size = longest.map_or(Bytes(u64::MAX), |time| Bytes(u64::try_from(of(time)).unwrap_or(u64::MAX)));
                let tasks: Vec<RecurrentTask> = flows.iter().map(|f| f.task(size)).collect();
                *accepted += usize::from(chunked(&tasks, 1).is_schedulable());
            }
            chunks.one_size += usize::from(passes_with_one_size(&flows));
            chunks.own_size += usize::from(flow_chunk_sizes(&flows, GRANULE).is_ok());
        }
        chunks
    }
}

/// Whether some common chunk of all flows passes. What blocks too long beside the costs of the largest size not yet excluded is excluded
/// for good, as costs are least there.
fn passes_with_one_size(flows: &[ChunkFlow]) -> bool {
    let mut size = flows.iter().map(|f| f.bytes).max().unwrap_or_default().max(GRANULE);
    loop {
        let tasks: Vec<RecurrentTask> = flows.iter().map(|f| f.task(size)).collect();
        if chunked(&tasks, 1).is_schedulable() {
            return true;
        }
        let blocks_little = |granules: u64| {
            let chunk = |f: &ChunkFlow| f.task(Bytes(GRANULE.0 * granules)).chunk;
            let with: Vec<_> = flows.iter().zip(&tasks).map(|(f, t)| RecurrentTask { chunk: chunk(f), ..*t }).collect();
            chunked(&with, 1).is_schedulable()
        };
        let (mut low, mut high) = (0, size.0.div_ceil(GRANULE.0));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if blocks_little(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        if low == 0 {
            return false;
        }
        size = Bytes(GRANULE.0 * low);
    }
}

fn rows(models: &[Models], chunks: &[Chunks]) -> Vec<PaperRow> {
    let row = |what: &str, paper: Said, ours: String, held: bool, why: &str| PaperRow {
        what: what.to_owned(),
        paper,
        ours,
        verdict: PaperVerdict::own(held),
        why: why.to_owned(),
    };
    let sum = |of: fn(&Models) -> usize| models.iter().map(of).sum::<usize>();
    let (sets, a, b, c) = (sum(|m| m.sets), sum(|m| m.sporadic), sum(|m| m.concrete), sum(|m| m.exact));
    let undecided = sum(|m| m.undecided);
    let chain = format!(
        "{a} of {sets} sets pass as sporadic tasks, {b} with known offsets and costs up to the worst case, {c} with exact \
         costs; {} contradictions, {undecided} undecided",
        sum(|m| m.contradictions)
    );
    let bound = format!("{} of {} longest responses are above their bound", sum(|m| m.above), sum(|m| m.compared));
    let shape = chunks.iter().find(|c| c.percent == 90).map(|c| {
        let share = |accepted: usize| format!("{} %", accepted * 100 / c.sets);
        let parts = CHUNKS.iter().zip(c.accepted).map(|((name, _), n)| format!("{name} {}", share(n)));
        let searched = [("largest common", c.one_size), ("largest per flow", c.own_size)];
        let searched = searched.map(|(name, n)| format!("{name} {}", share(n)));
        let text = parts.chain(searched).collect::<Vec<_>>().join(", ");
        let rising = c.accepted.is_sorted() && c.one_size >= c.accepted[3] && c.own_size >= c.one_size;
        (format!("{text} (n = {})", c.sets), rising && c.accepted[0] * 4 < c.accepted[3])
    });
    let mut rows = vec![
        conditions(),
        anomaly(),
        row(
            "accepted sets",
            said("II-B", "the test is sufficient; how much it refuses that would be in time is not said"),
            chain,
            sum(|m| m.contradictions) == 0 && a <= b && b <= c,
            "the paper has no figure; a set that passes a stricter model must pass every milder one",
        ),
        row(
            "responses",
            said("V-B", "a schedule that is verified to be valid runs without deadline misses"),
            bound,
            sum(|m| m.above) == 0,
            "no simulated response may exceed the bound that the test implies",
        ),
    ];
    if let Some((ours, held)) = shape {
        rows.push(row(
            "chunks",
            silent("not treated: a transfer is not cut for the sake of others"),
            ours,
            held,
            "smaller chunks must accept at least as many sets, and the smallest four times as many as whole copies",
        ));
    }
    rows.push(PaperRow {
        what: "flows on one engine for 5 min".to_owned(),
        paper: said("V-B", "a schedule that is verified to be valid runs without deadline misses"),
        ours: "not run in simulation: `--backend cuda --duration \"300 s\"`".to_owned(),
        verdict: PaperVerdict::NotComparable,
        why: "a run on devices, which a simulation cannot stand for".to_owned(),
    });
    rows
}

/// The conditions must be checked for every task: with the last one alone this set would pass.
fn conditions() -> PaperRow {
    let tasks = [(1, 2), (3, 8), (1, 9)].map(|(c, p)| RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(p)));
    let verdict = jeffay(&tasks);
    let (ours, held) = match &verdict.outcome {
        TestOutcome::NotSchedulable(TestViolation::Demand { task, interval, demand, .. }) => {
            let held = (*task, interval.0, demand.0) == (Some(1), 3, 4);
            let i = task.map_or(0, |task| task + 1);
            (format!("(2,1), (8,3), (9,1): fails for i = {i} at L = {}, demand {}", interval.0, demand.0), held)
        }
        other => (format!("{other:?}"), false),
    };
    let paper = said("II-B", "the test of Jeffay et al. checks the utilisation, among others");
    let why = "the others are L >= c_i + sum of floor((L - 1) / p_j) c_j for every i > 1 and p_1 < L < p_i; a set that only the last one \
               accepts must be refused";
    PaperRow {
        what: "Jeffay's conditions".to_owned(),
        paper,
        ours,
        verdict: PaperVerdict::own(held),
        why: why.to_owned(),
    }
}

/// A set that meets everything with exact costs and not when a job ends early.
fn anomaly() -> PaperRow {
    let tasks = [(1, 3), (2, 6), (4, 12)]
        .map(|(c, p)| ConcreteTask::at(Nanos::ZERO, RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(p))));
    let exact = concrete(&tasks, JobCosts::Exact, Ties::ByPosition).verdict.is_schedulable();
    let known = concrete(&tasks, JobCosts::UpToWorst, Ties::ByPosition).verdict;
    let late = match known.outcome {
        TestOutcome::NotSchedulable(TestViolation::Late { release, finish, .. }) => {
            format!("the job released at {} may end at {}", release.0, finish.0)
        }
        other => format!("{other:?}"),
    };
    let held = exact && late.ends_with("released at 3 may end at 7");
    PaperRow {
        what: "one run is not enough".to_owned(),
        paper: silent("not stated; a consequence of non-preemption"),
        ours: format!("(3,1), (6,2), (12,4) together: exact costs pass: {exact}; with shorter ones {late}"),
        verdict: PaperVerdict::own(held),
        why: "a set must exist that meets all deadlines with exact costs and misses one when a job ends early"
            .to_owned(),
    }
}

fn tables(models: &[Models], chunks: &[Chunks]) -> Vec<RawFigures> {
    let models = raw_figures!("models", models, |found| Columns {
        utilisation_percent: found.percent,
        sets: found.sets,
        sporadic: found.sporadic,
        concrete: found.concrete,
        exact: found.exact,
        undecided: found.undecided,
    });
    let chunks = raw_figures!("chunks", chunks, |found| {
        let [whole, longest, middle, shortest] = found.accepted;
        Columns {
            utilisation_percent: found.percent,
            sets: found.sets,
            whole: whole,
            chunks_2000_us: longest,
            chunks_600_us: middle,
            chunks_200_us: shortest,
            largest_common: found.one_size,
            largest_per_flow: found.own_size,
        }
    });
    vec![models, chunks]
}

fn figures(models: &[Models], chunks: &[Chunks]) -> Vec<(String, Figure)> {
    let share = |n: usize, sets: usize| n as f64 * 100.0 / sets as f64;
    let line = |name: &str, points: Vec<(f64, f64)>| PlotLine::new(name, points);
    let model = |name, of: fn(&Models) -> usize| {
        line(name, models.iter().map(|m| (m.percent as f64, share(of(m), m.sets))).collect())
    };
    let by_model = vec![
        model("sporadic", |m| m.sporadic),
        model("known offsets, costs up to the worst case", |m| m.concrete),
        model("known offsets, exact costs", |m| m.exact),
    ];
    let mut by_chunk: Vec<PlotLine> = (0..CHUNKS.len())
        .map(|n| line(CHUNKS[n].0, chunks.iter().map(|c| (c.percent as f64, share(c.accepted[n], c.sets))).collect()))
        .collect();
    by_chunk
        .push(line("largest per flow", chunks.iter().map(|c| (c.percent as f64, share(c.own_size, c.sets))).collect()));
    [("models", "sets accepted, by model", by_model), ("chunks", "sets accepted, by chunk", by_chunk)]
        .into_iter()
        .map(|(name, title, lines)| {
            (name.to_owned(), Figure::new(title, "sim", ["utilisation, %", "accepted, %"], lines))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_holds_in_simulation_and_the_same_seed_gives_the_same_figures() {
        let setting = ExperimentSetting { backend: Backend::Sim, quick: true, ..ExperimentSetting::default() };
        let outcome = run(&setting).unwrap();
        let broken: Vec<_> = outcome.rows.iter().filter(|row| row.verdict == PaperVerdict::NotReproduced).collect();
        assert!(broken.is_empty(), "{broken:?}");
        assert_eq!(outcome.rows.len(), 6);
        assert_eq!(run(&setting).unwrap().tables, outcome.tables);
        let other = run(&ExperimentSetting { seed: 2, ..setting }).unwrap();
        assert_ne!(other.tables, outcome.tables);
    }

    #[test]
    fn shares_sum_to_the_utilisation() {
        let mut draw = Draw(Pcg64::seed_from_u64(3));
        for percent in [10, 95] {
            assert_eq!(draw.shares(TASKS, percent * 10_000).iter().sum::<u64>(), percent * 10_000);
            let load: u64 = draw.set(percent).iter().map(|t| t.task.cost.0 * 1_000_000 / t.task.period.0).sum();
            assert!(load.abs_diff(percent * 10_000) <= TASKS as u64, "{load}");
        }
    }
}
