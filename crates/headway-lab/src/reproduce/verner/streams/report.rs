//! What the runs say: against `serial`, against the plan, against the CPU's bytes.

use headway_core::plan::Plan;
use headway_core::plan::Strategy;
use headway_core::units::Nanos;

use super::trial::{Trial, cycle_bytes};
use super::{ExperimentSetting, OfWorkload, PolicyResult, Try, cycle_of};
use crate::reproduce::site::{Site, with_causes};
use crate::reproduce::{ExperimentResults, PaperRow, PaperVerdict, RawFigures, raw_figures, said, silent};
use headway_measure::sample::SampleFigures;

/// Times as many streams as `serial`, at least: a target of ours, on hardware other than the paper's.
const TARGET: f64 = 1.7;

/// Everything that was found.
pub(super) struct Results {
    pub(super) all: Vec<OfWorkload>,
    /// The run before those that count: its policy, its streams, and what came of it.
    pub(super) warm_up: Option<(Strategy, usize, Trial)>,
    /// What the CPU is.
    pub(super) cores: String,
    pub(super) planning: Nanos,
    pub(super) duration: Nanos,
}

impl Results {
    /// Everything that was found, with its workload.
    pub(super) fn found(&self) -> impl Iterator<Item = (&OfWorkload, &PolicyResult)> {
        self.all.iter().flat_map(|one| one.found.iter().map(move |found| (one, found)))
    }
}

/// The outcome with `rows`.
pub(super) fn outcome(
    setting: &ExperimentSetting,
    site: &Site,
    results: &Results,
    rows: Vec<PaperRow>,
) -> ExperimentResults {
    let mut tables = vec![plans(results), runs(results), cores(results), steps(results), lates(results)];
    if let [one] = &results.all[..] {
        tables.push(blocks(one));
    }
    ExperimentResults {
        rows,
        notes: notes(site, results),
        tables,
        ..ExperimentResults::new("verner-aes", site.source, site.named(), setting.seed)
    }
}

pub(super) fn rows_of_one(one: &OfWorkload, duration: Nanos) -> Vec<PaperRow> {
    let mut rows = vec![against_serial(one)];
    rows.extend(one.found.iter().map(|found| planned(found, duration)));
    rows.extend(one.found.iter().filter_map(|found| fewer(one, found, duration)));
    rows.extend(one.found.iter().filter_map(on_cpu));
    rows.extend(against_gpus_alone(one));
    rows.extend(one.found.iter().map(verified));
    rows.push(border(one));
    rows
}

/// What came of fewer streams.
pub(super) fn tried(found: &PolicyResult) -> String {
    let planned = streams(found);
    let share = |one: &Try| one.streams as f64 / planned.max(1) as f64 * 100.0;
    match (found.fewer.iter().find(|one| one.holds()), found.fewer.last()) {
        (Some(held), _) => format!("nothing missed with {} streams ({:.0} %)", held.streams, share(held)),
        (None, Some(last)) => match &last.trial {
            Ok(_) => format!("some missed with {} streams ({:.0} %), too, the fewest tried", last.streams, share(last)),
            Err(error) => format!("{} streams did not run: {}", last.streams, with_causes(error)),
        },
        (None, None) => "fewer were not tried".to_owned(),
    }
}

/// How many streams miss nothing where those of the plan miss some.
fn fewer(one: &OfWorkload, found: &PolicyResult, duration: Nanos) -> Option<PaperRow> {
    if found.fewer.is_empty() {
        return None;
    }
    Some(PaperRow {
        what: format!("`{}`: fewer streams than planned, for {duration}", found.policy.name()),
        paper: silent("not stated"),
        ours: format!("{} planned, of {} in the pool; {}", streams(found), one.demand.len(), tried(found)),
        verdict: PaperVerdict::NotComparable,
        why: "only a figure: the largest of 90, 75, 50 and 25 % of the plan with which nothing is missed".into(),
    })
}

pub(super) fn streams(found: &PolicyResult) -> usize {
    found.planned.case.plan.streams.len()
}

