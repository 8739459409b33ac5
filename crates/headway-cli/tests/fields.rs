//! `docs/json.md` has every field of every JSON output, and no field that nothing prints.
//!
//! The outputs are those of real commands on a computer without a GPU, and every line that a broker writes for clients. A field is found by the tables of the page alone: each
//! object has a table, and the type of a field links to the table of what lies inside it.

#[path = "fields/guest.rs"]
mod guest;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::common::{command, fake_mps, headway, interrupt, place, root, wait_until};
use headway_core::decisions::engine_lock::{
    Engine, EngineParameters, LockId, Operation, Order, PeerLocks, Refused as EngineRefused, Work,
};
use headway_core::decisions::predictor::{Estimator, Form, PredictorParameters, Subject};
use headway_core::decisions::sharing::log::{Fed, Line, Start, TaskLine, Used, Why};
use headway_core::decisions::sharing::{
    Action, Arbiter, ArbiterParameters, Class, ClientId, ClusterId, ClusterParameters, Direction, GpuId, Input, JobId,
    Key, Limits, ModelId, Outcome, Refused, Segment, TaskId, TaskParameters, TokenId,
};
use headway_core::decisions::token::{Mode, Refused as TokenRefused, TokenParameters};
use headway_core::plan::Sharded;
use headway_core::units::{Bytes, Nanos};
use serde_json::Value;

/// Fields that no output of this test has, by table: what only faults, GPUs, other modes or other workloads give.
const UNSEEN: &[(&str, &[&str])] = &[
    ("object-verdict-of-a-run", &["unpromised"]),
    // Other strategies for messages, other answers, other modes.
    ("object-planned-step", &["batch"]),
    ("object-batch-place", &["number", "order"]),
    ("object-evidence", &["utilisation", "unknown"]),
    ("object-evidence-utilisation", &["server"]),
    ("object-evidence-unknown", &["server", "reason"]),
    ("object-mode", &["relaxed"]),
    ("object-verdict-of-sharing-analysis", &["no", "dont-know"]),
    ("object-resource", &["sequence"]),
    ("object-unknown", &["longer-than-period"]),
    // With `--backend emu`, and with a profile.
    ("headway-run-of-tasks", &["imitates"]),
    ("headway-bench-interconnect", &["imitates"]),
    ("object-prediction", &["points", "median_ppm", "p95_ppm"]),
    ("object-compared-of-predict", &["what", "bytes", "predicted", "measured", "n", "quartiles"]),
    ("object-tuning", &["threads", "buffer", "stores", "in_flight"]),
    // A broker with clients, and a log of one that was edited.
    ("headway-replay-of-a-brokers-log", &["difference"]),
    ("object-client-status", &["client", "name", "pid", "uid", "tasks", "draining"]),
    ("object-job-status", &["task", "name", "client", "job", "slack_ns", "since", "phase"]),
    ("object-phase", &["holds"]),
    ("object-phase-holds", &["gpu", "token", "waits_for", "runs_on"]),
    ("object-lock-id", &["gpu", "engine"]),
    // What goes wrong in no simulation without faults.
    ("object-input", &["failed"]),
    ("object-input-failed", &["operation"]),
    ("object-action", &["drop"]),
    ("object-action-drop", &["pipeline", "cycle"]),
    (
        "object-event",
        &[
            "empty",
            "data-late",
            "release-late",
            "overrun",
            "late",
            "missed",
            "missed-more",
            "lost",
            "paused",
            "resumed",
            "halted",
            "unready",
        ],
    ),
    ("object-event-empty", &["pipeline", "cycle"]),
    ("object-event-data-late", &["pipeline", "cycle", "by"]),
    ("object-event-release-late", &["pipeline", "cycle", "step", "by"]),
    ("object-event-overrun", &["pipeline", "cycle", "step", "cost", "took"]),
    ("object-event-late", &["pipeline", "cycle", "step", "by"]),
    ("object-event-missed", &["stream", "packet", "by"]),
    ("object-event-missed-more", &["pipeline", "cycle", "packets"]),
    ("object-event-lost", &["stream", "packet"]),
    ("object-event-paused", &["pipeline"]),
    ("object-event-resumed", &["pipeline"]),
    ("object-event-unready", &["pipeline", "part", "job", "left"]),
    ("object-event-halted", &["pipeline", "cycle", "step"]),
    ("object-answer", &["best-effort", "refused"]),
    ("object-unfit", &["overload", "full"]),
    ("object-unfit-overload", &["interval", "demand"]),
    ("object-unfit-full", &["limit"]),
    ("object-span", &["bytes"]),
    ("object-violation", &["because"]),
    // Runs that end early, and classes that this machine refuses.
    ("runjsonl-last-line", &["incomplete"]),
    ("object-incomplete", &["kind", "stream", "packet", "by"]),
    ("object-threads", &["nice", "priority", "refused"]),
];

