//! Long random runs over large configurations, with crashes, overruns, lost GPUs and reconfigurations.

use proptest::prelude::*;

use super::*;

/// One input; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Input {
    Request { task: u32, slack: u64 },
    Release(usize),
    Abort(usize),
    Exhausted(usize, u64),
    Gone(u64),
    Lost(u32),
    Reconfigure(TokenParameters),
}

fn any_parameters() -> impl Strategy<Value = TokenParameters> {
    let mode = prop_oneof![
        Just(TokenMode::Optimal),
        Just(TokenMode::WorkConserving),
        (1u32..5).prop_map(TokenMode::Relaxed),
        Just(TokenMode::Fifo),
        Just(TokenMode::Priority),
    ];
    (1u32..=64, 1u32..=4, mode, any::<bool>()).prop_map(|(cpus, per_gpu, mode, affinity)| TokenParameters {
        cpus,
        per_gpu,
        mode,
        affinity,
    })
}

fn any_input(tasks: u32) -> impl Strategy<Value = Input> {
    prop_oneof![
        40 => (0..tasks, 0u64..2_000).prop_map(|(task, slack)| Input::Request { task, slack }),
        30 => any::<usize>().prop_map(Input::Release),
        6 => any::<usize>().prop_map(Input::Abort),
        4 => (any::<usize>(), 0u64..4_000).prop_map(|(which, slack)| Input::Exhausted(which, slack)),
        2 => (0u64..16).prop_map(Input::Gone),
        1 => any::<u32>().prop_map(Input::Lost),
        1 => any_parameters().prop_map(Input::Reconfigure),
    ]
}

/// Drives an allocator; checks it and what it emits after every input.
struct Driver {
    tokens: TokenAllocator,
    gpus: u32,
    now: u64,
    jobs: u64,
    holders: BTreeMap<JobId, (TokenId, JobPriority)>,
    log: Vec<TokenAction>,
}

impl Driver {
    fn new(parameters: TokenParameters, gpus: u32) -> Option<Self> {
        let ids: Vec<GpuId> = (0..gpus).map(GpuId).collect();
        let tokens = TokenAllocator::new(parameters, ids, Distances::switched(gpus as usize, 2), 300).ok()?;
        Some(Self { tokens, gpus, now: 0, jobs: 0, holders: BTreeMap::new(), log: Vec::new() })
    }

    fn pick(&self, which: usize, granted: bool) -> Option<JobId> {
        let jobs = self.tokens.requests.values().filter(|request| request.granted.is_some() == granted);
        let jobs: Vec<JobId> = jobs.map(|request| request.key.job).collect();
        (!jobs.is_empty()).then(|| jobs[which % jobs.len()])
    }

    fn feed(&mut self, input: &Input) {
        self.now += 7;
        let now = Nanos(self.now);
        match input {
            Input::Request { task, slack } => {
                self.jobs += 1;
                let job = JobId { task: TaskId(*task), job: self.jobs };
                let key = JobPriority { deadline: Nanos(self.now + slack), release: now, job };
                // Costs differ by task and GPU, in a way that repeats.
                let estimates = (0..self.gpus).map(|gpu| Nanos(u64::from(task * 7 + gpu * 13) % 50 + 1)).collect();
                let client = ClientId(u64::from(task % 16));
                // A busy task is refused, as it should be.
                let _ = self.tokens.handle_request(now, TokenRequest { key, client, estimates });
            }
            Input::Release(which) => {
                if let Some(job) = self.pick(*which, true) {
                    self.tokens.handle_release(now, job).unwrap();
                    self.holders.remove(&job);
                }
            }
            Input::Abort(which) => {
                if let Some(job) = self.pick(*which, false) {
                    self.tokens.handle_abort(now, job).unwrap();
                }
            }
            Input::Exhausted(which, slack) => {
                if let Some(job) = self.pick(*which, which % 2 == 0) {
                    self.tokens.handle_exhausted(now, job, Nanos(self.now + slack)).unwrap();
                }
            }
            Input::Gone(client) => {
                self.tokens.handle_client_gone(now, ClientId(*client));
                self.check();
                let gone = |job: &JobId| u64::from(job.task.0 % 16) == *client;
                for job in self.holders.keys().copied().filter(gone).collect::<Vec<_>>() {
                    self.tokens.handle_release(now, job).unwrap();
                    self.holders.remove(&job);
                    self.check();
                }
            }
            Input::Lost(gpu) => {
                // The last GPU stays.
                if self.tokens.alive() > 1 {
                    let _ = self.tokens.handle_gpu_lost(now, GpuId(gpu % self.gpus));
                }
            }
            Input::Reconfigure(parameters) => {
                let _ = self.tokens.handle_reconfigure(now, *parameters);
            }
        }
        self.check();
    }

    fn check(&mut self) {
        while let Some(action) = self.tokens.poll_action() {
            self.log.push(action);
            match action {
                TokenAction::Grant { job, token, .. } => {
                    let key = self.tokens.requests[&job.task].key;
                    let (_, taken) = (self.holders.insert(job, (token, key)), job);
                    let others =
                        self.holders.iter().filter(|(other, held)| **other != taken && held.0 == token).count();
                    assert_eq!(others, 0, "token {token:?} is held twice");
                }
                TokenAction::SetBoost { job, key } => self.holders.get_mut(&job).unwrap().1 = key,
                TokenAction::Revoke { job, .. } => {
                    self.holders.remove(&job);
                }
            }
        }
        while self.tokens.poll_event().is_some() {}
        self.tokens.check().unwrap();
        for (job, (token, key)) in &self.holders {
            let fifo = self.tokens.fifos.iter().find(|fifo| fifo.token == *token).unwrap();
            let request = &self.tokens.requests[&job.task];
            assert_eq!((fifo.members.front(), request.key.job), (Some(&job.task), *job));
            assert!(request.granted.is_some(), "{job:?} holds what it was not granted");
            assert_eq!(self.tokens.effective_key(job.task), Some(*key), "the boost emitted is the key inherited");
        }
        assert_eq!(self.holders.len(), self.tokens.fifos.iter().filter(|fifo| !fifo.members.is_empty()).count());
    }

    /// Releases until nobody is left: everybody who waits is granted in the end.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            let Some(job) = self.holders.keys().next().copied() else { break };
            self.now += 1;
            self.tokens.handle_release(Nanos(self.now), job).unwrap();
            self.holders.remove(&job);
            self.check();
        }
        assert!(self.tokens.requests.is_empty(), "left behind: {:?}", self.tokens.requests);
    }
}

fn run(parameters: TokenParameters, gpus: u32, inputs: &[Input]) {
    let Some(mut driver) = Driver::new(parameters, gpus) else { return };
    let mut again = Driver::new(parameters, gpus).unwrap();
    for input in inputs {
        driver.feed(input);
        again.feed(input);
    }
    driver.finish();
    again.finish();
    assert_eq!(driver.log, again.log, "same inputs, same actions");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if large() { 4_000 } else { 96 }))]

    #[test]
    fn random_runs_keep_the_invariants_and_leave_nobody_behind(
        parameters in any_parameters(), gpus in 1u32..=8, inputs in prop::collection::vec(any_input(256), 1..250),
    ) {
        run(parameters, gpus, &inputs);
    }

    #[test]
    fn crowded_random_runs_keep_them_too(
        cpus in 1u32..6, parameters in any_parameters(), gpus in 1u32..=3,
        inputs in prop::collection::vec(any_input(12), 1..250),
    ) {
        run(TokenParameters { cpus, ..parameters }, gpus, &inputs);
    }
}
