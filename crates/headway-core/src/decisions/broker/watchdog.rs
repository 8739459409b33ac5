//! What happens because time passes: who holds something for too long is cut off, who is gone is drained, and turns come. The broker may
//! be late itself: it learns of events after they happened, and reads its clock before or after that.

use super::{Action, Book, BookTask};
use crate::decisions::sharing::{ArbiterInput, ClientId, ClusterId};
use crate::units::Nanos;

/// The part of the watchdog that the broker may be late without consequence.
const LATE: u64 = 8;

impl Book {
    /// When to call with [`ArbiterInput::Timeout`](super::Input::Timeout) at the latest; `None` = not before the next input.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let drained = self.clients.iter().filter_map(|(client, known)| Some(self.drained_at(*client, known.gone?)));
        let drained = drained.filter(|at| *at < Nanos::MAX);
        let watched = self.tasks.values().filter_map(|task| self.overdue_at(task));
        let recovery = self.recovery.as_ref().map(super::Recovery::until);
        let flows = self.terms_timeout().into_iter().chain(self.flow_pause_ends());
        drained.chain(watched).chain(flows).chain(self.engine_timeout()).chain(self.turns_due()).chain(recovery).min()
    }

    /// When a job with a token has been silent for too long. While the broker reads no requests, no job is overdue.
    fn overdue_at(&self, task: &BookTask) -> Option<Nanos> {
        let open = task.open.as_ref().filter(|open| open.granted.is_some() && self.recovery.is_none())?;
        if !self.is_served(task.client) {
            return None;
        }
        // Where users share: while a user's job keeps an engine, the broker does not cut off another user's job that waits for it.
        let watchdog = self.parameters.watchdog;
        let tokens = self.parameters.arbiter.clusters.iter().map(|cluster| cluster.tokens.per_gpu);
        let most = Nanos(watchdog.0.saturating_mul(u64::from(tokens.max().unwrap_or(1))));
        let waited = match open.asked {
            _ if !self.turns.are_taken(task.cluster) => Nanos::ZERO,
            Some(_) => most,
            None => open.waited.min(most),
        };
        let at = open.since.saturating_add(watchdog).saturating_add(waited);
        Some(at.max(self.excused_until))
    }

    /// When an engine has been used for too long.
    fn engine_timeout(&self) -> Option<Nanos> {
        self.arbiter.poll_timeout().map(|at| at.max(self.excused_until))
    }

    /// When programs do not keep to their terms for too long.
    fn terms_timeout(&self) -> Option<Nanos> {
        self.flows.waits_since().map(|since| since.saturating_add(self.parameters.watchdog).max(self.excused_until))
    }

    pub(super) fn keep_time(&mut self, now: Nanos) -> bool {
        if self.poll_timeout().is_none_or(|time| time > now) {
            return false;
        }
        let gone = self.clients.iter().filter_map(|(client, known)| Some((*client, known.gone?)));
        let drained: Vec<_> = gone.filter(|(client, end)| self.drained_at(*client, *end) <= now).collect();
        for (client, end) in drained {
            // One that closed its connection and went on, with a token, kept it for as long as one that hangs.
            if end.process_ended.is_none() && !end.hung {
                self.strike(now, client);
            }
            self.drained(now, client);
        }
        let is_overdue = |task: &&BookTask| self.overdue_at(task).is_some_and(|at| at <= now);
        let mut hung: Vec<_> = self.tasks.values().filter(is_overdue).map(|task| task.client).collect();
        hung.dedup();
        for client in hung {
            self.cut(now, client, true);
        }
        if self.terms_timeout().is_some_and(|time| time <= now) {
            for client in self.flows.waits_for() {
                self.cut(now, client, true);
            }
        }
        if self.flow_pause_ends().is_some_and(|time| time <= now) {
            self.go_on_with_flows(now);
        }
        if self.engine_timeout().is_some_and(|time| time <= now) {
            let _ = self.feed(now, &ArbiterInput::Timeout);
        }
        if self.turns_due().is_some_and(|time| time <= now) {
            self.take_all_turns(now);
        }
        true
    }

    /// A client is cut off that hung. Its user is then passed over for a while, unless the client spent most of the time waiting for
    /// engines of others.
    pub(super) fn strike(&mut self, now: Nanos, client: ClientId) {
        let mut hung: Vec<ClusterId> = Vec::new();
        for task in self.tasks.values().filter(|task| task.client == client) {
            let Some(open) = task.open.as_ref().filter(|open| open.granted.is_some()) else { continue };
            let waits = open.asked.map_or(Nanos::ZERO, |asked| now.saturating_sub(asked));
            let used = now.saturating_sub(open.since).saturating_sub(open.waited).saturating_sub(waits);
            if used.0 >= self.parameters.watchdog.0 / 2 {
                hung.push(task.cluster);
            }
        }
        hung.sort_unstable();
        hung.dedup();
        let account = self.account_of(client);
        hung.into_iter().for_each(|cluster| self.turns.strike(now, cluster, account));
    }

    /// The broker was late by this much. Meanwhile it read nothing that clients gave back, and answered no request. If the delay is at
    /// least a certain part of the watchdog, each client gets another watchdog from now on, and the delay does not count as use of what
    /// clients held. Another delay within that watchdog prolongs it by no more than itself, so that a broker that is often late, by writing
    /// snapshots for one, still cuts off clients that hang.
    pub(super) fn excuse(&mut self, now: Nanos, late: Nanos) -> bool {
        if late.0 < self.parameters.watchdog.0 / LATE {
            return false;
        }
        let is_excused = self.excused_until > now.saturating_sub(late);
        self.excused_until = if is_excused {
            self.excused_until.saturating_add(late)
        } else {
            now.saturating_add(self.parameters.watchdog)
        };
        let held = self.tasks.values_mut().filter_map(|task| task.open.as_mut().filter(|open| open.granted.is_some()));
        for open in held {
            for time in std::iter::once(&mut open.since).chain(&mut open.asked) {
                *time = time.saturating_add(late).min(now);
            }
        }
        true
    }

    /// The time in which clients of the broker before come back may be over: then grants begin.
    pub(super) fn end_recovery(&mut self, now: Nanos) {
        if self.recovery.take_if(|recovery| recovery.is_over(now)).is_none() {
            return;
        }
        self.actions.push_back(Action::Recovered);
        self.actions.push_back(Action::RecordClients);
        // No requests were read until now.
        self.tasks.values_mut().filter_map(|task| task.open.as_mut()).for_each(|open| open.since = now);
        let _ = self.feed(now, &ArbiterInput::Recovered);
        self.go_on_with_flows(now);
    }
}
