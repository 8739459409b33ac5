//! The book with clients that keep to the protocol, and some that do not: who gets what, and that nobody else has it.

mod flows;

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::log::{BrokerLogLine, BrokerLogStart, Fed, StartError, StartReason};
use super::*;
use crate::decisions::engine_lock::{EngineParameters, EngineRole, EngineWork, LockOrder, LockedOperation};
use crate::decisions::sharing::{ArbiterParameters, ClusterId, ClusterParameters, JobSegment, TokenId, TokenOutcome};
use crate::decisions::token::{TokenMode, TokenParameters};
use crate::units::Bytes;

const WATCHDOG: u64 = 1_000_000;
const DRAIN: u64 = 1_000;
const OWNER: u32 = 0;

fn parameters(gpus: u32, per_gpu: u32) -> BookParameters {
    let tokens = TokenParameters { cpus: 4, per_gpu, mode: TokenMode::Priority, affinity: false };
    let engines = EngineParameters { watchdog: Nanos(WATCHDOG), ..EngineParameters::default() };
    let arbiter = ArbiterParameters::new(vec![ClusterParameters::equal(gpus, tokens)], Some(engines));
    BookParameters {
        arbiter,
        limits: BrokerLimits { deadline_min: Nanos(1), ..BrokerLimits::default() },
        owner: OWNER,
        is_logged: true,
        must_remember: false,
        watchdog: Nanos(WATCHDOG),
        drain: Nanos(DRAIN),
        recover: Nanos(50 * WATCHDOG),
        first_task: 0,
    }
}

fn process(client: u64, uid: u32) -> ClientProcess {
    ClientProcess { pid: 100 + client as u32, uid, account: uid, started: 7 }
}

fn greeting(client: u64, uid: u32, bytes: u64) -> Input {
    let (process, name) = (process(client, uid), "c".to_owned());
    Input::Greeting { client: ClientId(client), process, name, resumed: Vec::new(), bytes }
}

fn shape(deadline: u64) -> TaskShape {
    TaskShape {
        name: "t".to_owned(),
        cluster: ClusterId(0),
        period: Nanos(1),
        deadline: Nanos(deadline),
        state: Bytes(0),
        segments: Vec::new(),
        thread: None,
    }
}

const fn operation(work: EngineWork) -> LockedOperation {
    LockedOperation { work, bytes: Bytes(1), predicted: Nanos(0), budget: Nanos(0) }
}

/// What a client sees of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Leased,
    /// Taken under a lease.
    Busy(TaskId),
    /// To be given back to the broker.
    Held(JobId),
}

/// The server's part, with clients that it plays too.
#[derive(Clone)]
struct Host {
    book: Book,
    now: u64,
    log: Vec<Fed>,
    queue: VecDeque<Action>,
    words: BTreeMap<(ClientId, LockId), Word>,
    /// Jobs that were told that they hold a token.
    holders: BTreeMap<TokenId, JobId>,
    /// Since when clients are not served.
    shut: BTreeMap<ClientId, u64>,
    jobs: u64,
}

impl Host {
    fn new(parameters: BookParameters) -> Self {
        Self::after(parameters, Roster::default())
    }

    fn after(parameters: BookParameters, before: Roster) -> Self {
        let book = Book::new(parameters, before, None, Nanos(1)).unwrap();
        let (words, holders, shut) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { book, now: 1, log: Vec::new(), queue: VecDeque::new(), words, holders, shut, jobs: 0 }
    }

    /// Feeds an input and does what is decided, also what comes of the answers; all of that, in order.
    fn feed(&mut self, input: Input) -> Vec<Action> {
        self.take(input);
        let mut done = Vec::new();
        while let Some(action) = self.queue.pop_front() {
            self.perform(&action);
            done.push(action);
        }
        self.check();
        done
    }

    fn take(&mut self, input: Input) {
        let before = self.book.clone();
        let now = Nanos(self.now);
        let has_changed = self.book.handle(now, &input);
        let actions: Vec<Action> = std::iter::from_fn(|| self.book.poll_action()).collect();
        self.queue.extend(actions.iter().cloned());
        if has_changed {
            self.log.push(Fed { now, input, actions });
        } else {
            assert_eq!(json(&before), json(&self.book), "{input:?} changed something");
        }
    }