/// The tables of the page: by anchor, the fields with their types.
type Tables = BTreeMap<String, BTreeMap<String, String>>;

fn tables() -> Tables {
    let text = fs::read_to_string(root().join("docs/json.md")).unwrap();
    let mut tables = Tables::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            current = anchor(title);
            assert!(tables.insert(current.clone(), BTreeMap::new()).is_none(), "two tables are called `{title}`");
        }
        let mut cells = line.split(" | ");
        let name = cells.next().and_then(|cell| cell.strip_prefix("| `")?.strip_suffix('`'));
        if let (Some(name), Some(kind)) = (name, cells.next()) {
            tables.entry(current.clone()).or_default().insert(name.to_owned(), kind.to_owned());
        }
    }
    tables
}

/// The anchor of a heading, as pages on the web make it.
fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect::<String>().replace(' ', "-")
}

/// The tables that a type links to.
fn links(kind: &str) -> Vec<String> {
    kind.split("(#").skip(1).filter_map(|rest| rest.split(')').next().map(str::to_owned)).collect()
}

fn has_fields(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(items) => items.iter().any(has_fields),
        _ => false,
    }
}

/// Whether a value can be of the type.
fn fits(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind.contains("or null") || kind.contains("list of 2: "),
        Value::Bool(_) => kind.contains("true or false"),
        Value::Number(_) => ["number", "ns", "bytes"].iter().any(|word| kind.contains(word)),
        Value::String(text) => {
            kind.contains("text") && (!kind.contains("text: ") || kind.contains(&format!("`\"{text}\"`")))
        }
        Value::Array(items) => kind.contains("list") && items.iter().all(|item| has_fields(item) || fits(item, kind)),
        Value::Object(_) => kind.contains("(#") || kind.contains("object by name"),
    }
}

/// A type of which the page promises nothing.
const ANYTHING: &str = "anything";

/// What was found while outputs were compared with the page.
#[derive(Default)]
struct Found {
    tables: Tables,
    seen: BTreeSet<(String, String)>,
    wrong: BTreeSet<String>,
}

impl Found {
    /// Compares an output with the table at `anchor`.
    fn check(&mut self, value: &Value, anchor: &str, from: &str) {
        assert!(self.tables.contains_key(anchor), "no table has the anchor `{anchor}`");
        self.walk(value, &[anchor.to_owned()], from);
    }

