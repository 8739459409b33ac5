//! Logs as a broker writes them, replayed and told as jobs.

use headway_core::decisions::broker::log::{BrokerLogStart, Fed, SCHEMA, StartReason};
use headway_core::decisions::broker::{
    Action, Book, BookParameters, BrokerLimits, ClientProcess, Input, Roster, Slot, TaskShape,
};
use headway_core::decisions::engine_lock::{self, EngineParameters, EngineWork, LockId};
use headway_core::decisions::sharing::{
    ArbiterParameters, ClientId, ClusterId, ClusterParameters, GpuId, JobId, TaskId, TokenOutcome,
};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::{Bytes, Nanos};

use super::*;
use crate::sharing::{Doing, GpuEngine, Unit};

/// A broker of one GPU with one token, as far as its log goes. Task 1 is client 1's, and so on.
struct Broker {
    book: Book,
    lines: Vec<BrokerLogLine>,
}

fn book() -> Book {
    let tokens = TokenParameters { cpus: 4, per_gpu: 1, mode: TokenMode::Fifo, affinity: false };
    let engines = EngineParameters::default();
    let arbiter = ArbiterParameters::new(vec![ClusterParameters::equal(1, tokens)], Some(engines));
    let parameters = BookParameters {
        arbiter,
        limits: BrokerLimits { deadline_min: Nanos(1), ..BrokerLimits::default() },
        owner: 0,
        is_logged: true,
        must_remember: false,
        watchdog: Nanos(1_000_000),
        drain: Nanos(0),
        recover: Nanos(0),
        first_task: 0,
    };
    Book::new(parameters, Roster::default(), None, Nanos(0)).unwrap()
}

impl Broker {
    fn new() -> Self {
        let mut this = Self { book: book(), lines: Vec::new() };
        this.start(1_000, StartReason::Started);
        this
    }

    fn start(&mut self, now: u64, why: StartReason) {
        self.lines.push(BrokerLogLine::Broker(Box::new(BrokerLogStart::of(&self.book, 3, Nanos(now), why))));
    }

    /// Feeds an input; leases are not in use when they end.
    fn feed(&mut self, now: u64, input: Input) {
        let fed = Fed { now: Nanos(now), input, actions: Vec::new() }.again(&mut self.book);
        let ends = fed.actions.iter().filter_map(|action| match action {
            Action::EndLeases { client, .. } => Some(*client),
            _ => None,
        });
        let ends: Vec<ClientId> = ends.collect();
        self.lines.push(BrokerLogLine::Fed(fed));
        for client in ends {
            self.feed(now, Input::LeasesEnded { client, in_use: Vec::new() });
        }
    }

    fn register(&mut self, now: u64, id: u32, uid: u32) {
        let client = client(id);
        let process = ClientProcess { pid: id, uid, account: uid, started: 0 };
        self.feed(now, Input::Greeting { client, process, name: "c".to_owned(), resumed: Vec::new(), bytes: 1 });
        let shape = TaskShape {
            name: format!("t{id}"),
            cluster: ClusterId(0),
            period: Nanos(1_000),
            deadline: Nanos(1_000),
            state: Bytes(0),
            segments: Vec::new(),
            thread: None,
        };
        self.feed(now, Input::Register { client, shape, bytes: 1 });
    }

    fn text(&self) -> String {
        self.lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect()
    }
}

fn read(text: &str) -> Result<BrokerLog, LogError> {
    BrokerLog::read(text.as_bytes(), "test")
}

fn client(task: u32) -> ClientId {
    ClientId(u64::from(task))
}

fn job(task: u32) -> JobId {
    JobId { task: TaskId(task), job: 1 }
}

fn request(task: u32, release: u64) -> Input {
    let slot = Slot { number: 0, generation: 1 };
    Input::Request { client: client(task), slot, job: job(task), release: Nanos(release), acquisition: 0 }
}

fn acquire(task: u32, work: EngineWork, bytes: u64) -> Input {
    let operation = engine_lock::LockedOperation { work, bytes: Bytes(bytes), predicted: Nanos(0), budget: Nanos(0) };
    Input::Acquire { client: client(task), slot: Slot { number: 1, generation: 1 }, job: job(task), operation }
}

fn release(task: u32) -> Input {
    Input::Release { client: client(task), job: job(task), outcome: TokenOutcome::Complete(Nanos(5)) }
}