    fn perform(&mut self, action: &Action) {
        match action {
            Action::Grant { key, token, .. } => {
                let before = self.holders.insert(*token, key.job);
                assert_eq!(before, None, "two hold {token:?}: {action:?}");
            }
            Action::Run { client, job, locks, .. } => {
                for lock in locks {
                    assert!(!self.words.contains_key(&(*client, *lock)), "{action:?}");
                    self.words.insert((*client, *lock), Word::Held(*job));
                }
            }
            Action::TakeBack { client, locks, .. } => {
                for lock in locks {
                    self.words.remove(&(*client, *lock));
                }
            }
            Action::Lend { client, locks } => {
                for lock in locks {
                    let before = self.words.insert((*client, *lock), Word::Leased);
                    assert_eq!(before, None, "{action:?}");
                }
            }
            Action::EndLeases { client, locks } => {
                let mut in_use = Vec::new();
                for lock in locks {
                    match self.words.remove(&(*client, *lock)) {
                        Some(Word::Busy(task)) => {
                            // One whose GPU is lost has no job; what it still uses is taken from it.
                            let job = self.job(task).unwrap_or(JobId { task, job: 0 });
                            self.words.insert((*client, *lock), Word::Held(job));
                            in_use.push(LeaseInUse { lock: *lock, task });
                        }
                        Some(Word::Leased) => {}
                        word => panic!("{action:?}: {word:?}"),
                    }
                }
                self.take(Input::LeasesEnded { client: *client, in_use });
            }
            Action::Revoke { .. } => self.forget_holders(),
            Action::Shut { client } => {
                self.shut.insert(*client, self.now);
            }
            Action::Remove { client } => {
                let uses = self.words.iter().any(|((of, _), word)| of == client && *word != Word::Leased);
                assert!(!uses || self.now >= self.shut[client] + DRAIN, "its GPU work may not have ended");
                self.words.retain(|(of, _), _| of != client);
                self.forget_holders();
            }
            _ => {}
        }
    }

    /// Jobs that no longer hold a token, by the book.
    fn forget_holders(&mut self) {
        let tasks = self.book.tasks();
        self.holders.retain(|_, job| {
            let open = tasks.get(&job.task).and_then(|task| task.open.as_ref());
            open.is_some_and(|open| open.key.job == *job && open.granted.is_some())
        });
    }

    /// No engine is two clients', whether they hold it, may take it, or are gone and may still use it.
    fn check(&self) {
        let mut users: BTreeMap<LockId, ClientId> = BTreeMap::new();
        for (client, lock) in self.words.keys() {
            assert_eq!(users.insert(*lock, *client), None, "two have {lock:?}: {:?}", self.words);
        }
        let arbiter = self.book.arbiter();
        arbiter.tokens(ClusterId(0)).unwrap().check().unwrap();
        arbiter.engine_locks().unwrap().check().unwrap();
    }

    fn connect(&mut self, client: u64, uid: u32) -> Vec<Action> {
        self.feed(greeting(client, uid, 1))
    }

    fn register(&mut self, client: u64, deadline: u64) -> Option<TaskId> {
        let input = Input::Register { client: ClientId(client), shape: shape(deadline), bytes: 1 };
        self.feed(input).into_iter().find_map(|action| match action {
            Action::Reply { reply: Reply::Registered { task }, .. } => Some(task),
            _ => None,
        })
    }

    /// A client of a user with one task.
    fn party(&mut self, client: u64, uid: u32, deadline: u64) -> TaskId {
        self.connect(client, uid);
        self.register(client, deadline).unwrap()
    }

    fn client(&self, task: TaskId) -> ClientId {
        self.book.tasks()[&task].client
    }

    fn request(&mut self, task: TaskId) -> Vec<Action> {
        self.jobs += 1;
        let job = JobId { task, job: self.jobs };
        let (client, slot) = (self.client(task), Slot { number: 0, generation: 1 });
        self.feed(Input::Request { client, slot, job, release: Nanos(self.now), acquisition: 0 })
    }

    fn job(&self, task: TaskId) -> Option<JobId> {
        Some(self.book.tasks().get(&task)?.open.as_ref()?.key.job)
    }

    fn acquire(&mut self, task: TaskId, work: EngineWork) -> Vec<Action> {
        let (client, slot) = (self.client(task), Slot { number: 1, generation: 1 });
        let job = self.job(task).unwrap_or(JobId { task, job: 0 });
        self.feed(Input::Acquire { client, slot, job, operation: operation(work) })
    }

    /// A job gives its engines back.
    fn give_back(&mut self, task: TaskId) -> Vec<Action> {
        let Some(job) = self.job(task) else { return Vec::new() };
        let had = self.words.len();
        self.words.retain(|_, word| *word != Word::Held(job));
        if self.words.len() == had { Vec::new() } else { self.feed(Input::Returned { job }) }
    }

    fn release(&mut self, task: TaskId) -> Vec<Action> {
        let Some(job) = self.job(task) else { return Vec::new() };
        let client = self.client(task);
        let waits = self.book.tasks()[&task].open.as_ref().and_then(|open| open.engines.as_ref());
        if waits.is_none_or(|engines| engines.phase == EnginePhase::Runs) {
            self.holders.retain(|_, holder| *holder != job);
        }
        self.feed(Input::Release { client, job, outcome: TokenOutcome::Complete(Nanos(5)) })
    }

