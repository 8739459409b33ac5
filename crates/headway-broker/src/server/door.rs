//! New connections. The broker accepts a connection and gives it a bounded time to identify itself. If descriptors or places are used up,
//! it refuses the connection with a reason.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;

use headway_core::decisions::sharing::ClientId;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::{Listener, Poller, Socket, user};

use super::owners::account_of;
use super::session::{self, Session};
use super::{BrokerServer, KINDS, LISTENER, PROCESS, SHARE, SOCKET, UserAccess};
use headway_core::decisions::broker::leaves_room;

/// How long the broker accepts no connection after even the spare descriptor was used up.
const PAUSE: Nanos = Nanos(100_000_000);

/// Descriptors of the broker itself: its files, claims of GPUs, the poller, a spare one, and some for its owner and root to ask
/// which processes have all the others.
pub(super) const OWN: usize = 64;
/// With fewer, hardly any client of other users could come.
pub(super) const LEAST: usize = 96;

/// Connections that have not identified themselves yet.
#[derive(Clone, Copy, Debug)]
struct Guest {
    account: u32,
    until: Nanos,
}

/// The listening socket and what stands before it.
pub(super) struct Door {
    listener: Listener,
    /// A descriptor that is given up for a moment, to tell a connection that none is left.
    spare: Option<File>,
    /// Until then the broker accepts no connection.
    shut_until: Option<Nanos>,
    guests: BTreeMap<ClientId, Guest>,
}

impl Door {
    pub(super) fn new(listener: Listener, poller: &Poller) -> Result<Self, headway_os::OsError> {
        poller.add(listener.as_fd(), LISTENER)?;
        Ok(Self { listener, spare: spare(), shut_until: None, guests: BTreeMap::new() })
    }

    /// When something is due here although no connection comes.
    pub(super) fn wake_time(&self) -> Option<Nanos> {
        self.guests.values().map(|guest| guest.until).chain(self.shut_until).min()
    }

    /// A connection has identified itself, or is gone.
    pub(super) fn settle(&mut self, client: ClientId) {
        self.guests.remove(&client);
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

impl BrokerServer {
    pub(super) fn accept(&mut self) {
        for _ in 0..SHARE {
            match self.door.listener.accept() {
                Ok(Some(socket)) => self.welcome(socket),
                Ok(None) => return,
                Err(_) => return self.turn_away(),
            }
        }
    }

    /// Refuses a connection for which no descriptor is left. The spare descriptor serves to say so. Without it the broker accepts
    /// nothing for a while: a connection that waits would make the poller report it again and again.
    fn turn_away(&mut self) {
        for _ in 0..SHARE {
            self.door.spare = None;
            let came = self.door.listener.accept();
            if let Ok(Some(socket)) = &came {
                session::refuse(
                    socket,
                    "the broker has no descriptors left; raise its limit (`ulimit -n`) or end clients",
                );
            }
            let is_last = !matches!(came, Ok(Some(_)));
            drop(came);
            self.door.spare = spare();
            if is_last {
                break;
            }
        }
        if self.door.spare.is_none() {
            self.poller.remove(self.door.listener.as_fd());
            self.door.shut_until = Some(clock::now().saturating_add(PAUSE));
        }
    }

    fn welcome(&mut self, socket: Socket) {
        // A process that has ended already needs no answer.
        let Ok(peer) = socket.peer() else { return };
        let process = match socket.peer_process() {
            Ok(process) => process,
            Err(_) if socket.is_cut() => return,
            Err(_) => return session::refuse(&socket, "the broker has no descriptors left"),
        };
        if self.options.access == UserAccess::Private && peer.uid != user() && peer.uid != 0 {
            return session::refuse(&socket, "the socket is another user's");
        }
        let account = account_of(peer.uid);
        if !self.driver.book.is_trusted(peer.uid) && !self.has_descriptors(account) {
            let reason = "this user has as many connections as leave descriptors for others; end clients, or raise the \
                          broker's limit (`ulimit -n`)";
            return session::refuse(&socket, reason);
        }
        if !self.make_room(account) {
            return session::refuse(&socket, "too many connections of this user have not said who they are");
        }
        let client = self.driver.next_client();
        let number = client.0 * KINDS;
        let watched = self.poller.add(socket.as_fd(), number + SOCKET);
        if watched.and_then(|()| self.poller.add(process.as_fd(), number + PROCESS)).is_err() {
            self.poller.remove(socket.as_fd());
            return session::refuse(&socket, "the system lets the broker watch no more connections");
        }
        let until = clock::now().saturating_add(self.options.greeting);
        self.door.guests.insert(client, Guest { account, until });
        self.driver.accept(client, Session::new(socket, process, peer, account));
    }

    /// Whether a connection of a user leaves descriptors for those of others.
    fn has_descriptors(&self, account: u32) -> bool {
        let all = self.driver.sessions.values().chain(&self.driver.in_flight);
        let theirs = all.filter(|session| session.peer.account == account);
        let shared = self.driver.shared_descriptors();
        leaves_room(theirs.map(Session::descriptors).sum(), shared.used as usize, shared.most as usize)
    }

    /// Makes room for another connection of a user that has not identified itself yet. The one that is silent for longest goes, so that the
    /// broker always hears a connection that identifies itself at once.
    fn make_room(&mut self, account: u32) -> bool {
        let guests =
            || self.door.guests.iter().filter(move |(_, guest)| guest.account == account).map(|(client, _)| *client);
        if guests().count() < self.options.limits.guests_per_user {
            return true;
        }
        let is_silent = |client: &ClientId| {
            self.driver.socket(*client).is_none_or(|socket| !socket.wait(std::time::Duration::ZERO))
        };
        // Numbers of clients grow: the first is the one that came first.
        let Some(silent) = guests().find(is_silent) else { return false };
        self.show_out(silent, "others of this user came and this one had not said who it is");
        true
    }

    fn show_out(&mut self, client: ClientId, reason: &str) {
        if let Some(socket) = self.driver.socket(client) {
            session::refuse(socket, reason);
        }
        self.door.settle(client);
        self.unhook(client);
        self.driver.cut(clock::now(), client);
    }

    /// Ends connections that have waited for too long, and accepts new ones again.
    pub(super) fn keep_door(&mut self, now: Nanos) {
        self.driver.in_flight.retain(|session| session.socket.has_unread());
        if self.door.shut_until.is_some_and(|until| until <= now) {
            self.door.shut_until = None;
            self.door.spare = spare();
            // Should even that fail, it is tried again.
            if self.door.spare.is_none() || self.poller.add(self.door.listener.as_fd(), LISTENER).is_err() {
                self.door.shut_until = Some(now.saturating_add(PAUSE));
            }
        }
        let late = self.door.guests.iter().filter(|(_, guest)| guest.until <= now);
        for client in late.map(|(client, _)| *client).collect::<Vec<_>>() {
            self.show_out(client, "the connection has not said who it is in time");
        }
    }
}
