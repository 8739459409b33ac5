//! One connection to one broker: its pages, its bell, its socket.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use headway_core::engine_lock::EngineParameters;
use headway_core::sharing::GpuId;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::{self, Bell, Socket, Words, WordsView};

use super::receive;
use crate::error::{ClientError, Reason};
use crate::layout::{
    self, ANSWER_LONGS, ASLEEP, BROKER_LONGS, BROKER_WORDS, CLIENT_LONGS, CLIENT_WORDS, Code, Entry, GPUS_MAX, HEAD,
    NOTICE_LONGS, NOTICE_WORDS, RING_ENTRIES, TAIL, TASKS_MAX,
};
use crate::message::{FromBroker, FromClient, ResumedTask, VERSION};
use crate::protocol::lease::{self, Released};
use crate::protocol::{handover, handshake};

/// Sleeps at most this long before it looks whether the broker is still there.
const SLICE: Duration = Duration::from_millis(100);
/// Cells of one user at most.
const CELLS_MAX: usize = 1 << 20;
/// Looks between two readings of the clock.
const LOOKS: u32 = 64;

pub(super) struct Link {
    pub(super) socket: Socket,
    page: Words,
    answers: WordsView,
    notice: WordsView,
    bell: Bell,
    /// The page that all clients of this user share, and where this one's part begins.
    cells: Words,
    cell_count: usize,
    first_cell: usize,
    pub(super) gpus: Vec<GpuId>,
    pub(super) engines: Option<EngineParameters>,
    lost: AtomicBool,
    /// Entries written; whoever writes holds it.
    tail: Mutex<u64>,
}

/// How long to wait, and for what else than an answer.
pub(super) struct Patience<'a> {
    /// How long to look before sleeping.
    pub(super) spin: Nanos,
    /// When to give up.
    pub(super) until: Option<Nanos>,
    /// What came without the broker: asked between two looks at the answer.
    pub(super) passed: &'a dyn Fn() -> Option<[u64; ANSWER_LONGS]>,
}

/// Why a wait has ended without an answer.
pub(super) enum Unanswered {
    /// The time is over.
    TimedOut,
    /// The broker is gone.
    Lost,
    /// It was refused.
    Refused(Reason),
    /// It was granted and taken away, as this GPU is lost.
    Revoked(Option<GpuId>),
}

