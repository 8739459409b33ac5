//! Tokens and engine locks together, over clusters.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::decisions::engine_lock::{EngineParameters, EngineRole, EngineWork, LockId, LockedOperation, PeerLocks};
use crate::decisions::token::{self, RequestStanding, TokenMode, TokenParameters};
use crate::units::{Bytes, Nanos};

fn tokens(cpus: u32, per_gpu: u32) -> TokenParameters {
    TokenParameters { cpus, per_gpu, mode: TokenMode::Optimal, affinity: true }
}

fn engines(peer: PeerLocks) -> EngineParameters {
    EngineParameters { copy_engines: 1, peer, ..EngineParameters::default() }
}

fn cluster(id: u32, gpus: std::ops::Range<u32>, tokens: TokenParameters) -> ClusterParameters {
    let count = gpus.len();
    ClusterParameters {
        id: ClusterId(id),
        gpus: gpus.map(GpuId).collect(),
        models: vec![ModelId(0); count],
        distances: Distances::uniform(count),
        tokens,
    }
}

fn arbiter(clusters: Vec<ClusterParameters>, engines: Option<EngineParameters>) -> Result<Arbiter, ArbiterRefused> {
    Arbiter::new(ArbiterParameters::new(clusters, engines))
}

fn task(id: u32, cluster: u32) -> ArbiterInput {
    ArbiterInput::Register(TaskParameters {
        id: TaskId(id),
        client: ClientId(u64::from(id)),
        cluster: ClusterId(cluster),
        period: Nanos(1_000),
        deadline: Nanos(1_000),
        state: Bytes(0),
        segments: Vec::new(),
    })
}

fn job(task: u32) -> JobId {
    JobId { task: TaskId(task), job: 0 }
}

fn request(task: u32, deadline: u64) -> ArbiterInput {
    ArbiterInput::Request {
        key: JobPriority { deadline: Nanos(deadline), release: Nanos(0), job: job(task) },
        acquisition: 0,
    }
}

fn acquire(task: u32, work: EngineWork) -> ArbiterInput {
    let operation = LockedOperation { work, bytes: Bytes(1), predicted: Nanos(5), budget: Nanos(100) };
    ArbiterInput::Acquire { job: job(task), operation }
}

fn release(task: u32, cost: u64) -> ArbiterInput {
    ArbiterInput::Release { job: job(task), outcome: TokenOutcome::Complete(Nanos(cost)) }
}

fn feed(arbiter: &mut Arbiter, inputs: &[ArbiterInput]) -> Vec<ArbiterAction> {
    for input in inputs {
        arbiter.handle(Nanos(0), input).unwrap();
    }
    std::iter::from_fn(|| arbiter.poll_action()).collect()
}

#[test]
fn a_key_that_reaches_a_waiter_for_an_engine_goes_on_to_the_holder_of_the_engine() {
    let mut arbiter = arbiter(vec![cluster(0, 0..1, tokens(3, 2))], Some(engines(PeerLocks::Group))).unwrap();
    let register: Vec<ArbiterInput> = (1..=4).map(|id| task(id, 0)).collect();
    feed(&mut arbiter, &register);
    // Tasks 1 and 2 hold the two tokens; 2 runs, 1 waits for the engine; then urgent 4 waits for 1's token.
    feed(
        &mut arbiter,
        &[request(1, 50), request(2, 60), acquire(2, EngineWork::Execute), acquire(1, EngineWork::Execute)],
    );
    assert_eq!(arbiter.effective_key(TaskId(2)).unwrap().deadline, Nanos(50));
    let actions = feed(&mut arbiter, &[request(4, 10)]);
    let boost = |task: u32| {
        let key = JobPriority { deadline: Nanos(10), release: Nanos(0), job: job(4) };
        ArbiterAction::SetBoost { job: job(task), key }
    };
    let behind = arbiter.standing(TaskId(4)).unwrap();
    let RequestStanding::Waiting { token, ahead: 1 } = behind else { panic!("{behind:?}") };
    let first = if token == TokenId(0) { 1 } else { 2 };
    assert!(actions.contains(&boost(first)) && actions.contains(&boost(2)), "{actions:?}");
    let actions = feed(&mut arbiter, &[ArbiterInput::Complete { job: job(2) }]);
    let lock = LockId { gpu: GpuId(0), engine: EngineRole::Execute };
    assert!(actions.contains(&ArbiterAction::Run { job: job(1), locks: vec![lock] }));
}

