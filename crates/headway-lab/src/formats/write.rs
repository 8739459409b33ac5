//! From demands to texts.

use std::collections::BTreeSet;

use headway_core::analysis::schedulability::{
    ConcreteTask, JobCosts, RecurrentTask, TestOutcome, TestViolation, Ties, concrete,
};
use headway_core::files::workload::{ServerDemand, Workload};
use headway_core::units::Nanos;

use super::jobs::{ImportedJob, unfold};
use super::{Export, FormatError};

/// `text` as a name of a workload file: what names may not hold becomes `_`.
pub(super) fn name(text: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || "_-.:/".contains(c) { c } else { '_' };
    let name: String = text.trim().chars().map(fits).take(64).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

/// `text` as the name of a workload, which also names a folder of results.
pub(super) fn workload_name(text: &str) -> String {
    let name = name(text).replace('/', "_");
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => name,
    }
}

/// A workload file.
pub(super) fn workload(name: &str, demands: &[ServerDemand]) -> String {
    let mut text = format!("name = \"{name}\"\ndescription = \"imported by headway {}\"\n", headway::VERSION);
    for demand in demands {
        text.push_str(&format!("\n[[demand]]\nid = \"{}\"\nserver = \"{}\"\n", demand.id, demand.server));
        if demand.start > Nanos::ZERO {
            text.push_str(&format!("start = \"{}\"\n", demand.start.exact()));
        }
        text.push_str(&format!("period = \"{}\"\ncost = \"{}\"\n", demand.period.exact(), demand.cost.exact()));
        if demand.deadline != demand.period {
            text.push_str(&format!("deadline = \"{}\"\n", demand.deadline.exact()));
        }
    }
    text
}

/// The demands of one server.
pub(super) fn chosen<'a>(
    workload: &'a Workload,
    server: Option<&str>,
) -> Result<(Vec<&'a ServerDemand>, Vec<String>), FormatError> {
    let instead = "give demands with costs: those of streams and messages depend on the machine";
    let refused = |place: String, what| Err(FormatError::CannotSay { place, what, instead });
    if let Some(stream) = workload.streams.first() {
        return refused(format!("stream `{}`", stream.id), "a stream");
    }
    if let Some(message) = workload.messages.first() {
        return refused(format!("message `{}`", message.id), "a message");
    }
    let servers: BTreeSet<&str> = workload.demands.iter().map(|f| f.server.as_str()).collect();
    let known = || servers.iter().copied().collect::<Vec<_>>().join(", ");
    let server = match (server, servers.first()) {
        (Some(server), _) if !servers.contains(server) => {
            return Err(FormatError::NoServer { server: server.to_owned(), known: known() });
        }
        (Some(server), _) => server,
        (None, Some(only)) if servers.len() == 1 => only,
        (None, _) => return Err(FormatError::Servers { known: known() }),
    };
    let demands: Vec<&ServerDemand> = workload.demands.iter().filter(|f| f.server == server).collect();
    let names: Vec<String> = (1..).zip(&demands).map(|(n, f)| format!("{n} = {}", f.id)).collect();
    Ok((demands, vec![format!("tasks: {}", names.join(", "))]))
}

/// All jobs of the window that stands for the endless schedule.
pub(super) fn jobs(
    demands: &[&ServerDemand],
    unit: Nanos,
    notes: &mut Vec<String>,
) -> Result<Vec<ImportedJob>, FormatError> {
    let tasks: Vec<ConcreteTask> =
        demands.iter().map(|f| ConcreteTask::at(f.start, RecurrentTask::whole(f.cost, f.period, f.deadline))).collect();
    // The tools for job sets let the lower task go first where deadlines are equal.
    let found = concrete(&tasks, JobCosts::UpToWorst, Ties::ByPosition);
    match found.verdict.outcome {
        TestOutcome::Undecided(reason) => return Err(FormatError::Window(reason)),
        TestOutcome::NotSchedulable(TestViolation::Utilisation) => return Err(FormatError::Overload),
        TestOutcome::NotSchedulable(_) => notes.push("headway finds a missed deadline in this window".to_owned()),
        TestOutcome::Schedulable => notes.push("headway finds no missed deadline".to_owned()),
    }
    let window = found.window;
    notes.push(format!(
        "window: all jobs released before {}; the hyperperiod has {}, after {} of them every state was met before",
        window.until.exact(),
        window.hyperperiod.exact(),
        window.hyperperiods
    ));
    let mut jobs = unfold(demands, window.until)?;
    for job in &mut jobs {
        let times = [&mut job.arrival.0, &mut job.arrival.1, &mut job.cost.0, &mut job.cost.1, &mut job.deadline];
        for time in times {
            *time = units(&format!("task {}", job.task), Nanos(*time), unit)?;
        }
        job.priority = job.deadline;
    }
    Ok(jobs)
}

/// A time as a whole number of units.
pub(super) fn units(place: &str, time: Nanos, unit: Nanos) -> Result<u64, FormatError> {
    if time.0.is_multiple_of(unit.0) {
        return Ok(time.0 / unit.0);
    }
    let (what, instead) = ("a time that is no whole number of units", "choose a smaller `--unit`");
    Err(FormatError::CannotSay { place: format!("{place}, {}", time.exact()), what, instead })
}

impl Export {
    /// Everything at its default.
    pub const PLAIN: Self = Self { unit: None, server: None };
}
