//! What the clients of a broker did, as a run of tasks that share GPUs.

use std::collections::BTreeMap;

use headway_core::decisions::broker::log::{BrokerLogLine, BrokerLogStart, Fed};
use headway_core::decisions::broker::{Action, Book, Input, LeaseInUse, Reply, Slot};
use headway_core::decisions::engine_lock::{self, EngineWork, LockId};
use headway_core::decisions::sharing::{ClientId, GpuId, JobId, JobPriority, TaskId};
use headway_core::log::RunSource;
use headway_core::plan::Named;
use headway_core::units::{Bytes, Nanos};

use super::BrokerLog;
use crate::sharing::{self, CompletedJob, Doing, GpuEngine, JobSpan, TaskHead, TaskLogHeader, Unit};

/// An operation that was asked for.
struct Asked {
    at: Nanos,
    doing: Doing,
    bytes: Bytes,
    /// Since when it runs, and on which engines.
    runs: Option<(Nanos, [Option<GpuEngine>; 2])>,
}

/// A token that was granted.
struct Granted {
    at: Nanos,
    key: JobPriority,
    /// By position.
    gpu: u32,
    /// Where its state was.
    from: Option<u32>,
}

/// A job whose end was not read yet.
struct Open {
    job: JobId,
    asked: Nanos,
    granted: Option<Granted>,
    engine: Option<Asked>,
    spans: Vec<JobSpan>,
}