#[test]
fn clusters_share_nothing() {
    let clusters = vec![cluster(0, 0..1, tokens(1, 1)), cluster(1, 1..2, tokens(1, 1))];
    let mut arbiter = arbiter(clusters, None).unwrap();
    let actions =
        feed(&mut arbiter, &[task(1, 0), task(2, 1), task(3, 0), request(1, 9), request(2, 9), request(3, 1)]);
    let granted: Vec<(u32, u32)> = actions
        .iter()
        .filter_map(|action| match action {
            ArbiterAction::Grant { job, gpu, .. } => Some((job.task.0, gpu.0)),
            _ => None,
        })
        .collect();
    assert_eq!(granted, [(1, 0), (2, 1)]);
    let boosted = ArbiterAction::SetBoost {
        job: job(1),
        key: JobPriority { deadline: Nanos(1), release: Nanos(0), job: job(3) },
    };
    assert!(actions.contains(&boosted), "without engine locks keys go straight to the driver");
    assert_eq!(arbiter.effective_key(TaskId(2)).unwrap().deadline, Nanos(9));
}

#[test]
fn a_gpu_in_two_clusters_or_without_a_model_is_refused() {
    let twice = vec![cluster(0, 0..2, tokens(1, 1)), cluster(1, 1..3, tokens(1, 1))];
    assert_eq!(arbiter(twice, None).err(), Some(ArbiterRefused::Cluster { cluster: ClusterId(1) }));
    let without = ClusterParameters { models: Vec::new(), ..cluster(0, 0..2, tokens(1, 1)) };
    assert_eq!(arbiter(vec![without], None).err(), Some(ArbiterRefused::Cluster { cluster: ClusterId(0) }));
}

#[test]
fn a_job_that_changes_gpu_is_told_where_its_state_is_and_teaches_the_distance() {
    let mut arbiter = arbiter(vec![cluster(0, 0..2, tokens(2, 1))], Some(engines(PeerLocks::Group))).unwrap();
    feed(&mut arbiter, &[task(1, 0), task(2, 0), request(1, 5), release(1, 400)]);
    assert_eq!(arbiter.estimate(TaskId(1), 0, GpuId(1)), Some(Nanos(2)), "a first use teaches nothing");
    // Task 2 sits on task 1's GPU: its own is predicted to be as good, and it comes first.
    feed(&mut arbiter, &[request(2, 5)]);
    let Some(RequestStanding::Holder { token, .. }) = arbiter.standing(TaskId(2)) else { panic!() };
    let gpu = GpuId(token.0);
    feed(&mut arbiter, &[release(2, 300), request(1, 5), release(1, 500)]);
    assert_eq!(arbiter.estimate(TaskId(1), 0, GpuId(0)), Some(Nanos(500)));
    assert_eq!(gpu, GpuId(1), "the GPU with fewest users");
    feed(&mut arbiter, &[request(1, 5)]);
    // While task 1 is on GPU 0, task 3 makes that GPU look long, so that task 1's next job goes to GPU 1.
    feed(&mut arbiter, &[release(1, 500), ArbiterInput::GpuLost { gpu: GpuId(0) }]);
    let actions = feed(&mut arbiter, &[request(1, 5)]);
    assert!(
        matches!(actions[0], ArbiterAction::Grant { gpu: GpuId(1), from: None, .. }),
        "lost state is nowhere: {actions:?}"
    );
}

