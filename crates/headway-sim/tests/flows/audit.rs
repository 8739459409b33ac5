//! Checks of a simulated run of flows: which chunk is on an engine, the order of chunks, when jobs are released and due, and how long they take.
//! It shares no code with the book and the line.

use std::collections::BTreeMap;

use headway_core::decisions::flows::{ChunkOwner, FlowBlame, FlowFault, FlowJobReport};
use headway_core::units::Nanos;

/// A chunk as it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuditedChunk {
    /// `None` = nothing was promised.
    pub(super) deadline: Option<Nanos>,
    pub(super) staging: bool,
}

#[derive(Debug)]
struct AuditedJob {
    release: Nanos,
    deadline: Nanos,
}

/// One engine.
#[derive(Debug)]
pub(super) struct Audit {
    /// The most chunks without a promise at a time: copies, staging.
    pub(super) limits: [usize; 2],
    waiting: BTreeMap<u64, AuditedChunk>,
    running: BTreeMap<u64, AuditedChunk>,
    jobs: BTreeMap<(u64, u64), AuditedJob>,
    last: BTreeMap<u64, Nanos>,
    /// Assumptions that were broken since no promised job was there the last time.
    injected: Vec<FlowFault>,
    pub(super) fullest_ppm: u64,
    pub(super) beyond: u64,
}

fn is_same(a: &FlowFault, b: &FlowFault) -> bool {
    fn owner(fault: &FlowFault) -> Option<&ChunkOwner> {
        match fault {
            FlowFault::AskedLate { owner, .. }
            | FlowFault::LongChunk { owner, .. }
            | FlowFault::LargeChunk { owner, .. }
            | FlowFault::ManyChunks { owner, .. }
            | FlowFault::Gaps { owner, .. } => Some(owner),
            _ => None,
        }
    }
    std::mem::discriminant(a) == std::mem::discriminant(b) && owner(a) == owner(b)
}

impl Audit {
    pub(super) fn new(limits: [usize; 2]) -> Self {
        Self {
            limits,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            jobs: BTreeMap::new(),
            last: BTreeMap::new(),
            injected: Vec::new(),
            fullest_ppm: 0,
            beyond: 0,
        }
    }

    pub(super) fn asked(&mut self, chunk: u64, what: AuditedChunk) {
        self.waiting.insert(chunk, what);
    }

    pub(super) fn started(&mut self, chunk: u64) -> Result<(), String> {
        let started =
            self.waiting.remove(&chunk).ok_or_else(|| format!("chunk {chunk} starts without having asked"))?;
        let promised = |chunks: &BTreeMap<u64, AuditedChunk>| -> Option<Nanos> {
            chunks.values().filter_map(|chunk| chunk.deadline).min()
        };
        if promised(&self.running).is_some() {
            return Err(format!("{started:?} starts beside a promised chunk"));
        }
        match (started.deadline, promised(&self.waiting)) {
            (Some(deadline), Some(earlier)) if earlier < deadline => {
                return Err(format!("{started:?} starts before a chunk with the deadline {earlier}"));
            }
            (None, Some(deadline)) => {
                return Err(format!("{started:?} starts before a chunk with the deadline {deadline}"));
            }
            _ => {}
        }
        self.running.insert(chunk, started);
        for (at, limit) in self.limits.into_iter().enumerate() {
            let there =
                self.running.values().filter(|of| of.deadline.is_none() && usize::from(of.staging) == at).count();
            if there > limit {
                return Err(format!("{there} chunks without a promise are on the engine, {limit} may be"));
            }
        }
        Ok(())
    }

    pub(super) fn ended(&mut self, chunk: u64) -> Result<(), String> {
        self.running.remove(&chunk).map(|_| ()).ok_or_else(|| format!("chunk {chunk} ends without having started"))
    }