impl Open {
    fn new(job: JobId, asked: Nanos) -> Self {
        Self { job, asked, granted: None, engine: None, spans: Vec::new() }
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
    let mut first: Option<&BrokerLogStart> = None;
    for (_, line) in &log.lines {
        match line {
            BrokerLogLine::Broker(start) => {
                if first.is_none() {
                    first = Some(start);
                    reader.base = start.now;
                }
                reader.start(start);
            }
            BrokerLogLine::Fed(fed) => reader.fed(fed),
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
        // Known from before this file.
        let book: Option<Book> = start.begin().ok();
        for (id, task) in book.iter().flat_map(Book::tasks) {
            self.register(*id, task.client, &task.name, task.period);
        }
    }

    fn register(&mut self, id: TaskId, client: ClientId, name: &str, period: Nanos) {
        if let Some(known) = self.tasks.get_mut(&id) {
            known.client = client;
            return;
        }
        let at = u32::try_from(self.heads.len()).unwrap_or(u32::MAX);
        self.heads.push((id, TaskHead { id: name.to_owned(), period, bound: None }));
        self.tasks.insert(id, KnownTask { client, at });
    }

    fn fed(&mut self, fed: &Fed) {
        let now = self.at(fed.now);
        match &fed.input {
            Input::Greeting { client, resumed, .. } if refusals(fed).next().is_none() => {
                for task in resumed {
                    self.register(task.id, *client, &task.shape.name, task.shape.period);
                }
            }
            Input::Register { client, shape, .. } => {
                let reply = fed.actions.iter().find_map(|action| match action {
                    Action::Reply { reply: Reply::Registered { task }, .. } => Some(*task),
                    _ => None,
                });
                if let Some(task) = reply {
                    self.register(task, *client, &shape.name, shape.period);
                }
            }
            Input::Request { slot, job, .. } if !refusals(fed).any(|refused| refused == Some(*slot)) => {
                self.open.insert(job.task, Open::new(*job, now));
            }
            Input::Acquire { slot, job, operation, .. } if !refusals(fed).any(|refused| refused == Some(*slot)) => {
                if let Some(open) = self.open_mut(*job) {
                    let (doing, bytes) = match operation.work {
                        EngineWork::Execute => (Doing::Execute, Bytes(0)),
                        _ => (Doing::Copy, operation.bytes),
                    };
                    open.engine = Some(Asked { at: now, doing, bytes, runs: None });
                }
            }
            Input::LeasesEnded { in_use, .. } => in_use.iter().for_each(|held| self.runs_by_lease(now, *held)),
            Input::Used { job, lock, begin, end, missing, .. } => self.used(*job, *lock, [*begin, *end], *missing),
            Input::Returned { job } => self.complete(now, *job),
            Input::Release { job, .. } => self.end(now, *job),
            Input::Abort { job, .. } if self.open_mut(*job).is_some_and(|open| open.granted.is_some()) => {
                self.end(now, *job);
            }
            Input::Abort { job, .. } => self.drop_open(job.task),
            _ => {}
        }
        for action in &fed.actions {
            self.decided(now, action);
        }
    }

    fn decided(&mut self, now: Nanos, action: &Action) {
        match action {
            Action::Grant { key, gpu, from, .. } => {
                let (gpu, from) = (self.position(*gpu), from.map(|from| self.position(from)));
                // One that comes back with its token has not asked for it here.
                let open = self.open.entry(key.job.task).or_insert_with(|| Open::new(key.job, now));
                if open.job == key.job {
                    open.granted = Some(Granted { at: now, key: *key, gpu, from });
                }
            }
            Action::Run { job, locks, .. } => {
                let mut locks = locks.iter().map(|lock| self.engine(*lock));
                let engines = [locks.next(), locks.next()];
                if let Some(asked) = self.open_mut(*job).and_then(|open| open.engine.as_mut()) {
                    asked.runs = Some((now, engines));
                }
            }
            Action::TakeBack { task, .. } => {
                // Of one that was not given back when the job ended, or of none that was known.
                if let Some(open) = self.open.get_mut(task) {
                    open.engine = None;
                }
            }
            Action::Revoke { job, .. } => self.drop_open(job.task),
            // Who only waited is gone at once, who held something when that is free again.
            Action::Shut { client } => self.drop_open_of(*client, |open| open.granted.is_none()),
            Action::Remove { client } => self.drop_open_of(*client, |_| true),
            _ => {}
        }
    }

    /// A job uses an engine by a lease that has ended. How much it copies is not known.
    fn runs_by_lease(&mut self, now: Nanos, held: LeaseInUse) {
        let engine = self.engine(held.lock);
        let doing = if engine.unit == Unit::Ee { Doing::Execute } else { Doing::Copy };
        if let Some(open) = self.open.get_mut(&held.task) {
            open.engine = Some(Asked { at: now, doing, bytes: Bytes(0), runs: Some((now, [Some(engine), None])) });
        }
    }

    fn open_mut(&mut self, job: JobId) -> Option<&mut Open> {
        self.open.get_mut(&job.task).filter(|open| open.job == job)
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
        let Some(Asked { at, doing, bytes, runs: Some((begin, engines)) }) = open.engine.take() else { return };
        open.spans.push(JobSpan { doing: Doing::EngineWait, begin: at, end: begin, engines, bytes: Bytes(0) });
        open.spans.push(JobSpan { doing, begin, end: now, engines, bytes });
    }

    fn used(&mut self, job: JobId, lock: LockId, [begin, end]: [Nanos; 2], missing: u64) {
        self.untold = self.untold.saturating_add(missing);
        let engine = self.engine(lock);
        let (begin, end) = (self.at(begin), self.at(end));
        let doing = if engine.unit == Unit::Ee { Doing::Execute } else { Doing::Copy };
        if let Some(open) = self.open_mut(job) {
            open.spans.push(JobSpan { doing, begin, end, engines: [Some(engine), None], bytes: Bytes(0) });
        }
    }

    fn end(&mut self, now: Nanos, job: JobId) {
        // An operation whose end was not told has ended by now.
        self.complete(now, job);
        let Some(open) = self.open.remove(&job.task) else { return };
        let (Some(Granted { at: granted, key, gpu, from }), Some(known)) = (open.granted, self.tasks.get(&job.task))
        else {
            self.dropped += 1;
            return;
        };
        let task = known.at;
        let release = self.at(key.release);
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
            deadline: self.at(key.deadline),
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

/// What was refused: slots of requests, and `None` for a message.
fn refusals(fed: &Fed) -> impl Iterator<Item = Option<Slot>> {
    fed.actions.iter().filter_map(|action| match action {
        Action::Refuse { slot, .. } => Some(Some(*slot)),
        Action::Reply { reply: Reply::Refused { .. }, .. } => Some(None),
        _ => None,
    })
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
