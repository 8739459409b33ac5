//! The command line of Headway.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, reason = "it panics where nobody can be told"))]

mod args;
mod broker;
mod commands;
mod guest;
mod manual;
mod sharing;
mod show;
mod start;
mod top;
mod transfers;

use std::process::ExitCode;
use std::thread;

use headway_cli::terminal::{CommandAnswer, Out, say};
use headway_cli::{events, failure};

use args::{BenchCommand, Cli, Command};

/// Enough for everything that runs before a guest does.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    let Err(problem) = headway::check_stack() else { return run(Ok(())) };
    // A program may run with less stack than Headway: as a guest, too. So it is started by a thread with enough.
    match thread::Builder::new().stack_size(STACK).spawn(|| run(Err(problem))) {
        Ok(thread) => thread.join().unwrap_or_else(|_| ExitCode::from(failure::NOT_STARTED)),
        Err(error) => {
            say(&format!("error: cannot start a thread with {} MiB of stack: {error}", STACK >> 20));
            ExitCode::from(failure::NOT_STARTED)
        }
    }
}

/// Carries the command line out; only `exec` where the stack is too small.
fn run(stack: Result<(), String>) -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return failure::misused(&error),
    };
    if let (Err(problem), false) = (stack, matches!(cli.command, Command::Exec(_))) {
        say(&format!("error: {problem}"));
        return ExitCode::from(2);
    }
    if let Err(error) = events::begin() {
        return failure::report(&error, None, cli.format, 2);
    }
    headway::ignore_file_size_signal();
    let out = Out { format: cli.format, quiet: cli.quiet };
    let answer = match &cli.command {
        Command::Doctor { backend, machine, watch } => commands::doctor(&out, *backend, machine, *watch),
        Command::Plan(plan) => commands::plan(&out, plan),
        Command::Run(run) => commands::run(&out, run),
        Command::Replay { log } => commands::replay(&out, log),
        Command::Report { log, out: folder, trace_max } => commands::report(&out, log, folder.as_deref(), *trace_max),
        Command::Measure(args) => transfers::measure(&out, args),
        Command::Bench { what: BenchCommand::Transfers(args) } => transfers::bench(&out, args),
        Command::Bench { what: BenchCommand::Flows(args) } => transfers::bench_flows(&out, args),
        Command::Explain(args) => transfers::explain(&out, args),
        Command::Machines { name } => commands::machines(&out, name.as_deref()),
        Command::Exec(args) => guest::exec(args),
        Command::Broker(args) => broker::broker(&out, args),
        Command::Status { socket, lost } => broker::status(&out, socket.as_deref(), *lost),
        Command::Top(args) => top::top(&out, args),
        Command::Man { of, out: folder } => manual::man(&out, of, folder.as_deref()),
        Command::Completions { shell } => commands::completions(*shell),
        Command::MpsGuard { folder } => broker::guard(folder),
        Command::MeasureChild { order } => Ok(CommandAnswer::of_child(headway_measure::serve_child(order))),
    };
    match answer {
        Ok(answer) => answer.status(),
        Err(error) => {
            let usual = if matches!(cli.command, Command::Exec(_)) { failure::NOT_STARTED } else { 2 };
            failure::report(&error, failure::diagnosis(&error), cli.format, usual)
        }
    }
}