    /// Nothing can start now: nobody waits for an engine that is free for it.
    pub(super) fn is_quiet(&self) -> Result<(), String> {
        let is_promised = |of: &&AuditedChunk| of.deadline.is_some();
        if self.running.values().any(|of| of.deadline.is_some()) {
            return Ok(());
        }
        if self.waiting.values().any(|of| is_promised(&of)) {
            return Err("a promised chunk waits for nobody".to_owned());
        }
        for (at, limit) in self.limits.into_iter().enumerate() {
            let of_party = |chunks: &BTreeMap<u64, AuditedChunk>| {
                chunks.values().filter(|of| usize::from(of.staging) == at).count()
            };
            if of_party(&self.waiting) > 0 && of_party(&self.running) < limit {
                return Err("a chunk without a promise starves".to_owned());
            }
        }
        Ok(())
    }

    /// A job was accepted at `now`; when it must be released and due.
    pub(super) fn submitted(
        &mut self,
        now: Nanos,
        (flow, sequence): (u64, u64),
        (period, deadline): (Nanos, Nanos),
    ) -> (Nanos, Nanos) {
        let release = self.last.get(&flow).map_or(now, |last| now.max(Nanos(last.0.saturating_add(period.0))));
        self.last.insert(flow, release);
        let deadline = Nanos(release.0 + deadline.0);
        self.jobs.insert((flow, sequence), AuditedJob { release, deadline });
        (release, deadline)
    }

    pub(super) fn injected(&mut self, fault: &FlowFault) {
        self.injected.push(fault.clone());
    }

    /// A job is over, as the book reports.
    pub(super) fn reported(&mut self, now: Nanos, job: (u64, u64), report: &FlowJobReport) -> Result<(), String> {
        let AuditedJob { release, deadline } =
            self.jobs.remove(&job).ok_or_else(|| format!("job {job:?} was not accepted"))?;
        let response = Nanos(now.0 - release.0);
        if report.response != response || (now > deadline) != report.missed {
            return Err(format!("job {job:?} took {response} and was due at {deadline}: {report:?}"));
        }
        if report.bound.0 > deadline.0 - release.0 {
            return Err(format!("the bound is beyond the deadline: {report:?}"));
        }
        let blamed = || {
            report.blame.iter().filter_map(|blame| match blame {
                FlowBlame::Fault(fault) => Some(fault),
                _ => None,
            })
        };
        // Copies without a promise use gaps. A chunk that takes too long is part of what all take together, and so is a job.
        let follows = |fault: &FlowFault| {
            let has_gap = self.injected.iter().any(|of| matches!(of, FlowFault::Gaps { .. }));
            let is_long = |of: &FlowFault| {
                matches!(of, FlowFault::LateTogether { .. })
                    || matches!(of, FlowFault::LongChunk { owner, .. } if *owner != ChunkOwner::Unpromised)
            };
            has_gap && matches!(fault, FlowFault::ManyChunks { owner: ChunkOwner::Unpromised, .. })
                || is_long(fault) && self.injected.iter().any(is_long)
        };
        let happened = |fault: &FlowFault| follows(fault) || self.injected.iter().any(|of| is_same(of, fault));
        if let Some(wrong) = blamed().find(|fault| !happened(fault)) {
            return Err(format!("{wrong} is blamed, and did not happen: {report:?}, {:?}", self.injected));
        }
        if response > report.bound {
            if self.injected.is_empty() {
                return Err(format!("job {job:?} took {response} and no assumption was broken: {report:?}"));
            }
            self.beyond += 1;
            if blamed().next().is_none() {
                return Err(format!("job {job:?} took {response} and does not name {:?}: {report:?}", self.injected));
            }
        } else if self.injected.is_empty() {
            self.fullest_ppm = self.fullest_ppm.max(response.0 * 1_000_000 / report.bound.0.max(1));
        }
        if self.is_idle(now) {
            self.injected.clear();
        }
        Ok(())
    }

    /// No promised job is there.
    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        self.jobs.values().all(|job| job.release > now)
    }

    /// All has ended.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.running.values().all(|of| of.deadline.is_none())
    }
}
