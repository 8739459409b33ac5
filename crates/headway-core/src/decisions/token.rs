//! Tokens: which job may use which GPU, and when. A k-exclusion lock with priority donation (R2DGLP) as a sans-IO state machine.
//!
//! Elliott 2013, 4.2, omits the rules; the specification of sharing, 3, states those used here, with the proof by search of
//! where they differ from the published implementation. Every request is in one place: in one of `k` FIFOs whose head holds
//! the token; among the donors, each lending its priority to one FIFO request; or in a queue by priority.
//!
//! The driver feeds inputs with `handle_*`, after each drains [`TokenAllocator::poll_action`], then
//! [`TokenAllocator::poll_event`]. Time never decides; with `discount_holder` it only discounts what a holder has used.

mod check;
mod choice;
mod messages;
mod parameters;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

pub use self::check::TokenViolation;
pub use self::messages::{RequestStanding, TokenAction, TokenEvent, TokenRefused, TokenRequest};
use crate::decisions::sharing::{ClientId, Distances, GpuId, JobId, JobPriority, TaskId, TokenId};
pub use crate::models::sharing::{Sizes, TokenMode, TokenParameters};
use crate::units::Nanos;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    /// In this FIFO.
    Fifo(usize),
    /// Lending its priority to this task's request.
    Donor(TaskId),
    /// In the queue by priority.
    Queue,
    /// Out of all queues until a reconfiguration ends.
    Stopped,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Request {
    key: JobPriority,
    client: ClientId,
    estimates: Vec<Nanos>,
    place: Place,
    /// The request that lends its priority to this one.
    donor: Option<TaskId>,
    /// Since when it holds its token.
    granted: Option<Nanos>,
    /// The key at which the driver runs it, while it holds a token.
    boost: JobPriority,
    virtually_released: bool,
}

impl Request {
    const fn new(key: JobPriority, client: ClientId, estimates: Vec<Nanos>, place: Place) -> Self {
        Self { key, client, estimates, place, donor: None, granted: None, boost: key, virtually_released: false }
    }
}

/// The queue in front of one token. Its head holds the token, unless it is about to be granted.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Fifo {
    token: TokenId,
    /// Position of its GPU.
    position: usize,
    members: VecDeque<TaskId>,
}

/// The state machine for one cluster's tokens. See the module's documentation for the order of calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenAllocator {
    parameters: TokenParameters,
    sizes: Sizes,
    gpus: Vec<GpuId>,
    lost: Vec<bool>,
    distances: Distances,
    requests_max: usize,
    now: Nanos,
    fifos: Vec<Fifo>,
    #[serde(with = "crate::decisions::pairs")]
    requests: BTreeMap<TaskId, Request>,
    /// Keys of all requests that count: not virtually released, not stopped. Its first `m` are `TOP`.
    order: BTreeSet<JobPriority>,
    donors: BTreeSet<JobPriority>,
    queue: BTreeSet<JobPriority>,
    /// Position of the GPU that each task used last.
    #[serde(with = "crate::decisions::pairs")]
    homes: BTreeMap<TaskId, usize>,
    /// The FIFO chosen last.
    last_choice: usize,
    /// What applies when the present holders have finished.
    pending: Option<TokenParameters>,
    #[serde(skip)]
    actions: VecDeque<TokenAction>,
    #[serde(skip)]
    events: VecDeque<TokenEvent>,
    /// FIFO that tests want to be chosen, if it has room.
    #[cfg(test)]
    #[serde(skip)]
    forced: Option<usize>,
}

impl TokenAllocator {
    /// An allocator of the tokens of `gpus`, which `distances` describes by position; at most `requests_max` open requests.
    ///
    /// # Errors
    /// [`TokenRefused::Parameters`] if the parameters leave requests without room; [`TokenRefused::Estimates`] if the distances are
    /// for another number of GPUs.
    pub fn new(
        parameters: TokenParameters,
        gpus: Vec<GpuId>,
        distances: Distances,
        requests_max: usize,
    ) -> Result<Self, TokenRefused> {
        if distances.gpus() != gpus.len() {
            return Err(TokenRefused::Estimates { given: distances.gpus(), gpus: gpus.len() });
        }
        let sizes = parameters.sizes(u32::try_from(gpus.len()).unwrap_or(u32::MAX))?;
        let mut allocator = Self {
            parameters,
            sizes,
            lost: vec![false; gpus.len()],
            gpus,
            distances,
            requests_max,
            now: Nanos::ZERO,
            fifos: Vec::new(),
            requests: BTreeMap::new(),
            order: BTreeSet::new(),
            donors: BTreeSet::new(),
            queue: BTreeSet::new(),
            homes: BTreeMap::new(),
            last_choice: 0,
            pending: None,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            #[cfg(test)]
            forced: None,
        };
        allocator.build_fifos();
        Ok(allocator)
    }

