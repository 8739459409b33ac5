//! Engines that serve the most urgent first: waits as long as no job is late.
//!
//! A job meets at most one less urgent operation on the engine of each of its requests: what runs when it asks. What is more
//! urgent can overtake it without end, unless jobs are on time: then only jobs whose deadlines are in its own window count, and
//! those of a task with period `T` are at most `ceil(D/T)` in a window of `D`. A more urgent peer copy keeps an engine idle while
//! one less urgent operation ends on its other one.

use super::{Acquisition, CpuGuarantee, System, TaskBound, TaskDemand, Unknown, cpu_time, engine_time, holding_cpu};
use crate::decisions::engine_lock::LockOrder;
use crate::units::Nanos;

/// Bounds on the waits of jobs that hold as long as no job ends after its deadline, its period; times of operations include
/// hand-overs. If every [`TaskBound::inflated`] is at most the period no job is ever late, and they hold without condition:
/// nothing before the first late job was late.
///
/// # Errors
/// [`Unknown::Overtaking`] unless engines serve the most urgent first; [`Unknown::Mode`] where a job may wait for a token: there
/// must be one for each task, in queues of one or without affinity; [`Unknown::Overload`] with more tasks than CPUs.
pub fn timely(system: &System, tasks: &[TaskDemand]) -> Result<Vec<TaskBound>, Unknown> {
    system.engines.filter(|engines| engines.order == LockOrder::Urgency).ok_or(Unknown::Overtaking)?;
    let sizes = system.tokens.sizes(system.gpus).map_err(|_| Unknown::Parameters)?;
    let count = u32::try_from(tasks.len()).map_err(|_| Unknown::Overflow)?;
    // A request finds an empty queue, and enters it: no other has room, or the shortest is taken.
    let room = count <= sizes.tokens && sizes.queued_max.is_none_or(|queued| count <= queued);
    let empty = sizes.length_max == Some(1) || !system.tokens.affinity;
    if !room || !empty {
        return Err(Unknown::Mode);
    }
    if count > system.tokens.cpus {
        return Err(Unknown::Overload);
    }
    if tasks.iter().any(|task| task.period == Nanos::ZERO) {
        return Err(Unknown::Parameters);
    }
    let bound = |task| bound(system, task, tasks).ok_or(Unknown::Overflow);
    tasks.iter().map(bound).collect()
}

/// `W = sum of (q LC + e LE) + sum over the others of ceil(D / T) E`; `None` if it does not fit.
fn bound(system: &System, task: &TaskDemand, tasks: &[TaskDemand]) -> Option<TaskBound> {
    let mut engine_wait = 0u64;
    for other in tasks.iter().filter(|other| other.task != task.task) {
        let jobs = task.period.0.div_ceil(other.period.0);
        for use_ in &other.acquisitions {
            engine_wait = engine_wait.checked_add(in_the_way(system, use_)?.checked_mul(jobs)?)?;
        }
    }
    let mut own = cpu_time(system.cpu, task.cpu_outside, 1)?;
    for use_ in &task.acquisitions {
        engine_wait = engine_wait.checked_add(engine_time(system, use_, 1, 1)?)?;
        own = own.checked_add(use_.copy_time.0)?.checked_add(use_.execute_time.0)?;
        own = own.checked_add(holding_cpu(system, use_)?)?;
    }
    let token_wait = system.grant_latency.0.checked_mul(task.acquisitions.len() as u64)?;
    let blocking = engine_wait.checked_add(token_wait)?;
    let inflated = own.checked_add(blocking)?;
    let on_time = inflated <= task.period.0 && system.cpu != CpuGuarantee::Nothing;
    Some(TaskBound {
        task: task.task,
        token_hold: Nanos(own.checked_add(engine_wait)?),
        token_wait: Nanos(token_wait),
        engine_wait: Nanos(engine_wait),
        blocking: Nanos(blocking),
        inflated: Nanos(inflated),
        response: on_time.then_some(Nanos(inflated)),
    })
}

/// How long one use by a more urgent job keeps others from engines: its operations, and for each chunk that may be a peer copy
/// one operation of whoever.
fn in_the_way(system: &System, use_: &Acquisition) -> Option<u64> {
    let peers = if system.peer_copies && system.gpus > 1 { use_.copies } else { 0 };
    let kept_idle = peers.checked_mul(system.longest_copy.0)?;
    use_.copy_time.0.checked_add(use_.execute_time.0)?.checked_add(kept_idle)
}
