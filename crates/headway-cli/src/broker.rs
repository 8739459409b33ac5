//! The commands of GPU sharing: the broker, and its holders and waiters.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use headway::broker::{
    self, BrokerOptions, BrokerStatus, EngineRole, LimitUse, LockId, LockOrder, MemoryStatus, MpsOptions, MpsStatus,
    Phase, TokenMode, UserAccess,
};
use headway::metrics::{MetricsAddress, MetricsServer, MetricsSource};
use headway::mps;
use headway::units::{Bytes, Nanos};
use headway_cli::terminal::{CommandAnswer, Out, printable, say};

use crate::args::{BrokerArgs, GUARD, ModeArg};

pub(crate) fn broker(out: &Out, args: &BrokerArgs) -> Result<CommandAnswer> {
    // Orderly, whoever asks: the socket is removed, and priorities are taken back.
    let stop = headway::stop_when_told().context("cannot listen for signals")?;
    let mode = args.mode.map(|mode| match mode {
        ModeArg::Optimal => TokenMode::Optimal,
        ModeArg::WorkConserving => TokenMode::WorkConserving,
        ModeArg::Fifo => TokenMode::Fifo,
        ModeArg::Priority => TokenMode::Priority,
    });
    let usual = BrokerOptions::default();
    let options = BrokerOptions {
        socket: args.socket.clone(),
        access: if args.group { UserAccess::Group } else { UserAccess::Private },
        machine: args.machine.clone(),
        gpus: args.gpus,
        cpus: args.cpus,
        per_gpu: args.tokens,
        mode,
        engine_locks: !args.no_engine_locks,
        copy_engines: args.copy_engines,
        order: if args.urgent_first { LockOrder::Urgency } else { LockOrder::Arrival },
        chunk: Some(args.chunk),
        drain: args.drain,
        watchdog: args.watchdog,
        recover: args.recover,
        spin: args.spin.unwrap_or(usual.spin),
        spin_share_ppm: args.spin_share.map_or(usual.spin_share_ppm, |percent| u64::from(percent) * 10_000),
        boost: !args.no_boost,
        lend_realtime: args.lend_realtime,
        deadline_min: args.least_deadline,
        flow_programs: args.flow_programs,
        tasks_max: args.tasks,
        despite_claims: args.despite_claims,
        log: args.log.clone(),
        log_bytes: args.log_size,
        log_files: args.log_files,
        must_remember: args.must_remember,
        mps: args.mps.then(guardian).transpose()?,
        ..usual
    };
    let _metrics = serve_metrics(out, args.metrics.as_ref(), || MetricsSource::Broker(broker::socket(&options)))?;
    // Whatever goes wrong is said, also to who wants no notes.
    let tell = |text: &str| say(&format!("warning: {text}"));
    broker::serve(&options, &stop, tell, |socket| {
        if !out.quiet {
            say(&format!("listening at {}", printable(&socket.display().to_string())));
            say(&format!(
                "its GPUs are those of machine `{}` (`--machine`); whether they are there is not looked at",
                printable(&args.machine)
            ));
        }
    })?;
    Ok(CommandAnswer::Yes)
}

/// Serves metrics until the answer is dropped, if that is asked for.
pub(crate) fn serve_metrics(
    out: &Out,
    address: Option<&MetricsAddress>,
    source: impl FnOnce() -> MetricsSource,
) -> Result<Option<MetricsServer>> {
    let server = address.map(|address| MetricsServer::start(address, source())).transpose()?;
    if let Some(server) = &server {
        out.note(&format!("metrics at {}", server.address()));
    }
    Ok(server)
}

/// This program, as the guardian of an MPS daemon.
fn guardian() -> Result<MpsOptions> {
    let program = std::env::current_exe().context("cannot find this program, which is to guard the MPS daemon")?;
    Ok(MpsOptions { guardian: vec![program.into(), GUARD.into()] })
}

/// Guards the MPS daemon in `folder`.
pub(crate) fn guard(folder: &Path) -> Result<CommandAnswer> {
    mps::guard(folder).context("cannot guard the MPS daemon")?;
    Ok(CommandAnswer::Yes)
}

pub(crate) fn status(out: &Out, socket: Option<&Path>, lost: Option<u32>) -> Result<CommandAnswer> {
    if let Some(gpu) = lost {
        broker::declare_lost(socket, gpu)?;
    }
    let status = broker::status(socket)?;
    out.print(&status, || text(&status))?;
    Ok(CommandAnswer::Yes)
}

fn lock(lock: &LockId) -> String {
    let engine = match lock.engine {
        EngineRole::Execute => "ee",
        EngineRole::In => "h2d",
        EngineRole::Out => "d2h",
    };
    format!("gpu{}.{engine}", lock.gpu.0)
}

fn list(words: impl IntoIterator<Item = String>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}

