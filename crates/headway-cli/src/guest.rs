//! `headway exec`: its arguments; this process becomes the guest.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueEnum};
use headway::guest::{self, AsideMode, ChunkChoice, GuestClass, GuestError, GuestOptions, PinnedBudget};
use headway::mps::{self, MpsShare};
use headway::units::Bytes;
use headway_cli::terminal::{CommandAnswer, printable, say};

use headway_cli::values::some_bytes;

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Large copies from and to ordinary memory are made by several threads through page-locked memory, where that is the best method
    /// known
    #[arg(long, value_enum, value_name = "WHETHER", num_args = 0..=1, require_equals = true, default_missing_value = "on",
        default_value = "on")]
    pub(crate) fast: Switch,
    /// Ordinary memory that is copied again and again is page-locked from the third copy on, as long as this many bytes are not exceeded: such
    /// copies then take no CPU. Without a size: a quarter of the memory. docs/exec.md says what a program must not do meanwhile
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    pub(crate) pin_once: Option<PinnedBudget>,
    /// Small copies out of a GPU are made by a kernel in their own stream, where they would wait at the copy engine
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "auto",
        default_value = "never")]
    pub(crate) aside: AsideArg,
    /// Bulk copies out of a GPU are queued in chunks of this size, between which the engine serves other streams: a size,
    /// `auto` (what was measured of this GPU or its class; whole copies where `--aside` is given), or `never`
    #[arg(long = "yield", value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "auto",
        default_value = "auto")]
    pub(crate) chunk: ChunkChoice,
    /// The class of all copies of the program out of a GPU: bulk ones go in chunks and let everybody pass; for normal ones others make no way.
    /// `auto`: each copy is as its CUDA stream is, bulk while more than a chunk is under way there
    #[arg(long, value_enum, value_name = "CLASS", default_value = "auto")]
    pub(crate) flow: FlowArg,
    /// What `headway measure` found on this node, for `--yield=auto`: a file [default: built-in figures of the GPU's class]
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<String>,
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
    /// Use at most this part of each GPU's multiprocessors, at the same time as others: the program joins the MPS daemon of the
    /// broker (`headway broker --mps`)
    #[arg(long, value_name = "PERCENT")]
    pub(crate) share: Option<Percent>,
    /// With `--share`: take at most this much memory of each GPU
    #[arg(long, value_name = "SIZE", requires = "share", value_parser = some_bytes)]
    pub(crate) memory: Option<Bytes>,
    /// With `--share`: socket of the broker [default: the user's, else the machine's]
    #[arg(long, value_name = "PATH", requires = "share")]
    pub(crate) socket: Option<PathBuf>,
    /// Keep at most this many launches of kernels and graphs under way, and begin none while `headway run` has a kernel on the GPU: its jobs
    /// then wait for few launches of the program, where processes take turns. Not with `--share`, under which kernels run side by side
    #[arg(long, value_name = "N", conflicts_with = "share")]
    pub(crate) depth: Option<u32>,
    /// Neither use what earlier programs have learnt of copies on this node, nor keep what this one learns
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// The program and its arguments, behind `--` if they could be taken for options
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Where it is the best method known
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlowArg {
    Auto,
    Bulk,
    Normal,
}

/// A part of a GPU, such as "90%".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent(u8);

impl FromStr for Percent {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        let percent = number.parse().ok().filter(|percent| (1..=100).contains(percent));
        percent.map(Self).ok_or("give a whole number of percent from 1% to 100%")
    }
}

/// The options, and what a chunk that the program chose is based on.
fn options(args: &ExecArgs) -> Result<(GuestOptions, Option<String>)> {
    let aside = match args.aside {
        AsideArg::Auto => AsideMode::Auto,
        AsideArg::Always => AsideMode::Always,
        AsideArg::Never => AsideMode::Never,
    };
    let class = match args.flow {
        FlowArg::Auto => GuestClass::ByStream,
        FlowArg::Bulk => GuestClass::Bulk,
        FlowArg::Normal => GuestClass::Normal,
    };
    let (chunk, why) = args.chunk.chunk(aside, class, args.machine.as_deref())?;
    let ExecArgs { stats, lint, verify, alone, depth, no_cache, .. } = *args;
    let pin_once = args.pin_once.map_or(Bytes(0), PinnedBudget::bytes);
    let (fast, always_fast) = (args.fast != Switch::Off, args.fast == Switch::Always);
    let options =
        GuestOptions { fast, always_fast, no_cache, aside, chunk, class, pin_once, depth, stats, lint, verify, alone };
    Ok((options, why))
}

