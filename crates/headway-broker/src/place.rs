//! Where brokers listen.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use headway_os::environment::trusted;
use headway_os::ipc::{Socket, user};

use crate::error::ClientError;
use crate::folder::Folder;

/// Socket of the machine's broker, for members of the group `headway`.
pub const SYSTEM: &str = "/run/headway/broker";

/// The user's socket: `$HEADWAY_BROKER`, else in the runtime directory, else in a folder of the user's under `/tmp`. A variable
/// that is empty counts as not set, and so does `$XDG_RUNTIME_DIR` where it is no absolute path, as its specification says.
#[must_use]
pub fn private() -> PathBuf {
    private_of(trusted("HEADWAY_BROKER"), trusted("XDG_RUNTIME_DIR"))
}

fn private_of(named: Option<OsString>, runtime: Option<OsString>) -> PathBuf {
    if let Some(path) = named.filter(|path| !path.is_empty()) {
        return PathBuf::from(path);
    }
    match runtime.filter(|folder| Path::new(folder).is_absolute()) {
        Some(folder) => Path::new(&folder).join("headway/broker"),
        None => PathBuf::from(format!("/tmp/headway-{}/broker", user())),
    }
}

/// Whether the path means an abstract socket.
pub(crate) fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"@")
}

/// The socket that a client tries by default: the user's if there is one, else the machine's. A socket that another user has put in the
/// user's place does not count.
#[must_use]
pub fn usual() -> PathBuf {
    let private = private();
    let system = Path::new(SYSTEM);
    let is_there = private.exists() && Folder::of(&private).and_then(|(folder, _)| Folder::open(&folder)).is_ok();
    if !is_there && system.exists() { system.to_owned() } else { private }
}

/// Connects to the broker at `path`, if it is one whose word counts for this user: run by the user himself, by root, or by the
/// owner of a folder that only root can have made for him.
pub(crate) fn reach(path: &Path) -> Result<Socket, ClientError> {
    if is_abstract(path) {
        return Err(ClientError::Abstract { path: path.to_owned() });
    }
    let socket = knock(path)?;
    let peer = socket.peer().map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
    let host = host(path);
    if peer.uid == user() || peer.uid == 0 || Some(peer.uid) == host {
        return Ok(socket);
    }
    let mut expected = match user() {
        0 => "root".to_owned(),
        own => format!("user {own} or root"),
    };
    if let Some(host) = host {
        expected = format!("{expected} or user {host}, who owns the folder,");
    }
    Err(ClientError::Stranger { path: path.to_owned(), pid: peer.pid, uid: peer.uid, expected })
}

/// How long a client stands in line before a socket, and how long between two attempts.
const CROWD_MAX: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(5);

/// Connects, also where so many wait to be accepted that the kernel sends newcomers away: a broker that runs soon has room.
fn knock(path: &Path) -> Result<Socket, ClientError> {
    let start = Instant::now();
    loop {
        match Socket::connect(path) {
            Ok(socket) => return Ok(socket),
            Err(source) if source.errno.name() != Some("EAGAIN") => {
                return Err(ClientError::Connect { path: path.to_owned(), source });
            }
            Err(_) if start.elapsed() >= CROWD_MAX => return Err(ClientError::Crowded { path: path.to_owned() }),
            Err(_) => std::thread::park_timeout(RETRY),
        }
    }
}

/// The owner of a socket's folder, if only this user can write in it and only root in the folders above it.
fn host(path: &Path) -> Option<u32> {
    let (folder, _) = Folder::of(path).ok()?;
    let folder = fs::canonicalize(folder).ok()?;
    let sealed = |path: &Path| fs::symlink_metadata(path).ok().filter(|place| place.mode() & 0o022 == 0);
    let owner = sealed(&folder)?.uid();
    let only_root = |above: &Path| sealed(above).is_some_and(|place| place.uid() == 0);
    folder.ancestors().skip(1).all(only_root).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_name_no_place_count_as_not_set() {
        let of =
            |named: Option<&str>, runtime: Option<&str>| private_of(named.map(Into::into), runtime.map(Into::into));
        let usual = PathBuf::from(format!("/tmp/headway-{}/broker", user()));
        assert_eq!(of(None, None), usual);
        assert_eq!(of(Some(""), Some("")), usual);
        assert_eq!(of(None, Some("run")), usual);
        assert_eq!(of(None, Some("/run/user/7")), Path::new("/run/user/7/headway/broker"));
        assert_eq!(of(Some("here/b"), Some("/run/user/7")), Path::new("here/b"));
        assert!(is_abstract(Path::new("@abc")) && !is_abstract(Path::new("./@abc")));
    }
    #[test]
    fn a_client_stands_in_line_before_a_socket_that_is_full_and_gets_in_when_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = headway_os::ipc::Listener::bind(&path, 0o600).unwrap();
        let mut crowd = Vec::new();
        while let Ok(socket) = Socket::connect(&path) {
            crowd.push(socket);
        }
        let late = {
            let path = path.clone();
            std::thread::spawn(move || knock(&path).map(drop))
        };
        // Time for its first attempt. Without it the test would pass, but show less.
        std::thread::sleep(20 * RETRY);
        let mut served = Vec::new();
        while let Some(socket) = listener.accept().unwrap() {
            served.push(socket);
        }
        assert!(late.join().unwrap().is_ok(), "beside {} others", crowd.len());
    }
}
