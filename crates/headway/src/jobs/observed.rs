//! Bounds on waits from the longest operations that were seen.

use headway_core::analysis::sharing::{Acquisition, Analysis, CpuGuarantee, System, TaskDemand, analyse, timely};
use headway_core::decisions::engine_lock::EngineParameters;
use headway_core::decisions::sharing::TaskId;
use headway_core::decisions::token::TokenParameters;
use headway_core::units::Nanos;

use super::DoneJob;

/// From a token's or a lock's release to its next holder going on: an allowance that bounds include, several times what
/// arbiters take.
pub const HAND_OVER: Nanos = Nanos(200_000);

/// The longest that was seen of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedMaxima {
    pub copies_max: u32,
    pub executes_max: u32,
    pub cpu_max: Nanos,
    pub copy_max: Nanos,
    pub execute_max: Nanos,
    pub copy_held_max: Nanos,
    pub execute_held_max: Nanos,
    /// Wait for the token and for engines, and their sum in one job.
    pub token_wait_max: Nanos,
    pub engine_wait_max: Nanos,
    pub blocking_max: Nanos,
}

impl ObservedMaxima {
    /// The largest of each time over all jobs.
    pub fn of<'a>(jobs: impl IntoIterator<Item = &'a DoneJob>) -> Self {
        let mut seen = Self::default();
        for job in jobs {
            let account = &job.account;
            let held = job.released.saturating_sub(job.granted);
            let own = account.engine_wait + account.copy + account.execute;
            let (token, engines) = (job.token_wait(), Nanos(account.engine_wait));
            seen.copies_max = seen.copies_max.max(account.copies);
            seen.executes_max = seen.executes_max.max(account.executes);
            seen.cpu_max = seen.cpu_max.max(Nanos(held.saturating_sub(own)));
            seen.copy_max = seen.copy_max.max(Nanos(account.copy));
            seen.execute_max = seen.execute_max.max(Nanos(account.execute));
            seen.copy_held_max = seen.copy_held_max.max(Nanos(account.copy_held_max));
            seen.execute_held_max = seen.execute_held_max.max(Nanos(account.execute_held_max));
            seen.token_wait_max = seen.token_wait_max.max(token);
            seen.engine_wait_max = seen.engine_wait_max.max(engines);
            seen.blocking_max = seen.blocking_max.max(token.saturating_add(engines));
        }
        seen
    }
}

/// The bounds that follow from what was seen of each task, given with its period; hand-over included. Where nobody was late,
/// `on_time`, also those that hold as long as nobody is.
pub fn observed(
    gpus: u32,
    tokens: TokenParameters,
    engines: Option<EngineParameters>,
    peer: bool,
    tasks: &[(Nanos, ObservedMaxima)],
    on_time: bool,
) -> Analysis {
    let longest = |of: fn(&ObservedMaxima) -> Nanos| {
        tasks.iter().map(|(_, seen)| of(seen)).max().unwrap_or_default().saturating_add(HAND_OVER)
    };
    let system = System {
        gpus,
        tokens,
        engines,
        peer_copies: peer && gpus > 1,
        longest_copy: longest(|seen| seen.copy_held_max),
        longest_execute: longest(|seen| seen.execute_held_max),
        grant_latency: HAND_OVER,
        cpu: CpuGuarantee::Priorities,
    };
    let with_hand_overs =
        |time: Nanos, count: u32| time.saturating_add(Nanos(HAND_OVER.0.saturating_mul(u64::from(count))));
    let demand = |(task, (period, seen)): (u32, &(Nanos, ObservedMaxima))| TaskDemand {
        task: TaskId(task),
        period: *period,
        cpu_outside: Nanos::ZERO,
        acquisitions: vec![Acquisition {
            copies: u64::from(seen.copies_max),
            executes: u64::from(seen.executes_max),
            cpu: seen.cpu_max,
            copy_time: with_hand_overs(seen.copy_max, seen.copies_max),
            execute_time: with_hand_overs(seen.execute_max, seen.executes_max),
        }],
    };
    let demands: Vec<_> = (0..).zip(tasks).map(demand).collect();
    let mut analysis = analyse(&system, &demands);
    if analysis.tasks.is_empty() && on_time {
        analysis.tasks = timely(&system, &demands).unwrap_or_default();
    }
    analysis
}
