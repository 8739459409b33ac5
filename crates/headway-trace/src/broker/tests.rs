//! Logs as a broker writes them, replayed and told as jobs.

use headway_core::decisions::engine_lock;
use headway_core::decisions::engine_lock::{EngineParameters, EngineWork, LockId, LockOrder, PeerLocks};
use headway_core::decisions::predictor::PredictorParameters;
use headway_core::decisions::sharing::log::{BrokerLogStart, Fed, StartReason, TaskLine, Used};
use headway_core::decisions::sharing::{
    Arbiter, ArbiterInput, ArbiterLimits, ArbiterParameters, ClientId, ClusterId, ClusterParameters, GpuId, JobId,
    JobPriority, TaskId, TaskParameters, TokenOutcome,
};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::{Bytes, Nanos};

use super::*;
use crate::sharing::{Doing, GpuEngine, Unit};

/// A broker of one GPU with one token, as far as its log goes.
struct Broker {
    parameters: ArbiterParameters,
    arbiter: Arbiter,
    lines: Vec<BrokerLogLine>,
}

impl Broker {
    fn new() -> Self {
        let tokens =
            TokenParameters { cpus: 4, per_gpu: 1, mode: TokenMode::Fifo, affinity: false, discount_holder: false };
        let engines = EngineParameters {
            copy_engines: 2,
            peer: PeerLocks::Group,
            order: LockOrder::Arrival,
            chunk_bytes: None,
            keep_bytes: Bytes(0),
            unlocked_below: Bytes(0),
            watchdog: Nanos(0),
        };
        let parameters = ArbiterParameters {
            clusters: vec![ClusterParameters::equal(1, tokens)],
            engines: Some(engines),
            predictor: PredictorParameters::default(),
            limits: ArbiterLimits::default(),
        };
        let mut this = Self { arbiter: Arbiter::new(parameters.clone()).unwrap(), parameters, lines: Vec::new() };
        this.start(1_000, StartReason::Started);
        this
    }

    fn start(&mut self, now: u64, why: StartReason) {
        let start = BrokerLogStart::of(&self.arbiter, &self.parameters, 3, Nanos(now), why);
        self.lines.push(BrokerLogLine::Broker(Box::new(start)));
    }

    fn feed(&mut self, now: u64, input: ArbiterInput) {
        let now = Nanos(now);
        let refused = self.arbiter.handle(now, &input).err();
        let actions = std::iter::from_fn(|| self.arbiter.poll_action()).collect();
        while self.arbiter.poll_event().is_some() {}
        self.lines.push(BrokerLogLine::Fed(Fed { now, input, actions, refused }));
    }

    fn register(&mut self, now: u64, id: u32) {
        let (task, client) = (TaskId(id), ClientId(u64::from(id)));
        self.feed(
            now,
            ArbiterInput::Register(TaskParameters {
                id: task,
                client,
                cluster: ClusterId(0),
                period: Nanos(1_000),
                deadline: Nanos(1_000),
                state: Bytes(0),
                segments: Vec::new(),
            }),
        );
        self.name(now, id);
    }

    fn name(&mut self, now: u64, id: u32) {
        let (task, client) = (TaskId(id), ClientId(u64::from(id)));
        self.lines.push(BrokerLogLine::Task(TaskLine {
            now: Nanos(now),
            task,
            name: format!("t{id}"),
            client,
            pid: 7,
            uid: 8,
        }));
    }

    fn text(&self) -> String {
        self.lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect()
    }
}

fn read(text: &str) -> Result<BrokerLog, LogError> {
    BrokerLog::read(text.as_bytes(), "test")
}

fn job(task: u32) -> JobId {
    JobId { task: TaskId(task), job: 1 }
}

fn request(task: u32, release: u64) -> ArbiterInput {
    let key = JobPriority { deadline: Nanos(release + 1_000), release: Nanos(release), job: job(task) };
    ArbiterInput::Request { key, acquisition: 0 }
}

fn acquire(task: u32, work: EngineWork, bytes: u64) -> ArbiterInput {
    let operation = engine_lock::LockedOperation { work, bytes: Bytes(bytes), predicted: Nanos(0), budget: Nanos(0) };
    ArbiterInput::Acquire { job: job(task), operation }
}

fn release(task: u32) -> ArbiterInput {
    ArbiterInput::Release { job: job(task), outcome: TokenOutcome::Complete(Nanos(5)) }
}

/// Two tasks share the GPU: the second waits for the token while the first copies and uses the execution engine by lease.
fn two() -> Broker {
    let mut broker = Broker::new();
    broker.register(1_000, 1);
    broker.register(1_000, 2);
    broker.feed(1_100, request(1, 1_090));
    broker.feed(1_150, request(2, 1_140));
    broker.feed(1_200, acquire(1, EngineWork::CopyIn, 64));
    broker.feed(1_260, ArbiterInput::Complete { job: job(1) });
    let lock = LockId { gpu: GpuId(0), engine: engine_lock::EngineRole::Execute };
    let used = Used { now: Nanos(1_400), job: job(1), lock, begin: Nanos(1_300), end: Nanos(1_380), missing: 2 };
    broker.lines.push(BrokerLogLine::Used(used));
    broker.feed(1_400, release(1));
    broker
}

