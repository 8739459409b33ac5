//! One connection.

use std::os::fd::BorrowedFd;

use headway_core::decisions::broker::ClientProcess;
use headway_os::ipc::{Peer, Process, Socket, started};

use super::pages::Pages;
use crate::message::FromBroker;

/// Descriptors of a connection, and with them those of a client's pages.
const CONNECTION: usize = 2;
const CLIENT: usize = 5;

pub(super) struct Session {
    pub(super) socket: Socket,
    pub(super) process: Process,
    pub(super) peer: ClientProcess,
    /// `None` before it has identified itself.
    pub(super) pages: Option<Pages>,
    /// It is cut off or gone.
    pub(super) is_shut: bool,
    /// It has ended, and its client has not taken the descriptors of its pages, which count for the broker's user until then.
    pub(super) is_in_flight: bool,
}

impl Session {
    /// `account` is the user whose limits count for it, see [`owners`](super::owners).
    pub(super) fn new(socket: Socket, process: Process, peer: Peer, account: u32) -> Self {
        let Peer { pid, uid, .. } = peer;
        let peer = ClientProcess { pid, uid, account, started: started(pid).unwrap_or(0) };
        Self { socket, process, peer, pages: None, is_shut: false, is_in_flight: false }
    }

    /// Whether it is served and has published something that was not read.
    pub(super) fn has_entries(&self) -> bool {
        !self.is_shut && self.pages.as_ref().is_some_and(|pages| !pages.is_empty())
    }

    /// What is left of it when it has ended, if its client has not taken the descriptors of its pages.
    pub(super) fn in_flight(self) -> Option<Self> {
        let is_in_flight = self.pages.is_some() && self.socket.has_unread();
        is_in_flight.then_some(Self { pages: None, is_in_flight, ..self })
    }

    /// Descriptors that it takes, with those of its pages.
    pub(super) fn descriptors(&self) -> usize {
        if self.pages.is_some() || self.is_in_flight { CLIENT } else { CONNECTION }
    }

    /// Sends an answer with descriptors; whether the client takes it. This is also true of a client that has closed its end: the broker hears
    /// next that it has left.
    pub(super) fn send(&self, message: &FromBroker, descriptors: &[BorrowedFd<'_>]) -> bool {
        let Ok(text) = serde_json::to_vec(message) else { return false };
        match self.socket.send(&text, descriptors) {
            Ok(()) => true,
            Err(error) => matches!(error.errno.name(), Some("EPIPE" | "ECONNRESET")),
        }
    }
}

/// Refuses a connection that is not admitted.
pub(super) fn refuse(socket: &Socket, reason: &str) {
    if let Ok(text) = serde_json::to_vec(&FromBroker::Refused { reason: reason.to_owned() }) {
        // A client that does not read the refusal sees the end of the connection.
        let _ = socket.send(&text, &[]);
    }
}
