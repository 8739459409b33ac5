//! Tasks, the tokens of their jobs, and the engines that a token is the right to ask for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use headway_core::decisions::engine_lock::{EngineParameters, EngineWork, LockedOperation};
use headway_core::decisions::sharing::{GpuId, JobId, TaskId, TokenId, TokenOutcome};
use headway_core::units::Nanos;
use headway_os::clock;

use super::link::{Link, Unanswered};
use super::{Client, Held};
use crate::error::{ClientError, RefusalReason};
use crate::layout::{self, ANSWER_LONGS, ENGINES, Entry, GENERATIONS};
use crate::protocol::lease::{self, Released};

/// How long a thread looks for a token before it sleeps, once a job: longer than it takes to wake the broker.
const SPIN_TOKEN: Nanos = Nanos(if cfg!(test) { 0 } else { 100_000 });

/// A registered task; its jobs ask for GPUs one after the other.
pub struct BrokerTask<'client> {
    client: &'client Client,
    id: TaskId,
    index: usize,
    jobs: u64,
    generation: u32,
}

impl<'client> BrokerTask<'client> {
    pub(super) fn new(client: &'client Client, id: TaskId, index: usize) -> Self {
        // A slot may have been another task's: generations of one client never come again soon.
        let generation = (id.0 << 8) & GENERATIONS;
        Self { client, id, index, jobs: 0, generation }
    }

    /// Its number, unique among all clients.
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.id
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = (self.generation + 1) & GENERATIONS;
        // 0 is what an empty slot says.
        self.generation = self.generation.max(1);
        self.generation
    }

    fn slot(&self) -> usize {
        layout::token_slot(self.index)
    }

    /// Waits for a token, for at most `bound`: the job released at `release` (see [`clock::now`]) asks for its GPU number
    /// `acquisition`, counted from 0 for each job.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`], [`ClientError::Silent`], [`ClientError::Request`], [`ClientError::Lost`], [`ClientError::GpuLost`] when the GPUs are
    /// lost while it waits.
    pub fn acquire(
        &mut self,
        release: Nanos,
        acquisition: u32,
        bound: Option<Duration>,
    ) -> Result<Token<'_, 'client>, ClientError> {
        let until =
            bound.map(|bound| clock::now().saturating_add(Nanos(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX))));
        if acquisition == 0 {
            self.jobs += 1;
        }
        let job = JobId { task: self.id, job: self.jobs };
        loop {
            let left = until.map(|until| Duration::from_nanos(until.saturating_sub(clock::now()).0));
            let link = self.client.shared.live(left)?;
            let patience = self.client.shared.patience();
            let generation = self.next_generation();
            let slot = self.slot();
            let entry = Entry::Request { slot: slot as u32, generation, job, release, acquisition };
            let answered = link.push(entry, patience);
            let answered = answered.and_then(|()| link.wait(slot, generation, SPIN_TOKEN, until, patience));
            match answered {
                Ok(answer) => {
                    let [gpu, token, from, _] = answer;
                    let (gpu, token) = (GpuId(gpu as u32), TokenId(token as u32));
                    if self.note(&link, Held { job: job.job, release, gpu, token, generation }) {
                        let from = from.checked_sub(1).map(|from| GpuId(from as u32));
                        let position = link.gpus.iter().position(|known| *known == gpu);
                        let position = position.ok_or(ClientError::Protocol { what: "a GPU that is not there" })?;
                        return Ok(Token { task: self, link, job, gpu, token, from, position, generation, open: true });
                    }
                }
                Err(Unanswered::Lost) => {}
                Err(Unanswered::TimedOut) => {
                    // A token granted meanwhile is released by it.
                    let _ = link.push(Entry::Abort { job }, patience);
                    return Err(ClientError::TimedOut);
                }
                Err(Unanswered::Silent) => {
                    // If the broker goes on, it reads that the job waits no more. If this entry finds no room, neither did the
                    // request.
                    let _ = link.push(Entry::Abort { job }, Nanos::ZERO);
                    return Err(link.silent(patience));
                }
                Err(Unanswered::Refused(reason)) => return Err(ClientError::Request(reason)),
                Err(Unanswered::Revoked(gpu)) => return Err(revoked(gpu)),
            }
        }
    }

    /// Notes the token for the next broker; `false` if the broker that granted it is gone and no broker learnt of it in time.
    fn note(&self, link: &Link, held: Held) -> bool {
        let mut state = self.client.shared.lock();
        if link.is_lost() {
            return false;
        }
        if let Some(record) = state.records.iter_mut().find(|record| record.id == self.id) {
            record.held = Some(held);
        }
        true
    }
}

impl Drop for BrokerTask<'_> {
    fn drop(&mut self) {
        self.client.withdraw(self.id);
    }
}

