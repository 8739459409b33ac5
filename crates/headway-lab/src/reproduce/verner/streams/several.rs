//! What the runs of several workloads say: a row for each, and one for all of them together.

use headway_core::plan::Strategy;
use headway_core::units::Nanos;

use super::report::{Results, rate, response, streams, streams_on_cpu, tried};
use super::trial::Trial;
use super::{OfWorkload, PolicyResult, cycle_of};
use crate::reproduce::site::with_causes;
use crate::reproduce::{PaperRow, PaperVerdict, said, silent};

/// A row for each workload and policy, and what all of them say together.
pub(super) fn rows_of_all(results: &Results) -> Vec<PaperRow> {
    let mut rows = vec![as_planned(results)];
    rows.extend(results.found().map(|(one, found)| of_workload(one, found, results.duration)));
    rows.push(all_verified(results));
    rows
}

/// In how many workloads nothing was missed.
fn as_planned(results: &Results) -> PaperRow {
    let wanted = results.all.len();
    let mut policies: Vec<Strategy> = results.found().map(|(_, found)| found.policy).collect();
    policies.dedup();
    policies.sort_by_key(|policy| policy.name());
    policies.dedup();
    let of = |policy: Strategy| {
        let own = || results.found().filter(move |(_, found)| found.policy == policy);
        let (ran, clean) = (own().count(), own().filter(|(_, found)| found.is_clean()).count());
        let (packets, misses) = own()
            .filter_map(|(_, found)| found.trial.as_ref().ok())
            .fold((0, 0), |(packets, misses), trial| (packets + trial.packets, misses + trial.misses));
        let text = format!(
            "`{}`: in {clean} of {wanted} workloads; {misses} of {packets} packets missed in all",
            policy.name()
        );
        (text, ran == wanted && clean == wanted)
    };
    let all: Vec<(String, bool)> = policies.into_iter().map(of).collect();
    let holds = !all.is_empty() && all.iter().all(|(_, holds)| *holds);
    PaperRow {
        what: format!(
            "workloads in which nothing was missed in {} with as many streams as are planned",
            results.duration
        ),
        paper: said("V-B", "a schedule that is verified to be valid runs without deadline misses; the paper ran none"),
        ours: all.into_iter().map(|(text, _)| text).collect::<Vec<_>>().join("; "),
        verdict: PaperVerdict::own(holds),
        why: "no packet of any workload may be missed; the rows below say where some were".into(),
    }
}

fn of_workload(one: &OfWorkload, found: &PolicyResult, duration: Nanos) -> PaperRow {
    let plan = &found.planned.case.plan;
    let shortest = plan.streams.iter().map(|stream| stream.deadline).min().unwrap_or_default();
    let without = one.without.filter(|(policy, _)| *policy == found.policy);
    let without = without.map_or_else(String::new, |(_, count)| format!(" ({count} without the CPU)"));
    let plan_text = format!(
        "{} streams, {} of them on {} cores of the CPU{without}, {:.2} GB/s, deadlines from {shortest} on, on GPUs in cycles of {}",
        plan.streams.len(),
        streams_on_cpu(plan),
        plan.cores(),
        rate(found),
        cycle_of(plan)
    );
    let (ours, verdict) = match &found.trial {
        Ok(trial) => {
            let came = match (trial.misses, &trial.failure) {
                (_, Some(why)) => format!("it failed: {why}"),
                (0, None) => format!("0 misses in {} packets", trial.packets),
                (misses, None) => format!(
                    "{misses} misses in {} packets, {} of them on the CPU, in {} blocks; {}",
                    trial.packets,
                    trial.misses_on_cpu,
                    blocks_missed(trial),
                    tried(found)
                ),
            };
            let stolen =
                trial.stolen.map_or_else(String::new, |time| format!(", {time} of CPU time taken by the host"));
            let rest = format!(
                "{} jobs late, {} above their worst case, {} windows opened late, the driver up to {} late{stolen}",
                trial.late, trial.overruns, trial.release_late, trial.woken.max
            );
            (format!("{plan_text}: {came}; {rest}{}", response(plan, trial)), PaperVerdict::own(trial.is_clean()))
        }
        Err(error) => (format!("{plan_text}: it did not start: {}", with_causes(error)), PaperVerdict::NotComparable),
    };
    PaperRow {
        what: format!(
            "workload {} ({}), `{}`: planned, then run for {duration}",
            one.demand.number(),
            one.demand.name(),
            found.policy.name()
        ),
        paper: said("V-B", "a schedule that is verified to be valid runs without deadline misses; the paper ran none"),
        ours,
        verdict,
        why: "no packet missed and no failure are asked for".into(),
    }
}

/// Blocks with packets after their deadline.
fn blocks_missed(trial: &Trial) -> usize {
    trial.lates.iter().filter(|late| late.what == "packets").count()
}

/// The bytes of all runs.
fn all_verified(results: &Results) -> PaperRow {
    let mut sum = crate::ring::VerifiedBlocks::default();
    let (mut streams_all, mut runs, mut failed) = (0, 0, 0);
    for (_, found) in results.found() {
        let Ok(trial) = &found.trial else { continue };
        let v = &trial.verified;
        (sum.blocks, sum.bytes, sum.streams) = (sum.blocks + v.blocks, sum.bytes + v.bytes, sum.streams + v.streams);
        (sum.stream_bytes, sum.turn_bytes) = (sum.stream_bytes + v.stream_bytes, sum.turn_bytes + v.turn_bytes);
        sum.reached += v.reached;
        (streams_all, runs, failed) =
            (streams_all + streams(found), runs + 1, failed + usize::from(trial.failure.is_some()));
    }
    PaperRow {
        what: "ciphertexts equal those of the CPU".into(),
        paper: silent("not treated"),
        ours: format!(
            "{runs} runs, {} blocks in order with the header that was sent; every byte of {} streams and parts of others, \
             {:.3} % of {:.1} GB, equal the CPU's; {} of {streams_all} streams reached",
            sum.blocks,
            sum.streams,
            (sum.stream_bytes + sum.turn_bytes) as f64 * 100.0 / sum.bytes.max(1) as f64,
            sum.bytes as f64 / 1e9,
            sum.reached
        ),
        verdict: PaperVerdict::own(failed == 0 && sum.blocks > 0),
        why: "blocks in order, and what is compared equals what the CPU encrypts; a run of one workload also compares the end of every chain"
            .into(),
    }
}
