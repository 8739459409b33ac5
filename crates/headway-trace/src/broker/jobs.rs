//! What the clients of a broker did, as a run of tasks that share GPUs.

use std::collections::BTreeMap;

use headway_core::decisions::engine_lock::{self, EngineWork, LockId, LockedOperation};
use headway_core::decisions::sharing::log::{BrokerLogLine, BrokerLogStart, Fed, Used};
use headway_core::decisions::sharing::{
    Arbiter, ArbiterAction, ArbiterInput, ClientId, GpuId, JobId, JobPriority, TaskId, TaskParameters,
};
use headway_core::log::RunSource;
use headway_core::plan::Named;
use headway_core::units::{Bytes, Nanos};

use super::BrokerLog;
use crate::sharing::{self, CompletedJob, Doing, GpuEngine, JobSpan, TaskHead, TaskLogHeader, Unit};

/// An operation that was asked for.
struct Asked {
    at: Nanos,
    operation: LockedOperation,
    /// Since when it runs, and on which engines.
    runs: Option<(Nanos, [Option<GpuEngine>; 2])>,
}

/// A job whose end was not read yet.
struct Open {
    key: JobPriority,
    asked: Nanos,
    /// When, on which GPU by position, and where its state was.
    granted: Option<(Nanos, u32, Option<u32>)>,
    engine: Option<Asked>,
    spans: Vec<JobSpan>,
}

impl Open {
    fn new(key: JobPriority, asked: Nanos) -> Self {
        Self { key, asked, granted: None, engine: None, spans: Vec::new() }
    }
}

struct KnownTask {
    client: ClientId,
    /// Position among the tasks.
    at: u32,
}

#[derive(Default)]
struct Reader {
    base: Nanos,
    gpus: Vec<GpuId>,
    tasks: BTreeMap<TaskId, KnownTask>,
    heads: Vec<(TaskId, TaskHead)>,
    /// When the job before ended.
    ended: BTreeMap<u32, Nanos>,
    open: BTreeMap<TaskId, Open>,
    jobs: Vec<CompletedJob>,
    /// Jobs that were aborted, or whose client or GPU went.
    dropped: u64,
    /// Uses of leased engines that clients had no room to tell of.
    untold: u64,
    missing: u64,
}

/// The jobs that began and ended in this file, with their waits; times count from its first line.
///
/// Grants and operations that the broker saw have its times. What clients did by lease has theirs. The rest of the time for
/// which a job held its token counts as time on a CPU.
#[must_use]
pub fn jobs(log: &BrokerLog) -> sharing::TaskLog {
    let mut reader = Reader::default();
    let (mut first, mut arbiter): (Option<&BrokerLogStart>, Option<Arbiter>) = (None, None);
    for (_, line) in &log.lines {
        match line {
            BrokerLogLine::Broker(start) => {
                if first.is_none() {
                    first = Some(start);
                    reader.base = start.now;
                }
                arbiter = start.begin().ok();
                reader.start(start);
            }
            BrokerLogLine::Fed(fed) => reader.fed(fed),
            BrokerLogLine::Task(task) => {
                // Known from before this file, if it was not registered in it.
                if let Some(known) = arbiter.as_ref().and_then(|arbiter| arbiter.task(task.task)) {
                    reader.register(known);
                }
                if let Some(known) = reader.tasks.get(&task.task) {
                    reader.heads[known.at as usize].1.id = task.name.clone();
                }
            }
            BrokerLogLine::Used(used) => reader.used(used),
            _ => {}
        }
    }
    let header = first.map(|start| reader.header(start, log.torn));
    let header = header.expect("a log is read only if it begins with the start of a broker");
    sharing::TaskLog { header, jobs: reader.jobs, incomplete: None }
}

const fn unit(engine: engine_lock::EngineRole) -> Unit {
    match engine {
        engine_lock::EngineRole::Execute => Unit::Ee,
        engine_lock::EngineRole::In => Unit::H2d,
        engine_lock::EngineRole::Out => Unit::D2h,
    }
}

impl Reader {
    fn at(&self, time: Nanos) -> Nanos {
        time.saturating_sub(self.base)
    }

