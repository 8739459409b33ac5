//! The broker's server as far as the book can tell: its record on the disk, its sessions, and what it does of what the book decides.

use std::collections::BTreeMap;

use headway_core::decisions::broker::log::Fed;
use headway_core::decisions::broker::{
    Action, Book, BookParameters, Input, KnownProcess, LeaseInUse, Reply, Roster, UserAccount,
};
use headway_core::decisions::engine_lock::LockId;
use headway_core::decisions::sharing::{ArbiterMemory, ClientId, ClusterId, GpuId, JobId, TokenId};
use headway_core::units::Nanos;

use super::audit::Audit;
use super::{DRAIN, LockWord, Pages, SlotAnswer, WATCHDOG};

/// What the next broker finds.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// Whether writing fails at present.
    pub(super) fails: bool,
    clients: Vec<KnownProcess>,
    users: Vec<UserAccount>,
    held: BTreeMap<(ClusterId, TokenId), JobId>,
    engines: BTreeMap<LockId, JobId>,
    is_spoiled: bool,
    /// Whether all that the arbiter knew could be written.
    pub(super) is_memory_current: bool,
    memory: Option<ArbiterMemory>,
}

impl Disk {
    pub(super) fn roster(&self, is_alive: impl Fn(u32) -> bool) -> Roster {
        Roster {
            clients: self.clients.iter().filter(|known| is_alive(known.pid)).cloned().collect(),
            users: self.users.clone(),
            held: self.held.clone(),
            engines: self.engines.clone(),
            is_complete: !self.is_spoiled,
        }
    }
}

struct Message {
    client: ClientId,
    input: Input,
}

pub(super) struct Server {
    book: Book,
    /// The book as it began, and everything since.
    began: String,
    log: Vec<Fed>,
    /// Messages by the time at which they are there.
    inbox: BTreeMap<(Nanos, u64), Message>,
    sent: u64,
    running: Vec<(ClientId, JobId, Vec<LockId>)>,
    /// Processes behind clients, ended or not.
    processes: BTreeMap<ClientId, u32>,
    /// What the record is to say, and whether it does.
    held: BTreeMap<(ClusterId, TokenId), JobId>,
    engines: BTreeMap<LockId, JobId>,
    is_roster_due: bool,
    has_trouble: bool,
    last_turn: Nanos,
}

fn json(book: &Book) -> String {
    serde_json::to_string(book).expect("plain data")
}

impl Server {
    pub(super) fn start(parameters: BookParameters, before: Roster, disk: &Disk, now: Nanos) -> Result<Self, String> {
        let (held, engines) = (before.held.clone(), before.engines.clone());
        let book = Book::new(parameters, before, disk.memory.as_ref(), now).map_err(|error| error.to_string())?;
        let began = json(&book);
        Ok(Self {
            book,
            began,
            log: Vec::new(),
            inbox: BTreeMap::new(),
            sent: 0,
            running: Vec::new(),
            processes: BTreeMap::new(),
            held,
            engines,
            is_roster_due: true,
            has_trouble: false,
            last_turn: now,
        })
    }

    pub(super) fn connect(&mut self, client: ClientId, pid: u32) {
        self.processes.insert(client, pid);
    }

    /// A message arrives at `at`.
    pub(super) fn send(&mut self, at: Nanos, client: ClientId, input: Input) {
        self.sent += 1;
        self.inbox.insert((at, self.sent), Message { client, input });
    }

    pub(super) fn turn(
        &mut self,
        now: Nanos,
        pages: &mut Pages,
        disk: &mut Disk,
        audit: &mut Audit,
        alive: &[u32],
    ) -> Result<(), String> {
        let mut world = Around { now, pages, disk, audit };
        let late = now.saturating_sub(self.last_turn);
        self.last_turn = now;
        self.feed(&mut world, Input::Late { by: late })?;
        if self.has_trouble && !world.disk.fails {
            self.has_trouble = false;
            self.write(&mut world);
            self.feed(&mut world, Input::Written)?;
        }
        self.write_roster(&mut world);
        self.collect_returns(&mut world)?;
        self.read(&mut world)?;
        let dead: Vec<ClientId> =
            self.processes.iter().filter(|(_, pid)| !alive.contains(pid)).map(|(client, _)| *client).collect();
        for client in dead {
            self.processes.remove(&client);
            if let Some(page) = world.pages.get_mut(&client) {
                page.is_closed = true;
            }
            self.feed(&mut world, Input::ProcessEnded { client })?;
        }
        let former: Vec<u32> = self.book.missing().map(|known| known.pid).filter(|pid| !alive.contains(pid)).collect();
        for pid in former {
            self.feed(&mut world, Input::FormerProcessEnded { pid })?;
        }
        if self.book.poll_timeout().is_some_and(|time| time <= now) {
            self.feed(&mut world, Input::Timeout)?;
        }
        Ok(())
    }