    /// A job asks for a token.
    ///
    /// # Errors
    /// [`TokenRefused::TaskBusy`], [`TokenRefused::TooManyRequests`], [`TokenRefused::Estimates`], [`TokenRefused::NoGpu`] if all are lost.
    pub fn handle_request(&mut self, now: Nanos, request: TokenRequest) -> Result<(), TokenRefused> {
        let TokenRequest { key, client, estimates } = request;
        let task = key.job.task;
        if self.requests.contains_key(&task) {
            return Err(TokenRefused::TaskBusy { task });
        }
        if self.requests.len() >= self.requests_max {
            return Err(TokenRefused::TooManyRequests { requests_max: self.requests_max });
        }
        if estimates.len() != self.gpus.len() {
            return Err(TokenRefused::Estimates { given: estimates.len(), gpus: self.gpus.len() });
        }
        if self.lost.iter().all(|lost| *lost) {
            return Err(TokenRefused::NoGpu { gpu: self.gpus[0] });
        }
        self.advance(now);
        let place = if self.pending.is_some() { Place::Stopped } else { Place::Queue };
        self.requests.insert(task, Request::new(key, client, estimates, place));
        if place != Place::Stopped {
            self.place(task);
        }
        self.update_boosts();
        Ok(())
    }

    /// A holder gives its token back.
    ///
    /// # Errors
    /// [`TokenRefused::NoRequest`], [`TokenRefused::NotHolder`].
    pub fn handle_release(&mut self, now: Nanos, job: JobId) -> Result<(), TokenRefused> {
        self.open(job)?;
        if self.requests[&job.task].granted.is_none() {
            return Err(TokenRefused::NotHolder { job });
        }
        self.advance(now);
        self.release(job.task);
        self.update_boosts();
        Ok(())
    }

    /// A job gives up its request. One that holds a token already releases it.
    ///
    /// # Errors
    /// [`TokenRefused::NoRequest`].
    pub fn handle_abort(&mut self, now: Nanos, job: JobId) -> Result<(), TokenRefused> {
        self.open(job)?;
        self.advance(now);
        self.drop_request(job.task);
        self.update_boosts();
        Ok(())
    }

    /// A job has used up its budget; its deadline becomes `deadline`. A waiting request is made anew. A holder keeps its
    /// token, but its place is given away now (virtual release).
    ///
    /// # Errors
    /// [`TokenRefused::NoRequest`].
    pub fn handle_exhausted(&mut self, now: Nanos, job: JobId, deadline: Nanos) -> Result<(), TokenRefused> {
        self.open(job)?;
        self.advance(now);
        self.exhaust(job.task, deadline);
        self.update_boosts();
        Ok(())
    }

    /// A client is gone: its waiting requests are dropped. Its tokens stay taken until they are released: its GPU work goes on.
    pub fn handle_client_gone(&mut self, now: Nanos, client: ClientId) {
        self.advance(now);
        for task in self.tasks_of(client) {
            if self.requests[&task].granted.is_none() {
                self.drop_request(task);
            }
        }
        self.update_boosts();
    }

    /// A GPU is lost: its holders lose their tokens, the bounds are those of the GPUs that are left, and everybody who waits
    /// queues anew by priority. Without any GPU left, waiting requests are revoked too.
    ///
    /// # Errors
    /// [`TokenRefused::NoGpu`] if it is not there or lost already.
    pub fn handle_gpu_lost(&mut self, now: Nanos, gpu: GpuId) -> Result<(), TokenRefused> {
        let position = self.gpus.iter().position(|g| *g == gpu).filter(|p| !self.lost[*p]);
        let position = position.ok_or(TokenRefused::NoGpu { gpu })?;
        self.advance(now);
        self.lose(position);
        self.update_boosts();
        Ok(())
    }

    /// New parameters. Nobody is granted a token until the present holders have finished; then all queue anew by priority.
    ///
    /// # Errors
    /// [`TokenRefused::Parameters`], [`TokenRefused::Reconfiguring`].
    pub fn handle_reconfigure(&mut self, now: Nanos, parameters: TokenParameters) -> Result<(), TokenRefused> {
        if self.pending.is_some() {
            return Err(TokenRefused::Reconfiguring);
        }
        parameters.sizes(self.alive())?;
        self.advance(now);
        self.pending = Some(parameters);
        for task in self.waiting_by_key() {
            self.take_out(task);
            self.request_mut(task).place = Place::Stopped;
        }
        self.finish_reconfiguration();
        self.update_boosts();
        Ok(())
    }