/// Returns only if the program could not be started.
pub(crate) fn exec(args: &ExecArgs) -> Result<CommandAnswer> {
    let [program, arguments @ ..] = args.command.as_slice() else { return Ok(CommandAnswer::No) };
    let (options, why) = options(args)?;
    if let (true, Some(why)) = (options.stats, why) {
        say(&format!("headway: bulk copies out of a GPU: {why}"));
    }
    let mut command = guest::command(options, args.log.as_deref(), program, arguments)?;
    if let Some(Percent(percent)) = args.share {
        let share = MpsShare { percent, memory: args.memory };
        mps::join_as_guest(&mut command, args.socket.as_deref(), share)?;
    }
    let is_told = args.stats || args.lint || args.verify || args.log.is_some();
    if is_told && guest::is_static(program) {
        say(&format!(
            "headway: `{}` is statically linked, so no library is loaded into it: its copies are neither changed nor counted",
            printable(&program.to_string_lossy())
        ));
    }
    let source = guest::replace_process(&command);
    let program = program.to_string_lossy().into_owned();
    Err(headway::Error::from(GuestError::Start { program, source }).into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(line: &str) -> ExecArgs {
        let line = ["headway", "exec"].into_iter().chain(line.split_whitespace()).chain(["--", "true", "--aside"]);
        let Command::Exec(args) = Cli::try_parse_from(line).unwrap().command else {
            unreachable!("the verb is `exec`")
        };
        args
    }

    #[test]
    fn a_share_is_a_whole_number_of_percent() {
        for (text, share) in [("90%", Some(90)), ("1", Some(1)), ("100 %", Some(100))] {
            assert_eq!(text.parse::<Percent>().ok(), share.map(Percent), "{text}");
        }
        for text in ["0%", "101%", "", "%", "half", "-5%", "50.5%", "90%%"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_depth_is_for_programs_that_take_turns() {
        assert_eq!(options(&args("--depth 4")).unwrap().0.depth, Some(4));
        for line in ["--depth 4 --share 90%", "--depth", "--depth many"] {
            let line = ["headway", "exec"].into_iter().chain(line.split_whitespace()).chain(["--", "true"]);
            assert!(Cli::try_parse_from(line).is_err());
        }
    }

    #[test]
    fn bulk_copies_yield_as_was_measured_unless_small_ones_go_aside() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.toml");
        let text = "name = \"node\"\n[[memory]]\nid = \"host\"\n[[gpu]]\nid = \"gpu0\"\n[[arbitration]]\ndirection = \"d2h\"\n\
                    time = \"19 ms\"\nwhole = [1073741824, 1000000, 20, 19000000]\nwords = [[2097152, 930000, 100, 70000, 90000]]\n";
        std::fs::write(&file, text).unwrap();
        let parsed = |line: &str| {
            let given = ExecArgs { machine: Some(file.display().to_string()), ..args(line) };
            options(&given).unwrap()
        };
        let (usual, why) = parsed("");
        assert_eq!(usual.chunk, Some(Bytes(2 << 20)));
        assert!(why.unwrap().contains("measured, `node`"));
        let fast = GuestOptions { fast: true, ..GuestOptions::default() };
        assert_eq!(parsed("--aside"), (GuestOptions { aside: AsideMode::Auto, ..fast }, None));
        assert_eq!(parsed("--aside --yield=4MiB").0.chunk, Some(Bytes(4 << 20)));
        assert_eq!(parsed("--yield=never --stats").0, GuestOptions { stats: true, ..fast });
        assert_eq!(parsed("--yield=never --fast=off").0, GuestOptions::default());
        assert!(options(&ExecArgs { machine: Some("no such machine".to_owned()), ..args("") }).is_err());
    }
}
