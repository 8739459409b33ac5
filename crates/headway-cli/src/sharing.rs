//! `plan`, `run` and `report` for workloads whose tasks share GPUs.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::Result;
use headway::machine::Machine;
use headway::plan::PlanOptions;
use headway::report as reports;
use headway::report::TaskLog;
use headway::run::{RunOptions, tasks};
use headway::share::{self, SharingReport};
use headway::share::{Resource, TardinessVerdict, Unknown};
use headway::tightest::{self, LINES, more, tightest};
use headway::units::Nanos;
use headway::workload::Loaded;
use headway::workload::Workload;
use headway_cli::terminal::{Bar, CommandAnswer, Out};

use crate::args::PlanArgs;
use crate::show;

pub(crate) fn plan(
    out: &Out,
    args: &PlanArgs,
    machine: &Machine,
    workload: &Loaded<Workload>,
) -> Result<CommandAnswer> {
    let report = share::bounds(machine, workload, PlanOptions { strategy: args.strategy })?;
    out.print(&report, || text(&report, args.machine.is_none()))?;
    Ok(match report.verdict {
        TardinessVerdict::Yes => CommandAnswer::Yes,
        TardinessVerdict::No(_) => CommandAnswer::No,
        TardinessVerdict::DontKnow(_) => CommandAnswer::Undecided,
    })
}

pub(crate) fn run(out: &Out, workload: &Loaded<Workload>, options: &RunOptions) -> Result<CommandAnswer> {
    let mut bar = Bar::new(!out.quiet && io::stderr().is_terminal());
    let report = tasks::run(workload, options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    for warning in &report.warnings {
        out.warn(warning);
    }
    out.print(&report, || {
        let mut text = report.summary.table();
        show::imitation(&mut text, report.imitates.as_deref());
        if report.verified > 0 {
            let _ = writeln!(text, "verified  {} jobs equal what the CPU makes of the same input", report.verified);
        }
        if options.machine.is_none() {
            let _ = write!(text, "\nmachine   {}{}", report.summary.machine.name, show::chosen(true));
        }
        let _ = write!(text, "\nresults   {}", report.folder.display());
        text + &places(&report.folder)
    })?;
    Ok(CommandAnswer::of_run(report.summary.verdict.held, report.summary.incomplete.as_ref()))
}

pub(crate) fn report(out: &Out, log: &TaskLog, folder: Option<&Path>, traced: u64) -> Result<CommandAnswer> {
    let (summary, folder) = reports::report_sharing(log, folder, traced)?;
    out.print(&summary, || summary.table() + &folder.as_deref().map_or_else(String::new, places))?;
    Ok(if summary.verdict.held { CommandAnswer::Yes } else { CommandAnswer::No })
}

fn places(folder: &Path) -> String {
    format!(
        "\npage      {}\ntrace     {}\n",
        folder.join(reports::PAGE).display(),
        folder.join(reports::TRACE).display()
    )
}

fn text(report: &SharingReport, usual: bool) -> String {
    let mut text = format!(
        "workload  {} ({})\nmachine   {} ({}){}\nsharing   {} GPUs, {} tokens each, {} CPUs, mode {}\n\n",
        report.workload.name,
        report.workload.hash,
        report.machine.name,
        report.machine.hash,
        show::chosen(usual),
        report.gpus.len(),
        report.tokens_per_gpu,
        report.cpus,
        report.mode
    );
    let _ = writeln!(text, "verdict   {}", verdict(report));
    if report.verdict == TardinessVerdict::Yes && !report.tasks.is_empty() {
        let promised = report.tasks.iter().filter(|task| task.tardiness == Some(Nanos::ZERO)).count();
        let _ = match (promised, report.tasks.len()) {
            (promised, all) if promised == all => writeln!(text, "deadlines all are promised: no job is late"),
            (0, _) => writeln!(text, "deadlines none is promised: jobs may be late, by a bounded time"),
            (promised, all) => {
                writeln!(
                    text,
                    "deadlines of {promised} of {all} tasks are promised; jobs of others may be late, by a bounded time"
                )
            }
        };
    }
    let _ = writeln!(text, "holds for sporadic tasks; strength: sufficient, \"don't know\" is not \"no\"");
    for note in &report.notes {
        let _ = writeln!(text, "note      {note}");
    }
    if let Some(blockers) = report.blockers {
        let _ = writeln!(
            text,
            "\nahead     of a kernel {} x {}, of a chunk {} x {}, of a token request {} hold times; {} tokens held at most",
            blockers.execute,
            report.longest_execute,
            blockers.copy,
            report.longest_copy,
            blockers.token,
            blockers.holders
        );
    }
    if !report.tasks.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<16} {:>10} {:>10} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "task", "period", "deadline", "hold", "token wait", "engine wait", "blocking", "with own", "tardiness"
        );
    }
    let tasks = tightest(&report.tasks, LINES, |task| tightest::of_task(task));
    for task in &tasks {
        let tardiness = task.tardiness.map_or_else(|| "-".to_owned(), |time| time.to_string());
        let _ = writeln!(
            text,
            "{:<16} {:>10} {:>10} {:>12} {:>12} {:>12} {:>12} {:>12} {tardiness:>12}",
            task.id,
            task.period.to_string(),
            task.deadline.to_string(),
            task.token_hold.to_string(),
            task.token_wait.to_string(),
            task.engine_wait.to_string(),
            task.blocking.to_string(),
            task.inflated.to_string()
        );
    }
    more(&mut text, report.tasks.len(), tasks.len(), "tasks", "whose jobs take most of their period");
    text
}

fn verdict(report: &SharingReport) -> String {
    let name = |at: u32| report.tasks.get(at as usize).map_or_else(|| format!("number {at}"), |task| task.id.clone());
    match report.verdict {
        TardinessVerdict::Yes => "tardiness is bounded".to_owned(),
        TardinessVerdict::No(resource) => {
            let what = match resource {
                Resource::Cpu => "CPUs",
                Resource::Execute => "execution engines",
                Resource::Copy => "copy engines",
                Resource::Sequence(task) => {
                    return format!(
                        "NOT bounded: the longest jobs of task {} take longer than its period",
                        name(task.0)
                    );
                }
            };
            format!("NOT bounded: the longest jobs need more than there is of the {what}")
        }
        TardinessVerdict::DontKnow(why) => {
            let why = match why {
                Unknown::Parameters => "these tokens leave a request without room".to_owned(),
                Unknown::Mode => "this mode has no bound on the wait for a token".to_owned(),
                Unknown::EnginesUnlocked => {
                    "without engine locks the driver decides: use one token per GPU and migration through the system"
                        .to_owned()
                }
                Unknown::Overtaking => {
                    "engines serve the most urgent first, so that others can wait without end".to_owned()
                }
                Unknown::CpuNotGuaranteed => {
                    "the CPU time of token holders is not guaranteed: permit SCHED_FIFO (`headway doctor` says how)"
                        .to_owned()
                }
                Unknown::Overflow => "a figure does not fit 64 bits".to_owned(),
                Unknown::LongerThanPeriod(task) => {
                    format!("with blocking a job of task {} takes longer than its period", name(task.0))
                }
                Unknown::Overload => "with blocking the tasks need more than the CPUs".to_owned(),
            };
            format!("don't know: {why}")
        }
    }
}