#[test]
fn state_on_another_gpu_may_be_copied_from_there_and_only_from_there() {
    let mut arbiter = arbiter(vec![cluster(0, 0..2, tokens(2, 1))], Some(engines(PeerLocks::Group))).unwrap();
    feed(&mut arbiter, &[task(1, 0), task(2, 0), request(1, 5), release(1, 1)]);
    // GPU 0 is taken by task 2, which prefers the GPU with fewest users once task 1 holds the other.
    feed(&mut arbiter, &[request(2, 5), release(2, 1), request(2, 5)]);
    let Some(RequestStanding::Holder { token, .. }) = arbiter.standing(TaskId(2)) else { panic!() };
    let actions = feed(&mut arbiter, &[request(1, 5)]);
    let ArbiterAction::Grant { gpu, from, .. } = actions[0] else { panic!("{actions:?}") };
    assert_ne!(gpu.0, token.0);
    let peer = arbiter.handle(Nanos(0), &acquire(1, EngineWork::Peer));
    assert_eq!(peer.is_ok(), from.is_some());
}

#[test]
fn an_overrun_operation_gives_the_place_of_its_token_away() {
    let mut arbiter = arbiter(vec![cluster(0, 0..1, tokens(1, 1))], Some(engines(PeerLocks::Group))).unwrap();
    feed(&mut arbiter, &[task(1, 0), task(2, 0), request(1, 5), request(2, 9), acquire(1, EngineWork::Execute)]);
    assert_eq!(
        (arbiter.poll_timeout(), arbiter.standing(TaskId(2))),
        (Some(Nanos(200)), Some(RequestStanding::Deferred))
    );
    arbiter.handle(Nanos(800), &ArbiterInput::Timeout).unwrap();
    let released = RequestStanding::Holder { token: TokenId(0), virtually_released: true };
    assert_eq!(arbiter.standing(TaskId(1)), Some(released));
    assert!(matches!(arbiter.standing(TaskId(2)), Some(RequestStanding::Waiting { .. })));
}

#[test]
fn a_token_is_not_released_while_its_engine_is_in_use() {
    let mut arbiter = arbiter(vec![cluster(0, 0..1, tokens(1, 1))], Some(engines(PeerLocks::Group))).unwrap();
    feed(&mut arbiter, &[task(1, 0), request(1, 5), acquire(1, EngineWork::Execute)]);
    for input in [release(1, 1), ArbiterInput::Abort { job: job(1) }] {
        assert_eq!(arbiter.handle(Nanos(0), &input), Err(ArbiterRefused::EngineInUse { task: TaskId(1) }));
    }
    assert_eq!(
        arbiter.handle(Nanos(0), &ArbiterInput::Withdraw { task: TaskId(1) }),
        Err(ArbiterRefused::TaskBusy { task: TaskId(1) })
    );
    feed(
        &mut arbiter,
        &[ArbiterInput::Complete { job: job(1) }, release(1, 1), ArbiterInput::Withdraw { task: TaskId(1) }],
    );
    assert_eq!(arbiter.task(TaskId(1)), None);
}

#[test]
fn a_dead_client_leaves_the_queues_at_once_and_its_token_when_drained() {
    let mut arbiter = arbiter(vec![cluster(0, 0..1, tokens(3, 1))], Some(engines(PeerLocks::Group))).unwrap();
    feed(&mut arbiter, &[task(1, 0), task(2, 0), task(3, 0), request(1, 5), request(2, 6), request(3, 7)]);
    feed(&mut arbiter, &[acquire(1, EngineWork::Execute)]);
    let gone = |client| ArbiterInput::ClientGone { client: ClientId(client) };
    assert_eq!(feed(&mut arbiter, &[gone(1), gone(2)]), [], "nobody is granted while work may be under way");
    assert_eq!((arbiter.task(TaskId(2)), arbiter.task(TaskId(1)).is_some()), (None, true));
    let actions = feed(&mut arbiter, &[ArbiterInput::Drained { client: ClientId(1) }]);
    assert!(matches!(actions[..], [ArbiterAction::Grant { job: JobId { task: TaskId(3), .. }, .. }]), "{actions:?}");
    assert_eq!(arbiter.task(TaskId(1)), None);
}

