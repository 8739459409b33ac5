//! The commands: call the library, print what it says, turn it into an answer.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use clap::CommandFactory;
use headway::keep::Keep;
use headway::machine::{Confidence, Machine};
use headway::metrics::{MetricsSource, RunGauge};
use headway::plan::{self as plans, Outcome, PlanOptions};
use headway::units::Nanos;
use headway::workload::Workload;
use headway::{doctor as examine, report as reports, run as runs};
use headway_cli::terminal::{Bar, CommandAnswer, Out, OutputFormat, interrupt, say, write_out};
use serde::Serialize;

use crate::args::{Cli, CopyBackendArg, PlanArgs, RunArgs};
use crate::broker::serve_metrics;
use crate::{sharing, show};

pub(crate) fn doctor(out: &Out, backend: CopyBackendArg, machine: &str, watch: Nanos) -> Result<CommandAnswer> {
    let examination = examine::examine(backend.into(), machine, watch);
    out.print(&examination, || show::examination(&examination))?;
    // Missing things alone do not make the answer "no": that takes `--backend cuda` on a machine without a GPU.
    Ok(if backend == CopyBackendArg::Cuda && !examination.has_gpu() { CommandAnswer::No } else { CommandAnswer::Yes })
}

fn machine(args: &PlanArgs, workload: &Workload) -> Result<Machine> {
    let machine = match headway::machine::for_flows(args.machine.as_deref(), workload) {
        Some(none) => none,
        None => {
            let machine = headway::machine::open(args.machine.as_deref().unwrap_or(headway::machine::USUAL))?;
            match args.gpus {
                Some(gpus) => headway::machine::restrict(&machine, gpus)?,
                None => machine,
            }
        }
    };
    Ok(headway::machine::beside(&machine, args.others)?)
}

pub(crate) fn plan(out: &Out, args: &PlanArgs) -> Result<CommandAnswer> {
    let workload = headway::workload::open(&args.workload)?;
    let machine = machine(args, &workload.value)?;
    if workload.value.sharing.is_some() {
        return sharing::plan(out, args, &machine, &workload);
    }
    let answer = plans::answer(&machine, &workload, PlanOptions { strategy: args.strategy })?;
    out.print(&answer, || answer.text(show::chosen(args.machine.is_none())))?;
    Ok(match answer.plan.verdict.outcome {
        Outcome::Schedulable => CommandAnswer::Yes,
        Outcome::NotSchedulable => CommandAnswer::No,
        Outcome::Undecided => CommandAnswer::Undecided,
    })
}

pub(crate) fn run(out: &Out, args: &RunArgs) -> Result<CommandAnswer> {
    let workload = headway::workload::open(&args.plan.workload)?;
    join_mps(out, args.backend.into());
    let interrupt = interrupt(out, "a partial folder");
    let options = runs::RunOptions {
        backend: args.backend.into(),
        machine: args.plan.machine.clone(),
        gpus: args.plan.gpus,
        others: args.plan.others,
        strategy: args.plan.strategy,
        input: args.input.clone(),
        duration: args.duration,
        out: args.out.clone(),
        label: args.label.clone(),
        seed: args.seed,
        force: args.force,
        verify: !args.no_verify,
        time_only: args.time_only,
        cpu_class: args.cpu_class,
        keep: Keep { sample: args.sample_max, log: args.log_max, traced: args.trace_max, ..Keep::default() },
        interrupt,
        library: runs::RunOptions::default().library,
        notify: if out.quiet { |_| {} } else { |text| say(&format!("note: {text}")) },
    };
    let gauge = Arc::new(RunGauge::default());
    let _metrics = serve_metrics(out, args.metrics.as_ref(), || MetricsSource::Run(Arc::clone(&gauge)))?;
    if workload.value.sharing.is_some() {
        return sharing::run(out, &workload, &options);
    }
    let mut bar = Bar::new(!out.quiet && io::stderr().is_terminal());
    let report = runs::run(&workload, &options, |progress| {
        gauge.show(progress.done, progress.total);
        bar.show(progress);
    });
    bar.finish();
    let report = report?;
    for warning in &report.warnings {
        out.warn(warning);
    }
    out.print(&report, || show::run(&report, args))?;
    Ok(CommandAnswer::of_run(report.summary.verdict.held, report.summary.incomplete.as_ref()))
}