impl Link {
    pub(super) fn open(path: &Path, name: &str, resumed: Vec<ResumedTask>) -> Result<Self, ClientError> {
        let connect = |source| ClientError::Connect { path: path.to_owned(), source };
        let socket = Socket::connect(path).map_err(connect)?;
        let hello = FromClient::Hello { version: VERSION, name: name.to_owned(), resumed };
        let hello = serde_json::to_vec(&hello).map_err(|_| ClientError::Protocol { what: "a greeting too long" })?;
        // A broker that refuses closes at once; what it said is still there.
        let sent = socket.send(&hello, &[]);
        let (answer, descriptors) = match (receive(&socket), sent) {
            (Err(ClientError::Lost), Err(source)) => return Err(connect(source)),
            (received, _) => received?,
        };
        let welcome = match answer {
            FromBroker::Welcome(welcome) => welcome,
            FromBroker::Refused { reason } => return Err(ClientError::Refused { reason }),
            _ => return Err(ClientError::Protocol { what: "no welcome" }),
        };
        let descriptors = <[_; 5]>::try_from(descriptors);
        let [page, answers, notice, bell, cells] =
            descriptors.map_err(|_| ClientError::Protocol { what: "a welcome without its pages" })?;
        if welcome.gpus.len() > GPUS_MAX {
            return Err(ClientError::Protocol { what: "more GPUs than pages have room for" });
        }
        let (cell_count, first_cell) = (welcome.cells, welcome.first_cell);
        if cell_count > CELLS_MAX || first_cell.saturating_add(TASKS_MAX) > cell_count {
            return Err(ClientError::Protocol { what: "cells that are not there" });
        }
        let (longs, words) = layout::cell_page(cell_count);
        Ok(Self {
            socket,
            page: Words::open(page, CLIENT_LONGS, CLIENT_WORDS)?,
            answers: WordsView::open(&answers, BROKER_LONGS, BROKER_WORDS)?,
            notice: WordsView::open(&notice, NOTICE_LONGS, NOTICE_WORDS)?,
            bell: Bell::open(bell),
            cells: Words::open(cells, longs, words)?,
            cell_count,
            first_cell,
            gpus: welcome.gpus,
            engines: welcome.engines,
            lost: AtomicBool::new(false),
            tail: Mutex::new(0),
        })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    /// Ends the connection from this side; the watcher sees it.
    pub(super) fn hang_up(&self) {
        self.lose();
        self.socket.shut_down();
    }

    pub(super) fn send(&self, message: &FromClient) -> Result<(), ClientError> {
        let text = serde_json::to_vec(message).map_err(|_| ClientError::Protocol { what: "a question too long" })?;
        self.socket.send(&text, &[]).map_err(|_| ClientError::Lost)
    }

    /// Lease word of a lock.
    pub(super) fn lease(&self, lock: usize) -> &AtomicU64 {
        self.page.long(layout::lease(lock))
    }

    /// Wakes the broker if it sleeps, after something was published.
    pub(super) fn ring(&self) {
        if handshake::must_wake(|| self.notice.word(ASLEEP) != 0) {
            self.bell.ring();
        }
    }

    /// Puts an entry into the ring; waits while the broker is so far behind that there is no room.
    pub(super) fn push(&self, entry: Entry) -> Result<(), Unanswered> {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        while tail.wrapping_sub(self.answers.long(HEAD)) >= RING_ENTRIES {
            if self.is_lost() {
                return Err(Unanswered::Lost);
            }
            self.ring();
            std::thread::yield_now();
        }
        let first = layout::entry(*tail);
        for (at, long) in entry.encode().into_iter().enumerate() {
            self.page.long(first + at).store(long, Ordering::Relaxed);
        }
        *tail = tail.wrapping_add(1);
        self.page.long(TAIL).store(*tail, Ordering::Release);
        drop(tail);
        self.ring();
        Ok(())
    }

    /// The answer in a slot to the question of this generation, waited for with `patience`.
    pub(super) fn wait(
        &self,
        slot: usize,
        generation: u32,
        patience: &Patience<'_>,
    ) -> Result<[u64; ANSWER_LONGS], Unanswered> {
        let mut spinning = Some(clock::now().saturating_add(patience.spin));
        loop {
            for _ in 0..if spinning.is_some() { LOOKS } else { 1 } {
                if let Some(answer) = self.look(slot, generation) {
                    return answer;
                }
                if let Some(passed) = (patience.passed)() {
                    return Ok(passed);
                }
                std::hint::spin_loop();
            }
            if self.is_lost() {
                return Err(Unanswered::Lost);
            }
            let now = clock::now();
            if patience.until.is_some_and(|until| until <= now) {
                return Err(Unanswered::TimedOut);
            }
            if spinning.is_some_and(|end| now < end) {
                continue;
            }
            spinning = None;
            let bound =
                patience.until.map_or(SLICE, |until| SLICE.min(Duration::from_nanos(until.saturating_sub(now).0)));
            match layout::engine_of(slot) {
                Some(task) => self.sleep_in_cell(slot, task, generation, bound),
                None => self.sleep(slot, generation, bound),
            }
        }
    }

    fn sleep(&self, slot: usize, generation: u32, bound: Duration) {
        let sleeping = self.page.word(slot);
        let seen = self.answers.word(slot);
        let announce = || sleeping.store(1, Ordering::Relaxed);
        let open = || self.answers.word(slot) == seen && layout::code(seen, generation) == Code::Open;
        if handshake::may_sleep(announce, open) {
            let _ = self.answers.wait(slot, seen, Some(bound));
        }
        sleeping.store(0, Ordering::Relaxed);
    }

    /// Sleeps where the broker and whoever passes a lock on can wake.
    fn sleep_in_cell(&self, slot: usize, task: usize, generation: u32, bound: Duration) {
        let sleeping = self.cells.word(layout::cell_sleep(self.first_cell + task));
        let announce = || sleeping.store(1, Ordering::Relaxed);
        let open = || layout::code(self.answers.word(slot), generation) == Code::Open && !self.is_passed(task);
        if handshake::may_sleep(announce, open) {
            let _ = ipc::wait(sleeping, 1, Some(bound));
        }
        sleeping.store(0, Ordering::Relaxed);
    }

    /// Whether an engine was passed to the task at this place.
    fn is_passed(&self, task: usize) -> bool {
        let cell = self.cells.long(layout::cell(self.first_cell + task));
        handover::is_passed(cell, || self.answers.long(layout::expected(task)))
    }

    /// Gives a lock back, to its heir where one is named.
    pub(super) fn give_back(&self, lock: usize, mine: u64) {
        if lease::release(self.lease(lock), mine) == Released::Named && !self.pass(lock, mine) {
            // It was called off; nobody is named twice.
            let _ = lease::release(self.lease(lock), mine);
        }
    }

    /// Takes an engine that was passed to the task at this place.
    pub(super) fn take_passed(&self, task: usize, lock: usize, owner: u32) -> Option<u64> {
        let cell = self.cells.long(layout::cell(self.first_cell + task));
        handover::take(cell, || self.answers.long(layout::expected(task)), self.lease(lock), owner)
    }

    /// Passes a lock to its heir, if one is named.
    #[cold]
    pub(super) fn pass(&self, lock: usize, mine: u64) -> bool {
        let first = layout::heir(lock);
        let record = || (self.answers.long(first), self.answers.long(first + 1));
        let cell = Cell::new(None);
        let tell = |number: u64| {
            let number = usize::try_from(number).ok().filter(|number| *number < self.cell_count)?;
            cell.set(Some(number));
            Some(self.cells.long(layout::cell(number)))
        };
        let passed = handover::pass(self.lease(lock), mine, record, tell);
        if let Some(cell) = cell.get() {
            let sleep = self.cells.word(layout::cell_sleep(cell));
            if handshake::must_wake(|| sleep.swap(0, Ordering::Relaxed) != 0) {
                ipc::wake(sleep, u32::MAX);
            }
        }
        passed
    }

    /// What is in a slot; `None` = nothing for this generation.
    pub(super) fn look(&self, slot: usize, generation: u32) -> Option<Result<[u64; ANSWER_LONGS], Unanswered>> {
        let first = layout::answer(slot);
        match layout::code(self.answers.word(slot), generation) {
            Code::Open => None,
            Code::Granted => Some(Ok(std::array::from_fn(|at| self.answers.long(first + at)))),
            Code::Refused => Some(Err(Unanswered::Refused(Reason::of(self.answers.long(first))))),
            Code::Revoked => {
                let gpu = self.answers.long(first).checked_sub(1).map(|gpu| GpuId(gpu as u32));
                Some(Err(Unanswered::Revoked(gpu)))
            }
        }
    }
}
