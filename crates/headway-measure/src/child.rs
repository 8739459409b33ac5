//! Processes of this program that measurements and benchmarks start beside themselves: small copies, brokers and their clients.
//!
//! They are started as `PROGRAM measure-child PART ORDER`. A program that calls [`measure`](crate::measure) or a benchmark passes part
//! and order on to [`serve_child`](crate::serve_child).

use std::process::Command;
use std::{env, io};

/// The argument by which the program knows that it is such a process.
pub const CHILD_ARGUMENT: &str = "measure-child";

/// What such a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildPart {
    /// The broker of a benchmark, or one of its clients.
    Broker,
    /// Makes small copies beside the bulk copies of its parent.
    SmallCopies,
}

impl ChildPart {
    /// Every part with its word.
    pub const WORDS: &[(&str, Self)] = &[("broker", Self::Broker), ("small-copies", Self::SmallCopies)];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, part)| *part == self).map_or("", |(word, _)| word)
    }
}

/// This program as such a process.
///
/// # Errors
/// What the system says where this program's file cannot be found.
pub fn command(part: ChildPart, order: &str) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args([CHILD_ARGUMENT, part.word(), order]);
    Ok(command)
}