    fn wait(&mut self, time: u64) -> Vec<Action> {
        let (until, mut done) = (self.now + time, Vec::new());
        while let Some(due) = self.book.poll_timeout().filter(|due| due.0 <= until) {
            self.now = due.0.max(self.now + 1);
            done.extend(self.feed(Input::Timeout));
        }
        self.now = self.now.max(until);
        done
    }

    /// The task that holds the only token.
    fn holder(&self) -> Option<TaskId> {
        self.holders.values().next().map(|job| job.task)
    }
}

fn json(book: &Book) -> String {
    serde_json::to_string(book).unwrap()
}

fn granted(actions: &[Action]) -> Vec<TaskId> {
    let task = |action: &Action| if let Action::Grant { key, .. } = action { Some(key.job.task) } else { None };
    actions.iter().filter_map(task).collect()
}

fn refusal(actions: &[Action]) -> Option<RefusalReason> {
    actions.iter().find_map(|action| if let Action::Refuse { reason, .. } = action { Some(*reason) } else { None })
}

#[test]
fn a_user_with_many_urgent_jobs_gets_every_second_token_while_another_user_asks() {
    let mut host = Host::new(parameters(1, 1));
    let crowd: Vec<TaskId> = (1..=30).map(|client| host.party(client, 11, 10)).collect();
    let one = host.party(31, 12, 1_000_000_000);
    for task in crowd.iter().chain([&one]) {
        host.request(*task);
    }
    let mut order = Vec::new();
    for _ in 0..8 {
        let task = host.holder().unwrap();
        order.push(task == one);
        host.now += 1_000;
        host.release(task);
        host.request(task);
    }
    assert_eq!(order, [false, true, false, true, false, true, false, true]);
    // Nobody else asks: what is left goes to the crowd, one after the other.
    let cancelled = host.job(one).unwrap();
    host.feed(Input::Abort { client: ClientId(31), job: cancelled });
    assert!(host.holder().is_some_and(|task| task != one));
}

#[test]
fn a_client_that_hangs_is_cut_off_and_its_user_passed_over_for_a_watchdog() {
    let mut host = Host::new(parameters(1, 1));
    let (hung, other, next) = (host.party(1, 11, 10), host.party(2, 11, 10), host.party(3, 12, 1_000));
    for task in [hung, other, next] {
        host.request(task);
    }
    assert_eq!(host.holder(), Some(hung));
    assert!(!host.wait(WATCHDOG - 10).contains(&Action::Shut { client: ClientId(1) }));
    let actions = host.wait(20);
    assert!(actions.contains(&Action::Cut { client: ClientId(1), pid: 101, hung: true }), "{actions:?}");
    assert_eq!(host.holder(), Some(hung), "its GPU work may not have ended");
    assert_eq!(granted(&host.wait(DRAIN)), [next]);
    host.release(next);
    assert_eq!(host.holder(), None, "the other user is passed over");
    assert_eq!(granted(&host.wait(WATCHDOG)), [other]);
}

#[test]
fn a_broker_that_is_late_again_and_again_cuts_off_who_hangs_after_a_watchdog_of_its_own_time() {
    let mut host = Host::new(parameters(1, 1));
    let task = host.party(1, 11, 10);
    host.request(task);
    // Half of the time it does something else: it writes snapshots, for one.
    let part = WATCHDOG / 4;
    for _ in 0..3 {
        host.now += part;
        host.feed(Input::Late { by: Nanos(part) });
        host.wait(part);
        assert!(host.shut.is_empty());
    }
    host.now += part;
    host.feed(Input::Late { by: Nanos(part) });
    host.wait(part);
    assert!(!host.shut.is_empty());
}

#[test]
fn time_for_which_the_broker_was_stopped_cuts_nobody_off() {
    for is_excused in [true, false] {
        let mut host = Host::new(parameters(1, 1));
        let task = host.party(1, 11, 10);
        host.request(task);
        host.now += 3 * WATCHDOG;
        if is_excused {
            host.feed(Input::Late { by: Nanos(3 * WATCHDOG) });
        }
        host.feed(Input::Timeout);
        assert_eq!(host.shut.is_empty(), is_excused);
        assert_eq!(host.feed(Input::Late { by: Nanos(WATCHDOG / 8 - 1) }), [], "what is usual excuses nobody");
        host.wait(WATCHDOG);
        assert!(!host.shut.is_empty());
    }
}