fn revoked(gpu: Option<GpuId>) -> ClientError {
    gpu.map_or(ClientError::Revoked, |gpu| ClientError::GpuLost { gpu })
}

/// The right to use a GPU. Given back when dropped, and then nothing is learnt from how it was used.
pub struct Token<'task, 'client> {
    task: &'task mut BrokerTask<'client>,
    link: Arc<Link>,
    job: JobId,
    gpu: GpuId,
    token: TokenId,
    from: Option<GpuId>,
    position: usize,
    /// Generation of the token's request.
    generation: u32,
    open: bool,
}

impl<'client> Token<'_, 'client> {
    #[must_use]
    pub fn gpu(&self) -> GpuId {
        self.gpu
    }

    /// Which of its tokens.
    #[must_use]
    pub fn token(&self) -> TokenId {
        self.token
    }

    /// Where the task's state is, if it is on another GPU.
    #[must_use]
    pub fn from(&self) -> Option<GpuId> {
        self.from
    }

    /// Whether it was taken away: the GPU is lost, or the broker has given this client up.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        let state = self.task.client.shared.lock();
        state.failed || [&self.link, &state.link].into_iter().any(|link| self.revoked_by(link).is_some())
    }

    /// The error where the broker of this connection has taken the token away.
    fn revoked_by(&self, link: &Link) -> Option<ClientError> {
        match link.look(self.task.slot(), self.generation) {
            Some(Err(Unanswered::Revoked(gpu))) => Some(revoked(gpu)),
            _ => None,
        }
    }

    /// Waits for the engines of one operation. Give them back when it *has completed on the device*.
    ///
    /// # Errors
    /// [`ClientError::Request`] if the operation is not allowed, [`ClientError::Silent`], [`ClientError::GpuLost`],
    /// [`ClientError::Lost`].
    pub fn engine(&mut self, operation: LockedOperation) -> Result<BrokerEngine<'_>, ClientError> {
        // A lease may outlast the token by a moment.
        if let Some(error) = self.revoked_by(&self.link) {
            return Err(error);
        }
        if let Some(engines) = self.link.engines {
            if engines.chunk_bytes.is_some_and(|most| operation.work != EngineWork::Execute && operation.bytes > most) {
                return Err(ClientError::Request(RefusalReason::Operation));
            }
            if let Some(lock) = self.lease(engines, operation)
                && !self.link.is_lost()
                && let Some(mine) = lease::acquire(self.link.lease(lock), self.task.id.0)
            {
                let leased_at = self.link.has_log.then(clock::now);
                return Ok(BrokerEngine { token: self, locks: [Some((lock, mine)), None], leased_at });
            }
            return self.engine_by_broker(engines, operation);
        }
        Ok(BrokerEngine { token: self, locks: [None; 2], leased_at: None })
    }

    /// The lock that a lease may cover.
    fn lease(&self, engines: EngineParameters, operation: LockedOperation) -> Option<usize> {
        let out = if engines.copy_engines == 1 { 1 } else { 2 };
        match operation.work {
            EngineWork::Execute => Some(self.position * ENGINES),
            EngineWork::CopyIn => Some(self.position * ENGINES + 1),
            EngineWork::CopyOut => Some(self.position * ENGINES + out),
            EngineWork::Peer => None,
        }
    }

    #[cold]
    fn engine_by_broker(
        &mut self,
        engines: EngineParameters,
        operation: LockedOperation,
    ) -> Result<BrokerEngine<'_>, ClientError> {
        let slot = layout::engine_slot(self.task.index);
        let answer = loop {
            if self.link.is_lost() {
                self.link = self.task.client.shared.live(None)?;
                let position = self.link.gpus.iter().position(|gpu| *gpu == self.gpu);
                self.position = position.ok_or(ClientError::Revoked)?;
                // What the old broker had granted when it ended, the new one has taken over.
                if let Some(lock) = self.lease(engines, operation)
                    && let Some(mine) = lease::granted(self.link.lease(lock), self.task.id.0)
                {
                    return Ok(BrokerEngine { token: self, locks: [Some((lock, mine)), None], leased_at: None });
                }
            }
            let generation = self.task.next_generation();
            let entry = Entry::Acquire { slot: slot as u32, generation, job: self.job, operation };
            let link = &self.link;
            let spin = Nanos(self.task.client.shared.spin.load(Ordering::Relaxed));
            let patience = self.task.client.shared.patience();
            let answered = link.push(entry, patience);
            match answered.and_then(|()| link.wait(slot, generation, spin, None, patience)) {
                Ok(answer) if self.link.is_lost() => {
                    // The watcher has noted these locks as in use, or will not: for a peer copy they are given back and asked
                    // for again; a single one is found again above.
                    if operation.work == EngineWork::Peer {
                        for (lock, mine) in self.granted(engines, operation, answer)?.into_iter().flatten() {
                            self.give_back(lock, mine);
                        }
                    }
                }
                Ok(answer) => break answer,
                Err(Unanswered::Refused(reason)) => {
                    // A job that has no token any more has lost it together with its GPU.
                    return Err(self.revoked_by(link).unwrap_or(ClientError::Request(reason)));
                }
                Err(Unanswered::Revoked(gpu)) => return Err(revoked(gpu)),
                Err(Unanswered::Silent) => return Err(link.silent(patience)),
                Err(Unanswered::Lost | Unanswered::TimedOut) => {}
            }
        };
        let locks = self.granted(engines, operation, answer)?;
        Ok(BrokerEngine { token: self, locks, leased_at: None })
    }

    /// The locks of an operation with the words that the broker gave.
    fn granted(
        &self,
        engines: EngineParameters,
        operation: LockedOperation,
        answer: [u64; ANSWER_LONGS],
    ) -> Result<[Option<(usize, u64)>; 2], ClientError> {
        if operation.work != EngineWork::Peer {
            return Ok([self.lease(engines, operation).map(|lock| (lock, answer[0])), None]);
        }
        let source = self.from.and_then(|from| self.link.gpus.iter().position(|gpu| *gpu == from));
        let source = source.ok_or(ClientError::Protocol { what: "a peer copy from nowhere" })?;
        let out = if engines.copy_engines == 1 { 1 } else { 2 };
        Ok([Some((source * ENGINES + out, answer[0])), Some((self.position * ENGINES + 1, answer[1]))])
    }

    /// Gives the token back; `used` is the CPU time of the job and the time of its operations, without waiting for engines.
    pub fn release(mut self, used: Nanos) {
        self.close(TokenOutcome::Complete(used));
    }

    fn close(&mut self, outcome: TokenOutcome) {
        if !std::mem::take(&mut self.open) || self.link.is_foreign() {
            return;
        }
        let mut state = self.task.client.shared.lock();
        if let Some(record) = state.records.iter_mut().find(|record| record.id == self.job.task) {
            record.held = None;
        }
        let link = Arc::clone(&state.link);
        // While no broker is there, the watcher reports to the next one. No other thread gets the lock while this entry is under way, so
        // that the watcher sees the token either held or given back.
        if !link.is_lost() {
            let _ = link.push(Entry::Release { job: self.job, outcome }, self.task.client.shared.patience());
        }
    }

    /// Gives back a lock that the old broker knew, where the new one looks.
    #[cold]
    fn return_to_next(&self, lock: usize) {
        let state = self.task.client.shared.lock();
        if Arc::ptr_eq(&state.link, &self.link) {
            // The watcher finds it given back on the old page.
            return;
        }
        if let Some(mine) = lease::granted(state.link.lease(lock), self.job.task.0) {
            lease::release(state.link.lease(lock), mine);
            state.link.ring();
        }
    }
}

