//! How clients leave: by closing the connection, by being cut off, by the end of their process.

use super::{Action, Book, ClientEnd, EnginePhase};
use crate::decisions::sharing::{ArbiterInput, ClientId, TaskId};
use crate::units::Nanos;

impl Book {
    /// A client has closed its connection.
    pub(super) fn leave(&mut self, now: Nanos, client: ClientId) -> bool {
        if !self.is_served(client) {
            return false;
        }
        self.counts.gone += 1;
        self.let_go(now, client, false);
        true
    }

    /// Serves a client no longer that does not keep to the protocol, or hangs.
    pub(super) fn cut(&mut self, now: Nanos, client: ClientId, hung: bool) -> bool {
        let Some(known) = self.clients.get(&client).filter(|known| known.gone.is_none()) else { return false };
        self.counts.cut += 1;
        self.actions.push_back(Action::Cut { client, pid: known.process.pid, hung });
        if hung {
            self.strike(now, client);
        }
        self.let_go(now, client, hung);
        true
    }

    pub(super) fn process_ended(&mut self, now: Nanos, client: ClientId) -> bool {
        let has_left = self.leave(now, client);
        let end = self.clients.get_mut(&client).and_then(|known| known.gone.as_mut());
        let Some(end) = end.filter(|end| end.process_ended.is_none()) else { return has_left };
        end.process_ended = Some(now);
        true
    }

    /// A greeting is refused after a part of what it claims was believed: nothing of it stays, so that it may come again.
    pub(super) fn undo_greeting(&mut self, now: Nanos, client: ClientId) {
        self.let_go(now, client, false);
        self.drained(now, client);
    }

    /// Drops what a client waits for; what it holds stays until its GPU work has ended. Its threads are ordinary ones from now on.
    fn let_go(&mut self, now: Nanos, client: ClientId, hung: bool) {
        let awaits_leases = self.end_leases_of(client);
        let Some(known) = self.clients.get_mut(&client) else { return };
        known.gone = Some(ClientEnd { since: now, process_ended: None, hung, awaits_leases });
        self.actions.push_back(Action::RecordClients);
        self.actions.push_back(Action::Shut { client });
        self.lose_flows(now, client);
        if !awaits_leases {
            self.drop_waiting(now, client);
        }
    }

    /// It is known which of the leased locks of a client that is gone are in use.
    pub(super) fn go_on_leaving(&mut self, now: Nanos, client: ClientId) {
        let end = self.clients.get_mut(&client).and_then(|known| known.gone.as_mut());
        if end.is_some_and(|end| std::mem::take(&mut end.awaits_leases)) {
            self.drop_waiting(now, client);
        }
    }

    fn drop_waiting(&mut self, now: Nanos, client: ClientId) {
        let mut holds = false;
        for task in self.tasks_of(client) {
            self.prioritise(task, None);
            let Some(task) = self.tasks.get_mut(&task) else { continue };
            task.open = task.open.take().filter(|open| open.granted.is_some());
            if let Some(open) = &mut task.open {
                open.engines = open.engines.take().filter(|engines| engines.phase == EnginePhase::Runs);
                holds = true;
            }
        }
        let _ = self.feed(now, &ArbiterInput::ClientGone { client });
        self.take_all_turns(now);
        if !holds && !self.flows.has(client) {
            self.drained(now, client);
        }
    }

    fn tasks_of(&self, client: ClientId) -> Vec<TaskId> {
        self.clients.get(&client).map_or_else(Vec::new, |known| known.tasks.clone())
    }

    /// When the GPU work of a client that is gone has ended.
    pub(super) fn drained_at(&self, client: ClientId, end: ClientEnd) -> Nanos {
        let at = match (end.process_ended, end.hung) {
            // While the process lives it can copy, and holds nothing else.
            (None, _) if self.flows.has(client) => return Nanos::MAX,
            (Some(ended), _) => ended.max(end.since),
            (None, true) => end.since,
            // A process that closes its connection and goes on is waited for as long as one that hangs.
            (None, false) => end.since.saturating_add(self.parameters.watchdog),
        };
        at.saturating_add(self.parameters.drain)
    }

    /// The GPU work of a client that is gone has ended: what it held is free.
    pub(super) fn drained(&mut self, now: Nanos, client: ClientId) {
        for task in self.tasks_of(client) {
            if let Some(open) = self.tasks.get(&task).and_then(|task| task.open.as_ref()) {
                self.charge_user(now, open.key.job);
            }
            self.forget_task(task);
        }
        let Some(known) = self.clients.remove(&client) else { return };
        self.accounts.forget(client, known.process);
        self.forget_program(now, client);
        self.leases.retain(|_, lease| lease.client != client);
        self.actions.push_back(Action::Remove { client });
        let _ = self.feed(now, &ArbiterInput::Drained { client });
        self.take_all_turns(now);
    }

    pub(super) fn forget_task(&mut self, task: TaskId) {
        self.without_room.remove(&task);
        if self.tasks.remove(&task).is_some_and(|known| known.has_thread) {
            self.actions.push_back(Action::Forget { task });
        }
    }
}
