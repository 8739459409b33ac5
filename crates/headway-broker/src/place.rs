//! Where brokers listen.

use std::env;
use std::path::{Path, PathBuf};

/// Socket of the machine's broker, for members of the group `headway`.
pub const SYSTEM: &str = "/run/headway/broker";

/// The user's socket: `$HEADWAY_BROKER`, else in the runtime directory, else in a folder of the user's under `/tmp`.
#[must_use]
pub fn private() -> PathBuf {
    if let Some(path) = env::var_os("HEADWAY_BROKER") {
        return PathBuf::from(path);
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => Path::new(&folder).join("headway/broker"),
        None => PathBuf::from(format!("/tmp/headway-{}/broker", headway_os::ipc::user())),
    }
}

/// The socket that a client tries without being told: the user's if there is one, else the machine's.
#[must_use]
pub fn usual() -> PathBuf {
    let private = private();
    let system = Path::new(SYSTEM);
    if !private.exists() && system.exists() { system.to_owned() } else { private }
}