    fn walk(&mut self, value: &Value, anchors: &[String], from: &str) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.walk(item, anchors, from)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| self.field(name, value, anchors, from)),
            _ => {}
        }
    }

    fn field(&mut self, name: &str, value: &Value, anchors: &[String], from: &str) {
        let known = |anchor: &&String| self.tables.get(*anchor).is_some_and(|table| table.contains_key(name));
        let Some(anchor) = anchors.iter().find(known) else {
            self.wrong.insert(format!("`{name}` of {anchors:?} is not on the page; it was printed by {from}"));
            return;
        };
        let kind = self.tables[anchor][name].clone();
        self.seen.insert((anchor.clone(), name.to_owned()));
        if kind == ANYTHING {
            return;
        }
        let links = links(&kind);
        let unit_of_enum = matches!(value, Value::String(_)) && !links.is_empty();
        if !unit_of_enum && !fits(value, &kind) {
            self.wrong.insert(format!("`{name}` of {anchor} is {value} in {from}, and not: {kind}"));
        }
        match value {
            Value::Object(fields) if kind.contains("object by name") => {
                fields.values().filter(|value| has_fields(value)).for_each(|value| self.walk(value, &links, from));
            }
            _ if links.is_empty() && has_fields(value) => {
                self.wrong.insert(format!("`{name}` of {anchor} has fields that the page does not link to ({from})"));
            }
            _ => self.walk(value, &links, from),
        }
    }

    /// Runs a command with `--format json` and compares what it prints.
    fn command(&mut self, folder: &Path, anchor: &str, args: &[&str]) -> Value {
        let answer = headway(folder, &[args, &["--format", "json", "--quiet"]].concat());
        assert!(matches!(answer.status, Some(0 | 1 | 3)), "{args:?}: {answer:?}");
        let json = answer.json();
        self.check(&json, anchor, &args.join(" "));
        json
    }

    /// Compares each line of a text with the table at `anchor`.
    fn lines(&mut self, text: &str, anchor: &str, from: &str) {
        text.lines().for_each(|line| self.check(&serde_json::from_str(line).unwrap(), anchor, from));
    }

    /// Compares the files of a folder of results.
    fn results(&mut self, folder: &Path, log: [&str; 3]) {
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let lines: Vec<Value> = read("run.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (at, line) in lines.iter().enumerate() {
            let which = if at == 0 { 0 } else { 1 + usize::from(at + 1 == lines.len()) };
            self.check(line, log[which], "run.jsonl");
        }
        for (name, anchor) in [("manifest.json", "manifestjson"), ("plan.json", "headway-plan")] {
            if folder.join(name).exists() {
                self.check(&serde_json::from_str(&read(name)).unwrap(), anchor, name);
            }
        }
    }
}

const LOG: [&str; 3] = ["runjsonl-first-line", "runjsonl-records", "runjsonl-last-line"];
const TASKS_LOG: [&str; 3] = ["runjsonl-of-tasks-first-line", "runjsonl-of-tasks-jobs", "runjsonl-of-tasks-last-line"];

/// Workloads beside those that are shipped.
const CPU: &str = r#"
name = "cpu"
[[stream]]
id = "short"
packet = "4 KiB"
period = "1 ms"
deadline = "3 ms"
processor = "auto"
steps = [{ copy = "host -> gpu" }, { compute = "spin" }, { copy = "gpu -> host" }]
[[stream]]
id = "long"
packet = "16 KiB"
period = "2 ms"
deadline = "40 ms"
processor = "cpu"
steps = [{ copy = "host -> gpu" }, { compute = "aes128-cbc" }, { copy = "gpu -> host" }]
key = "000102030405060708090a0b0c0d0e0f"
iv = "101112131415161718191a1b1c1d1e1f"
"#;
const LATE: &str = r#"
name = "late"
[[message]]
id = "a"
period = "5 ms"
late = "4 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "1 MB" }]
[[message]]
id = "b"
period = "10 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "2 MB" }]
"#;

fn plans(found: &mut Found, place: &Path) {
    for (name, text) in [("cpu", CPU), ("late", LATE)] {
        fs::write(place.join(format!("workloads/{name}.toml")), text).unwrap();
    }
    let golden = |name: &str| {
        let from = root().join(format!("crates/headway-cli/tests/golden/{name}.toml"));
        fs::copy(from, place.join(format!("workloads/{name}.toml"))).unwrap();
    };
    golden("offsets");
    golden("exact-costs");
    for (name, machine) in [
        ("encrypt", "h200-x1"),
        ("exchange", "h200-x4"),
        ("wafer", "h200-x4"),
        ("two-gpus", "h200-x4"),
        ("background", "h200-x1"),
        ("messages", "h200-x1"),
        ("cpu", "h200-x1"),
        ("late", "h200-x1"),
        ("verner-fig2.1", "tyan-ft72b7015"),
        ("np-edf-miss", "tyan-ft72b7015"),
        ("offsets", "tyan-ft72b7015"),
        ("exact-costs", "tyan-ft72b7015"),
    ] {
        let file = format!("workloads/{name}.toml");
        found.command(place, "headway-plan", &["plan", &file, "--machine", machine]);
    }
    found.command(place, "headway-plan", &["plan", "workloads/encrypt.toml", "--strategy", "lockstep"]);
    found.command(place, "headway-plan-of-tasks", &["plan", "workloads/track.toml"]);
    own_application(found, place);
}