/// What is written down, and why not where that fails.
fn memory(memory: &MemoryStatus) -> String {
    let log = match (&memory.log, &memory.trouble) {
        (None, None) => "tokens and their holders".to_owned(),
        (Some(log), None) => format!("everything, in {log}"),
        (None, Some(_)) => "not even tokens and their holders, since that cannot be written".to_owned(),
        (Some(log), Some(_)) => format!("not everything, since that cannot be written; should be in {log}"),
    };
    let must = if memory.must_remember { "; grants nothing that it cannot write down" } else { "" };
    let mut text = format!("memory    {log}{must}\n");
    if let Some(trouble) = &memory.trouble {
        let _ = writeln!(text, "          {trouble}; {} grants wait for that", memory.withheld);
    }
    if let Some(obstacle) = &memory.obstacle {
        let _ = writeln!(text, "          full files of the log are dropped until `{obstacle}` is moved away");
    }
    if memory.gaps > 0 {
        let _ = writeln!(
            text,
            "          could not be written {} times, {} lines are missing",
            memory.gaps, memory.missing
        );
    }
    text
}

/// The MPS daemon.
fn daemon(status: &BrokerStatus) -> String {
    let line = |mps: &MpsStatus| format!("MPS       daemon {}, in {}; it logs in {}\n", mps.pid, mps.folder, mps.log);
    status.mps.as_ref().map_or_else(String::new, line)
}

fn share(limit: LimitUse) -> String {
    format!("{} of {}", limit.used, limit.most)
}

pub(crate) fn text(status: &BrokerStatus) -> String {
    let mut text = format!("broker    process {}, start {}, up {}\n", status.pid, status.epoch, status.uptime);
    if status.recovering {
        text.push_str("          waits for the clients of its predecessor; nothing is granted meanwhile\n");
    }
    let _ = writeln!(text, "priority  of holders {}", status.priority);
    let _ = writeln!(text, "thread    {}", status.scheduling);
    text.push_str(&(memory(&status.memory) + &daemon(status)));
    let counts = &status.counts;
    let _ = writeln!(
        text,
        "granted   {} tokens, {} engine requests, {} leases; {} refused, {} clients cut off",
        counts.tokens, counts.engines, counts.leases, counts.refused, counts.cut
    );
    for gpu in &status.gpus {
        let held = list(gpu.holders.iter().map(|task| format!("task {}", task.0)));
        let held = if held.is_empty() { "free".to_owned() } else { held };
        let leased =
            gpu.leased_to.map_or_else(String::new, |client| format!("; engines leased to client {}", client.0));
        let name = format!("gpu{}", gpu.gpu.0);
        if gpu.lost {
            let _ = writeln!(text, "{name:<9} lost");
            continue;
        }
        let faults = if gpu.faults > 0 { format!("; {} reports of a fault", gpu.faults) } else { String::new() };
        let (used, tokens) = (gpu.holders.len(), gpu.tokens);
        let _ = writeln!(text, "{name:<9} {used} of {tokens} tokens in use: {held}{leased}{faults}");
    }
    let _ = writeln!(
        text,
        "shared    {} tasks, {} descriptors",
        share(status.shared.tasks),
        share(status.shared.descriptors)
    );
    for user in &status.users {
        let log = user
            .log_bytes
            .map_or_else(String::new, |log| format!(", {} of {} of the log", Bytes(log.used), Bytes(log.most)));
        let _ = writeln!(
            text,
            "user      {}: {} clients, {} tasks with {} segments, {} requests, {} flows, {} % of a GPU declared{log}; {} connections \
             have not said who they are",
            user.uid,
            share(user.clients),
            share(user.tasks),
            share(user.segments),
            share(user.requests),
            share(user.flows),
            share(LimitUse { used: user.utilisation_ppm.used / 10_000, most: user.utilisation_ppm.most / 10_000 }),
            share(user.unidentified),
        );
    }
    for client in &status.clients {
        let state = if client.draining { ", gone; its GPU work is waited for" } else { "" };
        let _ = writeln!(
            text,
            "client    {} `{}`, process {} of user {}, {} tasks{state}",
            client.client.0, client.name, client.pid, client.uid, client.tasks
        );
    }
    for flow in &status.flows {
        let _ = writeln!(
            text,
            "flow      `{}` of client {}: {} {} {} every {}, each within {}",
            flow.name,
            flow.client.0,
            flow.bytes,
            flow.direction.preposition(),
            flow.gpu,
            flow.period,
            flow.deadline
        );
    }
    if status.omitted > 0 {
        let _ = writeln!(
            text,
            "          {} more users, clients, jobs and flows, for which the answer has no room",
            status.omitted
        );
    }
    if !status.without_room.is_empty() {
        let tasks = list(status.without_room.iter().map(|task| format!("task {}", task.0)));
        let _ = writeln!(text, "no room   on the GPUs that are left, by what they declare: {tasks}");
    }
    for job in &status.jobs {
        let phase = match &job.phase {
            Phase::WaitsForToken => "waits for a token".to_owned(),
            Phase::Holds { gpu, waits_for, runs_on, .. } => {
                let waits = if waits_for.is_empty() {
                    String::new()
                } else {
                    format!(", waits for {}", list(waits_for.iter().map(lock)))
                };
                let runs = if runs_on.is_empty() {
                    String::new()
                } else {
                    format!(", runs on {}", list(runs_on.iter().map(lock)))
                };
                format!("holds gpu{}{waits}{runs}", gpu.0)
            }
        };
        let slack = Nanos(job.slack_ns.unsigned_abs());
        let deadline = if job.slack_ns < 0 { format!("late by {slack}") } else { format!("{slack} to its deadline") };
        let _ = writeln!(
            text,
            "task {:<4} `{}` job {}: {phase} for {}, {deadline}",
            job.task.0, job.name, job.job, job.since
        );
    }
    text
}
