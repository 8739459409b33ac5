//! Unmodified CUDA programs as guests: found, prepared and started by `headway exec`.
//!
//! A guest gets the library `libheadway_preload.so` in front of it (`LD_PRELOAD`), which changes how its copies are queued
//! and nothing that it can observe but time.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::Command;

pub use headway_core::files::guest::{Aside, GuestOptions};
use headway_core::files::guest::{PIECE_MIN, VARIABLE};
use headway_core::units::Bytes;

/// The library's file name.
const LIBRARY: &str = "libheadway_preload.so";
/// The piece that lets a small copy in after 41 us while a bulk copy keeps 0.95 of its rate (H200, PCIe 5, 2026-11-22).
pub const PIECE_USUAL: Bytes = Bytes(4 << 20);

/// Why a program cannot be started as a guest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The library that goes in front of it is missing.
    #[error("`{LIBRARY}` was not found in {searched}")]
    NoLibrary {
        /// Folders that were searched.
        searched: String,
    },
    /// A path that the loader would take for two, since it separates paths by spaces and colons.
    #[error("the path of the library, `{path}`, has a space or a colon in it, which `LD_PRELOAD` cannot express")]
    Unspeakable {
        /// The path.
        path: PathBuf,
    },
    /// A piece so small that the engine would spend its time on set-up.
    #[error("pieces of {} bytes are smaller than 64 KiB", asked.0)]
    SmallPiece {
        /// The piece.
        asked: Bytes,
    },
    /// The program could not be started.
    #[error("cannot start `{program}`")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
}

impl GuestError {
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::NoLibrary { .. } => {
                "`cargo build --release` builds it beside `headway`; an installed `headway` looks in `../lib/headway`, too"
            }
            Self::Unspeakable { .. } => "move Headway to a folder without spaces and colons",
            Self::SmallPiece { .. } => "4 MiB is a good piece for PCIe 5; `--yield=auto` takes it",
            Self::Start { .. } => "check the command behind `--`; it is looked for in `$PATH`",
        }
    }
}

/// The library, beside this program or in the place where it is installed.
fn library() -> Result<PathBuf, GuestError> {
    let program = env::current_exe().ok();
    let folder = program.as_deref().and_then(|program| program.parent());
    let folders: Vec<PathBuf> =
        folder.into_iter().flat_map(|folder| ["", "deps", "../lib/headway"].map(|place| folder.join(place))).collect();
    let found = folders.iter().map(|folder| folder.join(LIBRARY)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let searched: Vec<String> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
        GuestError::NoLibrary { searched: searched.join(", ") }
    })
}

/// The command that runs `program` as a guest; other libraries of `LD_PRELOAD` stay, behind ours.
///
/// # Errors
/// [`GuestError`] if the library is missing, or the options cannot be meant.
pub fn command<'a>(
    options: GuestOptions,
    program: &OsStr,
    arguments: impl IntoIterator<Item = &'a OsString>,
) -> Result<Command, GuestError> {
    if let Some(asked) = options.piece.filter(|piece| *piece < PIECE_MIN) {
        return Err(GuestError::SmallPiece { asked });
    }
    let library = library()?;
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(GuestError::Unspeakable { path: library });
    }
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload).env(VARIABLE, options.to_string());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiny_pieces_are_refused_before_anything_is_started() {
        let options = GuestOptions { piece: Some(Bytes(1024)), ..GuestOptions::default() };
        let error = command(options, OsStr::new("true"), []).unwrap_err();
        assert!(error.to_string().contains("64 KiB"), "{error}");
    }
}