#[test]
fn what_a_client_held_is_free_a_drain_after_its_process_ended_and_else_a_watchdog_later() {
    for lives in [true, false] {
        let mut host = Host::new(parameters(1, 1));
        let (gone, next) = (host.party(1, 11, 10), host.party(2, 12, 10));
        host.request(gone);
        host.acquire(gone, EngineWork::Execute);
        host.request(next);
        host.feed(Input::Left { client: ClientId(1) });
        if !lives {
            host.feed(Input::ProcessEnded { client: ClientId(1) });
        }
        host.wait(DRAIN - 1);
        assert_eq!(host.holder(), Some(gone));
        assert_eq!(host.wait(1).contains(&Action::Remove { client: ClientId(1) }), !lives);
        host.wait(if lives { WATCHDOG } else { 0 });
        assert_eq!(host.holder(), Some(next));
        // One that closed its connection and went on counts as one that hung.
        let again = host.party(3, 11, 10);
        host.request(again);
        host.release(next);
        assert_eq!(host.holder(), (!lives).then_some(again));
    }
}

#[test]
fn an_engine_in_use_by_lease_is_the_next_client_s_only_when_it_is_given_back() {
    let mut host = Host::new(parameters(1, 2));
    let (one, two) = (host.party(1, 11, 10), host.party(2, 11, 10));
    host.request(one);
    let lock = LockId { gpu: GpuId(0), engine: EngineRole::Execute };
    assert_eq!(host.words[&(ClientId(1), lock)], Word::Leased);
    host.words.insert((ClientId(1), lock), Word::Busy(one));
    // Now two clients hold tokens of this GPU.
    host.request(two);
    let job = host.job(one).unwrap();
    assert_eq!(host.words, BTreeMap::from([((ClientId(1), lock), Word::Held(job))]));
    let runs = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Run { .. }));
    assert!(!runs(&host.acquire(two, EngineWork::Execute)));
    assert!(runs(&host.give_back(one)));
    assert!(runs(&host.acquire(one, EngineWork::CopyIn)));
    assert_eq!(refusal(&host.acquire(one, EngineWork::CopyOut)), Some(RefusalReason::Busy));
}

#[test]
fn a_gpu_that_is_lost_frees_nobody_who_is_still_there_and_is_believed_of_the_owner_only() {
    let mut host = Host::new(parameters(2, 1));
    let (one, two, three) = (host.party(1, 11, 10), host.party(2, 12, 10), host.party(3, OWNER, 1_000_000));
    for task in [one, two, three] {
        host.request(task);
    }
    let lost = |client| Input::GpuLost { client, gpu: GpuId(0) };
    assert!(matches!(host.feed(lost(Some(ClientId(1))))[..], [Action::Reply { reply: Reply::Refused { .. }, .. }]));
    let actions = host.feed(lost(Some(ClientId(3))));
    assert!(actions.contains(&Action::Reply { client: ClientId(3), reply: Reply::Done }), "{actions:?}");
    assert_eq!(actions.iter().filter(|action| matches!(action, Action::Revoke { .. })).count(), 1);
    let place = |what: fn(&Action) -> bool| actions.iter().position(what).unwrap();
    let told = place(|action| matches!(action, Action::Reply { .. }));
    let revoked = place(|action| matches!(action, Action::Revoke { .. }));
    let ended = place(|action| matches!(action, Action::EndLeases { client: ClientId(1), .. }));
    assert!(revoked < told && ended < told, "who hears `Done` finds neither token nor lease: {actions:?}");
    assert!(host.book.lost().contains(&GpuId(0)));
    assert!(matches!(host.feed(lost(Some(ClientId(3))))[..], [Action::Reply { reply: Reply::Refused { .. }, .. }]));
    assert_eq!(host.holders.len(), 1, "the other GPU's token stays where it is");
}

#[test]
fn whatever_is_above_a_limit_is_refused_and_changes_nothing() {
    let mut few = parameters(1, 1);
    few.limits = BrokerLimits {
        clients_per_user: 2,
        tasks_per_user: 3,
        requests_per_user: 2,
        log_bytes_per_user: 1_000,
        utilisation_ppm_per_user: Some(500_000),
        ..few.limits
    };
    let mut host = Host::new(few);
    let refused = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::Reply { reply: Reply::Refused { .. }, .. }))
    };
    assert!(!refused(&host.connect(1, 11)) && !refused(&host.connect(2, 11)));
    assert!(refused(&host.connect(3, 11)), "a third client of the user");
    assert!(!refused(&host.connect(4, 12)), "another user");
    let long = TaskShape {
        period: Nanos(100),
        segments: vec![JobSegment::Execute { kernel: "k".to_owned(), time: Nanos(51) }],
        ..shape(100)
    };
    assert!(refused(&host.feed(Input::Register { client: ClientId(1), shape: long, bytes: 1 })));
    let tasks: Vec<TaskId> = [1, 2, 1].map(|client| host.register(client, 10).unwrap()).into();
    assert_eq!(host.register(2, 10), None, "a fourth task");
    assert!(granted(&host.request(tasks[0])).len() == 1 && refusal(&host.request(tasks[1])).is_none());
    assert_eq!(refusal(&host.request(tasks[2])), Some(RefusalReason::Limit), "a third request");
    assert_eq!(refusal(&host.request(tasks[0])), Some(RefusalReason::Busy));
    let theirs = JobId { task: tasks[0], job: 1 };
    let slot = Slot { number: 0, generation: 1 };
    let stolen = Input::Request { client: ClientId(4), slot, job: theirs, release: Nanos(0), acquisition: 0 };
    assert_eq!(refusal(&host.feed(stolen)), Some(RefusalReason::NotYours));
    // Sixteen seconds' worth of the log at once; each request takes a second's.
    host.release(tasks[0]);
    host.release(tasks[1]);
    let mut written = 0;
    while refusal(&host.request(tasks[0])) != Some(RefusalReason::Limit) {
        host.release(tasks[0]);
        written += 1;
        assert!(written < 16);
    }
    assert!(written > 5);
}