    pub(super) fn lose(
        &mut self,
        now: Nanos,
        gpu: GpuId,
        pages: &mut Pages,
        disk: &mut Disk,
        audit: &mut Audit,
    ) -> Result<(), String> {
        audit.lose(gpu);
        self.feed(&mut Around { now, pages, disk, audit }, Input::GpuLost { client: None, gpu })
    }

    /// Reads what has arrived. While the broker waits for former clients, it reads no requests.
    fn read(&mut self, world: &mut Around<'_>) -> Result<(), String> {
        let due: Vec<(Nanos, u64)> = self.inbox.range(..=(world.now, u64::MAX)).map(|(key, _)| *key).collect();
        for key in due {
            let waits = self.book.is_recovering();
            let is_request = |input: &Input| {
                matches!(
                    input,
                    Input::Request { .. } | Input::Release { .. } | Input::Abort { .. } | Input::Acquire { .. }
                )
            };
            if self.inbox.get(&key).is_some_and(|message| waits && is_request(&message.input)) {
                continue;
            }
            let Some(Message { client, input }) = self.inbox.remove(&key) else { continue };
            // Before the first grant: the next broker waits for every holder.
            if is_request(&input) {
                self.write_roster(world);
            }
            if world.pages.get(&client).is_some_and(|page| !page.is_closed) {
                let mut claims = Vec::new();
                match &input {
                    Input::Left { .. } => world.audit.closed(client, world.now),
                    Input::Withdraw { client, task, .. } => world.audit.withdrew(*client, *task),
                    Input::Greeting { resumed, .. } => claims.extend(resumed.iter().filter_map(|task| task.held)),
                    _ => {}
                }
                self.feed(world, input)?;
                world.audit.check_claims(client, &claims)?;
            }
        }
        Ok(())
    }

    fn feed(&mut self, world: &mut Around<'_>, input: Input) -> Result<(), String> {
        self.take(world, input);
        while let Some(action) = self.book.poll_action() {
            self.perform(world, action)?;
        }
        Ok(())
    }

    /// Feeds the book, and writes down what it decides.
    fn take(&mut self, world: &mut Around<'_>, input: Input) {
        let before = self.book.actions().len();
        if !self.book.handle(world.now, &input) {
            return;
        }
        let actions: Vec<Action> = self.book.actions().iter().skip(before).cloned().collect();
        self.note(&actions, &input);
        self.log.push(Fed { now: world.now, input, actions });
        self.write(world);
        let must_remember = self.book.parameters().must_remember;
        if self.book.withheld() > 0 && !(must_remember && self.has_trouble) {
            self.take(world, Input::Written);
        }
    }

    /// Keeps up to date which job holds each token and each engine, for the record on the disk.
    fn note(&mut self, actions: &[Action], input: &Input) {
        let holders = self.book.holders();
        if !self.book.is_recovering() {
            self.held.clear();
        }
        self.held.extend(holders);
        for action in actions {
            if let Action::Run { job, locks, .. } = action {
                self.engines.extend(locks.iter().map(|lock| (*lock, *job)));
            }
        }
        for (job, locks) in self.book.withheld_engines() {
            self.engines.extend(locks.iter().map(|lock| (*lock, job)));
        }
        if let Input::LeasesEnded { in_use, .. } = input {
            let users = in_use.iter().filter_map(|held| Some((held.lock, self.book.user_by_lease(*held)?)));
            self.engines.extend(users.collect::<Vec<_>>());
        }
    }

    fn write(&mut self, world: &mut Around<'_>) {
        let disk = &mut *world.disk;
        if disk.fails || self.has_trouble {
            self.has_trouble = true;
            disk.is_memory_current = false;
            // The first slot of the file has its place on the disk, and is written even so.
            disk.is_spoiled |= !self.book.parameters().must_remember;
            return;
        }
        (disk.held, disk.engines) = (self.held.clone(), self.engines.clone());
        disk.memory = Some(self.book.arbiter().memory());
        disk.is_memory_current = true;
        if !self.book.is_recovering() {
            disk.is_spoiled = false;
        }
    }

    fn write_roster(&mut self, world: &mut Around<'_>) {
        if !self.is_roster_due {
            return;
        }
        if world.disk.fails {
            self.write(world);
            return;
        }
        self.is_roster_due = false;
        (world.disk.clients, world.disk.users) = (self.book.served(), self.book.users());
    }

