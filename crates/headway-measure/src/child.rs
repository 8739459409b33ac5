//! The process of this program that measurements start beside themselves, for small copies beside their bulk copies.
//!
//! It is started as `PROGRAM measure-child ORDER`. A program that calls [`measure`](crate::measure) passes the order on to
//! [`serve_child`](crate::serve_child).

use std::process::Command;
use std::{env, io};

/// The argument by which the program knows that it is such a process.
pub const CHILD_ARGUMENT: &str = "measure-child";

/// This program as such a process.
///
/// # Errors
/// What the system says where this program's file cannot be found.
pub fn command(order: &str) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args([CHILD_ARGUMENT, order]);
    Ok(command)
}