#[test]
fn a_grant_is_told_only_when_it_is_written_down_where_the_broker_must_remember() {
    let mut host = Host::new(BookParameters { must_remember: true, ..parameters(1, 1) });
    let (one, two) = (host.party(1, 11, 10), host.party(2, 11, 1_000));
    assert_eq!(granted(&host.request(one)), []);
    assert_eq!(granted(&host.request(two)), []);
    assert_eq!((host.book.withheld(), host.wait(2 * WATCHDOG).len()), (1, 0), "nobody is cut off who knows nothing");
    // It gives up before it is told.
    let job = host.job(one).unwrap();
    host.feed(Input::Abort { client: ClientId(1), job });
    assert_eq!(granted(&host.feed(Input::Written)), [two]);
    assert_eq!(host.feed(Input::Written), []);
}

#[test]
fn an_engine_is_leased_only_when_it_is_written_down_that_nobody_else_holds_anything() {
    let mut host = Host::new(BookParameters { must_remember: true, ..parameters(1, 2) });
    let (one, two) = (host.party(1, 11, 10), host.party(2, 11, 1_000));
    for task in [one, two] {
        host.request(task);
        assert_eq!(granted(&host.feed(Input::Written)), [task]);
    }
    let lends = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Lend { .. }));
    assert!(!lends(&host.release(two)) && !lends(&host.wait(WATCHDOG / 2)));
    assert_eq!(host.book.withheld(), 1);
    assert!(lends(&host.feed(Input::Written)));
    assert_eq!((host.book.withheld(), host.feed(Input::Written)), (0, Vec::new()));
}

/// Task 5 of process 101 held token 0 when the broker before ended, task 6 of process 102 nothing.
fn restarted() -> Host {
    let known = |client: u64, task: u32| KnownProcess {
        pid: 100 + client as u32,
        started: 7,
        uid: 11,
        tasks: vec![TaskId(task)],
        threads: Vec::new(),
    };
    let held = [((ClusterId(0), TokenId(0)), JobId { task: TaskId(5), job: 9 })].into();
    let clients = vec![known(1, 5), known(2, 6)];
    let before = Roster { clients, held, is_complete: true, ..Roster::default() };
    Host::after(parameters(1, 1), before)
}

fn comes_back(host: &mut Host, client: u64, task: u32, job: Option<u64>) -> Vec<Action> {
    let held = |job| HeldToken {
        job,
        release: Nanos(0),
        gpu: GpuId(0),
        token: TokenId(0),
        slot: 0,
        generation: 1,
        locks: [true, false, false],
    };
    let resumed = vec![ResumedTask { id: TaskId(task), shape: shape(10), held: job.map(held) }];
    let process = process(client, 11);
    host.feed(Input::Greeting { client: ClientId(client), process, name: "c".to_owned(), resumed, bytes: 1 })
}

#[test]
fn after_a_restart_nobody_gets_what_a_former_client_holds_until_all_are_back_or_gone() {
    let mut host = restarted();
    assert_eq!(host.book.shared_tasks().used, 2, "their places are kept");
    assert_eq!(granted(&comes_back(&mut host, 1, 5, Some(9))), [TaskId(5)]);
    assert!(host.book.is_recovering() && host.book.missing().count() == 1);
    // It is back with the engine that it uses.
    assert!(host.words.contains_key(&(ClientId(1), LockId { gpu: GpuId(0), engine: EngineRole::Execute })));
    let actions = host.feed(Input::FormerProcessEnded { pid: 102 });
    assert!(actions.contains(&Action::Recovered) && !host.book.is_recovering());
    let late = comes_back(&mut host, 2, 6, None);
    assert!(matches!(late[..], [Action::Reply { reply: Reply::Refused { .. }, .. }]), "{late:?}");
    let next = host.party(3, 12, 10);
    host.request(next);
    assert_eq!(host.holder(), Some(TaskId(5)));
    host.release(TaskId(5));
    assert_eq!(host.holder(), Some(next));
}

