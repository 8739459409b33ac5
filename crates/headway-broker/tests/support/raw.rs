//! A client that speaks the protocol by itself, so that it can write into messages and pages what no honest client would.
#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../src/layout.rs"]
#[allow(dead_code, unreachable_pub, reason = "the test uses a part of it")]
pub(crate) mod layout;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use headway_broker::TaskShape;
use headway_core::decisions::engine_lock::EngineWork;
use headway_core::decisions::sharing::{JobId, TaskId};
use headway_os::clock;
use headway_os::ipc::{Bell, Socket, SocketPacket, Words, WordsView};

use self::layout::{BROKER_LONGS, BROKER_WORDS, CLIENT_LONGS, CLIENT_WORDS, Code, Entry, TAIL};
use super::support::{operation, shape};

/// How long it waits for an answer: it is not to outlast the test's patience.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);
/// The version that is spoken, which a refused greeting shows to be another.
pub(crate) const VERSION: u32 = 7;
/// Between two looks for an answer.
const PAUSE: Duration = Duration::from_millis(1);

/// A connection with its pages, written without any rule.
pub(crate) struct Raw {
    pub(crate) socket: Socket,
    pub(crate) page: Words,
    pub(crate) answers: WordsView,
    pub(crate) bell: Bell,
    pub(crate) tail: u64,
    /// Done again and again while it waits: what has a broker without a thread of its own go on.
    meanwhile: Rc<dyn Fn()>,
}

/// A message from the broker, with what came with it.
pub(crate) fn hear(socket: &Socket, meanwhile: &dyn Fn()) -> Option<(serde_json::Value, Vec<OwnedFd>)> {
    let start = Instant::now();
    loop {
        meanwhile();
        if socket.wait(PAUSE) {
            break;
        }
        assert!(start.elapsed() < LIMIT, "the broker neither answers nor ends the connection");
    }
    let mut buffer = vec![0; 128 << 10];
    match socket.receive(&mut buffer) {
        Ok(SocketPacket::Message(length, descriptors)) => {
            Some((serde_json::from_slice(&buffer[..length]).ok()?, descriptors))
        }
        _ => None,
    }
}

pub(crate) fn greet(socket: &Socket, resumed: &serde_json::Value) -> bool {
    let hello = serde_json::json!({ "hello": { "version": VERSION, "name": "liar", "resumed": resumed } });
    socket.send(hello.to_string().as_bytes(), &[]).is_ok()
}

impl Raw {
    pub(crate) fn open(path: &Path, meanwhile: Rc<dyn Fn()>) -> Option<Self> {
        let socket = Socket::connect(path).ok()?;
        greet(&socket, &serde_json::json!([]));
        let (welcome, descriptors) = hear(&socket, &*meanwhile)?;
        assert!(welcome["welcome"].is_object(), "an honest greeting is answered with {welcome}");
        let [page, answers, _, bell] = <[_; 4]>::try_from(descriptors).ok()?;
        let page = Words::open(page, CLIENT_LONGS, CLIENT_WORDS).ok()?;
        let answers = WordsView::open(&answers, BROKER_LONGS, BROKER_WORDS).ok()?;
        Some(Self { socket, page, answers, bell: Bell::open(bell), tail: 0, meanwhile })
    }

    pub(crate) fn ask(&self, message: &serde_json::Value) -> Option<serde_json::Value> {
        self.socket.send(message.to_string().as_bytes(), &[]).ok()?;
        Some(hear(&self.socket, &*self.meanwhile)?.0)
    }

    pub(crate) fn register(&self) -> Option<TaskId> {
        let shape: TaskShape = shape("lie");
        let answer = self.ask(&serde_json::json!({ "register": shape }))?;
        Some(TaskId(u32::try_from(answer["registered"]["task"].as_u64()?).ok()?))
    }

    pub(crate) fn push(&mut self, longs: [u64; layout::ENTRY_LONGS]) {
        let first = layout::entry(self.tail);
        for (at, long) in longs.into_iter().enumerate() {
            self.page.long(first + at).store(long, Ordering::Relaxed);
        }
        self.tail += 1;
        self.page.long(TAIL).store(self.tail, Ordering::Release);
        self.bell.ring();
    }

    pub(crate) fn poke(&self, at: usize, value: u64) {
        self.page.long(at).store(value, Ordering::Release);
    }

    /// Waits until a slot is answered, or the connection ends.
    pub(crate) fn is_granted(&self, slot: usize, generation: u32) -> bool {
        let start = Instant::now();
        loop {
            match layout::code(self.answers.word(slot), generation) {
                Code::Granted => return true,
                Code::Open if !self.socket.is_cut() => {
                    assert!(start.elapsed() < LIMIT, "a request is not answered: {:?}", self.status());
                    (self.meanwhile)();
                    std::thread::park_timeout(Duration::from_micros(100));
                }
                _ => return false,
            }
        }
    }

    pub(crate) fn request(&mut self, job: JobId, slot: usize) {
        let (slot, release) = (slot as u32, clock::now());
        self.push(Entry::Request { slot, generation: 1, job, release, acquisition: 0 }.encode());
    }

    pub(crate) fn acquire(&mut self, job: JobId, slot: usize, work: EngineWork) {
        self.push(Entry::Acquire { slot: slot as u32, generation: 1, job, operation: operation(work) }.encode());
    }

    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        self.ask(&serde_json::json!("status"))
    }

    /// A token, honestly asked for.
    pub(crate) fn token(&mut self) -> Option<JobId> {
        let job = JobId { task: self.register()?, job: 1 };
        self.request(job, 0);
        self.is_granted(0, 1).then_some(job)
    }
}
