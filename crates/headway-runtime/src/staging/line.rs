//! The line of one engine ([`EngineLine`]), driven by the threads that copy: each asks for its own chunks, and who changes something lets the
//! next ones start.
//!
//! A chunk that finds nobody else passes without the lock. While the lock is held nothing else is called.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool as Flag, AtomicU64};

use headway_core::decisions::engine_line::{EngineLine, FlowClass, LineEntry, LineKey, LineParty};
use headway_core::units::{Bytes, Nanos};
use headway_os::board::{Behind, EngineActivity};
use headway_os::clock;

use super::sync::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, lock};
use super::workers::Signal;

/// Values of [`Line::state`]: nobody is on the engine; all go by the lock; from [`ALONE`] on, one chunk passed without it.
const IDLE: u32 = 0;
const LOCKED: u32 = 1;
const ALONE: u32 = 2;
/// In the order of their numbers.
const PARTIES: [LineParty; 4] = [LineParty::Copies, LineParty::Staging, LineParty::Promised, LineParty::Planned];

/// The line of one engine, or of those between GPUs.
pub(crate) struct Line {
    state: AtomicU32,
    queue: Mutex<Queue>,
    service: ServiceTimes,
    /// What the user's other programs see of it.
    activity: EngineActivity,
}

/// How long chunks were on one engine: each from when the line let it start, or from the end of the chunk before it where that is later, until
/// the line was told of its end. A thread may report the end of its unpromised chunk only after the promised chunk behind it has ended. Then the time
/// of both counts as the unpromised one's: nobody knows where the one ended and the other began.
#[derive(Default)]
pub(crate) struct ServiceTimes {
    /// Nobody looks at the clock before.
    pub(crate) is_watched: Flag,
    last_end: AtomicU64,
    /// Of chunks without a promise, and of promised ones, since somebody took it.
    longest_unpromised: AtomicU64,
    longest_promised: AtomicU64,
}

impl ServiceTimes {
    /// A chunk that started then ends now: its service time.
    fn end(&self, start: Nanos) -> Nanos {
        let end = clock::now();
        let before = Nanos(self.last_end.swap(end.0, Ordering::Relaxed));
        end.saturating_sub(start.max(before))
    }

    fn count(&self, party: LineParty, service: Nanos) {
        let longest = match party {
            LineParty::Promised => &self.longest_promised,
            _ => &self.longest_unpromised,
        };
        longest.fetch_max(service.0, Ordering::Relaxed);
    }

    /// The longest of the chunks without a promise since the last call.
    pub(crate) fn take_longest_unpromised(&self) -> Nanos {
        Nanos(self.longest_unpromised.swap(0, Ordering::Relaxed))
    }

    /// The longest of the promised chunks since the last call.
    pub(crate) fn take_longest_promised(&self) -> Nanos {
        Nanos(self.longest_promised.swap(0, Ordering::Relaxed))
    }
}

#[derive(Default)]
struct Queue {
    line: EngineLine,
    turns: BTreeMap<LineKey, Arc<Turn>>,
    /// Unpromised chunks that have ended, although their threads have not reported it: a promised chunk behind them has ended.
    over: u32,
}

/// The turn of one chunk that waits.
struct Turn {
    has_come: AtomicBool,
    /// When it came, if anybody asked: the engine waits for its thread from then on.
    came: AtomicU64,
    signal: Option<Arc<Signal>>,
}

/// The state while a chunk of this kind is alone on the engine.
const fn alone(entry: &LineEntry) -> u32 {
    ALONE + PARTIES.len() as u32 * entry.engine + entry.party as u32
}

impl Line {
    pub(crate) fn new() -> Arc<Self> {
        Self::told(EngineActivity::default())
    }

    /// A line that tells of its chunks.
    pub(crate) fn told(activity: EngineActivity) -> Arc<Self> {
        let service = ServiceTimes::default();
        Arc::new(Self { state: AtomicU32::new(IDLE), queue: Mutex::new(Queue::default()), service, activity })
    }

    pub(crate) fn activity(&self) -> &EngineActivity {
        &self.activity
    }

    pub(crate) fn service(&self) -> &ServiceTimes {
        &self.service
    }

    fn swap(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        let mut queue = lock(&self.queue);
        // Who passed without the lock is counted from now on.
        if let Some(kind) = self.state.swap(LOCKED, Ordering::AcqRel).checked_sub(ALONE) {
            let (engine, party) = (kind / PARTIES.len() as u32, PARTIES[kind as usize % PARTIES.len()]);
            queue.line.run(&LineEntry { engine, ..LineEntry::new(FlowClass::Normal, party, 1) });
        }
        queue
    }

    /// Lets those start that can.
    fn unlock(&self, mut queue: MutexGuard<'_, Queue>) {
        let mut come = Vec::new();
        while let Some(key) = queue.line.poll_start() {
            come.extend(queue.turns.remove(&key));
        }
        if queue.line.is_idle() {
            self.state.store(IDLE, Ordering::Release);
        }
        drop(queue);
        let is_watched = !come.is_empty() && self.service.is_watched.load(Ordering::Relaxed);
        let now = if is_watched { clock::now() } else { Nanos::ZERO };
        for turn in come {
            turn.came.store(now.0, Ordering::Relaxed);
            turn.has_come.store(true, Ordering::Release);
            if let Some(signal) = &turn.signal {
                signal.raise();
            }
        }
    }
}

