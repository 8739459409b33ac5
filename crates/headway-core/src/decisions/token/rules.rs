//! What happens at a request and at a removal: rules L1-L3 and U0-U5 (specification of sharing, 3.2 and 3.3).

use super::{Fifo, Place, Request, TokenAction, TokenAllocator, TokenEvent, TokenRefused, TokenRequest};
use crate::decisions::sharing::{JobPriority, TaskId, TokenId};
use crate::units::Nanos;

/// What a removal leaves behind.
#[derive(Clone, Copy, Default)]
pub(super) struct Vacated {
    /// The donor of the request that was removed.
    donor: Option<TaskId>,
    /// The request that thereby became one of the `m` most urgent.
    promoted: Option<TaskId>,
}

impl TokenAllocator {
    /// L1-L3 for a request that is in no queue.
    pub(super) fn place(&mut self, task: TaskId) {
        let key = self.requests[&task].key;
        self.order.insert(key);
        if self.has_slot() {
            if let Some(x) = self.enter(task) {
                self.grant_head(x);
            }
            return;
        }
        if self.sizes.donation && self.in_top(key) {
            let pushed_out = self.order.iter().nth(self.parameters.cpus as usize).map(|key| key.job.task);
            let evicted = pushed_out.and_then(|z| match self.requests[&z].place {
                Place::Donor(donee) => Some((z, donee)),
                _ => None,
            });
            if let Some((z, donee)) = evicted {
                self.stop_donating(z);
                self.defer(z);
                self.events.push_back(TokenEvent::Evicted { job: self.requests[&z].key.job, by: key.job });
                self.donate(task, donee);
                return;
            }
            if let Some(donee) = self.choose_donee(task, self.parameters.affinity) {
                self.donate(task, donee);
                return;
            }
        }
        self.defer(task);
    }

    /// U0-U5 for a holder; for a virtually released one, whose place is given away, only U4 and U5.
    pub(super) fn release(&mut self, task: TaskId) {
        let request = &self.requests[&task];
        let (job, virtually_released, place) = (request.key.job, request.virtually_released, request.place);
        let Place::Fifo(x) = place else { unreachable!("a holder is in a FIFO") };
        let vacated = if virtually_released { None } else { Some(self.vacate(task)) };
        self.fifos[x].members.retain(|member| *member != task);
        self.requests.remove(&task);
        self.homes.insert(task, self.fifos[x].position);
        if self.pending.is_some() {
            self.finish_reconfiguration();
            return;
        }
        let handed_over = !self.fifos[x].members.is_empty();
        if let Some(vacated) = vacated {
            self.refill(vacated, Some(x));
        }
        if self.fifos[x].members.is_empty()
            && let Some(stolen) = self.choose_stolen(x)
        {
            self.steal(stolen, x);
        }
        self.grant_head(x);
        if handed_over && let Some(to) = self.fifos[x].members.front() {
            let to = self.requests[to].key.job;
            self.events.push_back(TokenEvent::HandedOver { from: job, to, token: self.fifos[x].token });
        }
        self.repair();
    }

    /// Removes a request wherever it is.
    pub(super) fn drop_request(&mut self, task: TaskId) {
        if self.requests[&task].granted.is_some() {
            self.release(task);
            return;
        }
        let vacated = self.take_out(task);
        self.requests.remove(&task);
        self.refill(vacated, None);
        self.repair();
    }

    /// A job used up its budget.
    pub(super) fn exhaust(&mut self, task: TaskId, deadline: Nanos) {
        let request = &self.requests[&task];
        let (granted, released) = (request.granted.is_some(), request.virtually_released);
        if !granted && self.pending.is_none() {
            let vacated = self.take_out(task);
            // Out of every queue, so that nobody counts or chooses it while its old place is refilled.
            self.request_mut(task).place = Place::Stopped;
            self.refill(vacated, None);
            self.repair();
            let request = self.request_mut(task);
            request.key.deadline = deadline;
            request.place = Place::Queue;
            self.place(task);
            return;
        }
        if granted && !released {
            let vacated = self.vacate(task);
            let request = self.request_mut(task);
            request.virtually_released = true;
            request.key.deadline = deadline;
            let (job, Place::Fifo(x)) = (request.key.job, request.place) else { unreachable!("a holder is in a FIFO") };
            self.events.push_back(TokenEvent::VirtuallyReleased { job, token: self.fifos[x].token });
            self.refill(vacated, None);
            self.repair();
            return;
        }
        self.request_mut(task).key.deadline = deadline;
    }

