//! The verdict that the crate `response-time-analysis` (MPI-SWS, analyses verified in Coq) gives: every bound is at most its
//! deadline. Integer time; blocking is the longest piece less 1.

#![allow(dead_code, reason = "every test and bench uses its part")]

use headway_core::analysis::schedulability::RecurrentTask;
use response_time_analysis::arrival::Sporadic;
use response_time_analysis::edf::{fully_nonpreemptive, limited_preemptive};
use response_time_analysis::time::{Duration, Service};
use response_time_analysis::{demand, wcet};

/// Where the searches for a bound end, in nanoseconds: the busy window of a set close to full utilisation has minutes.
const LIMIT: u64 = 1_000_000_000_000_000;

fn arrivals(tasks: &[RecurrentTask]) -> Vec<Sporadic> {
    tasks.iter().map(|t| Sporadic::new_zero_jitter(Duration::from(t.period.0))).collect()
}

fn cost(task: &RecurrentTask) -> wcet::Scalar {
    wcet::Scalar::new(Service::from(task.cost.0))
}

/// Response-time bounds under NP-EDF, lazily; `None` where the search finds none below `limit`.
pub(crate) fn bounds_whole(
    tasks: &[RecurrentTask],
    limit: u64,
    mut each: impl FnMut(usize, Option<u64>) -> bool,
) -> bool {
    let arrivals = arrivals(tasks);
    let of = |n: usize| fully_nonpreemptive::Task {
        wcet: cost(&tasks[n]),
        arrivals: &arrivals[n],
        deadline: Duration::from(tasks[n].deadline.0),
    };
    (0..tasks.len()).all(|n| {
        let others: Vec<_> = (0..tasks.len()).filter(|&m| m != n).map(of).collect();
        let bound = fully_nonpreemptive::dedicated_uniproc_rta(&of(n), &others, Duration::from(limit));
        each(n, bound.ok().map(u64::from))
    })
}

/// Bounds of jobs that are cut into chunks, the last one the rest.
pub(crate) fn bounds_in_chunks(
    tasks: &[RecurrentTask],
    limit: u64,
    mut each: impl FnMut(usize, Option<u64>) -> bool,
) -> bool {
    let arrivals = arrivals(tasks);
    let demands: Vec<_> = tasks.iter().zip(&arrivals).map(|(t, a)| demand::RBF::new(a, cost(t))).collect();
    (0..tasks.len()).all(|n| {
        let task = &tasks[n];
        let last = (task.cost.0 - 1) % task.chunk.0 + 1;
        let under_analysis = limited_preemptive::TaskUnderAnalysis {
            wcet: cost(task),
            arrivals: &arrivals[n],
            deadline: Duration::from(task.deadline.0),
            last_np_segment: Service::from(last),
        };
        let other = |m: usize| limited_preemptive::InterferingTask {
            rbf: &demands[m],
            deadline: Duration::from(tasks[m].deadline.0),
            max_np_segment: Service::from(tasks[m].chunk.0),
        };
        let others: Vec<_> = (0..tasks.len()).filter(|&m| m != n).map(other).collect();
        let bound = limited_preemptive::dedicated_uniproc_rta(&under_analysis, &others, Duration::from(limit));
        each(n, bound.ok().map(u64::from))
    })
}

/// Whether every bound holds; ends at the first that does not.
pub(crate) fn whole(tasks: &[RecurrentTask]) -> bool {
    bounds_whole(tasks, LIMIT, |n, bound| bound.is_some_and(|b| b <= tasks[n].deadline.0))
}

/// Whether jobs in chunks meet their deadlines.
pub(crate) fn in_chunks(tasks: &[RecurrentTask]) -> bool {
    bounds_in_chunks(tasks, LIMIT, |n, bound| bound.is_some_and(|b| b <= tasks[n].deadline.0))
}

/// Random numbers by SplitMix64.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// Log-uniform from `low` to `high`.
    pub(crate) fn period(&mut self, low: u64, high: u64) -> u64 {
        let share = self.between(0, 1 << 30) as f64 / f64::from(1 << 30);
        (low as f64 * (high as f64 / low as f64).powf(share)) as u64
    }
}