pub(super) fn rate(found: &PolicyResult) -> f64 {
    let plan = &found.planned.case.plan;
    plan.streams.iter().map(|stream| stream.packet.0 as f64 / stream.period.0.max(1) as f64).sum()
}

fn against_serial(results: &OfWorkload) -> PaperRow {
    let of = |policy| results.found.iter().find(|found| found.policy == policy);
    let clean = |found: &&PolicyResult| found.is_clean();
    let best =
        results.found.iter().filter(|found| found.policy != Strategy::Serial).filter(clean).max_by_key(|f| streams(f));
    let (ours, verdict) = match (of(Strategy::Serial), best) {
        (Some(serial), Some(best)) => {
            let ratio = streams(best) as f64 / streams(serial).max(1) as f64;
            // One that misses would have to take fewer, and the ratio would be larger.
            let both = if clean(&serial) { "both" } else { "`serial` with misses, the other" };
            let text = format!(
                "`{}` {} streams ({:.2} GB/s), `serial` {} ({:.2} GB/s): {ratio:.2} times; {both} without a miss",
                best.policy.name(),
                streams(best),
                rate(best),
                streams(serial),
                rate(serial)
            );
            (text, PaperVerdict::own(ratio >= TARGET))
        }
        _ => ("`serial` did not run, or no other policy without a miss".to_owned(), PaperVerdict::NotComparable),
    };
    PaperRow {
        what: format!("streams against one transfer at a time (target {TARGET})"),
        paper: said("V-B", "74 % more streams on average in system 1, 31 % in system 2, by prediction"),
        ours,
        verdict,
        why: format!(
            "other GPUs and links than the paper's: the ratio must reach {TARGET}, which is our target, and nobody may miss"
        ),
    }
}

fn planned(found: &PolicyResult, duration: Nanos) -> PaperRow {
    let plan = &found.planned.case.plan;
    let (ours, verdict) = match &found.trial {
        Ok(trial) => {
            let times = response(plan, trial);
            let failure = trial.failure.as_ref().map_or_else(String::new, |why| format!("; it failed: {why}"));
            let text = format!(
                "{} streams, {} of them on the CPU, {:.2} GB/s, on GPUs in cycles of {}, utilisation {:.1} %: {} misses, {} of \
                 them on the CPU, {} jobs late, {} above their worst case{times}{failure}",
                plan.streams.len(),
                streams_on_cpu(plan),
                rate(found),
                cycle_of(plan),
                plan.verdict.utilisation_ppm as f64 / 1e4,
                trial.misses,
                trial.misses_on_cpu,
                trial.late,
                trial.overruns
            );
            (text, PaperVerdict::own(trial.is_clean()))
        }
        Err(error) => {
            let text = format!("{} streams planned; it did not start: {}", plan.streams.len(), with_causes(error));
            (text, PaperVerdict::NotComparable)
        }
    };
    PaperRow {
        what: format!("`{}`: planned, then run for {duration}", found.policy.name()),
        paper: said("V-B", "a schedule that is verified to be valid runs without deadline misses; the paper ran none"),
        ours,
        verdict,
        why: "no packet missed and no failure are asked for".into(),
    }
}

/// How long blocks of GPUs took.
pub(super) fn response(plan: &Plan, trial: &Trial) -> String {
    SampleFigures::of(&responses(plan, trial, |core| core.is_none())).map_or_else(String::new, |figures| {
        format!(
            "; from a block's oldest byte to its delivery n = {}, median {}, p99 {}, max {} of {}",
            figures.n,
            figures.median,
            figures.p99_text(),
            figures.max,
            cycle_of(plan) * 4
        )
    })
}

pub(super) fn streams_on_cpu(plan: &Plan) -> usize {
    plan.streams.iter().filter(|stream| stream.gpu.is_none()).count()
}

/// Times from the arrival of the oldest byte to delivery, of the pipelines whose core is `wanted`.
fn responses(plan: &Plan, trial: &Trial, wanted: impl Fn(Option<u32>) -> bool) -> Vec<Nanos> {
    let of_pipeline: Vec<bool> = plan.pipelines.iter().map(|pipeline| wanted(plan.core_of(pipeline))).collect();
    let kept = trial.responses.iter().filter(|(pipeline, ..)| of_pipeline[*pipeline as usize]);
    kept.map(|(.., response)| *response).collect()
}

