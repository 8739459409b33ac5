//! All clusters of a node behind one interface.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::admission::without_room;
use super::{
    ArbiterAction, ArbiterEvent, ArbiterInput, ArbiterLimits, ArbiterParameters, ArbiterRefused, ClientId, ClusterId,
    ClusterParameters, GpuId, JobId, JobPriority, TaskId, TaskParameters, TokenId, TokenOutcome,
};
use crate::decisions::engine_lock::{self, EngineLocks};
use crate::decisions::predictor::{Predictor, Subject};
use crate::decisions::sharing::Class;
use crate::decisions::token::{self, RequestStanding, TokenAllocator, TokenRequest};
use crate::units::Nanos;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cluster {
    pub(super) parameters: ClusterParameters,
    pub(super) tokens: TokenAllocator,
}

/// What the predictor needs to know of an open request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct OpenRequest {
    key: JobPriority,
    acquisition: u32,
    /// Class and position of the grant; `None` until then, and no class at a first use.
    granted: Option<(Option<Class>, usize)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    parameters: TaskParameters,
    open: Option<OpenRequest>,
    /// Its client is gone and its token not yet released.
    draining: bool,
}

/// The state machine that arbitrates a node's GPUs: tokens per cluster, engine locks, cost predictor.
///
/// The driver feeds inputs with [`Arbiter::handle`], after each drains [`Arbiter::poll_action`] and then
/// [`Arbiter::poll_event`], and calls again with [`ArbiterInput::Timeout`] at [`Arbiter::poll_timeout`]. A refused input changes
/// nothing. A log of inputs replays to the same actions and events.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Arbiter {
    #[serde(with = "crate::decisions::pairs")]
    pub(super) clusters: BTreeMap<ClusterId, Cluster>,
    engines: Option<EngineLocks>,
    pub(super) predictor: Predictor,
    limits: ArbiterLimits,
    #[serde(with = "crate::decisions::pairs")]
    tasks: BTreeMap<TaskId, Task>,
    now: Nanos,
    #[serde(skip)]
    actions: VecDeque<ArbiterAction>,
    #[serde(skip)]
    events: VecDeque<ArbiterEvent>,
}

impl Arbiter {
    /// An arbiter without tasks.
    ///
    /// # Errors
    /// [`ArbiterRefused::Cluster`] or the refusal of a part if the parameters cannot work.
    pub fn new(parameters: ArbiterParameters) -> Result<Self, ArbiterRefused> {
        let mut clusters = BTreeMap::new();
        let mut gpus: BTreeSet<GpuId> = BTreeSet::new();
        for cluster in parameters.clusters {
            let (id, count) = (cluster.id, cluster.gpus.len());
            let fits = cluster.models.len() == count && cluster.distances.gpus() == count;
            if !fits || clusters.contains_key(&id) || !cluster.gpus.iter().all(|gpu| gpus.insert(*gpu)) {
                return Err(ArbiterRefused::Cluster { cluster: id });
            }
            let requests_max = parameters.limits.requests_max;
            let distances = cluster.distances.clone();
            let tokens = TokenAllocator::new(cluster.tokens, cluster.gpus.clone(), distances, requests_max)?;
            clusters.insert(id, Cluster { parameters: cluster, tokens });
        }
        let gpus: Vec<GpuId> = gpus.into_iter().collect();
        let engines = parameters.engines.map(|engines| EngineLocks::new(engines, &gpus)).transpose()?;
        Ok(Self {
            clusters,
            engines,
            predictor: Predictor::new(parameters.predictor),
            limits: parameters.limits,
            tasks: BTreeMap::new(),
            now: Nanos::ZERO,
            actions: VecDeque::new(),
            events: VecDeque::new(),
        })
    }

