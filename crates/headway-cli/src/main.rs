//! The command line of Headway.
#![forbid(unsafe_code)]

mod args;
mod broker;
mod commands;
mod events;
mod failure;
mod formats;
mod guest;
mod interconnect;
mod manual;
mod reproduce;
mod sharing;
mod show;
mod tightest;
mod transfers;
mod values;

use std::process::ExitCode;

use headway::run::Incomplete;

use args::{BenchCommand, Cli, Command};

/// What a command answers; its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    /// A negative answer.
    No,
    /// Not known.
    Undecided,
    /// None: somebody ended the command early.
    Interrupted,
}

impl Answer {
    /// Of a benchmark: no if it is behind a target that counts here.
    pub(crate) fn of_bench(complete: bool, behind: bool) -> Self {
        match (complete, behind) {
            (false, _) => Self::Interrupted,
            (true, true) => Self::No,
            (true, false) => Self::Yes,
        }
    }

    /// Of a run: yes if everything was in time.
    pub(crate) fn of_run(held: bool, incomplete: Option<&Incomplete>) -> Self {
        match incomplete {
            Some(Incomplete::Interrupted) => Self::Interrupted,
            _ if held => Self::Yes,
            _ => Self::No,
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return failure::misused(&error),
    };
    if let Err(error) = events::begin() {
        return failure::report(&error, cli.format, 2);
    }
    // A guest gets the signals that it was started with.
    if !matches!(cli.command, Command::Exec(_)) {
        headway::ignore_file_size_signal();
    }
    let out = commands::Out { format: cli.format, quiet: cli.quiet };
    let answer = match &cli.command {
        Command::Doctor { backend } => commands::doctor(&out, *backend),
        Command::Plan(plan) => commands::plan(&out, plan),
        Command::Run(run) => commands::run(&out, run),
        Command::Replay { log } => commands::replay(&out, log),
        Command::Report { log, out: folder, trace_max } => commands::report(&out, log, folder.as_deref(), *trace_max),
        Command::Reproduce(args) => commands::reproduce(&out, args),
        Command::Measure(args) => transfers::measure(&out, args),
        Command::Bench { what: BenchCommand::Transfers(args) } => transfers::bench(&out, args),
        Command::Bench { what: BenchCommand::Interconnect(args) } => interconnect::bench(&out, args),
        Command::Bench { what: BenchCommand::Broker(args) } => broker::bench(&out, args),
        Command::Bench { what: BenchCommand::Combine(args) } => commands::bench_combine(&out, args),
        Command::Plot(args) => formats::plot(&out, args),
        Command::Explain(args) => transfers::explain(&out, args),
        Command::Import(args) => formats::import(&out, args),
        Command::Export(args) => formats::export(&out, args),
        Command::Machines { name } => commands::machines(&out, name.as_deref()),
        Command::Exec(args) => guest::exec(args),
        Command::Broker(args) => broker::broker(&out, args),
        Command::Status { socket, lost } => broker::status(&out, socket.as_deref(), *lost),
        Command::Man { of, out: folder } => manual::man(&out, of, folder.as_deref()),
        Command::Completions { shell } => commands::completions(*shell),
        Command::MpsGuard { folder } => broker::guard(folder),
        Command::MeasureChild { part, order } => {
            Ok(if headway_measure::serve_child(*part, order) { Answer::Yes } else { Answer::No })
        }
        Command::LabChild { part, order } => {
            headway_lab::child::serve(*part, order);
            Ok(Answer::Yes)
        }
    };
    match answer {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Ok(Answer::Undecided) => ExitCode::from(3),
        Ok(Answer::Interrupted) => ExitCode::from(headway::INTERRUPTED_STATUS),
        Err(error) => {
            let usual = if matches!(cli.command, Command::Exec(_)) { failure::NOT_STARTED } else { 2 };
            failure::report(&error, cli.format, usual)
        }
    }
}
