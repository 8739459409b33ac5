//! How long a job can be kept from a GPU and its engines, and whether tardiness is bounded.
//!
//! Elliott 2013, appendix A, made safe where its formulas slip (specification of sharing, 6.3): requests are counted, not
//! bytes; every kernel waits; nested locks are counted in full. Tests compare it with the formulas as printed. The analysis is
//! suspension-oblivious and holds for sporadic tasks whose holders run when they are among the `m` most urgent; the verdict is
//! sufficient: "don't know" is not "no".

mod demand;
#[cfg(test)]
pub(crate) mod tests;
mod urgency;

use serde::{Deserialize, Serialize};

pub use self::demand::{Acquisition, TaskDemand};
pub use self::urgency::timely;
use crate::decisions::engine_lock::{EngineParameters, LockOrder, PeerLocks};
use crate::decisions::sharing::TaskId;
use crate::decisions::token::TokenParameters;
use crate::units::Nanos;

/// What makes a ready holder run when it is among the most urgent (specification of sharing, 7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuGuarantee {
    /// Fixed priorities set in the order of keys.
    Priorities,
    /// A reservation per thread: this much in every period.
    Reservation {
        /// CPU time per period.
        runtime: Nanos,
        period: Nanos,
    },
    /// Nothing is guaranteed.
    Nothing,
}

/// A cluster and how it is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// GPUs `g`.
    pub gpus: u32,
    pub tokens: TokenParameters,
    /// Engine locks; `None` = a token is the right to every engine, which needs one token per GPU.
    pub engines: Option<EngineParameters>,
    /// Whether any task may copy its state from GPU to GPU; otherwise it goes through system memory.
    pub peer_copies: bool,
    /// `LC`: longest time for which one chunk of any task holds its locks, hand-over included.
    pub longest_copy: Nanos,
    /// `LE`: longest single use of an execution engine, hand-over included.
    pub longest_execute: Nanos,
    /// From the release of a token to the grant of the next.
    pub grant_latency: Nanos,
    /// What CPU priority is there.
    pub cpu: CpuGuarantee,
}

/// Why nothing is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unknown {
    /// The token parameters do not work.
    Parameters,
    /// The mode has no bound on the wait for a token.
    Mode,
    /// Several tokens per GPU, or peer copies, without engine locks: the driver decides.
    EnginesUnlocked,
    /// Engines serve the most urgent first, so that an operation can be overtaken without end, and jobs may be late by
    /// [`timely`], or it says nothing.
    Overtaking,
    /// Nothing makes a holder run.
    CpuNotGuaranteed,
    /// A figure does not fit 64 bits.
    Overflow,
    /// With blocking, a job of this task takes longer than its period.
    LongerThanPeriod(TaskId),
    /// With blocking, the tasks need more than the CPUs.
    Overload,
}

/// Whether tardiness is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TardinessVerdict {
    /// It is.
    Yes,
    /// It is not: the longest jobs need more of this than there is.
    No(Resource),
    /// This analysis cannot say.
    DontKnow(Unknown),
}

/// What there may be too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    Cpu,
    /// Execution engines.
    Execute,
    /// Copy engines.
    Copy,
    /// Time of one task: its jobs, which run in sequence, take longer than its period.
    Sequence(TaskId),
}

/// What one task can suffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskBound {
    pub task: TaskId,
    /// `THT`: its longest token hold time.
    pub token_hold: Nanos,
    /// `BT`: longest wait for tokens in a job, while among the `m` most urgent.
    pub token_wait: Nanos,
    /// `BE`: longest wait for engines in a job.
    pub engine_wait: Nanos,
    /// `B`: their sum.
    pub blocking: Nanos,
    /// `C'`: its own CPU, copy and kernel time and `B`.
    pub inflated: Nanos,
    /// Longest response, where it follows simply: with at most `m` tasks none waits for a CPU, so it is `C'` if that is at
    /// most the period. `None` = not computed.
    pub response: Option<Nanos>,
}

impl TaskBound {
    /// Longest tardiness against a relative deadline; `None` without a response bound.
    #[must_use]
    pub fn tardiness(&self, deadline: Nanos) -> Option<Nanos> {
        self.response.map(|response| response.saturating_sub(deadline))
    }
}

