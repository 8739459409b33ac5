//! Local sockets that keep the borders of messages and carry descriptors (`SOCK_SEQPACKET`).

use std::fs;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::process::Process;
use crate::errno::{Errno, OsError};

/// Descriptors of one message at most.
const FDS_MAX: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 128;
/// `SO_PEERPIDFD` of `asm-generic/socket.h`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PASSRIGHTS` of the same, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// The process at the other end, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What came.
#[derive(Debug)]
pub enum Packet {
    /// A message of this many bytes, and the descriptors with it.
    Message(usize, Vec<OwnedFd>),
    /// A message or its descriptors did not fit, and what is left of them is no message: it was dropped.
    Truncated,
    /// Nothing yet.
    Nothing,
    /// The other end is gone.
    End,
}

fn address(path: &Path) -> Result<(libc::sockaddr_un, libc::socklen_t), OsError> {
    // SAFETY: `sockaddr_un` is a structure of integers, for which all zeros is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // One byte stays for the end.
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(OsError { call: "bind or connect", errno: Errno(libc::ENAMETOOLONG) });
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// A name that is no file's: it exists as long as a socket has it, in the network namespace.
fn abstract_address(name: &str) -> Result<(libc::sockaddr_un, libc::socklen_t), OsError> {
    // SAFETY: `sockaddr_un` is a structure of integers, for which all zeros is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays zero: that is what makes the name an abstract one.
    if name.is_empty() || name.len() >= address.sun_path.len() {
        return Err(OsError { call: "bind", errno: Errno(libc::ENAMETOOLONG) });
    }
    for (place, byte) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, length as libc::socklen_t))
}

fn socket() -> Result<OwnedFd, OsError> {
    // SAFETY: the call touches no memory.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(OsError::last("socket"));
    }
    // SAFETY: the call has given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A name of the whole machine that one process has at a time: the kernel takes it back when the process ends, however it
