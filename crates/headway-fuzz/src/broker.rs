//! The broker's messages and pages, against a client that lies beside one that is honest.
//!
//! Both speak the protocol by themselves, on the thread that has the broker go on step by step.

#[path = "../../headway-broker/tests/support/raw.rs"]
mod raw;
#[path = "../../headway-broker/tests/support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use headway_broker::{BrokerServer, ServerOptions};
use headway_core::decisions::engine_lock::EngineWork;
use headway_core::decisions::sharing::{JobId, TaskId, TokenOutcome};
use headway_core::units::Nanos;
use headway_os::clock;
use headway_trace::broker::{BrokerLog, replay};
use tempfile::TempDir;

use self::raw::layout::{self, CLIENT_LONGS, Code, ENTRY_LONGS, Entry, SLOTS, TAIL};
use self::raw::{LIMIT, Raw};
use crate::script::Script;

/// A client that keeps a token for longer is cut off, also one that closes its connection and lives on, as a liar does here. The honest client
/// gives back what it has in a few steps of a millisecond at most: whatever takes longer excuses it.
const WATCHDOG: Nanos = Nanos(64_000_000);
/// What the owner of a broker may say, and only such a one: here, too, both clients are its owner's.
const OF_OWNERS: [&str; 2] = ["lost", "reconfigure"];

/// The broker, an honest client with a task, and the log of what was decided.
struct Stage {
    server: Rc<RefCell<BrokerServer>>,
    socket: PathBuf,
    log: PathBuf,
    tokens: usize,
    honest: Honest,
    _folder: TempDir,
}

/// What the honest client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Waits,
    Holds,
}

struct Honest {
    raw: Raw,
    task: TaskId,
    job: u64,
    phase: Phase,
}

pub(crate) fn cross(bytes: &[u8]) {
    let mut script = Script(bytes);
    let per_gpu = 1 + script.small(2);
    let mut stage = Stage::new(per_gpu);
    let mut liar = stage.liar();
    while let Some(kind) = script.byte() {
        liar = stage.lie(liar, kind, &mut script);
        let before = liar.as_ref().map(|(raw, _)| granted(raw));
        stage.step();
        if let (Some((raw, _)), Some(before), 1, Phase::Holds) = (&liar, before, per_gpu, stage.honest.phase) {
            assert_eq!(granted(raw).difference(&before).count(), 0, "the one token was given twice");
        }
        stage.honest.go_on();
        stage.step();
        stage.check();
    }
    drop(liar);
    stage.end();
}