#[test]
fn a_client_that_held_several_tokens_is_drained_beside_one_that_boosts_them() {
    let modes = [TokenMode::Optimal, TokenMode::WorkConserving, TokenMode::Fifo, TokenMode::Priority];
    let with = |mode| (1..=2).flat_map(move |per_gpu| (1..=12).map(move |cpus| (mode, per_gpu, cpus)));
    for (mode, per_gpu, cpus) in modes.into_iter().flat_map(with) {
        let parameters = TokenParameters { mode, ..tokens(cpus, per_gpu) };
        let Ok(mut arbiter) = arbiter(vec![cluster(0, 0..2, parameters)], Some(engines(PeerLocks::Group))) else {
            continue;
        };
        let holders = 1..=2 * per_gpu;
        let owned = |id: u32, client: u64, deadline: u64| {
            let ArbiterInput::Register(parameters) = task(id, 0) else { unreachable!() };
            ArbiterInput::Register(TaskParameters { client: ClientId(client), deadline: Nanos(deadline), ..parameters })
        };
        for id in holders.clone() {
            feed(&mut arbiter, &[owned(id, 1, 1_000_000), request(id, 1_000_000)]);
        }
        for id in 10..12 {
            feed(&mut arbiter, &[owned(id, 2, 10), request(id, 10)]);
        }
        feed(&mut arbiter, &[ArbiterInput::ClientGone { client: ClientId(1) }]);
        let actions = feed(&mut arbiter, &[ArbiterInput::Drained { client: ClientId(1) }]);
        let is_granted = actions.iter().any(|action| matches!(action, ArbiterAction::Grant { .. }));
        assert!(is_granted, "{mode:?} {per_gpu} {cpus}: {actions:?}");
    }
}

#[test]
fn a_lost_gpu_takes_its_holders_engines_and_state_with_it_and_leaves_who_has_no_room() {
    let mut arbiter = arbiter(vec![cluster(0, 0..2, tokens(4, 2))], Some(engines(PeerLocks::Group))).unwrap();
    feed(&mut arbiter, &[task(1, 0), task(2, 0), task(3, 0), task(4, 0)]);
    let actions = feed(&mut arbiter, &[request(1, 5), request(2, 6), request(3, 7), request(4, 8)]);
    let on = |gpu: u32| {
        let granted = actions.iter().filter_map(move |action| match action {
            ArbiterAction::Grant { job, gpu: GpuId(on), .. } if *on == gpu => Some(job.task.0),
            _ => None,
        });
        granted.collect::<Vec<u32>>()
    };
    let ([first, second], [other, _]) = (on(0)[..].try_into().unwrap(), on(1)[..].try_into().unwrap());
    // The second waits for the first one's engine; neither runs on it ever after.
    feed(
        &mut arbiter,
        &[
            acquire(first, EngineWork::Execute),
            acquire(second, EngineWork::Execute),
            acquire(other, EngineWork::CopyIn),
        ],
    );
    while arbiter.poll_event().is_some() {}
    let actions = feed(&mut arbiter, &[ArbiterInput::GpuLost { gpu: GpuId(0) }]);
    let revoke = |task: u32| ArbiterAction::Revoke { job: job(task), gpu: GpuId(0) };
    assert_eq!(actions, [revoke(first), revoke(second)]);
    let events: Vec<ArbiterEvent> = std::iter::from_fn(|| arbiter.poll_event()).collect();
    let lost = |event: &&ArbiterEvent| matches!(event, ArbiterEvent::Token { event: token::TokenEvent::GpuLost { sizes: Some(sizes), .. }, .. } if sizes.tokens == 2);
    assert_eq!(events.iter().filter(lost).count(), 1, "{events:?}");
    // They may ask again, and wait for the GPU that is left; what was on the lost one is nowhere.
    let actions =
        feed(&mut arbiter, &[request(first, 1), ArbiterInput::Complete { job: job(other) }, release(other, 1)]);
    let is_first = |action: &ArbiterAction| matches!(action, ArbiterAction::Grant { job, gpu: GpuId(1), from: None, .. } if job.task.0 == first);
    assert!(actions.iter().any(is_first), "{actions:?}");
    assert!(arbiter.handle(Nanos(0), &acquire(first, EngineWork::Peer)).is_err());
    let actions = feed(&mut arbiter, &[ArbiterInput::GpuLost { gpu: GpuId(1) }]);
    assert!(
        !actions.is_empty() && actions.iter().all(|action| matches!(action, ArbiterAction::Revoke { .. })),
        "{actions:?}"
    );
    let none = ArbiterInput::Request {
        key: JobPriority { deadline: Nanos(9), release: Nanos(0), job: job(2) },
        acquisition: 0,
    };
    assert!(matches!(arbiter.handle(Nanos(0), &none), Err(ArbiterRefused::Token(token::TokenRefused::NoGpu { .. }))));
    let events: Vec<ArbiterEvent> = std::iter::from_fn(|| arbiter.poll_event()).collect();
    let without_room =
        events.iter().filter(|event| matches!(event, ArbiterEvent::Inadmissible { gpus: 0, .. })).count();
    assert_eq!(without_room, 4, "{events:?}");
}

