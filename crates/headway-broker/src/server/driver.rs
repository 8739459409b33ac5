//! Drives the [`Book`]: feeds it what happens, and does what it decides. Sockets, pages, priorities and files are here, decisions are not.

use std::collections::BTreeMap;

use headway_core::decisions::broker::{
    Action, Book, BookParameters, Counts, Input, KnownProcess, LeaseInUse, Reply, Roster, Slot,
};
use headway_core::decisions::engine_lock::LockId;
use headway_core::decisions::sharing::{ClientId, GpuId, JobId, TaskId};
use headway_core::units::{Nanos, PPM};
use headway_os::ipc::{Bell, Process, Socket, Words, started, user};
use headway_os::{clock, event};

use super::about::About;
use super::journal::Journal;
use super::priority::{self, Priority};
use super::session::Session;
use super::{ServerOptions, UserAccess};
use crate::error::ServerError;
use crate::layout::{Code, ENGINES, GPUS_MAX};
use crate::message::FromBroker;
use crate::protocol::lease::{self, Revoked};

/// Time between two looks at processes of the broker before.
const LOOK: Nanos = Nanos(5_000_000);

/// A lock that a client was given, and its lease word until the client gives it back.
struct GivenLock {
    lock: usize,
    word: u64,
}

/// A job with engines.
struct Running {
    client: ClientId,
    job: JobId,
    locks: Vec<GivenLock>,
}

/// A process that the broker before served.
struct FormerProcess {
    pid: u32,
    process: Process,
}

/// The book, and what it needs of the system.
pub(super) struct BookDriver {
    pub(super) book: Book,
    /// Connections, also those that have not said who they are.
    pub(super) sessions: BTreeMap<ClientId, Session>,
    /// Sessions that have ended, and whose descriptors are on their way to a client that does not read.
    pub(super) in_flight: Vec<Session>,
    running: Vec<Running>,
    /// Of lease words.
    generation: u32,
    /// Those that live and have not come back.
    former: Vec<FormerProcess>,
    pub(super) priority: Priority,
    /// What the broker's process does in addition to arbitrating.
    pub(super) about: About,
    pub(super) journal: Journal,
    pub(super) epoch: u64,
    pub(super) began: Nanos,
    next_client: u64,
    /// What became of connections that never said who they are.
    unidentified: Counts,
    /// Whom the next broker must wait for has changed.
    roster_changed: bool,
    /// Sessions that have ended.
    removed: Vec<ClientId>,
    /// GPUs to look at.
    hints: Vec<GpuId>,
    /// Whether it is doing what the book has decided.
    performs: bool,
    /// The page that all clients get.
    pub(super) notice: Words,
}

/// The processes of a roster that live.
fn living(roster: &mut Roster) -> Vec<FormerProcess> {
    let mut former = Vec::new();
    roster.clients.retain(|known| {
        // In this order: while the descriptor's process lives, no other process has its number.
        let Ok(process) = Process::open(known.pid) else { return false };
        if started(known.pid).unwrap_or(0) != known.started || process.has_ended() {
            return false;
        }
        former.push(FormerProcess { pid: known.pid, process });
        true
    });
    former
}

fn tell_cut(client: ClientId, pid: u32, hung: bool) {
    let why = if hung { "it held something for longer than the watchdog" } else { "it broke the protocol" };
    event!(WARN, "headway::broker", "client cut off", client = client.0, pid = pid, why = why);
}