    /// A task's state is on the GPU at `position`, from before this allocator was there.
    pub fn handle_home(&mut self, task: TaskId, position: usize) {
        if self.lost.get(position) == Some(&false) {
            self.homes.insert(task, position);
        }
    }

    /// Positions of the GPUs that tasks used last.
    pub fn homes(&self) -> impl Iterator<Item = (TaskId, usize)> {
        self.homes.iter().map(|(task, position)| (*task, *position))
    }

    /// Whether the GPU at `position` is lost.
    #[must_use]
    pub fn is_lost(&self, position: usize) -> bool {
        self.lost.get(position).copied().unwrap_or(false)
    }

    /// The parameters in force, or those that will be when a reconfiguration has ended.
    #[must_use]
    pub fn parameters(&self) -> TokenParameters {
        self.pending.unwrap_or(self.parameters)
    }

    /// Every token with the job that holds it.
    pub fn holders(&self) -> impl Iterator<Item = (TokenId, JobId)> {
        let heads = self.fifos.iter().filter_map(|fifo| Some((fifo.token, self.requests.get(fifo.members.front()?)?)));
        heads.filter(|(_, request)| request.granted.is_some()).map(|(token, request)| (token, request.key.job))
    }

    /// Forgets which GPU a task used last.
    pub fn handle_forget(&mut self, task: TaskId) {
        self.homes.remove(&task);
    }

    /// The next thing the driver must do.
    pub fn poll_action(&mut self) -> Option<TokenAction> {
        self.actions.pop_front()
    }

    /// The next event for the user.
    pub fn poll_event(&mut self) -> Option<TokenEvent> {
        self.events.pop_front()
    }

    /// Where a task's request is; `None` = it has none.
    #[must_use]
    pub fn standing(&self, task: TaskId) -> Option<RequestStanding> {
        let request = self.requests.get(&task)?;
        Some(match request.place {
            Place::Fifo(x) if request.granted.is_some() => {
                RequestStanding::Holder { token: self.fifos[x].token, virtually_released: request.virtually_released }
            }
            Place::Fifo(x) => {
                let ahead = self.fifos[x].members.iter().take_while(|member| **member != task).count();
                RequestStanding::Waiting { token: self.fifos[x].token, ahead: u32::try_from(ahead).unwrap_or(u32::MAX) }
            }
            Place::Donor(donee) => RequestStanding::Donor { donee },
            Place::Queue => RequestStanding::Deferred,
            Place::Stopped => RequestStanding::Stopped,
        })
    }

    /// The job of a task's open request.
    #[must_use]
    pub fn job(&self, task: TaskId) -> Option<JobId> {
        self.requests.get(&task).map(|request| request.key.job)
    }

    /// The key at which a task's job runs while it holds a token, else its own; `None` = it has no request.
    #[must_use]
    pub fn effective_key(&self, task: TaskId) -> Option<JobPriority> {
        self.requests.get(&task).map(|request| if request.granted.is_some() { request.boost } else { request.key })
    }

    /// Position of the GPU that a task used last.
    #[must_use]
    pub fn home(&self, task: TaskId) -> Option<u32> {
        self.homes.get(&task).map(|position| u32::try_from(*position).unwrap_or(u32::MAX))
    }

    /// The GPU that a token is one of; `None` = there is no such token.
    #[must_use]
    pub fn gpu(&self, token: TokenId) -> Option<GpuId> {
        let fifo = self.fifos.iter().find(|fifo| fifo.token == token)?;
        self.gpus.get(fifo.position).copied()
    }

    /// The queue sizes in force.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn open(&self, job: JobId) -> Result<(), TokenRefused> {
        let found = self.requests.get(&job.task).is_some_and(|request| request.key.job == job);
        if found { Ok(()) } else { Err(TokenRefused::NoRequest { job }) }
    }

    /// Tasks with open requests of `client`, the most urgent first.
    fn tasks_of(&self, client: ClientId) -> Vec<TaskId> {
        let theirs = self.requests.values().filter(|request| request.client == client);
        let keys: BTreeSet<JobPriority> = theirs.map(|request| request.key).collect();
        keys.into_iter().map(|key| key.job.task).collect()
    }

    fn advance(&mut self, now: Nanos) {
        debug_assert!(now >= self.now, "time went back from {} to {now}", self.now);
        self.now = self.now.max(now);
    }
}
