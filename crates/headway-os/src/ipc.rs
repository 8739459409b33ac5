//! What two processes meet in: words in shared memory, futexes, local sockets that carry descriptors, and the process itself.

mod bell;
mod futex;
mod process;
mod socket;
mod words;

pub use bell::{Bell, Poller};
pub use futex::{Woken, wait, wake};
pub use process::{
    INTERRUPTED_STATUS, Process, Signal, boot, children, has_thread, is_stopped, started, stop_when_told, this_thread,
    thread_is_of, thread_started, user,
};
pub use socket::{Claim, Listener, Peer, Socket, SocketPacket};
pub use words::{Words, WordsView};
