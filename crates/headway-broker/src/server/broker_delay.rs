//! The times that count if the broker itself is late. It learns of events after they happened, and reads its clock before or after that.

use headway_core::decisions::sharing::ClientId;
use headway_core::units::Nanos;
use headway_os::event;

use super::pages::Pages;
use super::session::Session;
use super::state::BrokerState;

/// The part of the watchdog that the broker may be late without consequence.
const LATE: u64 = 8;

impl BrokerState {
    /// Finds the entries of a client, or of all clients; the caller then reads the time that counts for them. In the other order, an entry
    /// that gives a token back could be written after that time, and a part of the token's use would not count.
    pub(super) fn look(&mut self, client: Option<ClientId>) {
        let of = |session: &mut Session| session.pages.as_mut().map_or((), Pages::look);
        match client {
            Some(client) => self.sessions.get_mut(&client).map_or((), of),
            None => self.sessions.values_mut().for_each(of),
        }
    }

    /// The broker was late by this much. Meanwhile it read nothing that clients gave back, and answered no request. If the delay is at
    /// least a certain part of the watchdog, each client gets another watchdog from now on, and the delay does not count as use of what
    /// clients held.
    pub(super) fn excuse(&mut self, now: Nanos, late: Nanos) {
        if late.0 < self.watchdog.0 / LATE {
            return;
        }
        event!(WARN, "headway::broker", "the broker itself was late: nobody is cut off for a watchdog", late = late);
        self.excused_until = now.saturating_add(self.watchdog);
        let held = self.tasks.values_mut().filter_map(|task| task.open.as_mut().filter(|open| open.granted.is_some()));
        for open in held {
            for time in std::iter::once(&mut open.since).chain(&mut open.asked) {
                *time = time.saturating_add(late).min(now);
            }
        }
    }
}