impl Drop for Token<'_, '_> {
    fn drop(&mut self) {
        self.close(TokenOutcome::Aborted);
    }
}

/// The engines of one operation. Given back when dropped.
pub struct BrokerEngine<'token> {
    token: &'token dyn Return,
    locks: [Option<(usize, u64)>; 2],
    /// Since when it is used by lease; `None` = the broker knows, or keeps no log.
    leased_at: Option<Nanos>,
}

/// Where locks are given back; hides the lifetimes of the token.
trait Return {
    fn give_back(&self, lock: usize, mine: u64);
    fn tell(&self, lock: usize, begin: Nanos, end: Nanos);
}

impl Return for Token<'_, '_> {
    fn give_back(&self, lock: usize, mine: u64) {
        if self.link.is_foreign() {
            return;
        }
        match lease::release(self.link.lease(lock), mine) {
            Released::Kept => {}
            Released::Returned if self.link.is_lost() => self.return_to_next(lock),
            Released::Returned => {
                self.link.ring();
                // Between the two the broker may have gone.
                if self.link.is_lost() {
                    self.return_to_next(lock);
                }
            }
            // Taken away: there is nothing left to give.
            Released::Lost => {}
        }
    }

    fn tell(&self, lock: usize, begin: Nanos, end: Nanos) {
        if !self.link.is_foreign() {
            self.link.report(self.job, lock, begin, end);
        }
    }
}

impl BrokerEngine<'_> {
    /// Whether the operation needs and has locks; small copies may need none.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locks[0].is_some()
    }

    /// Gives the engines back: the operation has completed.
    pub fn release(self) {}
}

impl Drop for BrokerEngine<'_> {
    fn drop(&mut self) {
        let used = self.leased_at.map(|begin| (begin, clock::now()));
        for (lock, mine) in self.locks.into_iter().flatten().rev() {
            self.token.give_back(lock, mine);
            if let Some((begin, end)) = used {
                self.token.tell(lock, begin, end);
            }
        }
    }
}
