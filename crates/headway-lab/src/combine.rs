//! `headway-lab combine`: how long message combining takes on one core. How far its results are from the least sum of utilisations is
//! asked by the experiment `verner-combine`.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use headway_core::files::machine::{self, Machine};
use headway_core::interconnect::Network;
use headway_core::plan::combine::{CombineEffort, CombineOptions, Counting, Pricer, transform};
use headway_core::plan::message::{Elementary, MessageSet};
use headway_core::units::{Bytes, Nanos};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use crate::Error;
use crate::reproduce::verner_combine::{host_routes, refused};
use headway::COMMIT;
use headway::run::Progress;
use headway_measure::bench::{Target, TargetOutcome};
use headway_measure::folder::{self, Folder};

const MS: u64 = 1_000_000;

/// What to measure and where to write it.
#[derive(Clone, Debug)]
pub struct CombineBenchOptions {
    /// Folder for figures and summary.
    pub out: PathBuf,
    /// Seed of all sets.
    pub seed: u64,
    /// 1,000 messages only: a few seconds.
    pub quick: bool,
    /// Ends the benchmark early when it becomes true; what was measured until then is written.
    pub interrupt: Arc<AtomicBool>,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct CombineBenchReport {
    /// Version of the JSON form.
    pub schema: u32,
    /// Commit of the program.
    pub commit: &'static str,
    /// Whether the program was built with optimisations only, without checks of overflow.
    pub optimised: bool,
    /// The CPU, how many there are, and the load averages at the beginning and the end.
    pub host: String,
    /// Machine file of the messages' routes.
    pub machine: String,
    /// Seed of all sets.
    pub seed: u64,
    /// How long transformations took.
    pub speeds: Vec<Speed>,
    /// Every target.
    pub targets: Vec<Target>,
    /// Whether it was not interrupted.
    pub complete: bool,
    pub folder: PathBuf,
}

const TITLE: &str = "Message combining";

/// Transformations of one set.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Elementary messages.
    pub messages: usize,
    /// `8 periods` or `distinct periods`.
    pub periods: &'static str,
    /// `greedy`, `fast` or `search`.
    pub mode: &'static str,
    /// Sum of utilisations before and after, parts per million.
    pub sums_ppm: (u64, u64),
    /// Every time, ascending.
    pub times: Vec<Nanos>,
}

impl Speed {
    fn median(&self) -> Nanos {
        self.times[self.times.len() / 2]
    }

    fn max(&self) -> Nanos {
        self.times[self.times.len() - 1]
    }
}

struct Case {
    messages: usize,
    distinct: bool,
    mode: CombineEffort,
    runs: usize,
}

const fn case(messages: usize, distinct: bool, mode: CombineEffort, runs: usize) -> Case {
    Case { messages, distinct, mode, runs }
}

const QUICK: &[Case] = &[
    case(1_000, false, CombineEffort::Greedy, 3),
    case(1_000, true, CombineEffort::Greedy, 3),
    case(1_000, false, CombineEffort::Fast, 3),
];

const FULL: &[Case] = &[
    case(1_000, false, CombineEffort::Greedy, 21),
    case(1_000, true, CombineEffort::Greedy, 21),
    case(1_000, false, CombineEffort::Fast, 21),
    case(1_000, true, CombineEffort::Fast, 21),
    case(1_000, false, CombineEffort::Search, 3),
    case(1_000, true, CombineEffort::Search, 3),
    case(10_000, false, CombineEffort::Fast, 5),
    case(10_000, false, CombineEffort::Greedy, 3),
    case(10_000, true, CombineEffort::Greedy, 3),
];

/// Times on one core: (messages, distinct periods, seconds at the median).
const LIMITS: &[(usize, bool, f64)] = &[(1_000, false, 0.4), (10_000, false, 25.0), (10_000, true, 120.0)];

/// Measures as `options` say.
///
/// # Errors
/// [`headway::ErrorKind::Plan`] if a set cannot be transformed, and what files refuse.
pub fn run(options: &CombineBenchOptions, mut progress: impl FnMut(Progress)) -> Result<CombineBenchReport, Error> {
    folder::check(&options.out, TITLE)?;
    let machine = machine::shipped("h200-x4").expect("a shipped machine");
    let stopped = || options.interrupt.load(Ordering::Relaxed);
    let cases = if options.quick { QUICK } else { FULL };
    let total = cases.len() as u64;
    let begun = load();
    let mut speeds = Vec::new();
    for (done, case) in (0..).zip(cases) {
        progress(Progress { phase: "combining", done, total });
        if !speeds.is_empty() && stopped() {
            break;
        }
        speeds.push(timed(&machine, case, options)?);
    }
    let mut report = CombineBenchReport {
        schema: 1,
        commit: COMMIT,
        optimised: !cfg!(debug_assertions),
        host: format!("{}; load {begun} at the beginning, {} at the end", cpus(), load()),
        machine: format!("{} {}", machine.name, machine.hash),
        seed: options.seed,
        targets: speed_targets(&speeds),
        speeds,
        complete: !stopped(),
        folder: options.out.clone(),
    };
    report.write()?;
    Ok(report)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn timed(machine: &Machine, case: &Case, options: &CombineBenchOptions) -> Result<Speed, Error> {
    let network = Network::new(machine);
    let set = messages(machine, case, options.seed);
    let (mut times, mut sums_ppm) = (Vec::new(), (0, 0));
    for _ in 0..case.runs {
        if !times.is_empty() && options.interrupt.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        let mut pricer = Pricer::new(&network, machine.calibration.as_ref());
        let how = CombineOptions { mode: case.mode, counting: Counting::PhaseAware };
        let found = transform(&set, &mut pricer, how, &mut |_| true).map_err(refused)?;
        times.push(Nanos(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)));
        sums_ppm = (found.sums[0].ppm(), found.sum().ppm());
    }
    times.sort_unstable();
    let mode = match case.mode {
        CombineEffort::Fast => "fast",
        CombineEffort::Greedy => "greedy",
        CombineEffort::Search => "search",
        CombineEffort::Optimal => "optimal",
    };
    Ok(Speed { messages: case.messages, periods: periods(case.distinct), mode, sums_ppm, times })
}