impl BookDriver {
    pub(super) fn new(options: &ServerOptions, notice: Words, epoch: u64, now: Nanos) -> Result<Self, ServerError> {
        let (mut journal, before) = Journal::open(options, epoch, now)?;
        // Reading the log took its time: former clients have all of theirs from now on.
        let now = clock::now();
        let mut roster = before.roster;
        // The broker before may have been killed together with its guardian.
        roster.clients.iter().for_each(priority::take_back);
        let former = living(&mut roster);
        let mut limits = options.limits;
        let gpus = options.arbiter.clusters.iter().map(|cluster| cluster.gpus.len()).sum();
        let gpus = if options.access == UserAccess::Group { gpus } else { GPUS_MAX };
        limits.utilisation_ppm_per_user.get_or_insert(gpus as u64 * PPM);
        let parameters = BookParameters {
            arbiter: options.arbiter.clone(),
            limits,
            owner: user(),
            is_logged: options.log.is_some(),
            must_remember: options.must_remember,
            watchdog: options.watchdog,
            drain: options.drain,
            recover: options.recover,
            first_task: (epoch as u32 & 0xfff) << 20,
        };
        let book = Book::new(parameters, roster, before.memory.as_ref(), now).map_err(ServerError::Parameters)?;
        journal.begin(now, &book)?;
        event!(
            INFO,
            "headway::broker",
            "broker begins",
            start = epoch,
            gpus = book.gpus().len(),
            waits_for_others = book.is_recovering()
        );
        Ok(Self {
            book,
            sessions: BTreeMap::new(),
            in_flight: Vec::new(),
            running: Vec::new(),
            generation: 0,
            former,
            priority: Priority::new(options.boost, options.lend_realtime),
            about: About::default(),
            journal,
            epoch,
            began: now,
            next_client: epoch << 32,
            unidentified: Counts::default(),
            roster_changed: true,
            removed: Vec::new(),
            hints: Vec::new(),
            performs: false,
            notice,
        })
    }

    // Connections.

    pub(super) fn next_client(&mut self) -> ClientId {
        self.next_client += 1;
        ClientId(self.next_client)
    }

    pub(super) fn accept(&mut self, client: ClientId, session: Session) {
        let process = session.peer;
        event!(DEBUG, "headway::broker", "client connected", client = client.0, pid = process.pid, user = process.uid);
        self.sessions.insert(client, session);
    }

    pub(super) fn socket(&self, client: ClientId) -> Option<&Socket> {
        Some(&self.sessions.get(&client)?.socket)
    }

