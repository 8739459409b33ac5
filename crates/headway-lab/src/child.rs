//! Processes of this program that experiments start beside themselves: loads, cameras, brokers and their clients.
//!
//! They are started as `PROGRAM lab-child PART ORDER`; the program passes part and order on to [`serve_child`](crate::serve_child).

use std::process::Command;
use std::{env, io};

/// The word by which the program knows that it is one of them.
pub const WORD: &str = "lab-child";

/// A part that a process can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildRole {
    /// Loads the CPUs or the memory of the host.
    Load,
    /// The broker of a benchmark, or one of its clients.
    Broker,
    /// Tracks what a camera sees, as its parent orders line by line.
    Camera,
}

impl ChildRole {
    /// Every part with its word.
    pub const WORDS: &[(&str, Self)] = &[("load", Self::Load), ("broker", Self::Broker), ("camera", Self::Camera)];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, part)| *part == self).map_or("", |(word, _)| word)
    }
}

/// This program with that part.
pub(crate) fn command(part: ChildRole, order: &str) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args([WORD, part.word(), order]);
    Ok(command)
}