/// Joins the MPS daemon of this user's broker, if there is one. To be called while there is one thread.
fn join_mps(out: &Out, backend: runs::Backend) {
    if !matches!(backend, runs::Backend::Auto | runs::Backend::Cuda) {
        return;
    }
    match headway::mps::join(None) {
        Ok(Some(daemon)) => out.note(&format!("joins the MPS daemon of the broker (process {})", daemon.pid)),
        Ok(None) => {}
        Err(error) => out.warn(&format!("does not join the MPS daemon of a broker: {error}")),
    }
}

/// Where a replay differs, `line`, `log` and `replay` stand in place of `replayed`.
#[derive(Serialize)]
struct ReplayAnswer<'a> {
    /// Whether the replay is the same, byte for byte, as far as the log goes.
    equal: bool,
    /// Line of the log where they part.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// What the log has there.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
    /// What the replay gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<String>,
    /// What was fed and compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<&'a headway::report::ReplayedRun>,
    /// Version of the JSON form.
    schema: u32,
}

/// Where a replay differs, `difference` stands in place of `replayed`.
#[derive(Serialize)]
struct BrokerReplayAnswer<'a> {
    /// Where log and replay part.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<String>,
    /// Whether the replay is the same, byte for byte.
    equal: bool,
    /// What was fed and compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<&'a headway::report::ReplayedBroker>,
    /// Version of the JSON form.
    schema: u32,
}

pub(crate) fn replay(out: &Out, log: &Path) -> Result<CommandAnswer> {
    if let Some(log) = reports::open_broker(log)? {
        return replay_broker(out, &log);
    }
    if reports::open_guest(log)?.is_some() {
        anyhow::bail!("the log of a guest has no decisions that could be made again; `headway report` sums it up");
    }
    if reports::open_sharing(log)?.is_some() {
        anyhow::bail!("a run of tasks has no inputs in its log that could be fed again; `headway report` sums it up");
    }
    let replayed = match reports::replay(log).map_err(headway::Error::into_failure) {
        Err(headway::Failure::Replay(difference)) if out.format == OutputFormat::Json => {
            let json = ReplayAnswer {
                equal: false,
                line: Some(difference.record + 2),
                log: Some(difference.expected),
                replay: Some(difference.got),
                replayed: None,
                schema: 1,
            };
            out.print(&json, String::new)?;
            return Ok(CommandAnswer::No);
        }
        replayed => replayed.map_err(headway::Error::from)?,
    };
    let json = ReplayAnswer { equal: true, line: None, log: None, replay: None, replayed: Some(&replayed), schema: 1 };
    out.print(&serde_json::to_value(json)?, || {
        let end = if replayed.finished || replayed.omitted > 0 { "" } else { "; the run ended before its last cycle" };
        let mut text = format!(
            "the same: {} inputs gave {} actions and {} events, byte for byte{end}\n",
            replayed.inputs, replayed.actions, replayed.events
        );
        if replayed.omitted > 0 {
            text.push_str(&format!(
                "not compared: the last {} records of the run, which the log lacks since it had reached its size\n",
                replayed.omitted
            ));
        }
        text
    })?;
    Ok(CommandAnswer::Yes)
}