#[test]
fn what_an_arbiter_remembers_serves_the_next_one_until_the_tasks_are_known_to_be_gone() {
    let make = || arbiter(vec![cluster(0, 0..3, tokens(3, 1))], None).unwrap();
    let mut before = make();
    feed(&mut before, &[task(1, 0), task(2, 0), request(1, 5), request(2, 5), release(1, 400), release(2, 300)]);
    feed(&mut before, &[request(1, 5), release(1, 500), ArbiterInput::GpuLost { gpu: GpuId(2) }]);
    let memory = before.memory();
    assert_eq!(memory.lost, [GpuId(2)]);
    let text = serde_json::to_string(&memory).unwrap();
    let mut after = make();
    after.recall(Nanos(0), &serde_json::from_str(&text).unwrap());
    assert_eq!(after.memory(), memory);
    feed(&mut after, &[task(1, 0), ArbiterInput::Recovered]);
    assert_eq!(after.estimate(TaskId(1), 0, GpuId(0)), before.estimate(TaskId(1), 0, GpuId(0)));
    assert!(after.memory().homes.iter().all(|(task, _)| *task == TaskId(1)) && after.memory().homes.len() == 1);
}

#[test]
fn distances_are_square_with_zeros_on_the_diagonal_only() {
    let row = |classes: &[u8]| classes.iter().map(|class| Class(*class)).collect::<Vec<_>>();
    assert!(Distances::new(vec![row(&[0, 1]), row(&[7, 0])]).is_ok());
    assert_eq!(Distances::new(vec![row(&[0, 1])]), Err(DistanceError::NotSquare { from: 0, columns: 2, gpus: 1 }));
    for class in [0, 8] {
        let rows = vec![row(&[0, class]), row(&[1, 0])];
        assert_eq!(Distances::new(rows), Err(DistanceError::Class { from: 0, to: 1, class }));
    }
    let switched = Distances::switched(4, 2);
    let far: Vec<u8> = (0..4).map(|to| switched.class(1, to).0).collect();
    assert_eq!(far, [1, 0, 2, 2]);
}