#[test]
fn a_claim_that_the_record_does_not_have_is_refused_and_the_time_of_recovery_ends() {
    let mut host = restarted();
    for (client, task, job) in [(2, 6, Some(9)), (2, 5, Some(9)), (1, 5, Some(8))] {
        let actions = comes_back(&mut host, client, task, job);
        assert!(matches!(actions[..], [Action::Reply { reply: Reply::Refused { .. }, .. }]), "{actions:?}");
    }
    assert!(host.wait(50 * WATCHDOG).contains(&Action::Recovered));
    let next = host.party(3, 12, 10);
    assert_eq!(granted(&host.request(next)), [next], "who is not back holds nothing");
}

/// One step of a random run, taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Connect(u32),
    Register(usize),
    Request(usize),
    UseLease(usize, usize),
    ReturnLease(usize),
    Acquire(usize, usize),
    GiveBack(usize),
    Release(usize),
    Abort(usize),
    Withdraw(usize),
    Leave(usize),
    Break(usize),
    End(usize),
    Late(u64),
    Wait(u64),
    Lose(u32),
    Written,
}

fn any_step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        2 => (11u32..14).prop_map(Step::Connect),
        3 => any().prop_map(Step::Register),
        12 => any().prop_map(Step::Request),
        4 => (any(), 0usize..3).prop_map(|(task, engine)| Step::UseLease(task, engine)),
        3 => any().prop_map(Step::ReturnLease),
        8 => (any(), 0usize..4).prop_map(|(task, work)| Step::Acquire(task, work)),
        8 => any().prop_map(Step::GiveBack),
        8 => any().prop_map(Step::Release),
        2 => any().prop_map(Step::Abort),
        1 => any().prop_map(Step::Withdraw),
        1 => any().prop_map(Step::Leave),
        1 => any().prop_map(Step::Break),
        1 => any().prop_map(Step::End),
        1 => (0..WATCHDOG).prop_map(Step::Late),
        3 => (0..WATCHDOG).prop_map(Step::Wait),
        1 => (0u32..30).prop_map(Step::Lose),
        3 => Just(Step::Written),
    ]
}