/// No file that is shipped has packets that another application divides than the inspection of wafers: so it is its plan, divided
/// otherwise.
fn own_application(found: &mut Found, place: &Path) {
    let plan = headway(place, &["plan", "workloads/wafer.toml", "--machine", "h200-x4", "--format", "json"]).json();
    let source = |pipeline: &Value| pipeline["source"].get("wafer").cloned();
    let source = plan["pipelines"].as_array().unwrap().iter().find_map(source).unwrap();
    let mut sharded: Sharded = serde_json::from_value(source).unwrap();
    sharded.sharding.summary = Bytes(512);
    found.check(
        &serde_json::to_value(sharded).unwrap(),
        "object-planned-wafer",
        "the plan of an application of one's own",
    );
}

fn runs(found: &mut Found, place: &Path) {
    let bounds = ["--sample-max", "1 KiB", "--trace-max", "100"];
    for (name, more) in [
        ("encrypt", &["--duration", "20 ms", "--machine", "h200-x1"][..]),
        ("background", &["--duration", "40 ms"]),
        ("messages", &["--duration", "200 ms"]),
        ("cpu", &["--duration", "40 ms", "--machine", "h200-x1"]),
        ("late", &["--duration", "200 ms"]),
        ("np-edf-miss", &["--machine", "tyan-ft72b7015", "--force", "--log-max", "20 KiB"]),
    ] {
        let file = format!("workloads/{name}.toml");
        let args = [&["run", &file, "--backend", "sim", "--out", name][..], more, &bounds].concat();
        found.command(place, "headway-run", &args);
        found.results(&place.join(name), LOG);
    }
    let args = ["run", "workloads/encrypt.toml", "--backend", "emu", "--duration", "10 ms", "--out", "emu"];
    found.command(place, "headway-run", &args);
    found.results(&place.join("emu"), LOG);
    let args = ["run", "workloads/track.toml", "--backend", "sim", "--duration", "500 ms", "--out", "tasks"];
    found.command(place, "headway-run-of-tasks", &[&args[..], &["--trace-max", "20"]].concat());
    found.results(&place.join("tasks"), TASKS_LOG);
    found.command(place, "headway-replay", &["replay", "encrypt"]);
    found.command(place, "object-summary", &["report", "encrypt"]);
    let log = fs::read_to_string(place.join("encrypt/run.jsonl")).unwrap();
    let event = |step: u32| format!("\"complete\":{{\"pipeline\":0,\"cycle\":0,\"step\":{step}}}");
    assert!(log.contains(&event(0)));
    fs::write(place.join("edited.jsonl"), log.replacen(&event(0), &event(1), 1)).unwrap();
    found.command(place, "headway-replay", &["replay", "edited.jsonl"]);
}

fn errors(found: &mut Found, place: &Path) {
    fs::write(place.join("wrong.toml"), "name = \"wrong\"\n[[stream]]\nid = \"a\"\nperiod = \"10\"\n").unwrap();
    for args in [&["plan", "wrong.toml"][..], &["plan", "missing.toml"], &["run", "workloads/np-edf-miss.toml"]] {
        let answer = headway(place, &[args, &["--format", "json", "--quiet"]].concat());
        assert!(matches!(answer.status, Some(1 | 2)), "{answer:?}");
        found.check(&answer.json(), "errors", &args.join(" "));
    }
}