impl Stage {
    fn new(per_gpu: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, log) = (folder.path().join("broker"), folder.path().join("log"));
        let mut options = ServerOptions::new(socket.clone(), support::parameters(1, per_gpu, Nanos(0)));
        (options.boost, options.urgent) = (false, false);
        (options.drain, options.watchdog) = (Nanos(0), WATCHDOG);
        options.log = Some(log.clone());
        let server = Rc::new(RefCell::new(BrokerServer::bind(options).expect("a broker")));
        let raw = Raw::open(&socket, steps(&server)).expect("an honest client is welcome");
        let task = raw.register().expect("the first task has room");
        let honest = Honest { raw, task, job: 0, phase: Phase::Idle };
        Self { server, socket, log, tokens: per_gpu as usize, honest, _folder: folder }
    }

    fn step(&self) {
        self.server.borrow_mut().step().expect("a broker goes on whatever clients do");
    }

    /// A liar with a task, if the broker still takes one.
    fn liar(&self) -> Option<(Raw, TaskId)> {
        let raw = Raw::open(&self.socket, steps(&self.server))?;
        let task = raw.register()?;
        Some((raw, task))
    }

    /// One lie; `None` once the liar is cut off.
    fn lie(&self, liar: Option<(Raw, TaskId)>, kind: u8, script: &mut Script<'_>) -> Option<(Raw, TaskId)> {
        let (mut raw, mine) = liar.filter(|(raw, _)| !raw.socket.is_cut()).or_else(|| self.liar())?;
        // Of its own, of the honest client, of nobody.
        let task = TaskId([mine.0, self.honest.task.0, 77][script.small(3) as usize]);
        let job = JobId { task, job: u64::from(script.small(4)) };
        let slot = script.small(SLOTS as u32 / 32);
        let generation = 1 + script.small(3);
        match kind % 13 {
            0 => raw.push(Entry::Request { slot, generation, job, release: clock::now(), acquisition: 0 }.encode()),
            1 => raw.push(Entry::Release { job, outcome: TokenOutcome::Complete(Nanos(script.long())) }.encode()),
            2 => raw.push(Entry::Abort { job }.encode()),
            3 => {
                let works = [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut, EngineWork::Peer];
                let operation = support::operation(works[script.small(4) as usize]);
                raw.push(Entry::Acquire { slot, generation, job, operation }.encode());
            }
            4 => {
                let [begin, end, missing] = [(); 3].map(|()| script.long());
                raw.push(Entry::Used { lock: slot, job, begin: Nanos(begin), end: Nanos(end), missing }.encode());
            }
            5 => raw.push([(); ENTRY_LONGS].map(|()| script.long())),
            6 => raw.poke(usize::from(script.long() as u16) % CLIENT_LONGS, script.long()),
            7 => {
                raw.poke(TAIL, script.long());
                raw.bell.ring();
            }
            // Near what the broker wrote: another state, another owner.
            8 => {
                let at = layout::lease(slot as usize % 3);
                let seen = raw.page.long(at).load(std::sync::atomic::Ordering::Acquire);
                raw.poke(at, seen ^ (u64::from(task.0) << 32 | u64::from(generation)));
                raw.bell.ring();
            }
            9 => send(&raw, &script.text()),
            10 => {
                let message = match slot {
                    0 => serde_json::json!({ "withdraw": { "task": task } }),
                    1 => serde_json::json!({ "fault": { "gpu": generation } }),
                    2 => serde_json::json!({ "register": support::shape("another") }),
                    _ => serde_json::json!("status"),
                };
                send(&raw, message.to_string().as_bytes());
            }
            11 => raw.socket.shut_down(),
            // Both go on.
            _ => {}
        }
        Some((raw, mine))
    }

    /// The log, for people.
    fn decided(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What must hold at every moment.
    fn check(&self) {
        let Honest { raw, phase, .. } = &self.honest;
        assert!(!raw.socket.is_cut(), "the honest client was cut off:\n{}", self.decided());
        let status = raw.status().expect("an honest question is answered");
        let jobs = status["status"]["jobs"].as_array().expect("a list of jobs");
        let holders: Vec<_> = jobs.iter().filter(|job| job["phase"]["holds"].is_object()).collect();
        assert!(holders.len() <= self.tokens, "{} tokens and {holders:?}", self.tokens);
        let mut tokens: Vec<u64> = holders.iter().filter_map(|job| job["phase"]["holds"]["token"].as_u64()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), holders.len(), "a token has two holders: {holders:?}");
        if *phase == Phase::Holds {
            let task = u64::from(self.honest.task.0);
            assert!(holders.iter().any(|job| job["task"] == task), "what the honest client holds is gone: {jobs:?}");
        }
    }

    /// The liar has gone: the honest client gets what it asks for, and nothing is left.
    fn end(mut self) {
        let start = Instant::now();
        let jobs = self.honest.job + 2;
        while self.honest.job < jobs || self.honest.phase != Phase::Idle {
            self.step();
            self.honest.go_on();
            assert!(
                start.elapsed() < LIMIT,
                "the honest client {:?}: {:?}",
                self.honest.phase,
                self.honest.raw.status()
            );
        }
        // The honest client may have its token sooner than all that the liar had is free.
        loop {
            let status = self.honest.raw.status().expect("an honest question is answered");
            if status["status"]["jobs"].as_array().is_some_and(Vec::is_empty) {
                break;
            }
            assert!(start.elapsed() < LIMIT, "something is left: {status}");
        }
        drop(self.honest);
        drop(self.server);
        let file = BufReader::new(File::open(&self.log).expect("there is a log"));
        let log = BrokerLog::read(file, "log").unwrap_or_else(|error| panic!("{error}"));
        if let Err(error) = replay(&log) {
            panic!("the log does not replay: {error}");
        }
    }
}

impl Honest {
    /// Asks, sees whether it was answered, or gives back what it holds.
    fn go_on(&mut self) {
        let job = JobId { task: self.task, job: self.job };
        let generation = self.job as u32;
        match self.phase {
            Phase::Idle => {
                self.job += 1;
                let (job, generation) = (JobId { job: self.job, ..job }, self.job as u32);
                let release = clock::now();
                self.raw.push(Entry::Request { slot: 0, generation, job, release, acquisition: 0 }.encode());
                self.phase = Phase::Waits;
            }
            Phase::Waits => match layout::code(self.raw.answers.word(0), generation) {
                Code::Open => {}
                Code::Granted => self.phase = Phase::Holds,
                code => panic!("an honest request is answered with {code:?}"),
            },
            Phase::Holds => {
                let code = layout::code(self.raw.answers.word(0), generation);
                assert_eq!(code, Code::Granted, "the token was taken away");
                self.raw.push(Entry::Release { job, outcome: TokenOutcome::Complete(Nanos(1)) }.encode());
                self.phase = Phase::Idle;
            }
        }
    }
}

/// States of a client's slots for tokens that say that it has one.
fn granted(raw: &Raw) -> BTreeSet<(usize, u32)> {
    let states = (0..SLOTS).step_by(2).map(|slot| (slot, raw.answers.word(slot)));
    states.filter(|(_, state)| layout::code(*state, state >> 2) == Code::Granted).collect()
}

fn steps(server: &Rc<RefCell<BrokerServer>>) -> Rc<dyn Fn()> {
    let server = Rc::clone(server);
    Rc::new(move || server.borrow_mut().step().expect("a broker goes on whatever clients do"))
}

/// Sends what need not be a message; not what only an owner may say.
fn send(raw: &Raw, message: &[u8]) {
    let said = serde_json::from_slice::<serde_json::Value>(message).unwrap_or_default();
    if OF_OWNERS.iter().all(|kind| said.get(kind).is_none()) {
        // A liar that is cut off, or whose answers have no room, is not heard.
        let _ = raw.socket.send(message, &[]);
    }
}
