//! Where a job's time went: every nanosecond from its start to its end, by what it did and which job it waited for.

use std::fmt;

use headway_core::decisions::engine_lock::{EngineRole, LockId};
use headway_core::decisions::sharing::JobId;
use headway_core::units::Nanos;

use super::job::{Op, OpKind};

/// What a job is doing or waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobActivity {
    /// Ready, but more urgent jobs have the CPUs.
    CpuWait,
    /// On a CPU.
    CpuRun,
    /// Waits for a token by priority, lending its priority to nobody.
    TokenQueue,
    /// Waits for a token and lends its priority to a request in a FIFO.
    TokenDonor,
    /// Waits for a token in its FIFO.
    TokenFifo,
    /// Waits for an engine: its lock, or the operations before its own where the driver arbitrates.
    EngineWait,
    /// Has the token or the locks and is not yet told.
    HandOver,
    /// Its copy runs.
    Copy,
    /// Its kernel runs.
    Execute,
}

/// Every share, in the order of the figures.
pub const SHARES: [JobActivity; 9] = [
    JobActivity::CpuWait,
    JobActivity::CpuRun,
    JobActivity::TokenQueue,
    JobActivity::TokenDonor,
    JobActivity::TokenFifo,
    JobActivity::EngineWait,
    JobActivity::HandOver,
    JobActivity::Copy,
    JobActivity::Execute,
];

impl JobActivity {
    /// As tables call it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::CpuWait => "waiting for a CPU",
            Self::CpuRun => "on a CPU",
            Self::TokenQueue => "in the token queue",
            Self::TokenDonor => "waiting for a token as donor",
            Self::TokenFifo => "in a token FIFO",
            Self::EngineWait => "waiting for an engine",
            Self::HandOver => "hand-over",
            Self::Copy => "copying",
            Self::Execute => "executing",
        }
    }
}

/// Who was ahead, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Culprit {
    /// The job that held what was waited for.
    pub job: JobId,
    /// The operation it held an engine for; `None` for a token.
    pub doing: Option<OpKind>,
}

/// One part of a job's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimePart {
    /// What it was.
    pub share: JobActivity,
    /// The engine waited for or used.
    pub engine: Option<LockId>,
    /// Who was ahead.
    pub behind: Option<Culprit>,
    /// How long, in all.
    pub time: Nanos,
    /// Operations (chunks, kernels) of the culprit that were waited for.
    pub operations: u32,
}

/// The partition of one job's time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobBlame {
    parts: Vec<TimePart>,
    /// Number of the operation last waited for, so that a wait in two pieces counts one operation.
    last: Option<(JobId, u32)>,
}

impl JobBlame {
    /// Forgets everything; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.last = None;
    }

    /// Adds `time` to the part of the same share, engine and culprit.
    pub(crate) fn add(
        &mut self,
        share: JobActivity,
        engine: Option<LockId>,
        ahead: Option<(JobId, Option<(OpKind, u32)>)>,
        time: Nanos,
    ) {
        let behind = ahead.map(|(job, op)| Culprit { job, doing: op.map(|(kind, _)| kind) });
        let operation = ahead.and_then(|(job, op)| op.map(|(_, number)| (job, number)));
        let new = u32::from(operation.is_some() && operation != self.last);
        if operation.is_some() {
            self.last = operation;
        }
        let same = |part: &&mut TimePart| (part.share, part.engine, part.behind) == (share, engine, behind);
        match self.parts.iter_mut().find(same) {
            Some(part) => {
                part.time = part.time + time;
                part.operations += new;
            }
            None => self.parts.push(TimePart { share, engine, behind, time, operations: new }),
        }
    }

    /// The parts in the order in which they first occurred.
    #[must_use]
    pub fn parts(&self) -> &[TimePart] {
        &self.parts
    }

    /// Sum of all parts: exactly the time from the job's start to its end.
    #[must_use]
    pub fn total(&self) -> Nanos {
        self.parts.iter().fold(Nanos::ZERO, |sum, part| sum + part.time)
    }

    /// The time of one share.
    #[must_use]
    pub fn of(&self, share: JobActivity) -> Nanos {
        self.parts.iter().filter(|part| part.share == share).fold(Nanos::ZERO, |sum, part| sum + part.time)
    }

    /// One sentence about a late job, largest waits first: those that make up the lateness, at most `most` of them.
    /// `name` gives the names of tasks.
    #[must_use]
    pub fn sentence(&self, job: JobId, late: Nanos, most: usize, name: &dyn Fn(JobId) -> String) -> String {
        let own = |share| matches!(share, JobActivity::CpuRun | JobActivity::Copy | JobActivity::Execute);
        let mut waits: Vec<_> = self.parts.iter().filter(|part| !own(part.share)).collect();
        waits.sort_by_key(|part| std::cmp::Reverse(part.time));
        let mut text = format!("job {} of {}: late by {late}", job.job, name(job));
        for (index, part) in waits.iter().take(most).enumerate() {
            text.push_str(if index == 0 { "; it spent " } else { ", " });
            text.push_str(&format!("{} {}", part.time, part.share.label()));
            if let Some(culprit) = part.behind {
                text.push_str(&format!(" behind {}", name(culprit.job)));
                if let Some(doing) = culprit.doing {
                    let plural = if part.operations == 1 { "" } else { "s" };
                    text.push_str(&format!(" ({doing}, {} operation{plural})", part.operations));
                }
            }
            if let Some(engine) = part.engine {
                text.push_str(&format!(" on {}", engine_name(engine)));
            }
        }
        if waits.is_empty() {
            text.push_str("; it waited for nothing, its own work takes longer than its deadline");
        }
        text
    }
}

/// `gpu2 d2h`; a GPU's only copy engine is called after its inbound role.
#[must_use]
pub fn engine_name(engine: LockId) -> String {
    let unit = match engine.engine {
        EngineRole::Execute => "ee",
        EngineRole::In => "h2d",
        EngineRole::Out => "d2h",
    };
    format!("gpu{} {unit}", engine.gpu.0)
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input copy",
            Self::Output => "output copy",
            Self::StateIn => "state copy-in",
            Self::StateOut => "state copy-out",
            Self::Peer => "peer copy of state",
            Self::Execute => "kernel",
        })
    }
}

impl Op {
    /// The share of time while it runs.
    pub(crate) const fn share(&self) -> JobActivity {
        if matches!(self.kind, OpKind::Execute) { JobActivity::Execute } else { JobActivity::Copy }
    }
}