    /// Takes an input.
    ///
    /// # Errors
    /// A [`ArbiterRefused`]; nothing has changed then.
    pub fn handle(&mut self, now: Nanos, input: &ArbiterInput) -> Result<(), ArbiterRefused> {
        if now < self.now {
            return Err(ArbiterRefused::TimeWentBack { before: self.now, now });
        }
        match input {
            ArbiterInput::Register(task) => self.register(task),
            ArbiterInput::Withdraw { task } => self.withdraw(*task),
            ArbiterInput::Request { key, acquisition } => self.request(now, *key, *acquisition),
            ArbiterInput::Adopt { key, token } => self.adopt(now, *key, *token),
            ArbiterInput::Release { job, outcome } => self.release(now, *job, *outcome),
            ArbiterInput::Abort { job } => self.abort(now, *job),
            ArbiterInput::Exhausted { job, deadline } => {
                self.tokens_of(job.task)?.handle_exhausted(now, *job, *deadline)?;
                self.postpone(*job, *deadline);
                Ok(())
            }
            ArbiterInput::Acquire { job, operation } => Ok(self.engines()?.handle_acquire(now, *job, *operation)?),
            ArbiterInput::Next { job } => Ok(self.engines()?.handle_next(now, *job)?),
            ArbiterInput::Complete { job } => Ok(self.engines()?.handle_complete(now, *job)?),
            ArbiterInput::ClientGone { client } => {
                self.client_gone(now, *client);
                Ok(())
            }
            ArbiterInput::Drained { client } => {
                self.drained(now, *client);
                Ok(())
            }
            ArbiterInput::GpuLost { gpu } => self.gpu_lost(now, *gpu),
            ArbiterInput::Reconfigure { cluster, tokens } => {
                let found =
                    self.clusters.get_mut(cluster).ok_or(ArbiterRefused::UnknownCluster { cluster: *cluster })?;
                Ok(found.tokens.handle_reconfigure(now, *tokens)?)
            }
            ArbiterInput::Recovered => {
                self.forget_strangers();
                Ok(())
            }
            ArbiterInput::Timeout => {
                if let Some(engines) = &mut self.engines {
                    engines.handle_timeout(now);
                }
                Ok(())
            }
        }?;
        self.now = now;
        self.collect();
        Ok(())
    }

    /// The next thing the driver must do.
    pub fn poll_action(&mut self) -> Option<ArbiterAction> {
        self.actions.pop_front()
    }

    /// The next event for the user.
    pub fn poll_event(&mut self) -> Option<ArbiterEvent> {
        self.events.pop_front()
    }

