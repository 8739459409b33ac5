//! Local sockets that keep the borders of messages and carry descriptors (`SOCK_SEQPACKET`).

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::process::{Process, is_ready};
use crate::errno::{Errno, OsError};

/// Descriptors of one message at most.
const FDS_MAX: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Bytes of a path in an address, with its end (`sun_path`).
const PATH_BYTES: usize = 108;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Room for the descriptors of one message.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));
/// `SO_PEERPIDFD` of `asm-generic/socket.h`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PASSRIGHTS` of the same, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// The process at the other end, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

/// What came.
#[derive(Debug)]
pub enum SocketPacket {
    /// A message of this many bytes, and the descriptors with it.
    Message(usize, Vec<OwnedFd>),
    /// A message or its descriptors did not fit, and what is left of them is no message: it was dropped.
    Truncated,
    /// Nothing yet.
    Nothing,
    /// The other end is gone.
    End,
}

fn address(path: &Path) -> Result<SocketAddrUnix, OsError> {
    let refused = OsError { call: "bind or connect", errno: Errno(libc::ENAMETOOLONG) };
    // One byte stays for the end.
    let fits = (1..PATH_BYTES).contains(&path.as_os_str().len());
    SocketAddrUnix::new(path).ok().filter(|_| fits).ok_or(refused)
}

/// A name that is no file's: it exists as long as a socket has it, in the network namespace.
fn abstract_address(name: &str) -> Result<SocketAddrUnix, OsError> {
    let refused = OsError { call: "bind", errno: Errno(libc::ENAMETOOLONG) };
    SocketAddrUnix::new_abstract_name(name.as_bytes()).ok().filter(|_| !name.is_empty()).ok_or(refused)
}

fn socket() -> Result<OwnedFd, OsError> {
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).map_err(OsError::of("socket"))
}

