//! What a simulation tells while it runs: a log of every step, and every job when it is complete.

use headway_core::decisions::engine_lock::LockId;
use headway_core::decisions::sharing::JobId;
use headway_core::units::Nanos;

use super::job::OpKind;

/// One line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SimRecord {
    pub at: Nanos,
    pub job: JobId,
    /// What happened.
    pub what: SimEvent,
}

/// What a job did or what was done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SimEvent {
    /// It is released and its predecessor is complete.
    Started,
    /// It has a CPU.
    OnCpu,
    /// A more urgent job took its CPU.
    Preempted,
    /// It wants a token.
    Asked,
    /// It has a token, or the load balancer's choice.
    Granted {
        /// Position of the GPU.
        gpu: u32,
        /// Where its state is, if elsewhere.
        from: Option<u32>,
    },
    /// It wants the locks of an operation.
    Acquiring {
        /// What for.
        kind: OpKind,
    },
    /// It has the first of two locks.
    Obtained { lock: LockId },
    /// Its operation begins.
    Running {
        kind: OpKind,
        /// On which engine; a peer copy also runs on the source's.
        engine: LockId,
    },
    /// Its operation is complete.
    Ran { kind: OpKind },
    /// It gave its token back.
    Released,
    /// It is complete.
    Completed,
}

/// Blocking while the job was among the `m` most urgent: what the analysis bounds (`elliott-2013`, appendix).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Waiting for the token.
    pub token: Nanos,
    /// Longest wait of one copy for its locks.
    pub copy_max: Nanos,
    /// Longest wait of one kernel segment for its lock.
    pub execute_max: Nanos,
    /// All waits for engines.
    pub engines: Nanos,
}

impl Blocked {
    /// Token and engines together.
    #[must_use]
    pub fn total(&self) -> Nanos {
        self.token + self.engines
    }
}

/// A complete job.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    pub job: JobId,
    pub release: Nanos,
    /// The later of its release and its predecessor's completion.
    pub start: Nanos,
    /// Absolute deadline.
    pub deadline: Nanos,
    /// When the last segment had completed.
    pub done: Nanos,
    /// Position of its GPU.
    pub gpu: u32,
    /// Where its state was, if elsewhere.
    pub from: Option<u32>,
    /// Blocking that the analysis bounds.
    pub blocked: Blocked,
}

impl Finished {
    /// Completion minus start (`elliott-2013`, 5, "Experimental Setup").
    #[must_use]
    pub fn response(&self) -> Nanos {
        self.done - self.start
    }

    /// By how much it missed its deadline.
    #[must_use]
    pub fn tardiness(&self) -> Nanos {
        self.done.saturating_sub(self.deadline)
    }
}

/// Gets what happens in the simulation.
pub trait SimObserver {
    /// Whether it gets the state of the CPUs at every instant.
    const WATCHES_CPUS: bool = false;

    /// Whether the simulation should go on. The simulation calls it before every instant; the jobs that are not complete then are lost.
    fn goes_on(&self) -> bool {
        true
    }

    /// A line of the log, in order.
    fn record(&mut self, record: &SimRecord) {
        let _ = record;
    }

    /// Jobs on a CPU and jobs that wait for one, once everything that happens at `now` is done. An instant may be told in
    /// several parts.
    fn cpus(&mut self, now: Nanos, running: usize, waiting: usize) {
        let _ = (now, running, waiting);
    }

    /// A complete job, in order of completion.
    fn job(&mut self, finished: &Finished) {
        let _ = finished;
    }
}

/// Totals of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimTotals {
    /// Jobs completed.
    pub jobs: u64,
    /// Of them, those whose state was on another GPU.
    pub migrations: u64,
    /// Time the CPUs ran jobs, all together.
    pub cpu: Nanos,
    /// Time each engine ran: `ee`, `h2d`, `d2h` of the first GPU, then of the next; a single copy engine is `h2d`.
    pub engines: Vec<Nanos>,
    /// Instants at which something happened.
    pub instants: u64,
}