fn others(found: &mut Found, place: &Path) {
    found.command(place, "headway-doctor", &["doctor"]);
    let node = ["--backend", "emu", "--quick"];
    let measure = ["measure", "--sizes", "64 B", "--only", "links", "--out", "node.toml"];
    found.command(place, "headway-measure", &[&measure[..], &node].concat());
    let bench = ["bench", "transfers", "--sizes", "64 B", "--ways", "dma", "--out", "transfers"];
    found.command(place, "headway-bench-transfers", &[&bench[..], &node].concat());
    let rows = fs::read_to_string(place.join("transfers/rows.csv")).unwrap();
    let columns = rows.lines().find(|line| !line.starts_with('#')).unwrap();
    let row: BTreeMap<_, _> = columns.split(',').map(|column| (column, Value::from("text"))).collect();
    found.check(&serde_json::json!(row), "rowscsv", "rows.csv");
    let bench = ["bench", "interconnect", "--backend", "sim", "--batches", "3", "--out", "interconnect"];
    found.command(place, "headway-bench-interconnect", &bench);
    found.command(place, "headway-bench-broker", &["bench", "broker", "--quick", "--out", "broker"]);
    found.command(place, "headway-explain", &["explain", "--bytes", "1 MiB", "--direction", "h2d"]);
    found.command(place, "headway-machines", &["machines"]);
    found.command(place, "headway-machines-name", &["machines", "h200-x1"]);
    found.command(place, "headway-man---out-folder", &["man", "--out", "pages"]);
    guest::log(found, place);
    status(found, place);
    journal(found, place);
}

/// What a broker says of itself.
fn status(found: &mut Found, place: &Path) {
    let mut broker = command(place);
    fake_mps(&mut broker, place);
    broker.args(["broker", "--mps", "--socket", "broker.socket", "--log", "broker.jsonl", "--quiet"]);
    let mut broker = broker.spawn().unwrap();
    let ask = || headway(place, &["status", "--socket", "broker.socket", "--format", "json"]);
    // It listens within moments, or has ended with an error.
    let answer = loop {
        let answer = ask();
        if answer.status == Some(0) || broker.try_wait().unwrap().is_some() {
            break answer;
        }
    };
    let _ = broker.kill();
    broker.wait().unwrap();
    found.check(&answer.exits(0).json(), "headway-status", "status");
    found.command(place, "headway-replay-of-a-brokers-log", &["replay", "broker.jsonl"]);
    found.lines(&fs::read_to_string(place.join("broker.jsonl")).unwrap(), "log-of-a-broker", "broker.jsonl");
    broker_log(found);
}

const NOW: Nanos = Nanos(1);
const TASK: TaskId = TaskId(1);
const CLIENT: ClientId = ClientId(2);
const CLUSTER: ClusterId = ClusterId(0);
const GPU: GpuId = GpuId(0);
const TOKEN: TokenId = TokenId(0);
const JOB: JobId = JobId { task: TASK, job: 3 };
const KEY: Key = Key { deadline: Nanos(9), release: NOW, job: JOB };
const LOCK: LockId = LockId { gpu: GPU, engine: Engine::In };
const TOKENS: TokenParameters =
    TokenParameters { cpus: 2, per_gpu: 1, mode: Mode::Optimal, affinity: true, discount_holder: false };