/// A name of the whole machine that one process has at a time: the kernel takes it back when the process ends, however it
/// ends, and says who has it. Nobody can take it away: the first process has it, whichever that is.
pub struct Claim(#[expect(dead_code, reason = "held, not read")] OwnedFd);

/// A process that asks for the holder of a claim waits in this queue for ever; when it is full nobody learns the holder.
const ASKERS: i32 = 4_096;

impl Claim {
    /// Takes the name, or returns the process that has it, if the kernel names one.
    ///
    /// # Errors
    /// [`OsError`], also for a name that is too long.
    pub fn take(name: &str) -> Result<Result<Self, Option<Peer>>, OsError> {
        let (address, fd) = (abstract_address(name)?, socket()?);
        match net::bind(&fd, &address) {
            Ok(()) => net::listen(&fd, ASKERS).map(|()| Ok(Self(fd))).map_err(OsError::of("listen")),
            Err(rustix::io::Errno::ADDRINUSE) => {
                let holder = net::connect(&fd, &address).ok().and_then(|()| Socket(fd).peer().ok());
                Ok(Err(holder))
            }
            Err(error) => Err(OsError::of("bind")(error)),
        }
    }
}

/// A socket that accepts connections. Its file stays when it is dropped: only who made sure that it is still this socket's
/// removes it.
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, where nothing may be yet; only users that `mode` lets write can connect.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, OsError> {
        let (address, fd) = (address(path)?, socket()?);
        net::bind(&fd, &address).map_err(OsError::of("bind"))?;
        // Nobody can connect before `listen`, so that the rights hold from the first connection on.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|error| OsError { call: "chmod", errno: Errno(error.raw_os_error().unwrap_or(0)) })?;
        net::listen(&fd, BACKLOG).map(|()| Self(fd)).map_err(OsError::of("listen"))
    }

    /// From now on the kernel refuses messages with descriptors for the connections accepted here, where it can (Linux 6.16):
    /// closing what somebody sends may take as long as he likes.
    pub fn refuse_descriptors(&self) {
        let off: libc::c_int = 0;
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: `off` is valid for reads of `length` bytes. A kernel that does not know the option says so, and nothing changes.
        let _ = unsafe {
            libc::setsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), length)
        };
    }

    /// The next connection, or `None` if nobody waits.
    ///
    /// # Errors
    /// [`OsError`], say for too many open descriptors.
    pub fn accept(&self) -> Result<Option<Socket>, OsError> {
        use rustix::io::Errno;
        match net::accept_with(&self.0, FLAGS) {
            Ok(fd) => Ok(Some(Socket(fd))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(OsError::of("accept4")(error)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One end of a connection. Nothing blocks but [`Socket::wait`].
pub struct Socket(OwnedFd);

impl Socket {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`OsError`]: `ENOENT` or `ECONNREFUSED` if nobody listens there, `EACCES` without the right to, `EAGAIN` if too many
    /// wait.
    pub fn connect(path: &Path) -> Result<Self, OsError> {
        let (address, fd) = (address(path)?, socket()?);
        net::connect(&fd, &address).map(|()| Self(fd)).map_err(OsError::of("connect"))
    }

    /// Whether no process has the socket at `path` any more. The question does not wait: a live socket, also one of another kind, takes the
    /// connection or gives another error.
    #[must_use]
    pub fn is_dead(path: &Path) -> bool {
        Self::connect(path).is_err_and(|error| error.errno.0 == libc::ECONNREFUSED)
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn peer(&self) -> Result<Peer, OsError> {
        // The crate `rustix` has no process number 0, which the kernel gives for a process that this one cannot see.
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `peer` is valid for the call to write `length` bytes.
        let status = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut length,
            )
        };
        if status != 0 {
            return Err(OsError::last("getsockopt(SO_PEERCRED)"));
        }
        Ok(Peer { pid: u32::try_from(peer.pid).unwrap_or(0), uid: peer.uid, gid: peer.gid })
    }

    /// The process at the other end; before Linux 6.5 the one that has its number now.
    ///
    /// # Errors
    /// [`OsError`], `ESRCH` if it has ended.
    pub fn peer_process(&self) -> Result<Process, OsError> {
        let mut fd: RawFd = -1;
        let mut length = size_of::<RawFd>() as libc::socklen_t;
        // SAFETY: `fd` is valid for the call to write `length` bytes.
        let status = unsafe {
            libc::getsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut length)
        };
        if status == 0 && fd >= 0 {
            // SAFETY: the call has given this descriptor to us alone.
            return Ok(Process::of(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        Process::open(self.peer()?.pid)
    }

    /// Sends one message with at most four descriptors.
    ///
    /// # Errors
    /// [`OsError`]: `EAGAIN` if the other end does not read, `EPIPE` or `ECONNRESET` if it is gone, `EMSGSIZE`.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), OsError> {
        if fds.len() > FDS_MAX {
            return Err(OsError { call: "sendmsg", errno: Errno(libc::EINVAL) });
        }
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let sent = net::sendmsg(&self.0, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
        sent.map(drop).map_err(OsError::of("sendmsg"))
    }

    /// Takes one message. One that is longer than `buffer`, or that brings more than four descriptors, is dropped with all
    /// that came with it ([`SocketPacket::Truncated`]).
    ///
    /// # Errors
    /// [`OsError`].
    pub fn receive(&self, buffer: &mut [u8]) -> Result<SocketPacket, OsError> {
        self.receive_into(buffer, &mut [MaybeUninit::uninit(); CONTROL_BYTES])
    }

    /// Takes one message that brings no descriptors. One that does is dropped, and the kernel never gives its descriptors to this process:
    /// to close one of a file system in a program (FUSE) may take for ever.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn receive_bytes(&self, buffer: &mut [u8]) -> Result<SocketPacket, OsError> {
        self.receive_into(buffer, &mut [])
    }

    fn receive_into(&self, buffer: &mut [u8], control: &mut [MaybeUninit<u8>]) -> Result<SocketPacket, OsError> {
        match self.receive_once(buffer, control) {
            // The other end has closed without having read everything. The kernel tells that once and before what was sent
            // last, which is taken now.
            Err(error) if error.errno.0 == libc::ECONNRESET => match self.receive_once(buffer, control) {
                Err(error) if error.errno.0 == libc::ECONNRESET => Ok(SocketPacket::End),
                received => received,
            },
            received => received,
        }
    }

    fn receive_once(&self, buffer: &mut [u8], control: &mut [MaybeUninit<u8>]) -> Result<SocketPacket, OsError> {
        use rustix::io::Errno;
        let mut control = RecvAncillaryBuffer::new(control);
        let received = net::recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(SocketPacket::Nothing),
            Err(Errno::PIPE) => return Ok(SocketPacket::End),
            Err(error) => return Err(OsError::of("recvmsg")(error)),
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                fds.extend(descriptors);
            }
        }
        // The room for control messages is rounded up.
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || fds.len() > FDS_MAX {
            return Ok(SocketPacket::Truncated);
        }
        // No message of ours is empty: this is the end of the stream.
        Ok(if received.bytes == 0 { SocketPacket::End } else { SocketPacket::Message(received.bytes, fds) })
    }

    /// Waits until there is something to take, or the other end is gone; whether that was within `bound`.
    #[must_use]
    pub fn wait(&self, bound: Duration) -> bool {
        is_ready(self.as_fd(), PollFlags::IN, bound)
    }

    /// Ends the connection at both ends; threads that wait here see it too.
    pub fn shut_down(&self) {
        let _ = net::shutdown(&self.0, Shutdown::Both);
    }

    /// Whether something that was sent, with its descriptors, has neither been read nor dropped with the other end.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        // SAFETY: the operation writes one `int`.
        let operation = unsafe { Getter::<{ libc::TIOCOUTQ as Opcode }, libc::c_int>::new() };
        // SAFETY: of a local socket it gives the memory of what is on its way, and changes nothing.
        unsafe { ioctl(&self.0, operation) }.is_ok_and(|bytes| bytes > 0)
    }

    /// Whether the other end is gone, asked without waiting.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        is_ready(self.as_fd(), PollFlags::RDHUP, Duration::ZERO)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bell, Poller, user};
    use super::*;
    use crate::wait_until;

    fn pair() -> (tempfile::TempDir, Listener, Socket, Socket) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = Listener::bind(&path, 0o600).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let client = Socket::connect(&path).unwrap();
        let server = listener.accept().unwrap().unwrap();
        (folder, listener, client, server)
    }

    /// Waits for what follows when a descriptor is closed: a child that another test has just forked has the descriptor, too.
    fn wait_until_closed(what_follows: impl Fn() -> bool) {
        wait_until("closed", what_follows);
    }

    #[test]
    fn messages_keep_their_borders_and_carry_descriptors() {
        let (_folder, _listener, client, server) = pair();
        let mut buffer = [0; 64];
        assert!(matches!(server.receive(&mut buffer), Ok(SocketPacket::Nothing)));
        let bells = [Bell::new().unwrap(), Bell::new().unwrap(), Bell::new().unwrap()];
        client.send(b"one", &[bells[0].as_fd(), bells[1].as_fd(), bells[2].as_fd()]).unwrap();
        client.send(b"three", &[]).unwrap();
        assert!(server.wait(Duration::from_secs(60)));
        let Ok(SocketPacket::Message(3, fds)) = server.receive(&mut buffer) else { panic!("{buffer:?}") };
        assert_eq!((&buffer[..3], fds.len()), (&b"one"[..], 3));
        let (poller, mut ready) = (Poller::new().unwrap(), Vec::new());
        poller.add(bells[1].as_fd(), 1).unwrap();
        fds.into_iter().map(Bell::open).for_each(|bell| bell.ring());
        poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
        assert_eq!(ready, [1]);
        let Ok(SocketPacket::Message(5, fds)) = server.receive(&mut buffer) else { panic!("{buffer:?}") };
        assert_eq!((&buffer[..5], fds.len()), (&b"three"[..], 0));
    }

    #[test]
    fn what_was_sent_is_unread_until_it_is_read_or_its_reader_is_gone() {
        let (_folder, _listener, client, server) = pair();
        assert!(!server.has_unread());
        server.send(b"one", &[]).unwrap();
        assert!(server.has_unread() && !client.has_unread());
        server.shut_down();
        assert!(server.has_unread(), "the other end may still read it");
        assert!(matches!(client.receive(&mut [0; 64]), Ok(SocketPacket::Message(3, _))));
        assert!(!server.has_unread());
        let (_folder, _listener, client, server) = pair();
        server.send(b"two", &[]).unwrap();
        drop(client);
        wait_until_closed(|| !server.has_unread());
    }

    #[test]
    fn descriptors_that_nobody_asked_for_are_dropped_by_the_kernel() {
        let (_folder, _listener, client, server) = pair();
        let (mut reader, writer) = std::io::pipe().unwrap();
        client.send(b"bell", &[writer.as_fd()]).unwrap();
        drop(writer);
        client.send(b"more", &[]).unwrap();
        let mut buffer = [0; 64];
        assert!(matches!(server.receive_bytes(&mut buffer), Ok(SocketPacket::Truncated)));
        // The last writer is gone.
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
        let Ok(SocketPacket::Message(4, fds)) = server.receive_bytes(&mut buffer) else { panic!("{buffer:?}") };
        assert!(fds.is_empty());
    }

    #[test]
    fn the_kernel_says_who_is_at_the_other_end() {
        let (_folder, _listener, client, server) = pair();
        let peer = server.peer().unwrap();
        assert_eq!((peer.pid, peer.uid), (std::process::id(), user()));
        assert!(!server.peer_process().unwrap().has_ended());
        assert!(!client.is_cut());
        server.shut_down();
        assert!(client.is_cut() && server.wait(Duration::ZERO));
        drop(server);
        assert!(client.is_cut());
        assert!(matches!(client.receive(&mut [0; 8]), Ok(SocketPacket::End)));
        assert!(client.send(b"x", &[]).is_err());
    }

    #[test]
    fn the_last_message_of_who_closes_without_reading_is_taken_before_the_end() {
        let (_folder, _listener, client, server) = pair();
        client.send(b"unread", &[]).unwrap();
        server.send(b"no", &[]).unwrap();
        drop(server);
        assert!(matches!(client.receive(&mut [0; 8]), Ok(SocketPacket::Message(2, _))));
        wait_until_closed(|| matches!(client.receive(&mut [0; 8]), Ok(SocketPacket::End)));
    }

    #[test]
    fn a_message_that_does_not_fit_is_dropped_with_its_descriptors() {
        let (_folder, _listener, client, server) = pair();
        let bell = Bell::new().unwrap();
        let mut buffer = [0; 8];
        client.send(b"nine long", &[bell.as_fd()]).unwrap();
        client.send(b"fits", &[]).unwrap();
        assert!(matches!(server.receive(&mut buffer), Ok(SocketPacket::Truncated)));
        assert!(matches!(server.receive(&mut buffer), Ok(SocketPacket::Message(4, fds)) if fds.is_empty()));
        for count in 5..=7 {
            send_many(&client, &[bell.as_fd(); 7][..count]);
            assert!(matches!(server.receive(&mut buffer), Ok(SocketPacket::Truncated)), "{count} descriptors");
        }
    }

    /// A message with more descriptors than ours carry.
    fn send_many(socket: &Socket, fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(7))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        assert_eq!(net::sendmsg(&socket.0, &[IoSlice::new(b"many")], &mut control, SendFlags::empty()), Ok(4));
    }

    #[test]
    fn a_claim_has_one_holder_whom_the_kernel_names() {
        let name = format!("headway-test/{}", std::process::id());
        let held = Claim::take(&name).unwrap();
        assert!(held.is_ok());
        let holder = Claim::take(&name).unwrap().map(drop).unwrap_err().unwrap();
        assert_eq!((holder.pid, holder.uid), (std::process::id(), user()));
        drop(held);
        wait_until_closed(|| Claim::take(&name).unwrap().is_ok());
        assert!(Claim::take(&"x".repeat(200)).is_err());
    }

    #[test]
    fn what_is_there_is_not_replaced_and_stays_when_the_listener_is_dropped() {
        let (folder, listener, _client, _server) = pair();
        let path = folder.path().join("socket");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Listener::bind(&path, 0o600).map(drop).unwrap_err().errno.0, libc::EADDRINUSE);
        drop(listener);
        wait_until_closed(|| Socket::connect(&path).is_err_and(|error| error.errno.0 == libc::ECONNREFUSED));
        let long = folder.path().join("x".repeat(200));
        assert_eq!(Socket::connect(&long).map(drop).unwrap_err().errno.0, libc::ENAMETOOLONG);
    }
}