/// The streams that the CPU took, and how they fared.
fn on_cpu(found: &PolicyResult) -> Option<PaperRow> {
    let plan = &found.planned.case.plan;
    let streams = || plan.streams.iter().filter(|stream| stream.gpu.is_none());
    let trial = found.trial.as_ref().ok()?;
    let (shortest, longest) = streams()
        .map(|stream| stream.deadline)
        .fold((Nanos::MAX, Nanos::ZERO), |(a, b), deadline| (deadline.min(a), deadline.max(b)));
    let times = responses(plan, trial, |core| core.is_some());
    let (rectangle, figures) = (found.planned.division.rectangle, SampleFigures::of(&times)?);
    let bytes: f64 = streams().map(|stream| stream.packet.0 as f64 / stream.period.0.max(1) as f64).sum();
    let limit = if rectangle.deadline == Nanos::MAX { "any".to_owned() } else { rectangle.deadline.to_string() };
    let awake = match trial.cpus.as_slice() {
        [] => "threads without CPUs of their own".to_owned(),
        cpus => format!(
            "threads awake on CPUs {} of their own",
            cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        ),
    };
    let margins = found.planned.division.margins;
    let ours = format!(
        "{} of {} streams on {} cores, {awake}: deadlines below {limit} ({shortest} to {longest}), rates up to {:.2} Mbit/s, \
         {:.3} GB/s; margin x{:.2} on the CPU, x{:.2} on GPUs; {} blocks, from the oldest byte to delivery median {}, p99 {}, max \
         {}; {} packets missed",
        streams_on_cpu(plan),
        plan.streams.len(),
        plan.cores(),
        rectangle.bits_per_second as f64 / 1e6,
        bytes,
        margins.cpu as f64 / 1e6,
        margins.gpus as f64 / 1e6,
        figures.n,
        figures.median,
        figures.p99_text(),
        figures.max,
        trial.misses_on_cpu
    );
    Some(PaperRow {
        what: format!("`{}`: streams with short deadlines on the CPU", found.policy.name()),
        paper: said("V-B", "the framework searches for a division of the streams between CPUs and GPUs"),
        ours,
        verdict: PaperVerdict::own(trial.misses_on_cpu == 0 && trial.failure.is_none()),
        why: "no packet of the CPU's streams may be missed".into(),
    })
}

/// What the CPU is worth.
fn against_gpus_alone(results: &OfWorkload) -> Option<PaperRow> {
    let (policy, alone) = results.without?;
    let with = results.found.iter().find(|found| found.policy == policy).map(streams)?;
    Some(PaperRow {
        what: format!("streams that the plan of `{}` accepts, with and without the CPU", policy.name()),
        paper: silent("not stated"),
        ours: format!("{with} with it, {alone} without"),
        verdict: PaperVerdict::own(with >= alone),
        why: "the CPU must not make the plan accept fewer".into(),
    })
}

fn verified(found: &PolicyResult) -> PaperRow {
    let (ours, verdict) = match &found.trial {
        Ok(trial) => {
            let v = &trial.verified;
            let share = (v.stream_bytes + v.turn_bytes) as f64 * 100.0 / v.bytes.max(1) as f64;
            let text = format!(
                "{} blocks in order with the header that was sent; every byte of {} streams and {} blocks' worth of {} more, \
                 {share:.3} % of {:.1} GB, equal the CPU's, {} of {} streams reached; after the run, the ends of {} chains \
                 equal the CPU's, which encrypted {:.1} GB for it",
                v.blocks,
                v.streams,
                v.turns,
                v.reached.saturating_sub(v.streams),
                v.bytes as f64 / 1e9,
                v.reached,
                streams(found),
                v.chains,
                v.chain_bytes as f64 / 1e9,
            );
            (text, PaperVerdict::own(trial.failure.is_none() && v.blocks > 0 && v.chains == streams(found) as u64))
        }
        Err(_) => ("it did not start".to_owned(), PaperVerdict::NotComparable),
    };
    PaperRow {
        what: format!("`{}`: ciphertexts equal those of the CPU", found.policy.name()),
        paper: silent("not treated"),
        ours,
        verdict,
        why: "blocks in order, and the last bytes of every stream's chain equal what the CPU encrypts".into(),
    }
}