impl Host {
    fn pick<T: Copy>(at: usize, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[at % of.len()])
    }

    fn some_client(&self, at: usize) -> Option<ClientId> {
        Self::pick(at, &self.book.clients().keys().copied().collect::<Vec<_>>())
    }

    /// A task of a client that is there.
    fn some_task(&self, at: usize) -> Option<TaskId> {
        let tasks = self.book.tasks().iter().filter(|(_, task)| !self.shut.contains_key(&task.client));
        Self::pick(at, &tasks.map(|(id, _)| *id).collect::<Vec<_>>())
    }

    /// Whether a task has an engine, whichever way.
    fn uses_engine(&self, task: TaskId) -> bool {
        let is_its = |word: &Word| match word {
            Word::Busy(other) => *other == task,
            Word::Held(job) => job.task == task,
            Word::Leased => false,
        };
        self.words.values().any(is_its)
    }

    fn step(&mut self, step: &Step, clients: &mut u64) {
        self.now += 1;
        match *step {
            Step::Connect(uid) => {
                *clients += 1;
                self.connect(*clients, uid);
            }
            Step::Register(at) => {
                let Some(client) = self.some_client(at) else { return };
                self.register(client.0, 10 + at as u64 % 5_000);
            }
            Step::Written => drop(self.feed(Input::Written)),
            Step::Wait(time) => drop(self.wait(time)),
            Step::Late(by) => drop(self.feed(Input::Late { by: Nanos(by) })),
            Step::Lose(gpu) => drop(self.feed(Input::GpuLost { client: None, gpu: GpuId(gpu) })),
            Step::Leave(at) | Step::Break(at) | Step::End(at) => {
                let Some(client) = self.some_client(at) else { return };
                let input = match step {
                    Step::Leave(_) => Input::Left { client },
                    Step::Break(_) => Input::Broke { client },
                    _ => Input::ProcessEnded { client },
                };
                self.feed(input);
            }
            Step::Request(at)
            | Step::UseLease(at, _)
            | Step::ReturnLease(at)
            | Step::Acquire(at, _)
            | Step::GiveBack(at)
            | Step::Release(at)
            | Step::Abort(at)
            | Step::Withdraw(at) => {
                if let Some(task) = self.some_task(at) {
                    self.step_task(step, task);
                }
            }
        }
    }

    fn step_task(&mut self, step: &Step, task: TaskId) {
        let client = self.client(task);
        match *step {
            Step::Request(_) => drop(self.request(task)),
            Step::UseLease(_, engine) => {
                let open = self.book.tasks()[&task].open.as_ref();
                let Some(granted) = open.and_then(|open| open.granted) else { return };
                let engine = [EngineRole::Execute, EngineRole::In, EngineRole::Out][engine];
                let lock = LockId { gpu: granted.gpu, engine };
                if self.words.get(&(client, lock)) == Some(&Word::Leased) && !self.uses_engine(task) {
                    self.words.insert((client, lock), Word::Busy(task));
                }
            }
            Step::ReturnLease(_) => {
                for word in self.words.values_mut().filter(|word| **word == Word::Busy(task)) {
                    *word = Word::Leased;
                }
            }
            // One that asks although it has an engine lies.
            Step::Acquire(_, work) => {
                drop(self.acquire(
                    task,
                    [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut, EngineWork::Peer][work],
                ));
            }
            Step::GiveBack(_) => drop(self.give_back(task)),
            Step::Release(_) => {
                // Who lies and still uses a leased engine harms itself: the lease stays its client's, or the lock is taken away.
                for word in self.words.values_mut().filter(|word| **word == Word::Busy(task)) {
                    *word = Word::Leased;
                }
                self.release(task);
            }
            Step::Abort(_) => {
                let Some(job) = self.job(task) else { return };
                if !self.uses_engine(task) && self.book.tasks()[&task].open.as_ref().unwrap().engines.is_none() {
                    self.holders.retain(|_, holder| *holder != job);
                    self.feed(Input::Abort { client, job });
                }
            }
            _ => drop(self.feed(Input::Withdraw { client, task, bytes: 1 })),
        }
    }

    /// Everything is given back, and every client goes: nothing stays taken.
    fn finish(&mut self) {
        for client in self.book.clients().keys().copied().collect::<Vec<_>>() {
            self.feed(Input::ProcessEnded { client });
        }
        self.wait(2 * DRAIN);
        assert!(self.book.clients().is_empty() && self.book.tasks().is_empty());
        assert_eq!(self.book.arbiter().tokens(ClusterId(0)).unwrap().holders().count(), 0);
        assert!(self.words.is_empty() && self.holders.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HEADWAY_EXPLORE").is_some() { 5_000 } else { 128 }))]

    #[test]
    fn no_two_clients_have_one_token_or_engine_and_the_inputs_give_the_same_actions_again(
        gpus in 1u32..3,
        per_gpu in 1u32..3,
        must_remember: bool,
        urgency: bool,
        steps in prop::collection::vec(any_step(), 1..200),
        snapshot_at in 0usize..200,
    ) {
        let mut parameters = parameters(gpus, per_gpu);
        parameters.must_remember = must_remember;
        if urgency && let Some(engines) = &mut parameters.arbiter.engines {
            engines.order = LockOrder::Urgency;
        }
        let mut host = Host::new(parameters.clone());
        let mut clients = 0;
        let mut snapshot = None;
        for uid in [11, 12] {
            clients += 1;
            host.party(clients, uid, 100);
        }
        for (at, step) in steps.iter().enumerate() {
            if at == snapshot_at {
                snapshot = Some((host.log.len(), json(&host.book)));
            }
            host.step(step, &mut clients);
        }
        host.finish();
        let mut again = Book::new(parameters, Roster::default(), None, Nanos(1)).unwrap();
        replay(&mut again, &host.log);
        prop_assert_eq!(json(&again), json(&host.book));
        if let Some((from, state)) = snapshot {
            let mut again: Book = serde_json::from_str(&state).unwrap();
            replay(&mut again, &host.log[from..]);
            prop_assert_eq!(json(&again), json(&host.book));
        }
    }
}

fn replay(book: &mut Book, log: &[Fed]) {
    for fed in log {
        assert_eq!(fed.again(book), *fed);
    }
}

#[test]
fn a_snapshot_that_was_changed_or_is_another_version_s_is_refused() {
    let mut host = Host::new(parameters(1, 1));
    let task = host.party(1, 11, 10);
    host.request(task);
    let start = BrokerLogStart::of(&host.book, 1, Nanos(9), StartReason::Rotated);
    assert_eq!(start.holders, [(ClusterId(0), TokenId(0), host.job(task).unwrap())]);
    let text = serde_json::to_string(&BrokerLogLine::Broker(Box::new(start))).unwrap();
    assert!(BrokerLogLine::begins(&text));
    let Ok(BrokerLogLine::Broker(start)) = serde_json::from_str(&text) else { panic!("{text}") };
    assert_eq!(json(&start.begin().unwrap()), json(&host.book));
    let state = start.state.replacen("\"uid\":11", "\"uid\":12", 1);
    assert_ne!(state, start.state);
    let changed = BrokerLogStart { state, ..*start };
    assert!(matches!(changed.begin(), Err(StartError::Digest { .. })));
    assert!(matches!(BrokerLogStart { schema: 2, ..changed }.begin(), Err(StartError::Schema { found: 2 })));
}

#[test]
fn what_a_client_has_already_is_not_kept_from_it_until_it_is_written_down() {
    let mut must_remember = parameters(1, 2);
    must_remember.must_remember = true;
    let mut host = Host::new(must_remember.clone());
    let (first, second) = (host.party(1, 11, 10), host.register(1, 10).unwrap());
    for task in [first, second] {
        host.request(task);
        host.feed(Input::Written);
    }
    // The first uses an engine by lease, and the second asks for it: from here on nothing can be written.
    let lock = LockId { gpu: GpuId(0), engine: EngineRole::Execute };
    assert_eq!(host.words.insert((ClientId(1), lock), Word::Busy(first)), Some(Word::Leased));
    host.acquire(second, EngineWork::Execute);
    assert_eq!(host.words[&(ClientId(1), lock)], Word::Held(host.job(first).unwrap()));
    host.give_back(first);
    host.acquire(first, EngineWork::Execute);
    // One of them gets it now, and not both.
    host.feed(Input::Written);
    assert_eq!(host.words[&(ClientId(1), lock)], Word::Held(host.job(second).unwrap()));

    // A token of before a restart counts at once, too: it is on record.
    let task = TaskId(5);
    let held = [((ClusterId(0), TokenId(0)), JobId { task, job: 1 })].into();
    let known = KnownProcess { pid: 101, started: 7, uid: 11, tasks: vec![task], threads: Vec::new() };
    let before = Roster { clients: vec![known], held, is_complete: true, ..Roster::default() };
    let mut host = Host::after(must_remember, before);
    let slot = 0;
    let held = HeldToken {
        job: 1,
        release: Nanos(1),
        gpu: GpuId(0),
        token: TokenId(0),
        slot,
        generation: 1,
        locks: [false; 3],
    };
    let resumed = vec![ResumedTask { id: task, shape: shape(10), held: Some(held) }];
    let (client, process) = (ClientId(1), process(1, 11));
    host.feed(Input::Greeting { client, process, name: "c".to_owned(), resumed, bytes: 1 });
    assert_eq!(host.holder(), Some(task));
    host.release(task);
    assert_eq!(host.holder(), None, "and what is given back is back");
}

#[test]
fn a_refused_engine_request_lengthens_no_hold() {
    for asks in [false, true] {
        let mut parameters = parameters(1, 2);
        if let Some(engines) = &mut parameters.arbiter.engines {
            engines.chunk_bytes = Some(Bytes(1));
        }
        let mut host = Host::new(parameters);
        // Users take turns from here on.
        let (task, other) = (host.party(1, 11, 10), host.party(2, 12, 10));
        host.request(other);
        host.release(other);
        host.request(task);
        let job = host.job(task).unwrap();
        if asks {
            let (client, slot) = (host.client(task), Slot { number: 1, generation: 1 });
            let operation = LockedOperation { bytes: Bytes(2), ..operation(EngineWork::CopyIn) };
            host.feed(Input::Acquire { client, slot, job, operation });
        }
        host.wait(WATCHDOG);
        assert_eq!(host.shut.len(), 1, "{asks}");
    }
}

#[test]
fn greetings_are_charged_to_the_log_of_their_user() {
    let mut host = Host::new(parameters(8, 1));
    // A third of what may be written at once, which is 16 seconds' rate.
    let bytes = BrokerLimits::default().log_bytes_per_user * 5;
    let mut is_welcome = |client, uid| {
        let actions = host.feed(greeting(client, uid, bytes));
        actions.iter().any(|action| matches!(action, Action::Reply { reply: Reply::Welcome, .. }))
    };
    assert_eq!([1, 2, 3, 4].map(|client| is_welcome(client, 11)), [true, true, true, false]);
    assert!(is_welcome(5, 12), "another user");
}

#[test]
fn a_request_takes_no_more_of_the_log_than_is_counted() {
    let mut host = Host::new(parameters(8, 1));
    host.now = 600_000_000_000_000;
    host.connect(1 << 33, 1_000_000);
    let followed = TaskShape { thread: Some(1_000_000), ..shape(10) };
    host.book.next_task = 1 << 24;
    host.feed(Input::Register { client: ClientId(1 << 33), shape: followed, bytes: 1 });
    let task = *host.book.tasks().keys().next().unwrap();
    host.jobs = 1_000_000;
    let bytes = |host: &Host, from: usize| {
        let lines = host.log[from..]
            .iter()
            .map(|fed| serde_json::to_string(&BrokerLogLine::Fed(fed.clone())).unwrap().len() as u64 + 1);
        lines.sum::<u64>()
    };
    let before = host.log.len();
    host.request(task);
    let asked = host.log.len();
    host.acquire(task, EngineWork::Execute);
    host.give_back(task);
    let engine = bytes(&host, asked);
    assert!(engine <= limits::ACQUIRE_BYTES + limits::LEASES_BYTES, "{engine}");
    host.release(task);
    let all = bytes(&host, before) - engine;
    assert!(all <= limits::REQUEST_BYTES, "{all}");
}