/// One copy's place at a line, for one chunk after the other; gives everything back when dropped.
pub(crate) struct Place {
    line: Arc<Line>,
    entry: LineEntry,
    signal: Option<Arc<Signal>>,
    waits: Option<(LineKey, Arc<Turn>)>,
    /// Chunks that have started and not ended.
    held: u32,
    /// What was ahead of the first one.
    ahead: Option<Ahead>,
    /// When those that have not ended started, as far as anybody asked.
    starts: VecDeque<Nanos>,
}

/// Chunks that were ahead of another one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ahead {
    pub(crate) all: u64,
    /// On the engine, without a promise.
    pub(crate) unpromised: u32,
}

impl Place {
    /// A place for chunks like `entry`.
    pub(crate) fn new(line: &Arc<Line>, entry: LineEntry) -> Self {
        Self { line: Arc::clone(line), entry, signal: None, waits: None, held: 0, ahead: None, starts: VecDeque::new() }
    }

    /// The place with a signal that is raised when it is time to ask again.
    pub(super) fn with_signal(mut self, signal: &Arc<Signal>) -> Self {
        self.signal = Some(Arc::clone(signal));
        self
    }

    /// Takes the engine for one more chunk, whoever else is there.
    pub(crate) fn hold(&mut self) {
        if !self.line.swap(IDLE, alone(&self.entry)) {
            let mut queue = self.line.lock();
            queue.line.run(&self.entry);
            self.line.unlock(queue);
        }
        self.started(None);
    }

    /// A chunk has the engine, since it came or since now.
    fn started(&mut self, came: Option<Nanos>) {
        self.held += 1;
        if self.line.service.is_watched.load(Ordering::Relaxed) {
            self.starts.push_back(came.unwrap_or_else(clock::now));
        }
    }

    /// Takes the engine for one more chunk, or stands in the line for it.
    pub(crate) fn take(&mut self) -> bool {
        let has_come = if let Some((_, turn)) = &self.waits {
            turn.has_come.load(Ordering::Acquire)
        } else if self.entry.second.is_none() && self.line.swap(IDLE, alone(&self.entry)) {
            self.ahead.get_or_insert_default();
            true
        } else {
            let came = AtomicU64::new(0);
            let turn = Arc::new(Turn { has_come: AtomicBool::new(false), came, signal: self.signal.clone() });
            let mut queue = self.line.lock();
            let key = queue.line.ask(self.entry);
            self.entry.after = key.end_tag(self.entry.bytes);
            let unpromised = queue.line.unpromised(self.entry.engine);
            let behind = self.ahead.is_none().then(|| queue.line.class_ahead(key)).flatten();
            self.ahead.get_or_insert_with(|| Ahead { all: queue.line.ahead(key), unpromised });
            queue.turns.insert(key, Arc::clone(&turn));
            self.line.unlock(queue);
            if let Some(class) = behind {
                self.line.activity.came_behind(self.entry.class, Behind::Own(class));
            }
            let has_come = turn.has_come.load(Ordering::Acquire);
            self.waits = Some((key, turn));
            has_come
        };
        if has_come {
            let came = self.waits.take().map(|(_, turn)| Nanos(turn.came.load(Ordering::Relaxed)));
            self.started(came.filter(|came| *came > Nanos::ZERO));
        }
        has_come
    }

    /// A chunk has ended: how long it was on the engine, if anybody asked.
    pub(crate) fn release(&mut self) -> Option<Nanos> {
        let service = self.starts.pop_front().map(|start| self.line.service.end(start));
        let count = |party| service.into_iter().for_each(|service| self.line.service.count(party, service));
        self.held -= 1;
        if self.line.swap(alone(&self.entry), IDLE) {
            count(self.entry.party);
            return service;
        }
        let mut queue = self.line.lock();
        queue.line.end(&self.entry);
        let is_behind = if self.entry.party == LineParty::Promised {
            // None starts beside a promised chunk: what is still there began before it, and has ended, too.
            let there = queue.line.unpromised(self.entry.engine);
            std::mem::replace(&mut queue.over, there) < there
        } else {
            queue.over = queue.over.saturating_sub(1);
            false
        };
        count(if is_behind { LineParty::Copies } else { self.entry.party });
        self.line.unlock(queue);
        service.map(|service| if is_behind { Nanos::ZERO } else { service })
    }

    /// Leaves the line, if it stands in it.
    pub(crate) fn leave(&mut self) {
        if let Some((key, _)) = self.waits.take() {
            let mut queue = self.line.lock();
            queue.turns.remove(&key);
            if !queue.line.leave(key) {
                queue.line.end(&self.entry);
            }
            self.line.unlock(queue);
        }
    }

    /// Chunks of so many bytes have moved, or have been submitted.
    pub(crate) fn moved(&self, bytes: u64) {
        self.line.activity.moved(self.entry.class, Bytes(bytes));
    }

    /// The copy has ended, after it waited so long for others.
    pub(crate) fn copied(&self, waited: Nanos) {
        self.line.activity.copied(self.entry.class, waited);
    }

    /// What was ahead of the first one.
    pub(crate) fn ahead(&self) -> Ahead {
        self.ahead.unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
        while self.held > 0 {
            self.release();
        }
    }
}