/// Blockers per request, as far as the configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blockers {
    /// `H`: most jobs that hold tokens at a time.
    pub holders: u64,
    /// `NE`: requests ahead of a kernel.
    pub execute: u64,
    /// `NC`: requests ahead of a chunk.
    pub copy: u64,
    /// `beta`: token hold times ahead of a request for a token.
    pub token: u64,
}

/// The result of [`analyse`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Analysis {
    /// Blockers per request; `None` where the verdict says why not.
    pub blockers: Option<Blockers>,
    /// Longest token hold time of any task.
    pub token_hold_max: Option<Nanos>,
    /// One per task, in their order; empty if nothing is known.
    pub tasks: Vec<TaskBound>,
    /// Whether tardiness is bounded.
    pub verdict: TardinessVerdict,
}

/// Bounds every task's blocking, and says whether tardiness is bounded.
///
/// `TardinessVerdict::Yes` if `sum C'/T <= m` and every `C' <= T` (clustered EDF, implicit or other deadlines; Elliott 2013, 2, after a
/// known result). `TardinessVerdict::No` if the longest jobs alone, without blocking, need more than there is.
#[must_use]
pub fn analyse(system: &System, tasks: &[TaskDemand]) -> Analysis {
    let unknown = |blockers, why| Analysis {
        blockers,
        token_hold_max: None,
        tasks: Vec::new(),
        verdict: overload(system, tasks).map_or(TardinessVerdict::DontKnow(why), TardinessVerdict::No),
    };
    let blockers = match blockers(system, tasks.len()) {
        Ok(blockers) => blockers,
        Err(Unknown::Overtaking) => return by_urgency(system, tasks).unwrap_or_else(|why| unknown(None, why)),
        Err(why) => return unknown(None, why),
    };
    let Some((longest, bounds)) = bounds(system, &blockers, tasks) else {
        return unknown(Some(blockers), Unknown::Overflow);
    };
    let verdict = verdict(system, tasks, &bounds);
    Analysis { blockers: Some(blockers), token_hold_max: Some(longest), tasks: bounds, verdict }
}

/// Where engines serve the most urgent first, there are bounds if by them nobody is ever late.
fn by_urgency(system: &System, tasks: &[TaskDemand]) -> Result<Analysis, Unknown> {
    let bounds = timely(system, tasks).map_err(|_| Unknown::Overtaking)?;
    if system.cpu == CpuGuarantee::Nothing {
        return Err(Unknown::CpuNotGuaranteed);
    }
    if tasks.iter().zip(&bounds).any(|(task, bound)| bound.inflated > task.period) {
        return Err(Unknown::Overtaking);
    }
    let verdict = overload(system, tasks).map_or(TardinessVerdict::Yes, TardinessVerdict::No);
    let token_hold_max = bounds.iter().map(|bound| bound.token_hold).max();
    Ok(Analysis { blockers: None, token_hold_max, tasks: bounds, verdict })
}

/// Lemmas 1 to 4, and `beta` of the token mode.
///
/// # Errors
/// Why there are no such figures.
pub fn blockers(system: &System, tasks: usize) -> Result<Blockers, Unknown> {
    let tokens = system.tokens;
    let sizes = tokens.sizes(system.gpus).map_err(|_| Unknown::Parameters)?;
    let (k, rho) = (u64::from(sizes.tokens), u64::from(tokens.per_gpu));
    let queued = sizes.queued_max.map_or(k, u64::from);
    let holders = k.min(queued);
    let users = u32::try_from(tasks).map_err(|_| Unknown::Overflow)?;
    let token = tokens.mode.longest_wait(tokens.cpus, sizes.tokens, users, tokens.affinity).ok_or(Unknown::Mode)?;
    let Some(engines) = system.engines else {
        let alone = rho == 1 && !system.peer_copies;
        let blockers = Blockers { holders, execute: 0, copy: 0, token };
        return if alone { Ok(blockers) } else { Err(Unknown::EnginesUnlocked) };
    };
    if engines.order == LockOrder::Urgency {
        return Err(Unknown::Overtaking);
    }
    let peers = system.peer_copies && system.gpus > 1;
    let copy = match engines.peer {
        _ if !peers => rho - 1,
        PeerLocks::Group => holders - 1,
        PeerLocks::GroupBackfill => 2 * holders - 1,
        PeerLocks::Nested => {
            let locks = u64::from(system.gpus) * u64::from(engines.copy_engines);
            nested_blockers(holders, locks).ok_or(Unknown::Overflow)?
        }
    };
    Ok(Blockers { holders, execute: rho - 1, copy, token })
}

