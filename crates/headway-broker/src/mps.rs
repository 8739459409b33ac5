//! A daemon of NVIDIA's Multi-Process Service that a broker starts, owns and stops.
//!
//! Under MPS the kernels of several processes run at the same time, and each process can be given a share of the multiprocessors;
//! without it, processes take turns in time slices of milliseconds. The daemon runs for one user, with its files in a folder of its
//! own next to the broker's socket. A guardian process starts it, is the parent of everything that it starts, and stops it when the
//! broker has ended, however that ended.

mod error;
pub(crate) mod guardian;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use headway_os::environment::trusted;
use headway_os::ipc::user;

pub use self::error::MpsError;
pub use self::guardian::guard;
use crate::folder::{Folder, with_ending};

/// The program that starts a daemon with `-d`, and that passes commands of its standard input on to one.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";
/// Tells daemon and clients where they meet.
pub const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Tells the daemon where it logs; clients log there too.
pub const LOG_VARIABLE: &str = "CUDA_MPS_LOG_DIRECTORY";
/// The share of the multiprocessors that a client may use, in percent.
pub const SHARE_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// How much memory of each GPU a client may take.
pub const MEMORY_VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// Where daemon and clients meet if nothing else is said.
const USUAL_PIPES: &str = "/tmp/nvidia-mps";
/// In the folder where they meet: the daemon's process.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// Longest path of the folder. The daemon's sockets in it have names of up to 20 bytes, and a socket's path up to 107.
const FOLDER_BYTES_MAX: usize = 80;
/// In the daemon's folder.
pub(crate) const LOGS: &str = "log";
/// What was printed at the start, in the folder of logs.
const START_LOG: &str = "start.log";

/// How a broker gets its guardian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsOptions {
    /// Program and arguments, to which the daemon's folder is added: it calls [`guard`] with that, and nothing else.
    pub guardian: Vec<OsString>,
}

/// The daemon's folder.
pub(crate) fn folder(socket: &Path) -> std::io::Result<PathBuf> {
    let (above, name) = Folder::of(&std::path::absolute(socket)?)?;
    Ok(above.join(with_ending(&name, ".mps")))
}

/// A daemon that runs, as `/proc` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Where clients meet it; `None` = it is not shown to this user.
    pub folder: Option<String>,
}

/// Where programs of this user look for a daemon by default.
#[must_use]
pub fn usual_folder() -> String {
    let named = trusted(PIPE_VARIABLE).and_then(|path| path.into_string().ok());
    named.unwrap_or_else(|| USUAL_PIPES.to_owned())
}

/// The daemons that `/proc` shows.
#[must_use]
pub fn others() -> Vec<Other> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| is_daemon(*pid)).filter_map(other).collect()
}

fn other(pid: u32) -> Option<Other> {
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let environment = fs::read(format!("/proc/{pid}/environ")).ok();
    let folder = environment.map(|all| {
        let of = |entry: &[u8]| entry.strip_prefix(PIPE_VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_owned);
        let named = all.split(|byte| *byte == 0).find_map(of);
        named.map_or_else(|| USUAL_PIPES.to_owned(), |path| String::from_utf8_lossy(&path).into_owned())
    });
    Some(Other { pid, uid, folder })
}

/// Whether the process was started as a daemon, and not to pass a command on.
fn is_daemon(pid: u32) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut words = line.split(|byte| *byte == 0).skip_while(|word| !word.ends_with(PROGRAM.as_bytes()));
    words.next().is_some() && words.any(|word| word == b"-d" || word == b"-f")
}

/// The daemon that programs of this user find by default. Its own file counts too, since `/proc` does not show a daemon outside this
/// container.
fn usual_daemon() -> Option<Other> {
    let folder = usual_folder();
    let noted = fs::read_to_string(Path::new(&folder).join(PID_FILE)).ok();
    let noted = noted.and_then(|text| text.trim().parse().ok()).filter(|pid| is_daemon(*pid)).and_then(other);
    let serves = |other: &Other| other.folder.as_deref() == Some(&folder) && (other.uid == user() || other.uid == 0);
    noted.map(|other| Other { folder: Some(folder.clone()), ..other }).or_else(|| others().into_iter().find(serves))
}

/// Looks whether a daemon of ours may start: `folder` is the one that it would have.
pub(crate) fn check(folder: &Path) -> Result<(), MpsError> {
    let bytes = folder.as_os_str().as_bytes().len();
    if bytes > FOLDER_BYTES_MAX {
        return Err(MpsError::Long { folder: folder.to_owned(), bytes });
    }
    match usual_daemon() {
        // Left by a broker that was killed with its guardian: the next guardian stops it.
        Some(other) if other.folder.as_deref().map(Path::new) == Some(folder) => Ok(()),
        Some(Other { pid, uid, folder }) => {
            Err(MpsError::Running { pid, uid, folder: folder.unwrap_or_else(usual_folder) })
        }
        None => Ok(()),
    }
}
