//! One connection to one broker: its pages, its bell, its socket.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use headway_core::decisions::engine_lock::EngineParameters;
use headway_core::decisions::sharing::{GpuId, JobId};
use headway_core::units::Nanos;
use headway_os::OsError;
use headway_os::clock;
use headway_os::fork::Home;
use headway_os::ipc::{Bell, Socket, Words, WordsView, is_stopped};

use super::receive;
use crate::error::{ClientError, RefusalReason};
use crate::layout::{
    self, ANSWER_LONGS, ASLEEP, BEAT, BROKER_LONGS, BROKER_WORDS, CLIENT_LONGS, CLIENT_WORDS, Code, Entry, GPUS_MAX,
    HEAD, NOTICE_LONGS, NOTICE_WORDS, REPORTS, RING_ENTRIES, TAIL,
};
use crate::message::{FromBroker, FromClient, ResumedTask, VERSION};
use crate::place;
use crate::protocol::handshake;

/// Sleeps at most this long before it looks whether the broker is still there.
const SLICE: Duration = if cfg!(test) { Duration::from_secs(3_600) } else { Duration::from_millis(100) };
/// Looks between two readings of the clock.
const LOOKS: u32 = 64;

pub(super) struct Link {
    pub(super) socket: Socket,
    home: Home,
    /// Of the broker, among those that were at this socket.
    pub(super) epoch: u64,
    page: Words,
    answers: WordsView,
    notice: WordsView,
    bell: Bell,
    pub(super) gpus: Vec<GpuId>,
    pub(super) engines: Option<EngineParameters>,
    lost: AtomicBool,
    /// Process of the broker.
    pid: u32,
    /// What the broker's beat was when it was found silent; 0 = it was not.
    silent_at: AtomicU64,
    /// Whether the broker wants to know which leased engines are used.
    pub(super) has_log: bool,
    tail: Mutex<Tail>,
}

/// The end of the ring; the writing thread holds it.
#[derive(Default)]
struct Tail {
    /// Entries written.
    entries: u64,
    /// Uses of leased engines that were not reported.
    untold: u64,
}

/// Why a wait has ended without an answer.
pub(super) enum Unanswered {
    /// The time is over.
    TimedOut,
    /// The broker is gone.
    Lost,
    /// The broker does not go round any more.
    Silent,
    /// It was refused.
    Refused(RefusalReason),
    /// It was granted and taken away, as this GPU is lost.
    Revoked(Option<GpuId>),
}