/// One step of a random run, taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Request(u32, u64),
    Engine(u32, u8),
    Complete(usize),
    Release(u32),
    Gone(u32),
    Exhausted(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u32..10, 1u64..500).prop_map(|(task, slack)| Step::Request(task, slack)),
        10 => (0u32..10, 0u8..4).prop_map(|(task, work)| Step::Engine(task, work)),
        10 => any::<usize>().prop_map(Step::Complete),
        5 => (0u32..10).prop_map(Step::Release),
        1 => (0u32..10).prop_map(Step::Gone),
        1 => (0u32..10).prop_map(Step::Exhausted),
    ]
}

/// What the driver has under way.
#[derive(Clone)]
struct Driver {
    arbiter: Arbiter,
    now: u64,
    boosts: BTreeMap<JobId, JobPriority>,
    running: Vec<JobId>,
    obtained: Vec<JobId>,
    log: Vec<ArbiterAction>,
}

impl Driver {
    fn parameters(peer: PeerLocks, mode: TokenMode) -> ArbiterParameters {
        let tokens = TokenParameters { mode, ..tokens(3, 2) };
        let clusters = vec![cluster(0, 0..3, tokens), cluster(1, 3..4, tokens)];
        ArbiterParameters::new(clusters, Some(engines(peer)))
    }

    fn new(peer: PeerLocks, mode: TokenMode) -> Self {
        let mut arbiter = Arbiter::new(Self::parameters(peer, mode)).unwrap();
        feed(&mut arbiter, &(0..10).map(|id| task(id, u32::from(id >= 7))).collect::<Vec<_>>());
        Self { arbiter, now: 0, boosts: BTreeMap::new(), running: Vec::new(), obtained: Vec::new(), log: Vec::new() }
    }

    fn feed(&mut self, input: &ArbiterInput) -> bool {
        self.now += 1;
        let accepted = self.arbiter.handle(Nanos(self.now), input).is_ok();
        for action in std::iter::from_fn(|| self.arbiter.poll_action()) {
            match &action {
                ArbiterAction::Grant { job, .. } => {
                    self.boosts.remove(job);
                }
                ArbiterAction::Run { job, .. } => {
                    self.obtained.retain(|other| other != job);
                    self.running.push(*job);
                }
                ArbiterAction::Obtained { job, .. } => self.obtained.push(*job),
                ArbiterAction::SetBoost { job, key } => {
                    self.boosts.insert(*job, *key);
                }
                ArbiterAction::Revoke { .. } => {}
            }
            self.log.push(action);
        }
        while self.arbiter.poll_event().is_some() {}
        self.arbiter.engine_locks().unwrap().check().unwrap();
        for id in [0, 1] {
            self.arbiter.tokens(ClusterId(id)).unwrap().check().unwrap();
        }
        for id in (0..10).map(TaskId) {
            let holds = matches!(self.arbiter.standing(id), Some(RequestStanding::Holder { .. }));
            let token = self.arbiter.tokens(ClusterId(u32::from(id.0 >= 7))).unwrap();
            if let Some(job) = token.job(id).filter(|_| holds)
                && let Some(key) = self.boosts.get(&job)
            {
                assert_eq!(self.arbiter.effective_key(id), Some(*key), "the boost emitted is the key inherited");
                assert!(token.effective_key(id).unwrap() >= *key, "engines only add urgency");
            }
        }
        accepted
    }

