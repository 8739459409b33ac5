//! `headway exec`: its arguments; this process becomes the guest.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueEnum};
use headway::guest::{self, Aside, GuestError, GuestOptions};
use headway::units::{Bytes, UnitError};

use crate::Answer;

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Large copies from and to ordinary memory are made by several threads through page-locked memory, where that is the best way
    /// known
    #[arg(long, value_enum, value_name = "WHETHER", num_args = 0..=1, require_equals = true, default_missing_value = "on",
        default_value = "on")]
    pub(crate) fast: Switch,
    /// Small copies out of a GPU are made by a kernel in their own stream, where they would wait at the copy engine
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "auto",
        default_value = "never")]
    pub(crate) aside: AsideArg,
    /// Bulk copies out of a GPU are queued in pieces of this size, between which the engine serves other streams: a size,
    /// `auto` (4 MiB, or whole copies where `--aside` is given), or `never`
    #[arg(long = "yield", value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "auto",
        default_value = "auto")]
    pub(crate) piece: PieceArg,
    /// Count copies, and print the counts on standard error at exit and on SIGUSR1
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print on standard error at exit where in the program copies lose time: large copies of ordinary memory, many tiny copies,
    /// small results waited for again and again, memory worth page-locking; with what this run says would be gained
    #[arg(long)]
    pub(crate) lint: bool,
    /// Have the driver make each accelerated copy again and compare; a difference is printed, and the driver's bytes are kept
    #[arg(long)]
    pub(crate) verify: bool,
    /// Write a line for each copy to this file: what it was, how long its call took, what became of it. `headway report` sums
    /// it up. In the name, `%p` is the process; further processes of the program write to FILE.PROCESS
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Do not exchange with other guests of this user when bulk copies are under way, or how many CPUs they copy with
    #[arg(long)]
    pub(crate) alone: bool,
    /// Neither use what earlier programs have learnt of copies on this node, nor keep what this one learns
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// The program and its arguments, behind `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Where it is the best way known
    On,
    /// Every copy of 1 MiB and more, whatever it costs
    Always,
    /// Not at all
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AsideArg {
    /// While a bulk copy of this program or of another guest is on the engine
    Auto,
    /// Whatever else goes on
    Always,
    /// Not at all
    Never,
}

/// The piece of bulk copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceArg {
    Auto,
    Never,
    Bytes(Bytes),
}

impl FromStr for PieceArg {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            size => size.parse().map(Self::Bytes),
        }
    }
}

fn options(args: &ExecArgs) -> GuestOptions {
    let aside = match args.aside {
        AsideArg::Auto => Aside::Auto,
        AsideArg::Always => Aside::Always,
        AsideArg::Never => Aside::Never,
    };
    let piece = match args.piece {
        PieceArg::Bytes(bytes) => Some(bytes),
        PieceArg::Never => None,
        // Small copies that go by a kernel wait for nobody: then whole copies keep their full rate.
        PieceArg::Auto => (aside == Aside::Never).then_some(guest::PIECE_USUAL),
    };
    let ExecArgs { stats, lint, verify, alone, no_cache, .. } = *args;
    let (fast, always_fast) = (args.fast != Switch::Off, args.fast == Switch::Always);
    GuestOptions { fast, always_fast, no_cache, aside, piece, stats, lint, verify, alone }
}

/// Returns only if the program could not be started.
pub(crate) fn exec(args: &ExecArgs) -> Result<Answer> {
    let [program, arguments @ ..] = args.command.as_slice() else { return Ok(Answer::No) };
    let mut command =
        guest::command(options(args), args.log.as_deref(), program, arguments).map_err(headway::Error::from)?;
    let source = command.exec();
    let program = program.to_string_lossy().into_owned();
    Err(headway::Error::from(GuestError::Start { program, source }).into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn parsed(line: &str) -> GuestOptions {
        let line = ["headway", "exec"].into_iter().chain(line.split_whitespace()).chain(["--", "true", "--aside"]);
        let Command::Exec(args) = Cli::try_parse_from(line).unwrap().command else {
            unreachable!("the verb is `exec`")
        };
        options(&args)
    }

    #[test]
    fn bulk_copies_yield_unless_small_ones_go_aside() {
        assert_eq!(parsed("").piece, Some(guest::PIECE_USUAL));
        let fast = GuestOptions { fast: true, ..GuestOptions::default() };
        assert_eq!(parsed("--aside"), GuestOptions { aside: Aside::Auto, ..fast });
        assert_eq!(parsed("--aside --yield=2MiB").piece, Some(Bytes(2 << 20)));
        assert_eq!(parsed("--yield=never --stats"), GuestOptions { stats: true, ..fast });
        assert_eq!(parsed("--yield=never --fast=off"), GuestOptions::default());
    }
}