/// Every line that a broker with clients can write: the types are those that it writes.
fn broker_log(found: &mut Found) {
    let mut lines = vec![Line::Broker(Box::new(start(Form::PI))), Line::Broker(Box::new(start(Form::WINDOW)))];
    let fed = |input, actions, refused| Line::Fed(Fed { now: NOW, input, actions, refused });
    lines.extend(inputs().into_iter().map(|input| fed(input, Vec::new(), None)));
    lines.push(fed(Input::Timeout, actions(), None));
    lines.extend(refusals().into_iter().map(|refused| fed(Input::Recovered, Vec::new(), Some(refused))));
    let name = "a".to_owned();
    lines.extend([
        Line::Task(TaskLine { now: NOW, task: TASK, name, client: CLIENT, pid: 1, uid: 2 }),
        Line::Used(Used { now: NOW, job: JOB, lock: LOCK, begin: NOW, end: NOW, missing: 1 }),
        Line::Cut { now: NOW, client: CLIENT, pid: 1, hung: true },
        Line::Fault { now: NOW, gpu: GPU, client: CLIENT, pid: 1 },
        Line::WithoutRoom { now: NOW, task: TASK },
    ]);
    for line in lines {
        found.check(&serde_json::to_value(line).unwrap(), "log-of-a-broker", "a broker");
    }
}

/// A state in which something is remembered of everything.
fn start(form: Form) -> Start {
    let engines = EngineParameters {
        copy_engines: 2,
        peer: PeerLocks::Group,
        order: Order::Arrival,
        chunk_bytes: Some(Bytes(4_096)),
        keep_bytes: Bytes(0),
        unlocked_below: Bytes(0),
        watchdog: Nanos::ZERO,
    };
    let parameters = ArbiterParameters {
        clusters: vec![ClusterParameters::equal(1, TOKENS)],
        engines: Some(engines),
        predictor: PredictorParameters { form, ..PredictorParameters::default() },
        limits: Limits::default(),
    };
    let arbiter = Arbiter::new(parameters.clone()).unwrap();
    let mut start = Start::of(&arbiter, &parameters, 1, NOW, Why::Started);
    let subject = Subject { task: TASK, acquisition: 0, model: ModelId(0) };
    start.memory.estimators.push((subject, Class(0), Estimator::new(form)));
    start.memory.homes.push((TASK, GPU));
    start.memory.lost.push(GPU);
    start.memory.tokens.push((CLUSTER, TOKENS));
    start.holders.push((CLUSTER, TOKEN, JOB));
    start
}

fn inputs() -> Vec<Input> {
    let segments = vec![
        Segment::Cpu(NOW),
        Segment::Copy { direction: Direction::ToGpu, bytes: Bytes(1) },
        Segment::Execute { kernel: "spin".to_owned(), time: NOW },
    ];
    let (id, period, state) = (TASK, Nanos(9), Bytes(0));
    let task = TaskParameters { id, client: CLIENT, cluster: CLUSTER, period, deadline: period, state, segments };
    let operation = Operation { work: Work::CopyIn, bytes: Bytes(1), predicted: NOW, budget: NOW };
    vec![
        Input::Register(task),
        Input::Withdraw { task: TASK },
        Input::Request { key: KEY, acquisition: 0 },
        Input::Adopt { key: KEY, token: TOKEN },
        Input::Release { job: JOB, outcome: Outcome::Complete(NOW) },
        Input::Release { job: JOB, outcome: Outcome::Aborted },
        Input::Abort { job: JOB },
        Input::Exhausted { job: JOB, deadline: NOW },
        Input::Acquire { job: JOB, operation },
        Input::Next { job: JOB },
        Input::Complete { job: JOB },
        Input::Renew { job: JOB },
        Input::ClientGone { client: CLIENT },
        Input::Drained { client: CLIENT },
        Input::GpuLost { gpu: GPU },
        Input::Reconfigure { cluster: CLUSTER, tokens: TOKENS },
    ]
}

fn actions() -> Vec<Action> {
    vec![
        Action::Grant { job: JOB, gpu: GPU, token: TOKEN, from: None },
        Action::Run { job: JOB, locks: vec![LOCK] },
        Action::Obtained { job: JOB, lock: LOCK },
        Action::SetBoost { job: JOB, key: KEY },
        Action::Revoke { job: JOB, gpu: GPU },
    ]
}