    fn perform(&mut self, world: &mut Around<'_>, action: Action) -> Result<(), String> {
        let now = world.now;
        match action {
            Action::Reply { client, reply } => {
                match &reply {
                    Reply::Welcome => {
                        let known = &self.book.clients()[&client];
                        world.audit.welcomed(client, known.process.pid, known.process.account);
                        known.tasks.iter().for_each(|task| world.audit.registered(client, *task));
                    }
                    Reply::Registered { task } => world.audit.registered(client, *task),
                    _ => {}
                }
                if let Some(page) = world.pages.get_mut(&client) {
                    page.replies.push(reply);
                }
            }
            Action::Grant { client, slot, gpu, token, .. } => {
                world.audit.granted(client, gpu, token, now);
                world.answer(client, slot.number, slot.generation, SlotAnswer::Token { gpu, token });
            }
            Action::Run { client, slot, job, locks } => {
                let Some(page) = world.pages.get_mut(&client).filter(|page| !page.is_closed) else { return Ok(()) };
                page.words.extend(locks.iter().map(|lock| (*lock, LockWord::Held(job))));
                self.running.push((client, job, locks.clone()));
                if let Some(slot) = slot {
                    world.answer(client, slot.number, slot.generation, SlotAnswer::Engines(locks));
                }
            }
            Action::Refuse { client, slot, .. } => {
                world.answer(client, slot.number, slot.generation, SlotAnswer::Refused);
            }
            Action::Revoke { client, slot, .. } => {
                world.answer(client, slot.number, slot.generation, SlotAnswer::Revoked);
            }
            Action::TakeBack { client, locks, .. } => {
                self.running.retain(|(of, _, given)| *of != client || !given.iter().any(|lock| locks.contains(lock)));
                if let Some(page) = world.pages.get_mut(&client) {
                    page.words.retain(|lock, _| !locks.contains(lock));
                }
            }
            Action::Lend { client, locks } => {
                if let Some(page) = world.pages.get_mut(&client) {
                    page.words.extend(locks.into_iter().map(|lock| (lock, LockWord::Leased)));
                }
            }
            Action::EndLeases { client, locks } => self.end_leases(world, client, &locks)?,
            Action::Cut { client, hung, .. } => world.audit.cut_off(client, hung, now, WATCHDOG)?,
            Action::Shut { client } => {
                self.running.retain(|(of, ..)| *of != client);
                if let Some(page) = world.pages.get_mut(&client) {
                    (page.is_closed, page.is_cut) = (true, true);
                }
            }
            Action::Remove { client } => world.audit.removed(client, now, WATCHDOG, DRAIN)?,
            Action::RecordClients => self.is_roster_due = true,
            _ => {}
        }
        Ok(())
    }

    fn end_leases(&mut self, world: &mut Around<'_>, client: ClientId, locks: &[LockId]) -> Result<(), String> {
        let mut in_use = Vec::new();
        if let Some(page) = world.pages.get_mut(&client) {
            for lock in locks {
                let Some(LockWord::Busy(task)) = page.words.remove(lock) else { continue };
                in_use.push(LeaseInUse { lock: *lock, task });
                let open = self.book.tasks().get(&task).and_then(|task| task.open.as_ref());
                let job = open.map(|open| open.key.job);
                page.words.insert(*lock, LockWord::Held(job.unwrap_or(JobId { task, job: 0 })));
                self.running.extend(job.map(|job| (client, job, vec![*lock])));
            }
        }
        self.take(world, Input::LeasesEnded { client, in_use });
        Ok(())
    }

    /// Tells the book of every lock that was given back.
    fn collect_returns(&mut self, world: &mut Around<'_>) -> Result<(), String> {
        let is_back = |pages: &Pages, (client, job, locks): &(ClientId, JobId, Vec<LockId>)| {
            let word = |lock| pages.get(client).and_then(|page| page.words.get(lock));
            locks.iter().all(|lock| word(lock) != Some(&LockWord::Held(*job)))
        };
        while let Some(at) = self.running.iter().position(|running| is_back(world.pages, running)) {
            let (_, job, _) = self.running.remove(at);
            self.feed(world, Input::Returned { job })?;
        }
        Ok(())
    }

    pub(super) fn check_empty(&self) -> Result<(), String> {
        let (clients, tasks, holders) = (self.book.clients().len(), self.book.tasks().len(), self.book.holders().len());
        if clients + tasks + holders > 0 {
            return Err(format!("all have gone, and {clients} clients, {tasks} tasks and {holders} holders are left"));
        }
        Ok(())
    }

    /// The same inputs give the same decisions again; how many those are.
    pub(super) fn check_replay(&mut self) -> Result<u64, String> {
        let mut again: Book = serde_json::from_str(&self.began).map_err(|error| error.to_string())?;
        for (at, fed) in self.log.iter().enumerate() {
            let now = fed.again(&mut again);
            if now != *fed {
                return Err(format!(
                    "input {at} decides {:?} when it is replayed, and decided {:?}",
                    now.actions, fed.actions
                ));
            }
        }
        if json(&again) != json(&self.book) {
            return Err("a replay ends in another state".to_owned());
        }
        Ok(self.log.len() as u64)
    }
}

/// What the server reaches.
struct Around<'a> {
    now: Nanos,
    pages: &'a mut Pages,
    disk: &'a mut Disk,
    audit: &'a mut Audit,
}

impl Around<'_> {
    fn answer(&mut self, client: ClientId, slot: u32, generation: u32, answer: SlotAnswer) {
        if let Some(page) = self.pages.get_mut(&client) {
            page.answers.insert(slot, (generation, answer));
        }
    }
}