fn replay_broker(out: &Out, log: &headway::report::BrokerLog) -> Result<CommandAnswer> {
    let replayed = match reports::replay_broker(log).map_err(headway::Error::into_failure) {
        Err(headway::Failure::ReplayBroker(difference)) if out.format == OutputFormat::Json => {
            let json = BrokerReplayAnswer {
                difference: Some(difference.to_string()),
                equal: false,
                replayed: None,
                schema: 1,
            };
            out.print(&json, String::new)?;
            return Ok(CommandAnswer::No);
        }
        replayed => replayed.map_err(headway::Error::from)?,
    };
    let json = BrokerReplayAnswer { difference: None, equal: true, replayed: Some(&replayed), schema: 1 };
    out.print(&serde_json::to_value(json)?, || {
        let mut text = format!(
            "the same: {} inputs of the broker's arbiter gave {} actions and {} refusals, byte for byte, from {} starts\n",
            replayed.inputs, replayed.actions, replayed.refused, replayed.starts
        );
        if replayed.missing + replayed.torn > 0 {
            text.push_str(&format!(
                "not in the log: {} lines that could not be written, {} that were cut off\n",
                replayed.missing, replayed.torn
            ));
        }
        text
    })?;
    Ok(CommandAnswer::Yes)
}

pub(crate) fn report(out: &Out, log: &Path, folder: Option<&Path>, traced: u64) -> Result<CommandAnswer> {
    if let Some(log) = reports::open_guest(log)? {
        let summary = reports::report_guest(&log);
        let folder = folder.map(|folder| reports::draw_guest(&log, folder)).transpose()?;
        out.print(&summary, || {
            let page = folder.map(|folder| format!("\npage     {}\n", folder.join(reports::PAGE).display()));
            summary.table() + &page.unwrap_or_default()
        })?;
        return Ok(if summary.differences.is_empty() { CommandAnswer::Yes } else { CommandAnswer::No });
    }
    if let Some(log) = reports::open_sharing(log)? {
        return sharing::report(out, &log, folder, traced);
    }
    let (summary, folder) = reports::report(log, folder, traced)?;
    out.print(&summary, || {
        let mut text = summary.table(show::width());
        if let Some(folder) = &folder {
            text.push_str(&format!(
                "\npage   {}\ntrace  {}\n",
                folder.join(reports::PAGE).display(),
                folder.join(reports::TRACE).display()
            ));
        }
        text
    })?;
    Ok(if summary.verdict.held { CommandAnswer::Yes } else { CommandAnswer::No })
}

#[derive(Serialize)]
struct MachineText<'a> {
    /// The machine file.
    file: &'a str,
    name: &'a str,
    /// Version of the JSON form.
    schema: u32,
}

#[derive(Serialize)]
struct ShippedMachines<'a> {
    /// Those that are shipped.
    machines: Vec<ShippedMachine<'a>>,
    /// Version of the JSON form.
    schema: u32,
}

/// A machine that is shipped.
#[derive(Serialize)]
struct ShippedMachine<'a> {
    /// Whether margin and jitter stand in its file.
    calibrated: bool,
    /// What stands behind them.
    confidence: Confidence,
    description: &'a str,
    /// How many it has.
    gpus: usize,
    name: &'a str,
}

pub(crate) fn machines(out: &Out, name: Option<&str>) -> Result<CommandAnswer> {
    if let Some(name) = name {
        let Some((_, text)) = headway::machine::SHIPPED.iter().find(|(shipped, _)| *shipped == name) else {
            // Names what is shipped.
            headway::machine::open(name)?;
            anyhow::bail!("`{name}` is a file: read it directly");
        };
        let json = MachineText { file: text, name, schema: 1 };
        out.print(&json, || (*text).to_owned())?;
        return Ok(CommandAnswer::Yes);
    }
    let machines: Vec<Machine> =
        headway::machine::SHIPPED.iter().filter_map(|(name, _)| headway::machine::shipped(name)).collect();
    let list = machines.iter().map(|machine| ShippedMachine {
        calibrated: machine.calibration.is_some(),
        confidence: machine.confidence(),
        description: &machine.description,
        gpus: machine.gpus().count(),
        name: &machine.name,
    });
    let json = ShippedMachines { machines: list.collect(), schema: 1 };
    out.print(&serde_json::to_value(json)?, || show::machines(&machines))?;
    Ok(CommandAnswer::Yes)
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<CommandAnswer> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "headway", &mut script);
    write_out(&script)?;
    Ok(CommandAnswer::Yes)
}