    /// When to call with [`ArbiterInput::Timeout`] at the latest; `None` = not before the next input.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.engines.as_ref().and_then(EngineLocks::poll_timeout)
    }

    /// The key at which a task's job runs: its own or what it inherits; `None` without an open request.
    #[must_use]
    pub fn effective_key(&self, task: TaskId) -> Option<JobPriority> {
        let known = self.tasks.get(&task)?;
        let through_engines = self.engines.as_ref().and_then(|engines| engines.effective_key(task));
        let through_tokens = || self.clusters.get(&known.parameters.cluster)?.tokens.effective_key(task);
        through_engines.or_else(through_tokens)
    }

    /// Where a task's request for a token is; `None` = it has none.
    #[must_use]
    pub fn standing(&self, task: TaskId) -> Option<RequestStanding> {
        let known = self.tasks.get(&task)?;
        self.clusters.get(&known.parameters.cluster)?.tokens.standing(task)
    }

    /// The tokens of a cluster, for reports and checks.
    #[must_use]
    pub fn tokens(&self, cluster: ClusterId) -> Option<&TokenAllocator> {
        self.clusters.get(&cluster).map(|cluster| &cluster.tokens)
    }

    /// The engine locks, for reports and checks; `None` = there are none.
    #[must_use]
    pub fn engine_locks(&self) -> Option<&EngineLocks> {
        self.engines.as_ref()
    }

    /// A registered task.
    #[cfg(test)]
    pub(super) fn task(&self, task: TaskId) -> Option<&TaskParameters> {
        self.tasks.get(&task).map(|known| &known.parameters)
    }

    /// Predicted hold time of a task's acquisition on a GPU of its cluster.
    #[must_use]
    pub fn estimate(&self, task: TaskId, acquisition: u32, gpu: GpuId) -> Option<Nanos> {
        let cluster = self.clusters.get(&self.tasks.get(&task)?.parameters.cluster)?;
        let position = cluster.parameters.gpus.iter().position(|other| *other == gpu)?;
        self.estimates(cluster, task, acquisition).get(position).copied()
    }

    fn register(&mut self, task: &TaskParameters) -> Result<(), ArbiterRefused> {
        if self.tasks.contains_key(&task.id) {
            return Err(ArbiterRefused::TaskExists { task: task.id });
        }
        if !self.clusters.contains_key(&task.cluster) {
            return Err(ArbiterRefused::UnknownCluster { cluster: task.cluster });
        }
        if self.tasks.len() >= self.limits.tasks_max {
            return Err(ArbiterRefused::TooManyTasks { tasks_max: self.limits.tasks_max });
        }
        self.tasks.insert(task.id, Task { parameters: task.clone(), open: None, draining: false });
        Ok(())
    }

    fn withdraw(&mut self, task: TaskId) -> Result<(), ArbiterRefused> {
        let known = self.tasks.get(&task).ok_or(ArbiterRefused::UnknownTask { task })?;
        if known.open.is_some() {
            return Err(ArbiterRefused::TaskBusy { task });
        }
        self.forget(task);
        Ok(())
    }

    fn forget(&mut self, task: TaskId) {
        if let Some(known) = self.tasks.remove(&task)
            && let Some(cluster) = self.clusters.get_mut(&known.parameters.cluster)
        {
            cluster.tokens.handle_forget(task);
        }
        self.predictor.forget(task);
    }

    fn request(&mut self, now: Nanos, key: JobPriority, acquisition: u32) -> Result<(), ArbiterRefused> {
        let task = key.job.task;
        let known = self.tasks.get(&task).ok_or(ArbiterRefused::UnknownTask { task })?;
        if known.draining {
            return Err(ArbiterRefused::TaskBusy { task });
        }
        let (client, cluster) = (known.parameters.client, known.parameters.cluster);
        let cluster = self.clusters.get(&cluster).ok_or(ArbiterRefused::UnknownCluster { cluster })?;
        let estimates = self.estimates(cluster, task, acquisition);
        self.tokens_of(task)?.handle_request(now, TokenRequest { key, client, estimates })?;
        self.set_open(task, Some(OpenRequest { key, acquisition, granted: None }));
        Ok(())
    }

    fn adopt(&mut self, now: Nanos, key: JobPriority, token: TokenId) -> Result<(), ArbiterRefused> {
        let task = key.job.task;
        let known = self.tasks.get(&task).ok_or(ArbiterRefused::UnknownTask { task })?;
        let (client, cluster) = (known.parameters.client, known.parameters.cluster);
        let cluster = self.clusters.get(&cluster).ok_or(ArbiterRefused::UnknownCluster { cluster })?;
        let estimates = self.estimates(cluster, task, 0);
        self.tokens_of(task)?.handle_adopt(now, TokenRequest { key, client, estimates }, token)?;
        self.set_open(task, Some(OpenRequest { key, acquisition: 0, granted: None }));
        Ok(())
    }

    /// Predicted hold time on each GPU of the cluster.
    fn estimates(&self, cluster: &Cluster, task: TaskId, acquisition: u32) -> Vec<Nanos> {
        let home = cluster.tokens.home(task).map(|home| home as usize);
        let class = |to| home.map_or(Class(0), |from| cluster.parameters.distances.class(from, to));
        let models = cluster.parameters.models.iter().enumerate();
        models
            .map(|(to, model)| self.predictor.estimate(Subject { task, acquisition, model: *model }, class(to)))
            .collect()
    }

    fn release(&mut self, now: Nanos, job: JobId, outcome: TokenOutcome) -> Result<(), ArbiterRefused> {
        let task = job.task;
        if self.engines.as_ref().is_some_and(|engines| engines.is_busy(task)) {
            return Err(ArbiterRefused::EngineInUse { task });
        }
        let virtually_released =
            matches!(self.standing(task), Some(RequestStanding::Holder { virtually_released: true, .. }));
        self.tokens_of(task)?.handle_release(now, job)?;
        if let Some(engines) = &mut self.engines {
            engines.handle_token_released(now, job)?;
        }
        if let TokenOutcome::Complete(cost) = outcome
            && !virtually_released
        {
            self.learn(task, cost);
        }
        self.set_open(task, None);
        Ok(())
    }

    /// Feeds the predictor with a complete use. A first use has no distance and teaches nothing.
    fn learn(&mut self, task: TaskId, cost: Nanos) {
        let Some(Task { parameters, open: Some(open), .. }) = self.tasks.get(&task) else { return };
        let Some((Some(class), position)) = open.granted else { return };
        let Some(cluster) = self.clusters.get(&parameters.cluster) else { return };
        let model = cluster.parameters.models[position];
        let subject = Subject { task, acquisition: open.acquisition, model };
        self.predictor.handle_observation(subject, class, cost, parameters.period);
    }

    fn abort(&mut self, now: Nanos, job: JobId) -> Result<(), ArbiterRefused> {
        let task = job.task;
        if self.engines.as_ref().is_some_and(|engines| engines.is_busy(task)) {
            return Err(ArbiterRefused::EngineInUse { task });
        }
        self.tokens_of(task)?.handle_abort(now, job)?;
        if let Some(engines) = &mut self.engines {
            engines.handle_gone(now, job);
        }
        self.set_open(task, None);
        Ok(())
    }

    fn client_gone(&mut self, now: Nanos, client: ClientId) {
        for cluster in self.clusters.values_mut() {
            cluster.tokens.handle_client_gone(now, client);
        }
        for task in self.tasks_of(client) {
            let holds = matches!(self.standing(task), Some(RequestStanding::Holder { .. }));
            let job = self.tasks.get(&task).and_then(|known| known.open).map(|open| open.key.job);
            if !holds {
                self.forget(task);
            } else if let (Some(engines), Some(job)) = (&mut self.engines, job) {
                engines.handle_cancel(now, job);
            }
            if let Some(known) = self.tasks.get_mut(&task) {
                known.draining = true;
            }
        }
    }

    fn drained(&mut self, now: Nanos, client: ClientId) {
        let tasks: Vec<TaskId> = self.tasks_of(client).into_iter().filter(|task| self.tasks[task].draining).collect();
        for task in tasks {
            // Without an open request its token was lost with its GPU.
            if let Some(job) = self.tasks[&task].open.map(|open| open.key.job) {
                if let Some(engines) = &mut self.engines {
                    engines.handle_gone(now, job);
                }
                if let Ok(tokens) = self.tokens_of(task) {
                    // An open request of a client that is gone holds a token: the others were dropped with the client.
                    let released = tokens.handle_abort(now, job);
                    assert!(released.is_ok(), "a token would be lost: {released:?}");
                }
            }
            self.forget(task);
        }
    }

    fn tasks_of(&self, client: ClientId) -> Vec<TaskId> {
        let theirs = self.tasks.iter().filter(|(_, known)| known.parameters.client == client);
        theirs.map(|(task, _)| *task).collect()
    }

    fn gpu_lost(&mut self, now: Nanos, gpu: GpuId) -> Result<(), ArbiterRefused> {
        let cluster = self.clusters.values_mut().find(|cluster| cluster.parameters.gpus.contains(&gpu));
        let cluster = cluster.ok_or(ArbiterRefused::UnknownGpu { gpu })?;
        cluster.tokens.handle_gpu_lost(now, gpu)?;
        if let Some(engines) = &mut self.engines {
            engines.handle_gpu_lost(gpu);
        }
        let (id, sizes) = (cluster.parameters.id, cluster.tokens.sizes());
        let positions = 0..cluster.parameters.gpus.len();
        let left = positions.filter(|position| !cluster.tokens.is_lost(*position)).count();
        let gpus = u32::try_from(left).unwrap_or(u32::MAX);
        let theirs = self.tasks.values().filter(|task| task.parameters.cluster == id && !task.draining);
        for task in without_room(theirs.map(|task| &task.parameters), gpus, sizes.tokens) {
            self.events.push_back(ArbiterEvent::Inadmissible { task, gpus });
        }
        Ok(())
    }

    /// Forgets tasks of an earlier arbiter that nobody has registered here.
    fn forget_strangers(&mut self) {
        let tasks = &self.tasks;
        self.predictor.retain(|task| tasks.contains_key(&task));
        for cluster in self.clusters.values_mut() {
            let strangers: Vec<TaskId> =
                cluster.tokens.homes().map(|(task, _)| task).filter(|task| !tasks.contains_key(task)).collect();
            strangers.into_iter().for_each(|task| cluster.tokens.handle_forget(task));
        }
    }

    fn postpone(&mut self, job: JobId, deadline: Nanos) {
        if let Some(Task { open: Some(open), .. }) = self.tasks.get_mut(&job.task) {
            open.key.deadline = deadline;
        }
    }

    fn set_open(&mut self, task: TaskId, open: Option<OpenRequest>) {
        if let Some(known) = self.tasks.get_mut(&task) {
            known.open = open;
        }
    }

    fn tokens_of(&mut self, task: TaskId) -> Result<&mut TokenAllocator, ArbiterRefused> {
        let known = self.tasks.get(&task).ok_or(ArbiterRefused::UnknownTask { task })?;
        let cluster = known.parameters.cluster;
        self.clusters.get_mut(&cluster).map(|found| &mut found.tokens).ok_or(ArbiterRefused::UnknownCluster { cluster })
    }

    fn engines(&mut self) -> Result<&mut EngineLocks, ArbiterRefused> {
        self.engines.as_mut().ok_or(ArbiterRefused::NoEngineLocks)
    }

    /// Passes on what the parts want done, until nothing is left: an overrun releases a token virtually, and keys that reach
    /// a job through tokens go on through engine locks.
    fn collect(&mut self) {
        loop {
            for id in self.clusters.keys().copied().collect::<Vec<_>>() {
                while let Some(action) = self.clusters.get_mut(&id).and_then(|cluster| cluster.tokens.poll_action()) {
                    self.token_action(id, action);
                }
                while let Some(event) = self.clusters.get_mut(&id).and_then(|cluster| cluster.tokens.poll_event()) {
                    self.events.push_back(ArbiterEvent::Token { cluster: id, event });
                }
            }
            while let Some(action) = self.engines.as_mut().and_then(EngineLocks::poll_action) {
                // Where a GPU is lost, locks go on to jobs whose tokens are void too.
                let (engine_lock::EngineLockAction::Run { job, .. }
                | engine_lock::EngineLockAction::Obtained { job, .. }
                | engine_lock::EngineLockAction::SetBoost { job, .. }) = action;
                if self.engines.as_ref().is_some_and(|engines| engines.effective_key(job.task).is_none()) {
                    continue;
                }
                self.actions.push_back(match action {
                    engine_lock::EngineLockAction::Run { job, first, second } => {
                        ArbiterAction::Run { job, locks: first.into_iter().chain(second).collect() }
                    }
                    engine_lock::EngineLockAction::Obtained { job, lock } => ArbiterAction::Obtained { job, lock },
                    engine_lock::EngineLockAction::SetBoost { job, key } => ArbiterAction::SetBoost { job, key },
                });
            }
            let mut overruns = Vec::new();
            while let Some(event) = self.engines.as_mut().and_then(EngineLocks::poll_event) {
                if let engine_lock::EngineLockEvent::Overrun { job, .. } = event {
                    overruns.push(job);
                }
                self.events.push_back(ArbiterEvent::Engine(event));
            }
            if overruns.is_empty() {
                return;
            }
            for job in overruns {
                self.release_virtually(job);
            }
        }
    }

    fn release_virtually(&mut self, job: JobId) {
        let deadline = self.tasks.get(&job.task).and_then(|known| known.open).map(|open| open.key.deadline);
        let now = self.now;
        if let (Some(deadline), Ok(tokens)) = (deadline, self.tokens_of(job.task)) {
            // The job holds an engine, hence a token; its deadline stays.
            let _ = tokens.handle_exhausted(now, job, deadline);
        }
    }

    fn is_open(&self, job: JobId) -> bool {
        let open = self.tasks.get(&job.task).and_then(|task| task.open.as_ref());
        open.is_some_and(|open| open.key.job == job)
    }

    fn token_action(&mut self, cluster: ClusterId, action: token::TokenAction) {
        let now = self.now;
        match action {
            token::TokenAction::Grant { job, gpu, position, token } => {
                let Some(Task { open: Some(open), .. }) = self.tasks.get_mut(&job.task) else { return };
                let Some(cluster) = self.clusters.get(&cluster) else { return };
                let (position, home) = (position as usize, cluster.tokens.home(job.task).map(|home| home as usize));
                let class = home.map(|home| cluster.parameters.distances.class(home, position));
                open.granted = Some((class, position));
                let from = home.filter(|home| *home != position).map(|home| cluster.parameters.gpus[home]);
                if let Some(engines) = &mut self.engines {
                    let entered = engines.handle_token(now, open.key, gpu, from);
                    assert!(entered.is_ok(), "a job is granted one token at a time: {entered:?}");
                }
                self.actions.push_back(ArbiterAction::Grant { job, gpu, token, from });
            }
            // A client that is drained loses its tokens one after the other: a job that was boosted by the first is gone with the last.
            token::TokenAction::SetBoost { job, .. } if !self.is_open(job) => {}
            token::TokenAction::SetBoost { job, key } => match &mut self.engines {
                Some(engines) => {
                    let known = engines.handle_key(now, job, key);
                    assert!(known.is_ok(), "boosts go to holders: {known:?}");
                }
                None => self.actions.push_back(ArbiterAction::SetBoost { job, key }),
            },
            token::TokenAction::Revoke { job, gpu } => {
                if let Some(engines) = &mut self.engines {
                    engines.handle_gone(now, job);
                }
                if let Some(known) = self.tasks.get_mut(&job.task) {
                    known.open = None;
                }
                self.actions.push_back(ArbiterAction::Revoke { job, gpu });
            }
        }
    }
}
