//! What counts where the broker itself is late: it hears of things after they happened, and reads its clock before or after that.

use headway_core::decisions::sharing::ClientId;
use headway_core::units::Nanos;
use headway_os::event;

use super::pages::Pages;
use super::session::Session;
use super::state::BrokerState;

/// The part of the watchdog that the broker may be late without consequence.
const LATE: u64 = 8;

impl BrokerState {
    /// Finds the entries of a client, or of all, that count at a time that is read afterwards. A token is given back by an entry: if
    /// that were written after the time that counts for it, a part of its use would not be counted.
    pub(super) fn look(&mut self, client: Option<ClientId>) {
        let of = |session: &mut Session| session.pages.as_mut().map_or((), Pages::look);
        match client {
            Some(client) => self.sessions.get_mut(&client).map_or((), of),
            None => self.sessions.values_mut().for_each(of),
        }
    }

    /// The broker went round so much later than it meant to. Whoever gave something back meanwhile was not heard, and whoever
    /// waited for an answer got none: if that took a part of the watchdog that counts, everybody has another one from now on, and the
    /// time that the broker was late is not counted as use of what was held.
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