/// Requests that one chunk can meet when `holders` jobs nest two of `locks` FIFO locks; `None` if it does not fit.
///
/// `I(0, x) = x`, `I(d, x) = sum over s = 1..=x of (1 + I(d-1, s-1))`, result `I(w-1, N-1) + I(w-2, N-1)`: the s-th holder
/// ahead can meet at most s-1 requests on its second lock (specification of sharing, 6.3, item 3). The paper's Lemma 4 is
/// smaller, and unsafe. At most 1024 holders and 4096 locks.
#[must_use]
pub fn nested_blockers(holders: u64, locks: u64) -> Option<u64> {
    let others = usize::try_from(holders.checked_sub(1)?).ok().filter(|others| *others < 1_024)?;
    if locks < 2 {
        return Some(others as u64);
    }
    // A chain of locks is never longer than the holders: deeper rounds change nothing.
    let depth = usize::try_from(locks - 1).ok().filter(|depth| *depth < 4_096)?;
    let mut before: Vec<u64> = (0..=others as u64).collect();
    for d in 1..=depth {
        let mut now = vec![0u64; others + 1];
        for x in 1..=others {
            now[x] = now[x - 1].checked_add(before[x - 1])?.checked_add(1)?;
        }
        if d == depth {
            return now[others].checked_add(before[others]);
        }
        before = now;
    }
    None
}

/// Theorems 1 to 3 and Lemma 5 for every task; `None` if something does not fit.
fn bounds(system: &System, blockers: &Blockers, tasks: &[TaskDemand]) -> Option<(Nanos, Vec<TaskBound>)> {
    let mut holds = Vec::new();
    for task in tasks {
        let each = task.acquisitions.iter().map(|use_| token_hold(system, blockers, use_));
        holds.push(each.collect::<Option<Vec<u64>>>()?.into_iter().max().unwrap_or(0));
    }
    let longest = holds.iter().copied().max().unwrap_or(0);
    let one_wait = longest.checked_add(system.grant_latency.0)?.checked_mul(blockers.token)?;
    let mut bounds = Vec::new();
    for (task, hold) in tasks.iter().zip(holds) {
        let token_wait = one_wait.checked_mul(task.acquisitions.len() as u64)?;
        let mut engine_wait = 0u64;
        let mut own = cpu_time(system.cpu, task.cpu_outside, 1)?;
        for use_ in &task.acquisitions {
            engine_wait = engine_wait.checked_add(engine_time(system, use_, blockers.copy, blockers.execute)?)?;
            let engines = use_.copy_time.0.checked_add(use_.execute_time.0)?;
            own = own.checked_add(engines)?.checked_add(holding_cpu(system, use_)?)?;
        }
        let blocking = token_wait.checked_add(engine_wait)?;
        let inflated = own.checked_add(blocking)?;
        let alone = tasks.len() <= system.tokens.cpus as usize && inflated <= task.period.0;
        bounds.push(TaskBound {
            task: task.task,
            token_hold: Nanos(hold),
            token_wait: Nanos(token_wait),
            engine_wait: Nanos(engine_wait),
            blocking: Nanos(blocking),
            inflated: Nanos(inflated),
            response: (alone && system.cpu != CpuGuarantee::Nothing).then_some(Nanos(inflated)),
        });
    }
    Some((Nanos(longest), bounds))
}

/// Lemma 5 with every request counted: `q (NC + 1) LC + e (NE + 1) LE + LP`.
fn token_hold(system: &System, blockers: &Blockers, use_: &Acquisition) -> Option<u64> {
    let engines = engine_time(system, use_, blockers.copy.checked_add(1)?, blockers.execute.checked_add(1)?)?;
    engines.checked_add(holding_cpu(system, use_)?)
}

/// `q` times `copies` chunks and `e` times `executes` kernels of the longest kind.
fn engine_time(system: &System, use_: &Acquisition, copies: u64, executes: u64) -> Option<u64> {
    let copy = use_.copies.checked_mul(copies)?.checked_mul(system.longest_copy.0)?;
    let execute = use_.executes.checked_mul(executes)?.checked_mul(system.longest_execute.0)?;
    copy.checked_add(execute)
}