fn border(results: &OfWorkload) -> PaperRow {
    let demand = &results.demand;
    let held: Vec<&Try> = results.tries.iter().filter(|one| one.holds()).collect();
    let missed = results.tries.iter().filter(|one| one.trial.as_ref().is_ok_and(|trial| trial.misses > 0));
    let first = missed.map(|one| one.streams).min();
    let failed =
        results.tries.iter().find_map(|one| one.trial.as_ref().err().map(|error| (one.streams, with_causes(error))));
    let most = held.iter().map(|one| one.streams).max();
    let ours = match (most, first, failed, results.tries.is_empty()) {
        (.., true) => "not tried: no policy ran without a miss and left streams over".to_owned(),
        (Some(most), Some(first), ..) => format!("none with {most} streams, some with {first}"),
        (None, Some(first), ..) => format!("some with {first} streams, the first count tried"),
        (_, None, Some((streams, why)), _) => format!("none up to {}; {streams} did not run: {why}", most.unwrap_or(0)),
        (Some(most), None, None, _) => format!("none with {most} streams, of {} in the pool", demand.len()),
        (None, None, None, _) => "runs failed before any deadline was missed".to_owned(),
    };
    PaperRow {
        what: "where misses begin for the best policy, beyond what the plan accepts".into(),
        paper: silent("not stated"),
        ours,
        verdict: PaperVerdict::NotComparable,
        why: "only a figure: the plan promises nothing beyond what it accepts".into(),
    }
}

fn notes(site: &Site, results: &Results) -> Vec<String> {
    let pools = results.all.iter().map(|one| format!("{} ({} left out)", one.demand.text(), one.demand.left_out));
    let again = match &results.all[..] {
        [_] => {
            "When the last block has come, the CPU encrypts the whole run again and compares every stream's last packet, which depends on \
                all of its plaintext."
        }
        _ => {
            "Headers of all blocks, all bytes of some streams and parts of all others are compared as they come. The ends of all chains are \
              compared only where one workload is run."
        }
    };
    let mut notes = vec![
        format!(
            "Streams: {}; those of the pool with shorter deadlines were left out for every policy. A packet is what a \
             stream's rate brings in a cycle, in whole blocks of 16 bytes; all streams of a GPU share one pipeline in cycles of a \
             quarter of the shortest deadline that the CPU leaves.",
            pools.collect::<Vec<_>>().join("; ")
        ),
        format!(
            "CPU: {}; threads that drive GPUs and those of cores are in class `{}`. The CPU takes the streams inside a \
             rectangle, deadline below d* and rate at most r*, with the greatest margin of \
             those tried. Its test: each core is a server of its own that runs one job at a time, the earliest deadline first, \
             and no job is interrupted, so the test is that of an engine (Jeffay, Stanat and Martel); streams stay on their \
             core. No deadline is missed while a job takes no longer than its cost and nothing else runs on the core. Streams of \
             a core are gathered in cycles of half the shortest deadline times a power of two, one block for each such class. \
             What cores encrypt (AES instructions) is checked by another implementation (tables).",
            results.cores,
            site.class.word()
        ),
        format!(
            "Packets lie in a ring of pinned blocks, as a network card would leave them: payload is written once, before the run; \
         in each cycle only the block's number is written. Chains of the cipher go on over all cycles, so that no ciphertext \
         comes twice. Response times begin with the cycle in which a byte arrives and end when the driver has noticed that \
         the block is in host memory; comparing bytes with the CPU's comes after that. {again} \
         Start-up is excluded; no sample is dropped. `lates.csv` has the first {} things of each run that were late, with their times.",
            super::trial::LATES_MAX
        ),
        format!(
            "Counts are the longest prefixes that the planner accepts, to one part in 200, by bisection with the plans that \
             were run; planning took {} in all. Kernel costs and rates are those of the machine file{}.",
            results.planning,
            if site.slower > 1 { format!(", all rates divided by {}", site.slower) } else { String::new() }
        ),
    ];
    if site.source == "emu" {
        notes.push("Emulated devices: the figures say nothing about any GPU.".to_owned());
    }
    if let Some((policy, streams, trial)) = &results.warm_up {
        notes.push(format!(
            "Before the runs that count the GPUs worked for {} with {streams} streams of `{}` ({} packets missed): in the first seconds \
             after a pause kernels and copies can take up to twice as long.",
            trial.took,
            policy.name(),
            trial.misses
        ));
    }
    for one in &results.all {
        let several = results.all.len() > 1;
        let prefix = if several { format!("Workload {}: ", one.demand.number()) } else { String::new() };
        notes.extend(one.refused.iter().map(|refused| format!("{prefix}{refused}")));
    }
    notes
}