    fn job(&self, task: u32) -> Option<JobId> {
        self.arbiter.tokens(ClusterId(u32::from(task >= 7)))?.job(TaskId(task))
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Request(id, slack) => {
                let job = JobId { task: TaskId(*id), job: self.now };
                let key = JobPriority { deadline: Nanos(self.now + slack), release: Nanos(self.now), job };
                self.feed(&ArbiterInput::Request { key, acquisition: 0 });
            }
            Step::Engine(id, work) => {
                let Some(job) = self.job(*id) else { return };
                if self.obtained.contains(&job) {
                    self.feed(&ArbiterInput::Next { job });
                    return;
                }
                let work = [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut, EngineWork::Peer]
                    [usize::from(*work)];
                let operation = LockedOperation { work, bytes: Bytes(9), predicted: Nanos(5), budget: Nanos::ZERO };
                self.feed(&ArbiterInput::Acquire { job, operation });
            }
            Step::Complete(which) if !self.running.is_empty() => {
                let job = self.running.remove(which % self.running.len());
                assert!(self.feed(&ArbiterInput::Complete { job }));
            }
            Step::Complete(_) => {}
            Step::Release(id) => {
                if let Some(job) = self.job(*id) {
                    self.feed(&ArbiterInput::Release {
                        job,
                        outcome: TokenOutcome::Complete(Nanos(u64::from(*id) + 10)),
                    });
                }
            }
            Step::Gone(id) => {
                let client = ClientId(u64::from(*id));
                self.feed(&ArbiterInput::ClientGone { client });
                self.feed(&ArbiterInput::Drained { client });
                self.running.retain(|job| job.task != TaskId(*id));
                self.obtained.retain(|job| job.task != TaskId(*id));
                self.feed(&task(*id, u32::from(*id >= 7)));
            }
            Step::Exhausted(id) => {
                if let Some(job) = self.job(*id) {
                    self.feed(&ArbiterInput::Exhausted { job, deadline: Nanos(self.now + 700) });
                }
            }
        }
    }

    /// Every operation completes and every token is released: nobody is left waiting.
    fn finish(&mut self) {
        for _ in 0..1_000 {
            if let Some(job) = self.running.pop() {
                assert!(self.feed(&ArbiterInput::Complete { job }));
            } else if let Some(job) = self.obtained.first().copied() {
                self.obtained.remove(0);
                assert!(self.feed(&ArbiterInput::Next { job }));
            } else {
                let jobs: Vec<JobId> = (0..10).filter_map(|id| self.job(id)).collect();
                if jobs.is_empty() {
                    return;
                }
                let outcome = TokenOutcome::Aborted;
                assert!(jobs.iter().any(|job| self.feed(&ArbiterInput::Release { job: *job, outcome })), "deadlock");
            }
        }
        panic!("the run does not end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HEADWAY_EXPLORE").is_some() { 5_000 } else { 128 }))]

    #[test]
    fn tokens_and_engines_together_never_deadlock(
        peer in prop_oneof![Just(PeerLocks::Group), Just(PeerLocks::Nested), Just(PeerLocks::GroupBackfill)],
        mode in prop_oneof![Just(TokenMode::Optimal), Just(TokenMode::WorkConserving), Just(TokenMode::Relaxed(2)), Just(TokenMode::Fifo)],
        steps in prop::collection::vec(any_step(), 1..150),
    ) {
        let mut drivers = [Driver::new(peer, mode), Driver::new(peer, mode)];
        for driver in &mut drivers {
            steps.iter().for_each(|step| driver.step(step));
            driver.clone().finish();
        }
        prop_assert_eq!(&drivers[0].log, &drivers[1].log, "same inputs, same actions");
    }

    #[test]
    fn an_arbiter_from_its_snapshot_decides_like_the_one_that_wrote_it(
        peer in prop_oneof![Just(PeerLocks::Group), Just(PeerLocks::Nested), Just(PeerLocks::GroupBackfill)],
        mode in prop_oneof![Just(TokenMode::Optimal), Just(TokenMode::WorkConserving), Just(TokenMode::Relaxed(2)), Just(TokenMode::Fifo)],
        steps in prop::collection::vec(any_step(), 1..150),
        every in 1usize..40,
    ) {
        let (mut whole, mut parts) = (Driver::new(peer, mode), Driver::new(peer, mode));
        for (at, step) in steps.iter().enumerate() {
            whole.step(step);
            if at % every == 0 {
                let state = serde_json::to_string(&parts.arbiter).unwrap();
                parts.arbiter = serde_json::from_str(&state).unwrap();
            }
            parts.step(step);
        }
        prop_assert_eq!(&whole.log, &parts.log);
        whole.finish();
    }
}