    /// A GPU is lost.
    pub(super) fn lose(&mut self, position: usize) {
        self.lost[position] = true;
        self.homes.retain(|_, home| *home != position);
        let gpu = self.gpus[position];
        let waiting = self.waiting_by_key();
        for task in &waiting {
            self.take_out(*task);
            self.request_mut(*task).place = Place::Stopped;
        }
        let dead = self.fifos.iter().filter(|fifo| fifo.position == position);
        let holders: Vec<TaskId> = dead.flat_map(|fifo| fifo.members.iter().copied()).collect();
        for task in holders {
            let request = self.requests.remove(&task).expect("members of FIFOs have requests");
            self.order.remove(&request.key);
            self.actions.push_back(TokenAction::Revoke { job: request.key.job, gpu });
        }
        for fifo in self.fifos.iter_mut().filter(|fifo| fifo.position == position) {
            fifo.members.clear();
        }
        if self.alive() == 0 {
            for task in waiting {
                let request = self.requests.remove(&task).expect("waiting tasks have requests");
                self.actions.push_back(TokenAction::Revoke { job: request.key.job, gpu });
            }
            self.pending = None;
            self.fifos.clear();
            self.events.push_back(TokenEvent::GpuLost { gpu, sizes: None });
            return;
        }
        let alive = self.alive();
        self.parameters = self.parameters.fitting(alive);
        self.pending = self.pending.map(|parameters| parameters.fitting(alive));
        if let Ok(sizes) = self.parameters.sizes(self.alive()) {
            self.sizes = sizes;
        }
        self.remove_fifos(position);
        self.events.push_back(TokenEvent::GpuLost { gpu, sizes: Some(self.sizes) });
        if self.pending.is_some() {
            self.finish_reconfiguration();
        } else {
            self.place_all(waiting);
        }
    }

    /// Applies pending parameters once nobody holds a token.
    pub(super) fn finish_reconfiguration(&mut self) {
        if self.fifos.iter().any(|fifo| !fifo.members.is_empty()) {
            return;
        }
        let Some(parameters) = self.pending.take() else { return };
        if let Ok(sizes) = parameters.sizes(self.alive()) {
            (self.parameters, self.sizes) = (parameters, sizes);
        }
        self.build_fifos();
        self.events.push_back(TokenEvent::Reconfigured { sizes: self.sizes });
        self.place_all(self.waiting_by_key());
    }

    /// Emits the keys of holders that changed.
    pub(super) fn update_boosts(&mut self) {
        for x in 0..self.fifos.len() {
            let (Some(key), Some(head)) = (self.inherited(x), self.fifos[x].members.front().copied()) else { continue };
            let request = self.request_mut(head);
            if request.granted.is_some() && request.boost != key {
                request.boost = key;
                let job = request.key.job;
                self.actions.push_back(TokenAction::SetBoost { job, key });
            }
        }
    }

    /// One empty FIFO per token of the GPUs that are not lost: token `x` belongs to the GPU at `x mod g` of those.
    pub(super) fn build_fifos(&mut self) {
        let alive: Vec<usize> = (0..self.gpus.len()).filter(|position| !self.lost[*position]).collect();
        let fifo =
            |x: u32| Fifo { token: TokenId(x), position: alive[x as usize % alive.len()], members: Default::default() };
        self.fifos = (0..self.sizes.tokens).map(fifo).collect();
        self.last_choice = 0;
    }

    /// GPUs that are not lost.
    pub(super) fn alive(&self) -> u32 {
        u32::try_from(self.lost.iter().filter(|lost| !**lost).count()).unwrap_or(u32::MAX)
    }

    pub(super) fn request_mut(&mut self, task: TaskId) -> &mut Request {
        self.requests.get_mut(&task).expect("tasks in queues have requests")
    }