/// `LP`: CPU time while the token is held; operations cut it into one part more than there are of them.
fn holding_cpu(system: &System, use_: &Acquisition) -> Option<u64> {
    let parts = use_.copies.checked_add(use_.executes)?.checked_add(1)?;
    cpu_time(system.cpu, use_.cpu, parts)
}

/// The longest time in which `cpu` is supplied, in `parts` with suspensions between: under a reservation (`Q` in every `P`)
/// each part takes at most `2 (P - Q) + ceil(x P / Q)`, a linear supply bound.
fn cpu_time(guarantee: CpuGuarantee, cpu: Nanos, parts: u64) -> Option<u64> {
    let CpuGuarantee::Reservation { runtime, period } = guarantee else { return Some(cpu.0) };
    if cpu.0 == 0 {
        return Some(0);
    }
    let gap = period.0.checked_sub(runtime.0)?.checked_mul(2)?;
    let supplied =
        (u128::from(cpu.0) * u128::from(period.0)).checked_add(u128::from(runtime.0) - u128::from(runtime.0 > 0))?;
    let supplied = u64::try_from(supplied.checked_div(u128::from(runtime.0))?).ok()?;
    // Each part rounds up by itself.
    supplied.checked_add(gap.checked_add(1)?.checked_mul(parts)?)
}

fn verdict(system: &System, tasks: &[TaskDemand], bounds: &[TaskBound]) -> TardinessVerdict {
    if let Some(resource) = overload(system, tasks) {
        return TardinessVerdict::No(resource);
    }
    if system.cpu == CpuGuarantee::Nothing {
        return TardinessVerdict::DontKnow(Unknown::CpuNotGuaranteed);
    }
    let late = tasks.iter().zip(bounds).find(|(task, bound)| bound.inflated > task.period);
    if let Some((task, _)) = late {
        return TardinessVerdict::DontKnow(Unknown::LongerThanPeriod(task.task));
    }
    let shares = tasks.iter().zip(bounds).map(|(task, bound)| (bound.inflated, task.period));
    match shares_exceed(shares, u64::from(system.tokens.cpus), true) {
        true => TardinessVerdict::DontKnow(Unknown::Overload),
        false => TardinessVerdict::Yes,
    }
}

/// What the longest jobs, without any blocking, need more of than there is.
fn overload(system: &System, tasks: &[TaskDemand]) -> Option<Resource> {
    let total = |part: fn(&Acquisition) -> Nanos| {
        move |task: &TaskDemand| task.acquisitions.iter().fold(Nanos::ZERO, |sum, use_| sum.saturating_add(part(use_)))
    };
    let (held, copy, execute) = (total(|use_| use_.cpu), total(|use_| use_.copy_time), total(|use_| use_.execute_time));
    let cpu = move |task: &TaskDemand| task.cpu_outside.saturating_add(held(task));
    let all = |task: &TaskDemand| cpu(task).saturating_add(copy(task)).saturating_add(execute(task));
    if let Some(task) = tasks.iter().find(|task| all(task) > task.period) {
        return Some(Resource::Sequence(task.task));
    }
    let exceeds = |demand: &dyn Fn(&TaskDemand) -> Nanos, most: u64| {
        shares_exceed(tasks.iter().map(|task| (demand(task), task.period)), most, false)
    };
    let gpus = u64::from(system.gpus);
    let engines = system.engines.map_or(2, |engines| u64::from(engines.copy_engines));
    if exceeds(&cpu, u64::from(system.tokens.cpus)) {
        return Some(Resource::Cpu);
    }
    if exceeds(&execute, gpus) {
        return Some(Resource::Execute);
    }
    exceeds(&copy, gpus * engines).then_some(Resource::Copy)
}

/// Whether the shares `demand / period` add up to more than `most`, each rounded in units of 2^-40: up for a test that must
/// not be optimistic, down for one that must not be pessimistic. A period of zero exceeds everything.
fn shares_exceed(shares: impl Iterator<Item = (Nanos, Nanos)>, most: u64, up: bool) -> bool {
    let mut sum = 0u128;
    for (demand, period) in shares {
        let (demand, period) = (u128::from(demand.0) << 40, u128::from(period.0));
        if period == 0 {
            return demand > 0 || up;
        }
        sum += if up { demand.div_ceil(period) } else { demand / period };
    }
    sum > u128::from(most) << 40
}