const fn periods(distinct: bool) -> &'static str {
    if distinct { "distinct periods" } else { "8 periods" }
}

fn below(random: &mut Pcg64Mcg, limit: u64) -> u64 {
    random.next_u64() % limit
}

fn messages(machine: &Machine, case: &Case, seed: u64) -> MessageSet {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let routes = host_routes(machine);
    let mut one = |number: usize| {
        let (period, start) = if case.distinct {
            let octave = MS << below(&mut random, 8);
            (octave + below(&mut random, octave), below(&mut random, 200 * MS))
        } else {
            ([1, 2, 5, 10, 20, 50, 100, 200][below(&mut random, 8) as usize] * MS, 0)
        };
        let octave = 16_384 << below(&mut random, 10);
        let bytes = octave + below(&mut random, octave);
        let route = routes[below(&mut random, routes.len() as u64) as usize];
        Elementary::periodic(format!("m{number}"), route, Bytes(bytes), Nanos(period), Nanos(start))
    };
    MessageSet::new((0..case.messages).map(&mut one).collect()).expect("drawn messages are sound")
}

fn speed_targets(speeds: &[Speed]) -> Vec<Target> {
    let target = |&(messages, distinct, limit): &(usize, bool, f64)| {
        let wanted = |s: &&Speed| (s.messages, s.periods, s.mode) == (messages, periods(distinct), "greedy");
        let found = speeds.iter().find(wanted);
        let seconds = |time: Nanos| time.0 as f64 / 1e9;
        Target {
            target: format!("{messages} messages, {}, Algorithm 1: below {limit} s on one core", periods(distinct)),
            measured: found.map_or_else(String::new, |s| {
                format!("median {:.3} s, max {:.3} s, n = {}", seconds(s.median()), seconds(s.max()), s.times.len())
            }),
            outcome: match found {
                None => TargetOutcome::NotMeasured,
                Some(s) if seconds(s.median()) < limit => TargetOutcome::Met,
                Some(_) => TargetOutcome::NotMet,
            },
        }
    };
    LIMITS.iter().map(target).collect()
}

fn cpus() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("").trim_matches([':', ' ', '\t']);
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{}, {count} CPUs, one used", if model.is_empty() { "unknown CPU" } else { model })
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

impl CombineBenchReport {
    /// Everything for people, in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let early = if self.complete { String::new() } else { format!("{}\n\n", folder::ENDED_EARLY) };
        let checked = if self.optimised { "" } else { ", built with debug checks: times mean nothing" };
        let mut text = format!(
            "# {TITLE}\n\n{early}Host: {}. Commit {}{checked}; routes of `{}`, seed {}. Times are wall-clock times of one \
             whole transformation, prices included.\n\n## Targets\n\n| target | measured | |\n|---|---|---|\n",
            self.host, self.commit, self.machine, self.seed
        );
        for Target { target, measured, outcome } in &self.targets {
            let _ = writeln!(text, "| {target} | {measured} | {} |", outcome.label());
        }
        text += "\n## Times\n\n| messages | | mode | n | median s | max s | sum of u before | after |\n|---|---|---|---|---|---|---|---|\n";
        for speed in &self.speeds {
            let seconds = |time: Nanos| time.0 as f64 / 1e9;
            let (before, after) = (speed.sums_ppm.0 as f64 / 1e6, speed.sums_ppm.1 as f64 / 1e6);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {:.4} | {:.4} | {before:.3} | {after:.3} |",
                speed.messages,
                speed.periods,
                speed.mode,
                speed.times.len(),
                seconds(speed.median()),
                seconds(speed.max())
            );
        }
        text
    }

    fn write(&mut self) -> Result<(), Error> {
        let folder = Folder::open(&self.folder, TITLE, self.complete)?;
        let mut rows = "messages,periods,mode,run,time_ns\n".to_owned();
        for speed in &self.speeds {
            for (run, time) in speed.times.iter().enumerate() {
                let _ = writeln!(rows, "{},{},{},{run},{}", speed.messages, speed.periods, speed.mode, time.0);
            }
        }
        folder.put("rows.csv", rows)?;
        self.folder = folder.summary(&self.markdown())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_benchmark_writes_every_time() {
        let folder = std::env::temp_dir().join(format!("headway-bench-combine-{}", std::process::id()));
        let interrupt = Arc::new(AtomicBool::new(false));
        let options = CombineBenchOptions { out: folder.clone(), seed: 1, quick: true, interrupt };
        let report = run(&options, |_| {}).unwrap();
        assert_eq!(report.speeds.len(), QUICK.len());
        assert!(report.speeds.iter().all(|speed| speed.sums_ppm.1 < speed.sums_ppm.0), "{:?}", report.speeds);
        let rows = fs::read_to_string(folder.join("rows.csv")).unwrap();
        assert_eq!(rows.lines().count(), 1 + QUICK.iter().map(|case| case.runs).sum::<usize>());
        let summary = fs::read_to_string(folder.join("summary.md")).unwrap();
        assert!(summary.contains("1000 messages, 8 periods, Algorithm 1") && summary.contains("load"), "{summary}");
        fs::remove_dir_all(folder).unwrap();
    }
}
