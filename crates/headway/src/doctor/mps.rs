//! Whether processes can share a GPU by MPS, what that costs, and what forbids it.

use std::env;
use std::path::PathBuf;

use headway_broker::mps::{self, PROGRAM};
use headway_os::ipc::user;

use super::{Check, State};
use crate::mps::forbidden;

/// What it costs, for people.
const COST: &str = "programs under one daemon share one fate: a fault of one on the GPU ends the GPU work of all, and no debugger attaches";

/// Whether MPS is available here, what it costs, and what forbids it.
pub(super) fn examine() -> Check {
    let what = "MPS";
    if let Some(found) = forbidden() {
        let remedy = Some("until then programs on that GPU fail".to_owned());
        return Check { what, state: State::Limited, found, remedy };
    }
    let Some(program) = program() else {
        let remedy = "install the NVIDIA driver's utilities; until then processes that compute on one GPU take turns of milliseconds";
        return Check {
            what,
            state: State::Missing,
            found: format!("the program `{PROGRAM}` is not in $PATH"),
            remedy: Some(remedy.to_owned()),
        };
    };
    let usual = mps::usual_folder();
    let others = mps::others();
    let runs = |daemon: &&mps::Other| daemon.uid == user() || daemon.uid == 0;
    match others.iter().find(runs) {
        None => Check {
            what,
            state: State::Ok,
            found: format!("`{}` is there, and no daemon runs; `headway broker --mps` starts one", program.display()),
            remedy: Some(COST.to_owned()),
        },
        Some(daemon) if daemon.folder.as_ref() == Some(&usual) => Check {
            what,
            state: State::Limited,
            found: format!("a daemon runs (process {} of user {}) that no broker started", daemon.pid, daemon.uid),
            remedy: Some(format!(
                "`headway broker --mps` needs it stopped: `echo quit | {PROGRAM}` as that user; {COST}"
            )),
        },
        Some(daemon) => Check {
            what,
            state: State::Ok,
            found: format!(
                "a daemon runs (process {} of user {}) in `{}`",
                daemon.pid,
                daemon.uid,
                daemon.folder.as_deref().unwrap_or("a folder that this user is not shown")
            ),
            remedy: Some(COST.to_owned()),
        },
    }
}

fn program() -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file())
}
