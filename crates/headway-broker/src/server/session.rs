//! One connection.

use headway_core::decisions::sharing::TaskId;
use headway_core::units::Nanos;
use headway_os::ipc::{Peer, Process, Socket};

use super::pages::Pages;
use crate::message::FromBroker;

/// Descriptors of a connection, and with them those of a client's pages.
const CONNECTION: usize = 2;
const CLIENT: usize = 5;

pub(super) struct Session {
    /// Shut down once the client is cut off or gone.
    pub(super) socket: Socket,
    pub(super) process: Process,
    pub(super) peer: Peer,
    /// The user whose limits count for it, see [`owners`](super::owners).
    pub(super) account: u32,
    /// When its process was started; 0 where the system does not say.
    pub(super) started: u64,
    pub(super) name: String,
    /// `None` before it has identified itself, and after it is gone.
    pub(super) pages: Option<Pages>,
    pub(super) tasks: Vec<TaskId>,
    pub(super) gone: Option<Gone>,
}

/// A client that is no longer served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    /// Since when.
    pub(super) since: Nanos,
    /// When its process ended; `None` = not yet.
    pub(super) ended: Option<Nanos>,
    /// The broker does not wait for the end of its process: it has held something for too long already.
    pub(super) hung: bool,
}

impl Session {
    pub(super) fn new(socket: Socket, process: Process, peer: Peer, account: u32) -> Self {
        let started = headway_os::ipc::started(peer.pid).unwrap_or(0);
        Self {
            socket,
            process,
            peer,
            account,
            started,
            name: String::new(),
            pages: None,
            tasks: Vec::new(),
            gone: None,
        }
    }

    /// Whether it is served and has published something that was not read.
    pub(super) fn has_entries(&self) -> bool {
        self.gone.is_none() && self.pages.as_ref().is_some_and(|pages| !pages.is_empty())
    }

    /// Descriptors of the broker's process that it takes, with its pages.
    pub(super) fn descriptors(&self) -> usize {
        if self.pages.is_some() { CLIENT } else { CONNECTION }
    }

    /// Sends an answer; whether the client takes it.
    pub(super) fn send(&self, message: &FromBroker) -> bool {
        let Ok(text) = serde_json::to_vec(message) else { return false };
        self.socket.send(&text, &[]).is_ok()
    }
}

/// Refuses a connection that is not admitted.
pub(super) fn refuse(socket: &Socket, reason: &str) {
    if let Ok(text) = serde_json::to_vec(&FromBroker::Refused { reason: reason.to_owned() }) {
        // A client that does not read the refusal sees the end of the connection.
        let _ = socket.send(&text, &[]);
    }
}
