//! Processes of this program that experiments and benchmarks start beside themselves: loads, cameras, brokers and clients.
//!
//! They are started as `PROGRAM lab-child PART ORDER`; the program passes part and order on to [`serve`].

use std::ffi::OsString;
use std::process::Command;
use std::{env, io};

use crate::bench::broker;
use crate::reproduce;

/// The word by which the program knows that it is one of them.
pub const WORD: &str = "lab-child";

/// A part that a process can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Loads the CPUs or the memory of the host.
    Load,
    /// Tracks what a camera sees, as its parent orders line by line.
    Camera,
    /// The broker of a benchmark, or one of its clients.
    Broker,
    /// Makes small copies beside the bulk copies of its parent.
    SmallCopies,
}

impl Part {
    /// Every part with its word.
    pub const WORDS: &[(&str, Self)] = &[
        ("load", Self::Load),
        ("camera", Self::Camera),
        ("broker", Self::Broker),
        ("small-copies", Self::SmallCopies),
    ];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, part)| *part == self).map_or("", |(word, _)| word)
    }
}

/// Does what a process with this part is to do, until its parent goes; whether it could.
#[must_use]
pub fn serve(part: Part, order: &str) -> bool {
    match part {
        Part::Load => reproduce::load(order),
        Part::Camera => reproduce::camera(),
        Part::SmallCopies => return reproduce::small_copies(order),
        Part::Broker => return broker::take_part(order),
    }
    true
}

/// Program and arguments of a process that makes small copies as the order behind them says.
///
/// # Errors
/// What the system says where this program cannot be found.
pub fn small_copies() -> io::Result<Vec<OsString>> {
    Ok(vec![env::current_exe()?.into(), WORD.into(), Part::SmallCopies.word().into()])
}

/// This program with that part.
pub(crate) fn command(part: Part, order: &str) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args([WORD, part.word(), order]);
    Ok(command)
}