#[test]
fn a_log_replays_and_one_that_was_changed_does_not() {
    let mut broker = two();
    broker.feed(1_450, acquire(1, EngineWork::Execute, 0));
    let text = broker.text();
    let replayed = replay(&read(&text).unwrap()).unwrap();
    assert_eq!((replayed.starts, replayed.inputs, replayed.refused), (1, 8, 1));
    assert!(replayed.actions >= 3, "{replayed:?}");
    // The second grant goes to another task.
    let at = text.rfind("{\"grant\":{\"job\":{\"task\":2").unwrap();
    let changed = format!("{}{}", &text[..at], text[at..].replacen("\"task\":2", "\"task\":1", 1));
    let Err(BrokerDivergence::Decision { line, .. }) = replay(&read(&changed).unwrap()) else { panic!("it replays") };
    assert_eq!(line, 11);
    let changed = text.replacen("\\\"now\\\":0", "\\\"now\\\":1", 1);
    assert_ne!(changed, text);
    assert!(matches!(replay(&read(&changed).unwrap()), Err(BrokerDivergence::Start { line: 1, .. })));
}

#[test]
fn jobs_are_told_with_what_they_waited_for_and_what_they_did_by_lease() {
    let mut broker = two();
    broker.feed(1_500, release(2));
    let shared = jobs(&read(&broker.text()).unwrap());
    let names: Vec<&str> = shared.header.tasks.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(names, ["t1", "t2"]);
    let spans = |at: usize| {
        let all = shared.jobs[at].spans.iter();
        all.map(|span| (span.doing, span.begin.0, span.end.0)).collect::<Vec<_>>()
    };
    assert_eq!(
        spans(0),
        [
            (Doing::Cpu, 90, 100),
            (Doing::Cpu, 100, 200),
            (Doing::Copy, 200, 260),
            (Doing::Cpu, 260, 300),
            (Doing::Execute, 300, 380),
            (Doing::Cpu, 380, 400)
        ]
    );
    let ee = GpuEngine { gpu: 0, unit: Unit::Ee };
    assert_eq!(shared.jobs[0].spans[4].engines, [Some(ee), None]);
    assert_eq!(spans(1), [(Doing::Cpu, 140, 150), (Doing::TokenWait, 150, 400), (Doing::Cpu, 400, 500)]);
    assert_eq!(shared.jobs[1].blocked, [Nanos(250), Nanos(0)]);
    let waits = crate::sharing::waits(&shared);
    assert_eq!(waits.len(), 1, "{waits:?}");
    assert_eq!((waits[0].job, waits[0].behind, waits[0].time), (1, 0, Nanos(250)));
    assert!(shared.header.notes.iter().any(|note| note.starts_with("2 uses of leased engines")), "{:?}", shared.header);
    // The whole report is made of it.
    let summary = crate::sharing::summarize(&shared);
    assert_eq!((summary.verdict.jobs, summary.verdict.misses), (2, 0));
}

#[test]
fn a_later_file_needs_none_before_it() {
    let mut broker = two();
    let before = broker.lines.len();
    broker.start(1_410, StartReason::Rotated);
    (1..=2).for_each(|id| broker.name(1_410, id));
    broker.feed(1_500, release(2));
    broker.feed(1_600, request(1, 1_600));
    broker.feed(1_700, release(1));
    broker.lines.drain(..before);
    let log = read(&broker.text()).unwrap();
    assert_eq!(replay(&log).unwrap().inputs, 3);
    let shared = jobs(&log);
    // The job that was open at the end of the file before is not told.
    assert_eq!(shared.jobs.len(), 1);
    assert_eq!((shared.header.task(shared.jobs[0].task), shared.jobs[0].held), ("t1", [Nanos(190), Nanos(290)]));
    assert_eq!(shared.header.tasks[0].period, Nanos(1_000));
}

#[test]
fn half_a_line_is_borne_only_where_a_broker_can_have_left_it() {
    let mut broker = two();
    let whole = broker.text();
    let torn = format!("{whole}{{\"fed\":{{\"now\":15");
    assert_eq!(replay(&read(&torn).unwrap()).unwrap().torn, 1);
    let first = broker.lines.len();
    broker.arbiter = Arbiter::new(broker.parameters.clone()).unwrap();
    broker.start(2_000, StartReason::Started);
    broker.register(2_000, 9);
    let all = broker.text();
    let (head, tail) = all.split_at(all.lines().take(first).map(|line| line.len() + 1).sum());
    let again = format!("{head}{{\"fed\":{{\"no\n{tail}");
    let replayed = replay(&read(&again).unwrap()).unwrap();
    assert_eq!((replayed.starts, replayed.torn), (2, 1));
    let inside = whole.replacen("{\"fed\":{\"now\":1100", "{\"fed\":{\"now\":#", 1);
    assert!(matches!(read(&inside), Err(LogError::Parse { line: 6, .. })));
    assert!(matches!(read("{\"fed\":1}\n"), Err(LogError::Parse { line: 1, .. })));
    assert!(matches!(read(""), Err(LogError::Check { .. })));
}