    /// Takes a waiting request out of its queue; it stays in `requests` without a place.
    pub(super) fn take_out(&mut self, task: TaskId) -> Vacated {
        let request = &self.requests[&task];
        let (key, place) = (request.key, request.place);
        match place {
            Place::Stopped => return Vacated::default(),
            Place::Fifo(x) => self.fifos[x].members.retain(|member| *member != task),
            Place::Donor(_) => self.stop_donating(task),
            Place::Queue => {
                self.queue.remove(&key);
            }
        }
        self.vacate(task)
    }

    /// U0: `task` no longer counts; its donor donates no longer.
    fn vacate(&mut self, task: TaskId) -> Vacated {
        let request = &self.requests[&task];
        let (key, donor) = (request.key, request.donor);
        let was_top = self.in_top(key);
        self.order.remove(&key);
        let promoted = if was_top { self.top_last() } else { None };
        if let Some(donor) = donor {
            self.request_mut(task).donor = None;
            self.donors.remove(&self.requests[&donor].key);
            self.defer_quietly(donor);
        }
        Vacated { donor, promoted }
    }

    /// U1-U3: fills free slots. The caller grants the head of `granted_later` itself.
    fn refill(&mut self, vacated: Vacated, granted_later: Option<usize>) {
        if self.pending.is_some() {
            return;
        }
        let mut vacated = Some(vacated);
        while self.has_slot() {
            let Some(task) = self.next_to_enter(vacated.take().unwrap_or_default()) else { return };
            self.stop_donating(task);
            self.queue.remove(&self.requests[&task].key);
            if let Some(x) = self.enter(task)
                && Some(x) != granted_later
            {
                self.grant_head(x);
            }
        }
    }

    /// U1-U3: which request takes a free slot.
    fn next_to_enter(&self, vacated: Vacated) -> Option<TaskId> {
        if !self.sizes.donation {
            return self.queue.first().map(|key| key.job.task);
        }
        if vacated.donor.is_some() {
            return vacated.donor;
        }
        if let Some(promoted) = vacated.promoted {
            let request = &self.requests[&promoted];
            if request.place == Place::Queue {
                return Some(promoted);
            }
            if request.donor.is_some() {
                return request.donor;
            }
        }
        let top = self.top();
        let donee_key = |donor: &JobPriority| match self.requests[&donor.job.task].place {
            Place::Donor(donee) => Some(self.requests[&donee].key),
            _ => None,
        };
        let urgent_donee = |donor: &&JobPriority| donee_key(donor).is_some_and(|key| top.is_none_or(|top| key <= top));
        let donor = self.donors.iter().find(urgent_donee).or_else(|| self.donors.first());
        donor.or_else(|| self.queue.first()).map(|key| key.job.task)
    }

    /// A queued request among the `m` most urgent that found no slot becomes a donor.
    fn repair(&mut self) {
        while self.sizes.donation
            && self.pending.is_none()
            && let Some(key) = self.queue.first().copied().filter(|key| self.in_top(*key))
            && let Some(donee) = self.choose_donee(key.job.task, false)
        {
            self.queue.remove(&key);
            self.donate(key.job.task, donee);
        }
    }

    /// Whether another request may enter the FIFOs.
    pub(super) fn has_slot(&self) -> bool {
        let queued: usize = (0..self.fifos.len()).map(|x| self.counted(x)).sum();
        self.sizes.queued_max.is_none_or(|most| queued < most as usize)
    }

    /// Appends `task` to a FIFO, and says which.
    fn enter(&mut self, task: TaskId) -> Option<usize> {
        let x = self.choose_fifo(task)?;
        self.last_choice = x;
        self.fifos[x].members.push_back(task);
        let request = self.request_mut(task);
        request.place = Place::Fifo(x);
        let job = request.key.job;
        self.events.push_back(TokenEvent::Queued { job, token: self.fifos[x].token });
        Some(x)
    }

    /// Grants a FIFO's token to its head, unless it holds it.
    fn grant_head(&mut self, x: usize) {
        let Some(head) = self.fifos[x].members.front().copied() else { return };
        let (now, position, token) = (self.now, self.fifos[x].position, self.fifos[x].token);
        let gpu = self.gpus[position];
        let request = self.request_mut(head);
        if request.granted.is_some() {
            return;
        }
        request.granted = Some(now);
        request.boost = request.key;
        let job = request.key.job;
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        self.actions.push_back(TokenAction::Grant { job, gpu, position, token });
    }