/// Two tasks share the GPU: the second waits for the token while the first copies and uses the execution engine by lease.
fn two() -> Broker {
    let mut broker = Broker::new();
    broker.register(1_000, 1, 8);
    broker.register(1_000, 2, 8);
    broker.feed(1_100, request(1, 1_090));
    broker.feed(1_150, request(2, 1_140));
    broker.feed(1_200, acquire(1, EngineWork::CopyIn, 64));
    broker.feed(1_260, Input::Returned { job: job(1) });
    let lock = LockId { gpu: GpuId(0), engine: engine_lock::EngineRole::Execute };
    let [begin, end] = [Nanos(1_300), Nanos(1_380)];
    broker.feed(1_400, Input::Used { client: client(1), job: job(1), lock, begin, end, missing: 2 });
    broker.feed(1_400, release(1));
    broker
}

#[test]
fn a_log_replays_and_one_that_was_changed_does_not() {
    let broker = two();
    let text = broker.text();
    let replayed = replay(&read(&text).unwrap()).unwrap();
    assert_eq!((replayed.starts, replayed.inputs, replayed.refused), (1, broker.lines.len() as u64 - 1, 0));
    assert!(replayed.actions >= 3, "{replayed:?}");
    // The second grant goes to another task.
    let at = text.rfind("\"job\":{\"task\":2").unwrap();
    let changed = format!("{}{}", &text[..at], text[at..].replacen("\"task\":2", "\"task\":1", 1));
    let Err(BrokerDivergence::Decision { .. }) = replay(&read(&changed).unwrap()) else { panic!("it replays") };
    let changed = text.replacen("\\\"now\\\":0", "\\\"now\\\":1", 1);
    assert_ne!(changed, text);
    assert!(matches!(replay(&read(&changed).unwrap()), Err(BrokerDivergence::Start { line: 1, .. })));
}

/// Two clients of one user ask before one of another one: the second token is the other user's, and the log says so.
#[test]
fn the_turns_of_users_are_in_the_log_and_made_again() {
    let mut broker = Broker::new();
    for (task, uid) in [(1, 8), (2, 8), (3, 9)] {
        broker.register(1_000, task, uid);
    }
    (1..=3).for_each(|task| broker.feed(1_100 + u64::from(task), request(task, 1_100)));
    broker.feed(1_400, release(1));
    let granted =
        |text: &str| text.lines().filter(|line| line.contains("{\"grant\"")).map(str::to_owned).collect::<Vec<_>>();
    let text = broker.text();
    let grants = granted(&text);
    assert!(grants.len() == 2 && grants[1].contains("\"job\":{\"task\":3"), "{grants:?}");
    replay(&read(&text).unwrap()).unwrap();
    // As if the user had been passed over: by their deadlines the other job would be as urgent, and came first.
    let unfair =
        grants[1].replace("{\"task\":3", "{\"task\":2").replace("\"grant\":{\"client\":3", "\"grant\":{\"client\":2");
    let changed = text.replace(&grants[1], &unfair);
    let Err(BrokerDivergence::Decision { line, .. }) = replay(&read(&changed).unwrap()) else { panic!("it replays") };
    assert_eq!(text.lines().nth(line as usize - 1), Some(grants[1].as_str()));
    // Nor does it with another user's process.
    let other = text.replacen("\"uid\":9,\"account\":9", "\"uid\":8,\"account\":8", 1);
    assert_ne!(other, text);
    assert!(matches!(replay(&read(&other).unwrap()), Err(BrokerDivergence::Decision { .. })));
}

#[test]
fn a_log_of_another_version_is_refused_with_what_reads_it() {
    let text = two().text();
    let older = text.replacen(&format!("\"schema\":{SCHEMA}"), "\"schema\":2", 1);
    let Err(LogError::Check { line: Some(1), what, .. }) = read(&older) else { panic!("it is read") };
    assert!(what.contains("schema 2") && what.contains("use the Headway version that wrote them"), "{what}");
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
    broker.feed(1_500, release(2));
    broker.feed(1_600, request(1, 1_600));
    broker.feed(1_700, release(1));
    broker.lines.drain(..before);
    let log = read(&broker.text()).unwrap();
    assert_eq!(replay(&log).unwrap().inputs, broker.lines.len() as u64 - 1);
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
    broker.book = book();
    broker.start(2_000, StartReason::Started);
    broker.register(2_000, 1, 8);
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