fn plans(results: &Results) -> RawFigures {
    raw_figures!("plans", results.found(), |(one, found)| {
        let (plan, planned) = (&found.planned.case.plan, &found.planned);
        let rectangle = planned.division.rectangle;
        let batches = plan.batches.iter().map(|batch| format!("{} {}", batch.name, batch.worst_case));
        Columns {
            workload: one.demand.number(),
            policy: found.policy.name(),
            streams: plan.streams.len(),
            refused: planned
                .refused
                .map_or_else(|| "none: the whole pool passes".to_owned(), |count| count.to_string()),
            plans_made: planned.plans,
            cycle_ns: cycle_of(plan),
            bytes_per_cycle: cycle_bytes(plan),
            on_cpu: streams_on_cpu(plan),
            cpu_deadlines_below_ns: rectangle.deadline,
            cpu_rates_up_to_bits_per_s: rectangle.bits_per_second,
            utilisation_ppm: plan.verdict.utilisation_ppm,
            batches: batches.collect::<Vec<_>>().join("; "),
        }
    })
}

/// A run that came to its end, and what it was made for.
struct EndedRun<'a> {
    workload: u32,
    policy: Strategy,
    part: &'static str,
    streams: usize,
    bits_per_second: u64,
    trial: &'a Trial,
}

/// The runs of a workload, those of each policy first.
fn ended_runs<'a>(one: &'a OfWorkload) -> Vec<EndedRun<'a>> {
    let run = |policy, part, streams, bits_per_second, trial: &'a Trial| EndedRun {
        workload: one.demand.number(),
        policy,
        part,
        streams,
        bits_per_second,
        trial,
    };
    let again = |policy, part, again: &'a Try| {
        let trial = again.trial.as_ref().ok()?;
        Some(run(policy, part, again.streams, again.bits_per_second, trial))
    };
    let mut runs = Vec::new();
    for found in &one.found {
        let bits = one.demand.bits_per_second(streams(found));
        runs.extend(found.trial.iter().map(|trial| run(found.policy, "planned", streams(found), bits, trial)));
        runs.extend(found.fewer.iter().filter_map(|less| again(found.policy, "fewer", less)));
    }
    let best = one.found.iter().max_by_key(|found| streams(found)).map_or(Strategy::Combined, |found| found.policy);
    runs.extend(one.tries.iter().filter_map(|more| again(best, "raised", more)));
    runs
}

fn runs(results: &Results) -> RawFigures {
    let warm_up = results.warm_up.as_ref().zip(results.all.first()).map(|((policy, streams, trial), one)| EndedRun {
        workload: one.demand.number(),
        policy: *policy,
        part: "warm-up",
        streams: *streams,
        bits_per_second: one.demand.bits_per_second(*streams),
        trial,
    });
    raw_figures!("runs", warm_up.into_iter().chain(results.all.iter().flat_map(ended_runs)), |run| {
        let trial = run.trial;
        let responses = trial.responses.iter().map(|(.., response)| *response).collect::<Vec<_>>();
        let figures = SampleFigures::of(&responses);
        Columns {
            workload: run.workload,
            policy: run.policy.name(),
            part: run.part,
            streams: run.streams,
            bits_per_s: run.bits_per_second,
            cycles: trial.cycles,
            took_ns: trial.took,
            packets: trial.packets,
            misses: trial.misses,
            misses_on_cpu: trial.misses_on_cpu,
            jobs_late: trial.late,
            overruns: trial.overruns,
            data_late: trial.data_late,
            release_late: trial.release_late,
            driver_late_max_ns: trial.woken.max,
            stolen_ns: trial.stolen.unwrap_or_default(),
            n: responses.len(),
            response_median_ns: figures.map(|f| f.median),
            response_p99_ns: figures.map(|f| f.p99_ns()),
            response_max_ns: figures.map(|f| f.max),
        }
    })
}