    fn steal(&mut self, task: TaskId, to: usize) {
        let Place::Fifo(from) = self.requests[&task].place else { unreachable!("waiters are in FIFOs") };
        self.fifos[from].members.retain(|member| *member != task);
        self.fifos[to].members.push_back(task);
        let request = self.request_mut(task);
        request.place = Place::Fifo(to);
        let job = request.key.job;
        self.events.push_back(TokenEvent::Stolen { job, from: self.fifos[from].token, to: self.fifos[to].token });
    }

    fn donate(&mut self, task: TaskId, donee: TaskId) {
        self.request_mut(donee).donor = Some(task);
        let request = self.request_mut(task);
        request.place = Place::Donor(donee);
        let key = request.key;
        self.donors.insert(key);
        self.events.push_back(TokenEvent::Donating { job: key.job, donee: self.requests[&donee].key.job });
    }

    /// Ends a donation, if there is one; the donor has no place then.
    fn stop_donating(&mut self, task: TaskId) {
        let request = self.request_mut(task);
        let key = request.key;
        if let Place::Donor(donee) = request.place {
            request.place = Place::Queue;
            self.donors.remove(&key);
            self.request_mut(donee).donor = None;
        }
    }

    fn defer(&mut self, task: TaskId) {
        self.defer_quietly(task);
        self.events.push_back(TokenEvent::Deferred { job: self.requests[&task].key.job });
    }

    fn defer_quietly(&mut self, task: TaskId) {
        let request = self.request_mut(task);
        request.place = Place::Queue;
        let key = request.key;
        self.queue.insert(key);
    }

    /// The least urgent request in `TOP`, if there are `m`.
    fn top_last(&self) -> Option<TaskId> {
        self.order.iter().nth(self.parameters.cpus as usize - 1).map(|key| key.job.task)
    }

    /// L1-L3 for requests that are out of every queue, in this order.
    fn place_all(&mut self, tasks: Vec<TaskId>) {
        for task in tasks {
            self.request_mut(task).place = Place::Queue;
            self.place(task);
        }
    }

    /// Removes the FIFOs of a lost GPU. Those that stay keep their tokens' numbers.
    fn remove_fifos(&mut self, position: usize) {
        self.fifos.retain(|fifo| fifo.position != position);
        for x in 0..self.fifos.len() {
            let members: Vec<TaskId> = self.fifos[x].members.iter().copied().collect();
            for task in members {
                self.request_mut(task).place = Place::Fifo(x);
            }
        }
        self.last_choice = 0;
    }
}

impl TokenAllocator {
    /// A job that holds `token` from before this allocator was there. Holders are adopted before anybody asks.
    ///
    /// # Errors
    /// [`TokenRefused::TaskBusy`], [`TokenRefused::Estimates`], [`TokenRefused::TooManyRequests`] without a free slot, [`TokenRefused::NoToken`]
    /// if it is taken or there is none.
    pub fn handle_adopt(&mut self, now: Nanos, request: TokenRequest, token: TokenId) -> Result<(), TokenRefused> {
        let TokenRequest { key, client, estimates } = request;
        let task = key.job.task;
        if self.requests.contains_key(&task) {
            return Err(TokenRefused::TaskBusy { task });
        }
        if estimates.len() != self.gpus.len() {
            return Err(TokenRefused::Estimates { given: estimates.len(), gpus: self.gpus.len() });
        }
        if self.requests.len() >= self.requests_max || self.pending.is_some() || !self.has_slot() {
            return Err(TokenRefused::TooManyRequests { requests_max: self.requests_max });
        }
        let x = self.fifos.iter().position(|fifo| fifo.token == token).ok_or(TokenRefused::NoToken { token })?;
        if !self.fifos[x].members.is_empty() {
            return Err(TokenRefused::NoToken { token });
        }
        self.now = self.now.max(now);
        let place = Place::Fifo(x);
        self.requests.insert(task, Request::new(key, client, estimates, place));
        self.order.insert(key);
        self.fifos[x].members.push_back(task);
        self.events.push_back(TokenEvent::Queued { job: key.job, token: self.fifos[x].token });
        self.grant_head(x);
        self.update_boosts();
        Ok(())
    }
}