fn refusals() -> Vec<Refused> {
    let of_tokens = [
        TokenRefused::Parameters { cpus: 0, gpus: 1, per_gpu: 1, mode: Mode::Fifo },
        TokenRefused::TaskBusy { task: TASK },
        TokenRefused::NoRequest { job: JOB },
        TokenRefused::NotHolder { job: JOB },
        TokenRefused::TooManyRequests { requests_max: 1 },
        TokenRefused::Estimates { given: 1, gpus: 2 },
        TokenRefused::NoGpu { gpu: GPU },
        TokenRefused::NoToken { token: TOKEN },
        TokenRefused::Reconfiguring,
    ];
    let of_engines = [
        EngineRefused::CopyEngines { copy_engines: 3 },
        EngineRefused::Order,
        EngineRefused::NoToken { job: JOB },
        EngineRefused::NoSuchGpu { gpu: GPU },
        EngineRefused::TokenTwice { job: JOB },
        EngineRefused::Busy { job: JOB },
        EngineRefused::NotMigrating { job: JOB },
        EngineRefused::NothingHeld { job: JOB },
        EngineRefused::NoFirstLock { job: JOB },
        EngineRefused::ChunkTooLarge { bytes: Bytes(2), chunk_bytes: Bytes(1) },
    ];
    let own = [
        Refused::UnknownTask { task: TASK },
        Refused::TaskExists { task: TASK },
        Refused::TaskBusy { task: TASK },
        Refused::UnknownCluster { cluster: CLUSTER },
        Refused::UnknownGpu { gpu: GPU },
        Refused::Cluster { cluster: CLUSTER },
        Refused::TooManyTasks { tasks_max: 1 },
        Refused::NoEngineLocks,
        Refused::EngineInUse { task: TASK },
        Refused::TimeWentBack { before: NOW, now: Nanos::ZERO },
    ];
    let of_others = of_tokens.map(Refused::Token).into_iter().chain(of_engines.map(Refused::Engine));
    of_others.chain(own).collect()
}

/// What a measurement that was interrupted leaves.
fn journal(found: &mut Found, place: &Path) {
    let mut measuring =
        command(place).args(["measure", "--backend", "emu", "--out", "cut.toml", "--quiet"]).spawn().unwrap();
    let read = || fs::read_to_string(place.join("cut.toml.partial.jsonl")).unwrap_or_default();
    wait_until(&mut measuring, || read().lines().count() > 1);
    interrupt(&measuring);
    measuring.wait().unwrap();
    let text = read();
    let (head, rest) = text.split_once('\n').unwrap();
    found.lines(head, "journal-of-headway-measure-first-line", "a journal");
    found.lines(rest, "journal-of-headway-measure-other-lines", "a journal");
}

#[test]
fn the_page_has_every_field_that_is_printed_and_no_other() {
    let place = place();
    let mut found = Found { tables: tables(), ..Found::default() };
    plans(&mut found, place.path());
    runs(&mut found, place.path());
    errors(&mut found, place.path());
    others(&mut found, place.path());
    let unseen: BTreeSet<(String, String)> = UNSEEN
        .iter()
        .flat_map(|(anchor, names)| names.iter().map(|name| ((*anchor).to_owned(), (*name).to_owned())))
        .collect();
    for (anchor, table) in &found.tables {
        for name in table.keys() {
            let field = (anchor.clone(), name.clone());
            if !found.seen.contains(&field) && !unseen.contains(&field) {
                found.wrong.insert(format!("`{name}` of {anchor} is on the page, and nothing prints it"));
            }
        }
    }
    let gone =
        unseen.iter().filter(|(anchor, name)| !found.tables.get(anchor).is_some_and(|table| table.contains_key(name)));
    found.wrong.extend(gone.map(|(anchor, name)| format!("`{name}` of {anchor} is excused, and not on the page")));
    assert!(found.wrong.is_empty(), "{}", found.wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn every_link_of_the_page_leads_to_a_table() {
    let tables = tables();
    for (anchor, table) in &tables {
        for (name, kind) in table {
            for link in links(kind) {
                assert!(tables.contains_key(&link), "`{name}` of {anchor} leads to `{link}`, which is not there");
            }
        }
    }
    assert!(tables.len() > 100);
}
