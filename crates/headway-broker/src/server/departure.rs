//! How clients leave: by closing the connection, by being cut off, by the end of their process.

use headway_core::decisions::sharing::log::BrokerLogLine;
use headway_core::decisions::sharing::{ArbiterInput, ClientId};
use headway_core::units::Nanos;
use headway_os::event;

use super::session::{Gone, Session};
use super::state::BrokerState;

impl BrokerState {
    /// A client has closed its connection.
    pub(super) fn leave(&mut self, now: Nanos, client: ClientId) {
        self.catch_up(now, client, false);
        self.counts.gone += 1;
        self.let_go(now, client, false);
    }

    /// Serves a client no longer that does not keep to the protocol, or hangs.
    pub(super) fn cut(&mut self, now: Nanos, client: ClientId, hung: bool) {
        if self.is_served(client) {
            self.counts.cut += 1;
            let pid = self.sessions.get(&client).map_or(0, |session| session.peer.pid);
            let why = if hung { "it held something for longer than the watchdog" } else { "it broke the protocol" };
            event!(WARN, "headway::broker", "client cut off", client = client.0, pid = pid, why = why);
            self.journal.note(now, &BrokerLogLine::Cut { now, client, pid, hung });
            if hung {
                self.strike(now, client);
            }
            self.let_go(now, client, hung);
        }
    }

    pub(super) fn process_ended(&mut self, now: Nanos, client: ClientId) {
        self.catch_up(now, client, false);
        let Some(session) = self.sessions.get_mut(&client) else { return };
        match &mut session.gone {
            Some(gone) => {
                gone.ended.get_or_insert(now);
            }
            None => {
                self.counts.gone += 1;
                self.let_go(now, client, false);
                if let Some(Session { gone: Some(gone), .. }) = self.sessions.get_mut(&client) {
                    gone.ended = Some(now);
                }
            }
        }
    }

    /// A greeting is refused after a part of what it claims was believed: nothing of it stays, so that it may come again.
    pub(super) fn undo(&mut self, now: Nanos, client: ClientId) {
        self.let_go(now, client, false);
        if self.sessions.get(&client).is_some_and(|session| !session.tasks.is_empty()) {
            self.drained(now, client);
        }
    }

    /// Drops what a client waits for; what it holds stays until its GPU work has ended. Its threads are ordinary ones from now on.
    fn let_go(&mut self, now: Nanos, client: ClientId, hung: bool) {
        let Some(session) = self.sessions.get_mut(&client).filter(|session| session.gone.is_none()) else { return };
        self.roster_changed = true;
        // The client sees the end of its connection now. The descriptors leave the poller with the session, or before.
        session.socket.shut_down();
        session.gone = Some(Gone { since: now, ended: session.process.has_ended().then_some(now), hung });
        let tasks = session.tasks.clone();
        self.end_leases_of(now, client);
        let mut holds = false;
        for task in &tasks {
            self.priority.set(*task, None);
            let Some(task) = self.tasks.get_mut(task) else { continue };
            task.open = task.open.take().filter(|open| open.granted.is_some());
            if let Some(open) = &mut task.open {
                open.engines = open.engines.take().filter(|engines| engines.held.is_some());
                holds = true;
            }
        }
        let _ = self.feed(now, ArbiterInput::ClientGone { client });
        self.take_all_turns(now);
        if let Some(session) = self.sessions.get_mut(&client) {
            session.pages = session.pages.take().filter(|_| holds);
        }
        self.priority.apply();
        if !holds {
            self.drained(now, client);
        }
    }

    /// When the GPU work of a client that is gone has ended.
    pub(super) fn drained_at(&self, gone: Gone) -> Option<Nanos> {
        let end = match (gone.ended, gone.hung) {
            (Some(ended), _) => ended.max(gone.since),
            (None, true) => gone.since,
            // A process that closes its connection and goes on is waited for as long as one that hangs.
            (None, false) => gone.since.saturating_add(self.watchdog),
        };
        Some(end.saturating_add(self.drain))
    }

    /// The GPU work of a client that is gone has ended: what it held is free.
    pub(super) fn drained(&mut self, now: Nanos, client: ClientId) {
        let Some(session) = self.sessions.get_mut(&client) else { return };
        for task in std::mem::take(&mut session.tasks) {
            if let Some(open) = self.tasks.get(&task).and_then(|task| task.open.as_ref()) {
                self.charge_user(now, open.key.job);
            }
            self.priority.forget(task);
            self.leases.forget(task);
            self.without_room.remove(&task);
            self.tasks.remove(&task);
        }
        event!(DEBUG, "headway::broker", "client is gone, and what it held is free", client = client.0);
        let _ = self.feed(now, ArbiterInput::Drained { client });
        self.removed.push(client);
        self.take_all_turns(now);
    }
}