impl Link {
    pub(super) fn open(path: &Path, name: &str, resumed: Vec<ResumedTask>) -> Result<Self, ClientError> {
        let connect = |source| ClientError::Connect { path: path.to_owned(), source };
        let socket = place::reach(path)?;
        let pid = socket.peer().map_err(connect)?.pid;
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
            FromBroker::Refused { reason } => return Err(super::refused(&reason)),
            _ => return Err(ClientError::Protocol { what: "no welcome" }),
        };
        let descriptors = <[_; 4]>::try_from(descriptors);
        let [page, answers, notice, bell] =
            descriptors.map_err(|_| ClientError::Protocol { what: "a welcome without its pages" })?;
        if welcome.gpus.len() > GPUS_MAX {
            return Err(ClientError::Protocol { what: "more GPUs than pages have room for" });
        }
        Ok(Self {
            socket,
            home: Home::here(),
            epoch: welcome.epoch,
            page: Words::open(page, CLIENT_LONGS, CLIENT_WORDS)?,
            answers: WordsView::open(&answers, BROKER_LONGS, BROKER_WORDS)?,
            notice: WordsView::open(&notice, NOTICE_LONGS, NOTICE_WORDS)?,
            bell: Bell::open(bell),
            gpus: welcome.gpus,
            engines: welcome.engines,
            lost: AtomicBool::new(false),
            pid,
            silent_at: AtomicU64::new(0),
            has_log: welcome.log,
            tail: Mutex::new(Tail::default()),
        })
    }

    /// Whether this is a forked child of the process that connected: socket and pages are that one's.
    pub(super) fn is_foreign(&self) -> bool {
        !self.home.is_here()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst) || self.is_foreign()
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    /// Ends the connection from this side; the watcher sees it.
    pub(super) fn hang_up(&self) {
        if self.is_foreign() {
            return;
        }
        self.lose();
        self.socket.shut_down();
    }

    pub(super) fn send(&self, message: &FromClient) -> Result<(), OsError> {
        // Nothing of a message can fail to become text; if it did, the end of the connection would tell.
        let text = serde_json::to_vec(message).unwrap_or_default();
        self.socket.send(&text, &[])
    }

    /// The error for a broker that has been silent for so long.
    pub(super) fn silent(&self, waited: Nanos) -> ClientError {
        self.silent_at.store(self.notice.long(BEAT), Ordering::Relaxed);
        ClientError::Silent { pid: self.pid, waited, is_stopped: is_stopped(self.pid) }
    }

    /// Whether the broker was found silent and has not gone round since.
    pub(super) fn is_silent(&self) -> bool {
        let beat = self.silent_at.load(Ordering::Relaxed);
        beat != 0 && beat == self.notice.long(BEAT)
    }

    /// Changes each time the broker goes round.
    pub(super) fn beat(&self) -> u64 {
        self.notice.long(BEAT)
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
    pub(super) fn push(&self, entry: Entry, patience: Nanos) -> Result<(), Unanswered> {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let mut silence = None;
        while self.unread(&tail) >= RING_ENTRIES {
            if self.is_lost() {
                return Err(Unanswered::Lost);
            }
            if silence.get_or_insert_with(|| Silence::begin(self)).lasts(self, patience) {
                return Err(Unanswered::Silent);
            }
            self.ring();
            headway_os::sched::yield_now();
        }
        self.publish(&mut tail, entry);
        drop(tail);
        self.ring();
        Ok(())
    }

    /// Entries that the broker has not read.
    fn unread(&self, tail: &Tail) -> u64 {
        tail.entries.wrapping_sub(self.answers.long(HEAD))
    }

    fn publish(&self, tail: &mut Tail, entry: Entry) {
        let first = layout::entry(tail.entries);
        for (at, long) in entry.encode().into_iter().enumerate() {
            self.page.long(first + at).store(long, Ordering::Relaxed);
        }
        tail.entries = tail.entries.wrapping_add(1);
        self.page.long(TAIL).store(tail.entries, Ordering::Release);
    }

    /// Tells of a use of a leased engine, for the broker's log. Never waits; a broker that sleeps is woken only when many are
    /// unread, and where there is no room the use is counted.
    pub(super) fn report(&self, job: JobId, lock: usize, begin: Nanos, end: Nanos) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let unread = self.unread(&tail);
        if unread >= REPORTS {
            tail.untold += 1;
            return;
        }
        let missing = std::mem::take(&mut tail.untold);
        self.publish(&mut tail, Entry::Used { lock: lock as u32, job, begin, end, missing });
        drop(tail);
        if unread == REPORTS / 2 {
            self.ring();
        }
    }

    /// The answer in a slot to the question of this generation: looked for during `spin`, then slept for, until `until`.
    pub(super) fn wait(
        &self,
        slot: usize,
        generation: u32,
        spin: Nanos,
        until: Option<Nanos>,
        patience: Nanos,
    ) -> Result<[u64; ANSWER_LONGS], Unanswered> {
        let mut silence = Silence::begin(self);
        let mut spinning = Some(clock::now().saturating_add(spin));
        loop {
            for _ in 0..if spinning.is_some() { LOOKS } else { 1 } {
                if let Some(answer) = self.look(slot, generation) {
                    return answer;
                }
                std::hint::spin_loop();
            }
            if self.is_lost() {
                return Err(Unanswered::Lost);
            }
            let now = clock::now();
            if until.is_some_and(|until| until <= now) {
                return Err(Unanswered::TimedOut);
            }
            if spinning.is_some_and(|end| now < end) {
                continue;
            }
            spinning = None;
            if silence.lasts(self, patience) {
                return Err(Unanswered::Silent);
            }
            let bound = until.map_or(SLICE, |until| SLICE.min(Duration::from_nanos(until.saturating_sub(now).0)));
            self.sleep(slot, generation, bound);
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

    /// What is in a slot; `None` = nothing for this generation.
    pub(super) fn look(&self, slot: usize, generation: u32) -> Option<Result<[u64; ANSWER_LONGS], Unanswered>> {
        let first = layout::answer(slot);
        match layout::code(self.answers.word(slot), generation) {
            Code::Open => None,
            Code::Granted => Some(Ok(std::array::from_fn(|at| self.answers.long(first + at)))),
            Code::Refused => Some(Err(Unanswered::Refused(RefusalReason::of(self.answers.long(first))))),
            Code::Revoked => {
                let gpu = self.answers.long(first).checked_sub(1).map(|gpu| GpuId(gpu as u32));
                Some(Err(Unanswered::Revoked(gpu)))
            }
        }
    }
}

/// Since when the broker has not gone round.
struct Silence {
    beat: u64,
    since: Nanos,
}

impl Silence {
    fn begin(link: &Link) -> Self {
        Self { beat: link.notice.long(BEAT), since: clock::now() }
    }

    /// Whether it has been so for `patience`. One of an earlier version does not tell, and is waited for.
    fn lasts(&mut self, link: &Link, patience: Nanos) -> bool {
        let (beat, now) = (link.notice.long(BEAT), clock::now());
        if beat != self.beat || beat == 0 {
            (self.beat, self.since) = (beat, now);
        }
        now.saturating_sub(self.since) >= patience
    }
}