    fn position(&self, gpu: GpuId) -> u32 {
        let at = self.gpus.iter().position(|known| *known == gpu).unwrap_or(0);
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn engine(&self, lock: LockId) -> GpuEngine {
        GpuEngine { gpu: self.position(lock.gpu), unit: unit(lock.engine) }
    }

    fn start(&mut self, start: &BrokerLogStart) {
        self.gpus = start.arbiter.clusters.iter().flat_map(|cluster| cluster.gpus.clone()).collect();
        self.missing = self.missing.saturating_add(start.missing);
        // What is open is told anew by who is still there, or its end is missing.
        self.dropped += self.open.len() as u64;
        self.open.clear();
    }

    fn register(&mut self, task: &TaskParameters) {
        if let Some(known) = self.tasks.get_mut(&task.id) {
            known.client = task.client;
            return;
        }
        let at = u32::try_from(self.heads.len()).unwrap_or(u32::MAX);
        let id = format!("task {}", task.id.0);
        self.heads.push((task.id, TaskHead { id, period: task.period, bound: None }));
        self.tasks.insert(task.id, KnownTask { client: task.client, at });
    }

    fn fed(&mut self, fed: &Fed) {
        if fed.refused.is_some() {
            return;
        }
        let now = self.at(fed.now);
        match &fed.input {
            ArbiterInput::Register(task) => self.register(task),
            ArbiterInput::Request { key, .. } | ArbiterInput::Adopt { key, .. } => {
                self.open.insert(key.job.task, Open::new(*key, now));
            }
            ArbiterInput::Acquire { job, operation } => {
                if let Some(open) = self.open_mut(*job) {
                    open.engine = Some(Asked { at: now, operation: *operation, runs: None });
                }
            }
            ArbiterInput::Complete { job } => self.complete(now, *job),
            ArbiterInput::Release { job, .. } => self.end(now, *job),
            ArbiterInput::Abort { job } => self.drop_open(job.task),
            // Who only waited is gone at once, who held something when that is free again.
            ArbiterInput::ClientGone { client } => self.drop_open_of(*client, |open| open.granted.is_none()),
            ArbiterInput::Drained { client } => self.drop_open_of(*client, |_| true),
            _ => {}
        }
        for action in &fed.actions {
            match action {
                ArbiterAction::Grant { job, gpu, from, .. } => {
                    let (gpu, from) = (self.position(*gpu), from.map(|from| self.position(from)));
                    if let Some(open) = self.open_mut(*job) {
                        open.granted = Some((now, gpu, from));
                    }
                }
                ArbiterAction::Run { job, locks } => {
                    let mut locks = locks.iter().map(|lock| self.engine(*lock));
                    let engines = [locks.next(), locks.next()];
                    if let Some(asked) = self.open_mut(*job).and_then(|open| open.engine.as_mut()) {
                        asked.runs = Some((now, engines));
                    }
                }
                ArbiterAction::Revoke { job, .. } => self.drop_open(job.task),
                ArbiterAction::Obtained { .. } | ArbiterAction::SetBoost { .. } => {}
            }
        }
    }

    fn open_mut(&mut self, job: JobId) -> Option<&mut Open> {
        self.open.get_mut(&job.task).filter(|open| open.key.job == job)
    }

    fn drop_open(&mut self, task: TaskId) {
        self.dropped += u64::from(self.open.remove(&task).is_some());
    }

    fn drop_open_of(&mut self, client: ClientId, goes: impl Fn(&Open) -> bool) {
        let theirs = self
            .open
            .iter()
            .filter(|(task, open)| self.tasks.get(task).is_some_and(|known| known.client == client) && goes(open));
        let theirs: Vec<TaskId> = theirs.map(|(task, _)| *task).collect();
        theirs.into_iter().for_each(|task| self.drop_open(task));
    }

    fn complete(&mut self, now: Nanos, job: JobId) {
        let Some(open) = self.open_mut(job) else { return };
        let Some(Asked { at, operation, runs: Some((begin, engines)) }) = open.engine.take() else { return };
        open.spans.push(JobSpan { doing: Doing::EngineWait, begin: at, end: begin, engines, bytes: Bytes(0) });
        let (doing, bytes) = match operation.work {
            EngineWork::Execute => (Doing::Execute, Bytes(0)),
            // How much is copied under a lease that ends meanwhile is not known.
            _ if operation.bytes == Bytes(u64::MAX) => (Doing::Copy, Bytes(0)),
            _ => (Doing::Copy, operation.bytes),
        };
        open.spans.push(JobSpan { doing, begin, end: now, engines, bytes });
    }

    fn used(&mut self, used: &Used) {
        self.untold = self.untold.saturating_add(used.missing);
        let engine = self.engine(used.lock);
        let (begin, end) = (self.at(used.begin), self.at(used.end));
        let doing = if engine.unit == Unit::Ee { Doing::Execute } else { Doing::Copy };
        if let Some(open) = self.open_mut(used.job) {
            open.spans.push(JobSpan { doing, begin, end, engines: [Some(engine), None], bytes: Bytes(0) });
        }
    }

    fn end(&mut self, now: Nanos, job: JobId) {
        // An operation whose end was not told has ended by now.
        self.complete(now, job);
        let Some(open) = self.open.remove(&job.task) else { return };
        let (Some((granted, gpu, from)), Some(known)) = (open.granted, self.tasks.get(&job.task)) else {
            self.dropped += 1;
            return;
        };
        let task = known.at;
        let release = self.at(open.key.release);
        let start = release.max(self.ended.get(&task).copied().unwrap_or_default()).min(open.asked);
        let spans = line_up(start, open.asked, granted, now, open.spans);
        let waited = |doing| spans.iter().filter(move |span: &&JobSpan| span.doing == doing).map(JobSpan::time);
        let blocked =
            [Doing::TokenWait, Doing::EngineWait].map(|doing| waited(doing).fold(Nanos::ZERO, Nanos::saturating_add));
        self.ended.insert(task, now);
        self.jobs.push(CompletedJob {
            task,
            job: job.job,
            release,
            start,
            deadline: self.at(open.key.deadline),
            done: now,
            held: [granted, now],
            gpu,
            from,
            blocked,
            spans,
        });
    }

    fn header(&mut self, start: &BrokerLogStart, torn: u64) -> TaskLogHeader {
        let mut count: BTreeMap<String, u32> = BTreeMap::new();
        for (_, head) in &self.heads {
            *count.entry(head.id.clone()).or_insert(0) += 1;
        }
        let tasks = std::mem::take(&mut self.heads).into_iter().map(|(id, head)| {
            let name = if count[&head.id] > 1 { format!("{} ({})", head.id, id.0) } else { head.id.clone() };
            TaskHead { id: name, ..head }
        });
        let tokens = start.arbiter.clusters.first().map(|cluster| cluster.tokens);
        let mut notes = vec![
            "times are the broker's; of engines used by lease they are what the clients told".to_owned(),
            "the rest of the time for which a job held its token is shown as time on a CPU".to_owned(),
        ];
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        note(self.dropped, "jobs have no end here: given up, lost with their client or GPU, or open at a start or gap");
        note(self.untold, "uses of leased engines were not told: the broker had too many unread");
        note(self.missing, "lines could not be written");
        note(torn, "lines were cut off");
        let none = |name: String| Named { name, hash: String::new() };
        TaskLogHeader {
            schema: sharing::SCHEMA,
            kind: sharing::KIND.to_owned(),
            source: RunSource::Broker,
            version: start.version.clone(),
            commit: "unknown".to_owned(),
            seed: 0,
            workload: none(format!("clients of a broker, start {}", start.epoch)),
            machine: none(format!("{} GPUs", self.gpus.len())),
            gpus: self.gpus.iter().map(|gpu| format!("gpu{}", gpu.0)).collect(),
            cpus: tokens.map_or(0, |tokens| tokens.cpus),
            tokens_per_gpu: tokens.map_or(0, |tokens| tokens.per_gpu),
            mode: tokens.map_or_else(String::new, |tokens| format!("{:?}", tokens.mode).to_lowercase()),
            engine_locks: start.arbiter.engines.is_some(),
            tasks: tasks.collect(),
            notes,
        }
    }
}

/// The spans of a job in order and without overlap, with what is between them.
fn line_up(start: Nanos, asked: Nanos, granted: Nanos, done: Nanos, mut spans: Vec<JobSpan>) -> Vec<JobSpan> {
    let cpu = |begin, end| JobSpan { doing: Doing::Cpu, begin, end, engines: [None, None], bytes: Bytes(0) };
    let waits = JobSpan { doing: Doing::TokenWait, ..cpu(asked, granted) };
    let mut line = vec![cpu(start, asked), waits];
    let mut at = granted;
    spans.sort_by_key(|span| (span.begin, span.end));
    for span in spans {
        // A client's times may overlap what the broker saw of the same use, and need not be true.
        let (begin, end) = (span.begin.max(at), span.end.min(done));
        if begin < end {
            line.push(cpu(at, begin));
            line.push(JobSpan { begin, end, ..span });
            at = end;
        }
    }
    line.push(cpu(at, done));
    line.retain(|span| span.begin < span.end);
    line
}