    pub(super) fn is_open(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|session| !session.is_shut)
    }

    pub(super) fn bell(&self, client: ClientId) -> Option<&Bell> {
        Some(&self.sessions.get(&client)?.pages.as_ref()?.bell)
    }

    pub(super) fn is_greeted(&self, client: ClientId) -> bool {
        self.bell(client).is_some()
    }

    /// Sessions that have ended, to be taken out of the poller and then removed.
    pub(super) fn take_removed(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.removed)
    }

    /// GPUs to look at.
    pub(super) fn take_hints(&mut self) -> Vec<GpuId> {
        std::mem::take(&mut self.hints)
    }

    /// What happened since the start.
    pub(super) fn counts(&self) -> Counts {
        let counts = self.book.counts();
        let Counts { gone, cut, .. } = self.unidentified;
        Counts { gone: counts.gone + gone, cut: counts.cut + cut, ..counts }
    }

    /// A client has closed its connection.
    pub(super) fn leave(&mut self, now: Nanos, client: ClientId) {
        self.catch_up(now, client, false);
        if self.book.is_served(client) {
            self.feed(now, &Input::Left { client });
        } else if self.is_open(client) {
            self.unidentified.gone += 1;
            self.end_unidentified(now, client);
        }
        self.priority.apply();
    }

    /// Ends the connection of a client that does not keep to the protocol.
    pub(super) fn cut(&mut self, now: Nanos, client: ClientId) {
        if self.book.is_served(client) {
            self.feed(now, &Input::Broke { client });
        } else if self.is_open(client) {
            self.unidentified.cut += 1;
            let pid = self.sessions.get(&client).map_or(0, |session| session.peer.pid);
            tell_cut(client, pid, false);
            self.end_unidentified(now, client);
        }
        self.priority.apply();
    }

    pub(super) fn process_ended(&mut self, now: Nanos, client: ClientId) {
        self.catch_up(now, client, false);
        self.feed(now, &Input::ProcessEnded { client });
        self.leave(now, client);
    }

    /// A GPU is lost: a client says so, or the probe.
    pub(super) fn lose(&mut self, now: Nanos, client: Option<ClientId>, gpu: GpuId) {
        if self.feed(now, &Input::GpuLost { client, gpu }) {
            event!(ERROR, "headway::broker", "GPU lost", gpu = gpu.0);
        }
        self.priority.apply();
    }

    fn end_unidentified(&mut self, now: Nanos, client: ClientId) {
        self.shut(now, client);
        self.removed.push(client);
    }

    fn shut(&mut self, now: Nanos, client: ClientId) {
        self.running.retain(|running| running.client != client);
        let Some(session) = self.sessions.get_mut(&client) else { return };
        // The client sees the end of its connection now. The descriptors leave the poller with the session, or before.
        session.socket.shut_down();
        session.is_shut = true;
        if session.process.has_ended() {
            self.feed(now, &Input::ProcessEnded { client });
        }
    }

    // Turns.

    /// One look at everything; whether there was anything to do.
    pub(super) fn turn(&mut self, now: Nanos, share: usize) -> bool {
        self.mend(now);
        let mut busy = self.collect_returns(now);
        // The broker reads no requests until its predecessor's clients are back or gone.
        if self.book.is_recovering() {
            self.look_at_former(now);
            self.keep_time(now);
        }
        if !self.book.is_recovering() {
            busy |= self.read_rings(now, share);
        }
        // A client that has given its engine back in time is not late, even if the broker sees that late.
        busy |= self.keep_time(now);
        if busy {
            self.priority.apply();
        }
        busy
    }

    fn keep_time(&mut self, now: Nanos) -> bool {
        self.book.poll_timeout().is_some_and(|time| time <= now) && self.feed(now, &Input::Timeout)
    }

    fn look_at_former(&mut self, now: Nanos) {
        let ended: Vec<u32> =
            self.former.iter().filter(|former| former.process.has_ended()).map(|former| former.pid).collect();
        self.former.retain(|former| !ended.contains(&former.pid));
        for pid in ended {
            self.feed(now, &Input::FormerProcessEnded { pid });
        }
    }

    /// When [`BookDriver::turn`] is due although no client rings.
    pub(super) fn wake_time(&self) -> Option<Nanos> {
        let look = self.book.is_recovering().then(|| clock::now().max(self.began).saturating_add(LOOK));
        self.book.poll_timeout().into_iter().chain(self.journal.retry_at()).chain(look).min()
    }

    // The book.

    /// Feeds the book and does what it decides; whether the input changed anything.
    pub(super) fn feed(&mut self, now: Nanos, input: &Input) -> bool {
        let before = self.book.actions().len();
        let has_changed = self.book.handle(now, input);
        if has_changed {
            self.write(now, input, before);
        }
        // What comes of an answer to an action is done after the other actions.
        if !std::mem::replace(&mut self.performs, true) {
            while let Some(action) = self.book.poll_action() {
                self.perform(now, action);
            }
            self.performs = false;
        }
        has_changed
    }

    /// The outcome is written before the broker answers: the next broker never knows less than the clients. `before` counts the actions
    /// that were to be done before the input.
    fn write(&mut self, now: Nanos, input: &Input, before: usize) {
        self.journal.fed(now, input, &self.book, self.book.actions().len() - before);
        if self.book.withheld() > 0 && !self.journal.forbids_grants() {
            let before = self.book.actions().len();
            self.book.handle(now, &Input::Written);
            self.journal.fed(now, &Input::Written, &self.book, self.book.actions().len() - before);
        }
    }

    /// Writes again what could not be written, and tells of the grants that waited for that.
    fn mend(&mut self, now: Nanos) {
        if self.journal.retry_at().is_some_and(|at| at <= now) && self.journal.mend(now, &self.book) {
            self.feed(now, &Input::Written);
            self.priority.apply();
        }
    }

    /// Keeps the files of the log within their size, and tells the next broker which clients to wait for.
    pub(super) fn write_down(&mut self, now: Nanos) {
        self.journal.keep_size(now, &self.book);
        if !std::mem::take(&mut self.roster_changed) {
            return;
        }
        let threads = |known: KnownProcess| match known.threads.is_empty() {
            true => KnownProcess { threads: self.priority.threads(&known.tasks), ..known },
            false => known,
        };
        let served = self.book.served().into_iter().map(threads);
        self.journal.serve(now, served, self.book.users());
    }

    /// The broker ends: the next one is to know all.
    pub(super) fn end(&mut self, now: Nanos) {
        self.roster_changed = true;
        self.write_down(now);
    }

    fn perform(&mut self, now: Nanos, action: Action) {
        match action {
            Action::Reply { client, reply } => {
                let is_sent = match reply {
                    Reply::Welcome => self.welcome(client),
                    Reply::Registered { task } => self.send(client, &FromBroker::Registered { task }),
                    Reply::FlowOpened(admitted) => self.send(client, &FromBroker::FlowOpened(admitted)),
                    Reply::FlowRefused(refused) => self.send(client, &FromBroker::FlowRefused(refused)),
                    Reply::Done => self.send(client, &FromBroker::Done),
                    Reply::Refused { reason } => self.send(client, &FromBroker::Refused { reason }),
                };
                // The broker does not wait for a client that does not read its answers: it cuts the client off.
                if !is_sent {
                    self.feed(now, &Input::Broke { client });
                }
            }
            Action::SetTerms { client, terms } => {
                if !self.send(client, &FromBroker::Terms(terms)) {
                    self.feed(now, &Input::Broke { client });
                }
            }
            Action::Grant { client, slot, key, gpu, token, from } => {
                let job = key.job;
                event!(
                    DEBUG,
                    "headway::broker",
                    "token granted",
                    task = job.task.0,
                    job = job.job,
                    gpu = gpu.0,
                    token = token.0
                );
                let from = from.map_or(0, |from| u64::from(from.0) + 1);
                let words = [u64::from(gpu.0), u64::from(token.0), from, key.deadline.0];
                self.answer(client, slot, Code::Granted, words);
            }
            Action::Run { client, slot, job, locks } => self.run(client, slot, job, &locks),
            Action::Refuse { client, slot, reason } => {
                event!(DEBUG, "headway::broker", "request refused", client = client.0, why = reason);
                self.answer(client, slot, Code::Refused, [reason as u64, 0, 0, 0]);
            }
            Action::Revoke { client, slot, gpu, .. } => {
                self.answer(client, slot, Code::Revoked, [u64::from(gpu.0) + 1, 0, 0, 0]);
            }
            Action::TakeBack { client, locks, .. } => {
                for lock in locks {
                    self.take_back(client, self.place_of(lock));
                }
            }
            Action::Lend { client, locks } => {
                for lock in locks {
                    let (generation, lock) = (self.next_generation(), self.place_of(lock));
                    if let Some(pages) = self.sessions.get(&client).and_then(|session| session.pages.as_ref()) {
                        lease::lend(pages.lease(lock), generation);
                    }
                }
            }
            Action::EndLeases { client, locks } => self.end_leases(now, client, &locks),
            Action::Follow { client, task, thread } => {
                if let Some(session) = self.sessions.get(&client) {
                    self.priority.manage(task, session.peer.pid, thread, session.peer.uid);
                }
            }
            Action::Prioritise { task, key } => self.priority.set(task, key),
            Action::Forget { task } => self.priority.forget(task),
            Action::Probe { gpu } => {
                // One of each at a time, and those that are asked for are answered soon.
                if !self.hints.contains(&gpu) {
                    self.hints.push(gpu);
                }
            }
            Action::WithoutRoom { task } => {
                event!(WARN, "headway::broker", "no room for a task on the GPUs that are left", task = task.0);
            }
            Action::Cut { client, pid, hung } => tell_cut(client, pid, hung),
            Action::Shut { client } => self.shut(now, client),
            Action::Remove { client } => {
                event!(DEBUG, "headway::broker", "client is gone, and what it held is free", client = client.0);
                self.removed.push(client);
            }
            Action::RecordClients => self.roster_changed = true,
            Action::Recovered => {
                event!(INFO, "headway::broker", "those of the broker before are back or gone: grants begin");
                self.former.clear();
            }
        }
    }

    pub(super) fn send(&self, client: ClientId, message: &FromBroker) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.send(message, &[]))
    }

    fn answer(&self, client: ClientId, slot: Slot, code: Code, answer: [u64; 4]) {
        if let Some(pages) = self.sessions.get(&client).and_then(|session| session.pages.as_ref()) {
            pages.answer(slot.number, slot.generation, code, answer);
        }
    }

    // Engines, as they stand in the pages.

    /// The place of a lock in the pages.
    fn place_of(&self, lock: LockId) -> usize {
        let position = self.book.gpus().iter().position(|gpu| *gpu == lock.gpu);
        let position = position.expect("locks of the book are of its GPUs");
        position * ENGINES + lock.engine as usize
    }

    const fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    fn run(&mut self, client: ClientId, slot: Option<Slot>, job: JobId, locks: &[LockId]) {
        let mut given = Vec::with_capacity(locks.len());
        for lock in locks {
            let (generation, lock) = (self.next_generation(), self.place_of(*lock));
            let Some(session) = self.sessions.get(&client).filter(|session| !session.is_shut) else { return };
            let Some(pages) = &session.pages else { return };
            given.push(GivenLock { lock, word: lease::grant(pages.lease(lock), generation, job.task.0) });
        }
        let mut words = [0; 4];
        given.iter().zip(&mut words).for_each(|(given, place)| *place = given.word);
        self.running.push(Running { client, job, locks: given });
        event!(TRACE, "headway::broker", "engines granted", task = job.task.0, job = job.job);
        if let Some(slot) = slot {
            self.answer(client, slot, Code::Granted, words);
        }
    }

    fn take_back(&mut self, client: ClientId, lock: usize) {
        self.running.retain(|running| running.client != client || running.locks.iter().all(|given| given.lock != lock));
        let generation = self.next_generation();
        if let Some(pages) = self.sessions.get(&client).and_then(|session| session.pages.as_ref()) {
            lease::take_back(pages.lease(lock), generation);
        }
    }

    fn has_returned(&self, client: ClientId, given: &GivenLock) -> bool {
        let pages = self.sessions.get(&client).and_then(|session| session.pages.as_ref());
        pages.is_some_and(|pages| lease::is_returned(pages.lease(given.lock), given.word))
    }

    /// The place of a job that has given back all that it held.
    fn next_return(&self) -> Option<usize> {
        self.running
            .iter()
            .position(|running| running.locks.iter().all(|given| self.has_returned(running.client, given)))
    }

    /// Whether a job has given back all that it held.
    pub(super) fn has_returns(&self) -> bool {
        self.next_return().is_some()
    }

    /// Tells the book of every lock that was given back; whether there was one.
    pub(super) fn collect_returns(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(at) = self.next_return() {
            any = true;
            let job = self.running.remove(at).job;
            self.feed(now, &Input::Returned { job });
        }
        any
    }

    fn end_leases(&mut self, now: Nanos, client: ClientId, locks: &[LockId]) {
        let (mut in_use, mut given) = (Vec::new(), Vec::new());
        if let Some(pages) = self.sessions.get(&client).and_then(|session| session.pages.as_ref()) {
            for lock in locks {
                let place = self.place_of(*lock);
                if let Revoked::Busy { owner, word } = lease::revoke(pages.lease(place)) {
                    in_use.push(LeaseInUse { lock: *lock, task: TaskId(owner) });
                    given.push(GivenLock { lock: place, word });
                }
            }
        }
        // A task may have given back one lock just before it took another one. The second look finds the first lock free.
        self.collect_returns(now);
        for at in (0..given.len()).rev() {
            if self.has_returned(client, &given[at]) {
                given.remove(at);
                in_use.remove(at);
            }
        }
        for (held, given) in in_use.iter().zip(given) {
            let open = self.book.tasks().get(&held.task).and_then(|task| task.open.as_ref());
            if let Some(job) = open.map(|open| open.key.job) {
                self.running.push(Running { client, job, locks: vec![given] });
            }
        }
        self.feed(now, &Input::LeasesEnded { client, in_use });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NOTICE_LONGS, NOTICE_WORDS};
    use crate::server::BrokerServer;
    use crate::server::tests::{holder, options};

    #[test]
    fn a_process_that_has_the_number_of_one_that_ended_is_not_waited_for() {
        let pid = std::process::id();
        let known = |started| KnownProcess { pid, started, uid: 0, tasks: Vec::new(), threads: Vec::new() };
        let now = started(pid).unwrap();
        let mut roster = Roster { clients: vec![known(now), known(now + 1)], ..Roster::default() };
        assert_eq!(living(&mut roster).len(), 1);
        assert_eq!(roster.clients, [known(now)]);
    }

    #[test]
    fn clients_of_the_broker_before_have_all_of_their_time_however_long_reading_the_log_took() {
        let folder = tempfile::tempdir().unwrap();
        let log = Some(folder.path().join("log"));
        let options = ServerOptions { log, ..options(folder.path().join("s")) };
        let mut before = BrokerServer::bind(options.clone()).unwrap();
        let _client = holder(&mut before);
        drop(before);
        let notice = Words::create("notice", NOTICE_LONGS, NOTICE_WORDS).unwrap();
        let (started, now) = (Nanos(1), clock::now());
        let driver = BookDriver::new(&options, notice, 2, started).unwrap();
        assert!(driver.book.is_recovering());
        assert!(driver.book.poll_timeout().unwrap() >= now.saturating_add(options.recover));
    }
}