/// ends, and says who has it. Nobody can take it away: the first process has it, whichever that is.
pub struct Claim(#[expect(dead_code, reason = "held, not read")] OwnedFd);

/// A process that asks for the holder of a claim waits in this queue for ever; when it is full nobody learns the holder.
const ASKERS: libc::c_int = 4_096;

impl Claim {
    /// Takes the name, or returns the process that has it, if the kernel names one.
    ///
    /// # Errors
    /// [`OsError`], also for a name that is too long.
    pub fn take(name: &str) -> Result<Result<Self, Option<Peer>>, OsError> {
        let (address, length) = abstract_address(name)?;
        let fd = socket()?;
        // SAFETY: `address` is valid for reads of `length` bytes.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
            let error = OsError::last("bind");
            if error.errno.0 != libc::EADDRINUSE {
                return Err(error);
            }
            // SAFETY: as above.
            let status = unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length) };
            return Ok(Err(Some(Socket(fd)).filter(|_| status == 0).and_then(|socket| socket.peer().ok())));
        }
        // SAFETY: the call touches no memory.
        if unsafe { libc::listen(fd.as_raw_fd(), ASKERS) } != 0 {
            return Err(OsError::last("listen"));
        }
        Ok(Ok(Self(fd)))
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
        let (address, length) = address(path)?;
        let fd = socket()?;
        // SAFETY: `address` is valid for reads of `length` bytes.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
            return Err(OsError::last("bind"));
        }
        // Nobody can connect before `listen`, so that the rights hold from the first connection on.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|error| OsError { call: "chmod", errno: Errno(error.raw_os_error().unwrap_or(0)) })?;
        // SAFETY: the call touches no memory.
        if unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } != 0 {
            return Err(OsError::last("listen"));
        }
        Ok(Self(fd))
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
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept4(self.0.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
        if fd >= 0 {
            // SAFETY: the call has given this descriptor to us alone.
            return Ok(Some(Socket(unsafe { OwnedFd::from_raw_fd(fd) })));
        }
        let error = OsError::last("accept4");
        match error.errno.0 {
            libc::EAGAIN | libc::EINTR | libc::ECONNABORTED => Ok(None),
            _ => Err(error),
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
        let (address, length) = address(path)?;
        let fd = socket()?;
        // SAFETY: `address` is valid for reads of `length` bytes.
        if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
            return Err(OsError::last("connect"));
        }
        Ok(Self(fd))
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn peer(&self) -> Result<Peer, OsError> {
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
        let mut part = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
        let mut control = [0u64; CONTROL_WORDS];
        let mut header = header(&mut part, &mut control);
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let bytes = size_of_val(raw.as_slice());
        if raw.is_empty() {
            (header.msg_control, header.msg_controllen) = (std::ptr::null_mut(), 0);
        } else {
            // SAFETY: the macro computes a length.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(bytes as u32) } as _;
            // SAFETY: the control buffer holds the header and `FDS_MAX` descriptors, of which there are no more.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
                std::ptr::copy_nonoverlapping(raw.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), bytes);
            }
        }
        // SAFETY: `header` refers to `part` and `control`, both alive.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
        if sent >= 0 { Ok(()) } else { Err(OsError::last("sendmsg")) }
    }

    /// Takes one message. One that is longer than `buffer`, or that brings more than four descriptors, is dropped with all
    /// that came with it ([`Packet::Truncated`]).
    ///
    /// # Errors
    /// [`OsError`].
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Packet, OsError> {
        self.receive_into(buffer, &mut [0; CONTROL_WORDS])
    }

    /// Takes one message that brings no descriptors. One that does is dropped, and the kernel never gives its descriptors to this process:
    /// to close one of a file system in a program (FUSE) may take for ever.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn receive_bytes(&self, buffer: &mut [u8]) -> Result<Packet, OsError> {
        self.receive_into(buffer, &mut [])
    }

    fn receive_into(&self, buffer: &mut [u8], control: &mut [u64]) -> Result<Packet, OsError> {
        match self.receive_once(buffer, control) {
            // The other end has closed without having read everything. The kernel tells that once and before what was sent
            // last, which is taken now.
            Err(error) if error.errno.0 == libc::ECONNRESET => match self.receive_once(buffer, control) {
                Err(error) if error.errno.0 == libc::ECONNRESET => Ok(Packet::End),
                received => received,
            },
            received => received,
        }
    }

    fn receive_once(&self, buffer: &mut [u8], control: &mut [u64]) -> Result<Packet, OsError> {
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut header = header(&mut part, control);
        // SAFETY: `header` refers to `part` and `control`, both alive and writable.
        let length = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        if length < 0 {
            let error = OsError::last("recvmsg");
            return match error.errno.0 {
                libc::EAGAIN | libc::EINTR => Ok(Packet::Nothing),
                libc::EPIPE => Ok(Packet::End),
                _ => Err(error),
            };
        }
        let mut fds = Vec::new();
        // SAFETY: the kernel has filled the control buffer with whole headers; the macros walk them within its length, and
        // every descriptor in it has been given to us alone.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(&raw const header);
            while !at.is_null() {
                if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let data = libc::CMSG_DATA(at).cast::<RawFd>();
                    fds.extend(
                        (0..bytes / size_of::<RawFd>()).map(|i| OwnedFd::from_raw_fd(data.add(i).read_unaligned())),
                    );
                }
                at = libc::CMSG_NXTHDR(&raw const header, at);
            }
        }
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Ok(Packet::Truncated);
        }
        // No message of ours is empty: this is the end of the stream.
        Ok(if length == 0 { Packet::End } else { Packet::Message(length as usize, fds) })
    }

    /// Waits until there is something to take, or the other end is gone; whether that was within `bound`.
    #[must_use]
    pub fn wait(&self, bound: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = libc::c_int::try_from(bound.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX);
        // SAFETY: `poll` is one structure, valid for the call to write.
        unsafe { libc::poll(&raw mut poll, 1, millis) > 0 }
    }

    /// Ends the connection at both ends; threads that wait here see it too.
    pub fn shut_down(&self) {
        // SAFETY: the call touches no memory.
        let _ = unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Whether the other end is gone, asked without waiting.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: as above.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Room for one control header (16 bytes) and [`FDS_MAX`] descriptors.
const CONTROL_WORDS: usize = 2 + FDS_MAX * size_of::<RawFd>() / size_of::<u64>();

fn header(part: &mut libc::iovec, control: &mut [u64]) -> libc::msghdr {
    // SAFETY: `msghdr` is a structure of integers and pointers, for which all zeros is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(control) as _;
    header
}

#[cfg(test)]
mod tests {
    use super::super::{Bell, Poller, user};
    use super::*;

    fn pair() -> (tempfile::TempDir, Listener, Socket, Socket) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = Listener::bind(&path, 0o600).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let client = Socket::connect(&path).unwrap();
        let server = listener.accept().unwrap().unwrap();
        (folder, listener, client, server)
    }

    #[test]
    fn messages_keep_their_borders_and_carry_descriptors() {
        let (_folder, _listener, client, server) = pair();
        let mut buffer = [0; 64];
        assert!(matches!(server.receive(&mut buffer), Ok(Packet::Nothing)));
        let bells = [Bell::new().unwrap(), Bell::new().unwrap(), Bell::new().unwrap()];
        client.send(b"one", &[bells[0].as_fd(), bells[1].as_fd(), bells[2].as_fd()]).unwrap();
        client.send(b"three", &[]).unwrap();
        assert!(server.wait(Duration::from_secs(60)));
        let Ok(Packet::Message(3, fds)) = server.receive(&mut buffer) else { panic!("{buffer:?}") };
        assert_eq!((&buffer[..3], fds.len()), (&b"one"[..], 3));
        let (poller, mut ready) = (Poller::new().unwrap(), Vec::new());
        poller.add(bells[1].as_fd(), 1).unwrap();
        fds.into_iter().map(Bell::open).for_each(|bell| bell.ring());
        poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
        assert_eq!(ready, [1]);
        let Ok(Packet::Message(5, fds)) = server.receive(&mut buffer) else { panic!("{buffer:?}") };
        assert_eq!((&buffer[..5], fds.len()), (&b"three"[..], 0));
    }

    #[test]
    fn descriptors_that_nobody_asked_for_are_dropped_by_the_kernel() {
        let (_folder, _listener, client, server) = pair();
        let (mut reader, writer) = std::io::pipe().unwrap();
        client.send(b"bell", &[writer.as_fd()]).unwrap();
        drop(writer);
        client.send(b"more", &[]).unwrap();
        let mut buffer = [0; 64];
        assert!(matches!(server.receive_bytes(&mut buffer), Ok(Packet::Truncated)));
        // The last writer is gone.
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
        let Ok(Packet::Message(4, fds)) = server.receive_bytes(&mut buffer) else { panic!("{buffer:?}") };
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
        assert!(matches!(client.receive(&mut [0; 8]), Ok(Packet::End)));
        assert!(client.send(b"x", &[]).is_err());
    }

    #[test]
    fn the_last_message_of_who_closes_without_reading_is_taken_before_the_end() {
        let (_folder, _listener, client, server) = pair();
        client.send(b"unread", &[]).unwrap();
        server.send(b"no", &[]).unwrap();
        drop(server);
        assert!(matches!(client.receive(&mut [0; 8]), Ok(Packet::Message(2, _))));
        assert!(matches!(client.receive(&mut [0; 8]), Ok(Packet::End)));
    }

    #[test]
    fn a_message_that_does_not_fit_is_dropped_with_its_descriptors() {
        let (_folder, _listener, client, server) = pair();
        let bell = Bell::new().unwrap();
        let mut buffer = [0; 8];
        client.send(b"nine long", &[bell.as_fd()]).unwrap();
        client.send(b"fits", &[]).unwrap();
        assert!(matches!(server.receive(&mut buffer), Ok(Packet::Truncated)));
        assert!(matches!(server.receive(&mut buffer), Ok(Packet::Message(4, fds)) if fds.is_empty()));
        send_many(&client, &[bell.as_fd(); 7]);
        assert!(matches!(server.receive(&mut buffer), Ok(Packet::Truncated)));
    }

    /// A message with more descriptors than ours carry.
    fn send_many(socket: &Socket, fds: &[BorrowedFd<'_>; 7]) {
        let raw = fds.map(|fd| fd.as_raw_fd());
        let mut part = libc::iovec { iov_base: b"many".as_ptr().cast_mut().cast(), iov_len: 4 };
        let mut control = [0u64; 8];
        let mut header = header(&mut part, &mut [0; CONTROL_WORDS]);
        header.msg_control = control.as_mut_ptr().cast();
        let bytes = size_of_val(&raw);
        // SAFETY: the macro computes a length.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(bytes as u32) } as _;
        assert!(bytes + 16 <= size_of_val(&control));
        // SAFETY: the control buffer holds the header and the descriptors (checked), and `header` refers to what is alive.
        let sent = unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
            std::ptr::copy_nonoverlapping(raw.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), bytes);
            libc::sendmsg(socket.0.as_raw_fd(), &raw const header, 0)
        };
        assert_eq!(sent, 4);
    }

    #[test]
    fn a_claim_has_one_holder_whom_the_kernel_names() {
        let name = format!("headway-test/{}", std::process::id());
        let held = Claim::take(&name).unwrap();
        assert!(held.is_ok());
        let holder = Claim::take(&name).unwrap().map(drop).unwrap_err().unwrap();
        assert_eq!((holder.pid, holder.uid), (std::process::id(), user()));
        drop(held);
        assert!(Claim::take(&name).unwrap().is_ok());
        assert!(Claim::take(&"x".repeat(200)).is_err());
    }

    #[test]
    fn what_is_there_is_not_replaced_and_stays_when_the_listener_is_dropped() {
        let (folder, listener, _client, _server) = pair();
        let path = folder.path().join("socket");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Listener::bind(&path, 0o600).map(drop).unwrap_err().errno.0, libc::EADDRINUSE);
        drop(listener);
        assert_eq!(Socket::connect(&path).map(drop).unwrap_err().errno.0, libc::ECONNREFUSED);
        let long = folder.path().join("x".repeat(200));
        assert_eq!(Socket::connect(&long).map(drop).unwrap_err().errno.0, libc::ENAMETOOLONG);
    }
}