/// What each pipeline of a core did.
fn cores(results: &Results) -> RawFigures {
    let mut table = RawFigures::default();
    for (one, found) in results.found() {
        let (Ok(trial), plan) = (&found.trial, &found.planned.case.plan) else { continue };
        let on_cores = (0u32..).zip(&plan.pipelines).filter_map(|(number, pipeline)| {
            let own = trial.responses.iter().filter(|(of, ..)| *of == number).map(|(.., response)| *response);
            Some((pipeline, plan.core_of(pipeline)?, SampleFigures::of(&own.collect::<Vec<_>>())?))
        });
        table.add(raw_figures!("cores", on_cores, |(pipeline, core, figures)| {
            let members = pipeline.source.streams();
            let deadlines = members.iter().map(|&stream| plan.streams[stream as usize].deadline);
            Columns {
                workload: one.demand.number(),
                policy: found.policy.name(),
                core: core,
                streams: members.len(),
                cycle_ns: pipeline.period,
                block_bytes: pipeline.reserve,
                worst_case_ns: pipeline.steps[0].cost,
                shortest_deadline_ns: deadlines.min().unwrap_or_default(),
                n: figures.n,
                response_median_ns: figures.median,
                response_p99_ns: figures.p99_ns(),
                response_max_ns: figures.max,
            }
        }));
    }
    table
}

fn steps(results: &Results) -> RawFigures {
    let mut table = RawFigures::default();
    for (one, found) in results.found() {
        let Ok(trial) = &found.trial else { continue };
        let timed =
            trial.steps.iter().filter_map(|(name, (cost, times))| Some((name, cost, SampleFigures::of(times)?)));
        table.add(raw_figures!("steps", timed, |(name, cost, figures)| Columns {
            workload: one.demand.number(),
            policy: found.policy.name(),
            step: name,
            worst_case_ns: cost,
            n: figures.n,
            median_ns: figures.median,
            p99_ns: figures.p99_ns(),
            max_ns: figures.max,
        }));
    }
    table
}

/// What was late in each run, in the order in which it was noticed.
fn lates(results: &Results) -> RawFigures {
    let planned_and_fewer = |run: &EndedRun<'_>| matches!(run.part, "planned" | "fewer");
    let runs = results.all.iter().flat_map(ended_runs).filter(planned_and_fewer);
    let lates =
        runs.flat_map(|run| run.trial.lates.iter().map(move |late| (run.workload, run.policy, run.streams, late)));
    raw_figures!("lates", lates, |(workload, policy, streams, late)| Columns {
        workload: workload,
        policy: policy.name(),
        streams: streams,
        at_ns: late.at,
        what: late.what,
        pipeline: late.pipeline,
        cycle: late.cycle,
        by_ns: late.by,
        count: late.count,
    })
}

fn blocks(results: &OfWorkload) -> RawFigures {
    let on_gpus = results.found.iter().flat_map(|found| {
        let is_on_gpu = |pipeline: u32| found.planned.case.plan.pipelines[pipeline as usize].gpu.is_some();
        let responses = found.trial.iter().flat_map(|trial| &trial.responses);
        responses.filter(move |(pipeline, ..)| is_on_gpu(*pipeline)).map(move |response| (found.policy, response))
    });
    raw_figures!("blocks", on_gpus, |(policy, (pipeline, cycle, response))| Columns {
        policy: policy.name(),
        pipeline: pipeline,
        cycle: cycle,
        response_ns: response,
    })
}
