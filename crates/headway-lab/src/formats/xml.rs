//! Task sets of SchedCAT and configurations of SimSo.

use headway_core::files::workload::ServerDemand;
use headway_core::units::Nanos;
use roxmltree::{Document, Node};

use super::write::{name, units};
use super::{Demands, FormatError, excerpt, integer, milliseconds, time};

fn missing(place: &str, what: &'static str) -> FormatError {
    FormatError::Missing { place: place.to_owned(), what }
}

/// Reads a `taskset` with `task` elements that have `period`, `wcet` and at times `deadline`, in units of `unit`.
pub(super) fn read_schedcat(text: &str, unit: Nanos) -> Result<Demands, FormatError> {
    let document = Document::parse(text)?;
    let root = document.root_element();
    if !root.has_tag_name("taskset") {
        return Err(missing("the document", "element `taskset`"));
    }
    let mut demands = Vec::new();
    for (number, task) in (1..).zip(root.children().filter(|node| node.has_tag_name("task"))) {
        let id = task.attribute("id").map_or_else(|| number.to_string(), str::to_owned);
        let place = format!("task {}", excerpt(&id));
        if task.children().any(|node| node.is_element()) {
            let instead = "remove them: requests for resources need the token model";
            return Err(FormatError::CannotSay { place, what: "elements inside a task", instead });
        }
        let at = |what: &'static str| {
            let text = task.attribute(what).ok_or_else(|| missing(&place, what))?;
            time(&place, integer(&format!("{place}, `{what}`"), text)?, unit)
        };
        let (cost, period) = (at("wcet")?, at("period")?);
        let deadline = if task.has_attribute("deadline") { at("deadline")? } else { period };
        demands.push(demand(&format!("task{id}"), Nanos::ZERO, cost, period, deadline));
    }
    let mut notes = Vec::new();
    if root.descendants().any(|node| node.has_attribute("partition")) {
        notes.push("partitions are left out: all tasks share one server".to_owned());
    }
    Ok((demands, notes))
}

fn demand(id: &str, start: Nanos, cost: Nanos, period: Nanos, deadline: Nanos) -> ServerDemand {
    ServerDemand { id: name(id), server: String::new(), start, cost, period, deadline }
}

/// Writes a SchedCAT task set.
pub(super) fn write_schedcat(demands: &[&ServerDemand], unit: Nanos) -> Result<String, FormatError> {
    let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<taskset>\n".to_owned();
    for (number, demand) in (1..).zip(demands) {
        let place = format!("demand `{}`", demand.id);
        if demand.start > Nanos::ZERO {
            let instead = "leave out `start`: the tasks of that format may be released at any time";
            return Err(FormatError::CannotSay { place, what: "a first release", instead });
        }
        let at = |time| units(&place, time, unit);
        let (period, cost, deadline) = (at(demand.period)?, at(demand.cost)?, at(demand.deadline)?);
        text.push_str(&format!(
            "  <task id=\"{number}\" period=\"{period}\" wcet=\"{cost}\" deadline=\"{deadline}\"/>\n"
        ));
    }
    text.push_str("</taskset>\n");
    Ok(text)
}

/// What a task of SimSo may have that changes what must be guaranteed: attribute, value that stands for none, what it is.
const SIMSO_REFUSED: [(&str, &str, &str); 2] =
    [("list_activation_dates", "", "a list of releases"), ("followed_by", "", "a task that follows another")];

/// Reads a configuration of SimSo; times are decimal numbers of milliseconds.
pub(super) fn read_simso(text: &str) -> Result<Demands, FormatError> {
    let document = Document::parse(text)?;
    let root = document.root_element();
    if !root.has_tag_name("simulation") {
        return Err(missing("the document", "element `simulation`"));
    }
    if root.descendants().filter(|node| node.has_tag_name("processor")).count() > 1 {
        let (place, what) = ("the configuration".to_owned(), "more than one processor");
        let instead = "export the tasks of each processor by themselves";
        return Err(FormatError::CannotSay { place, what, instead });
    }
    let mut notes = vec![
        "scheduler, overheads, caches and average costs are left out: demands are served by non-preemptive EDF with costs up \
         to WCET"
            .to_owned(),
    ];
    let mut demands = Vec::new();
    for task in root.descendants().filter(|node| node.has_tag_name("task")) {
        let (demand, aborts) = simso_task(task)?;
        if aborts && notes.len() == 1 {
            notes.push("`abort_on_miss` is left out: it only matters where a deadline is missed".to_owned());
        }
        demands.push(demand);
    }
    Ok((demands, notes))
}

fn simso_task(task: Node<'_, '_>) -> Result<(ServerDemand, bool), FormatError> {
    let id = task.attribute("name").or_else(|| task.attribute("id")).unwrap_or_default();
    let place = format!("task `{}`", excerpt(id));
    if let Some(kind) = task.attribute("task_type").filter(|kind| *kind != "Periodic") {
        let instead = "use tasks of type Periodic";
        let place = format!("{place}, type `{}`", excerpt(kind));
        return Err(FormatError::CannotSay { place, what: "such a task", instead });
    }
    for (attribute, none, what) in SIMSO_REFUSED {
        if task.attribute(attribute).is_some_and(|value| value.trim() != none) {
            return Err(FormatError::CannotSay { place, what, instead: "remove it" });
        }
    }
    let at = |what: &'static str| {
        let text = task.attribute(what).ok_or_else(|| missing(&place, what))?;
        milliseconds(&format!("{place}, `{what}`"), text)
    };
    let (cost, period) = (at("WCET")?, at("period")?);
    let deadline = if task.has_attribute("deadline") { at("deadline")? } else { period };
    let start = if task.has_attribute("activationDate") { at("activationDate")? } else { Nanos::ZERO };
    let aborts = task.attribute("abort_on_miss").is_some_and(|value| matches!(value, "yes" | "true"));
    Ok((demand(id, start, cost, period, deadline), aborts))
}

/// A time as a decimal number of milliseconds.
fn decimal(time: Nanos) -> String {
    let (whole, rest) = (time.0 / 1_000_000, time.0 % 1_000_000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{}", format!("{rest:06}").trim_end_matches('0')) }
}

/// Writes a configuration of SimSo.
pub(super) fn write_simso(demands: &[&ServerDemand], notes: &mut Vec<String>) -> String {
    notes.push("SimSo ships no non-preemptive EDF: the file names `./np_edf.py`, a class of your own".to_owned());
    let longest = demands.iter().map(|f| f.start.0.saturating_add(f.period.0)).max().unwrap_or(1);
    let cycles = longest.saturating_mul(10);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<simulation cycles_per_ms=\"1000000\" duration=\"{cycles}\">\n  \
         <sched className=\"./np_edf.py\"/>\n  <processors>\n    <processor name=\"engine\" id=\"1\"/>\n  </processors>\n  \
         <tasks>\n"
    );
    for (number, demand) in (1..).zip(demands) {
        text.push_str(&format!(
            "    <task id=\"{number}\" name=\"{}\" task_type=\"Periodic\" abort_on_miss=\"no\" period=\"{}\" \
             activationDate=\"{}\" deadline=\"{}\" WCET=\"{}\"/>\n",
            demand.id,
            decimal(demand.period),
            decimal(demand.start),
            decimal(demand.deadline),
            decimal(demand.cost)
        ));
    }
    text.push_str("  </tasks>\n</simulation>\n");
    text
}
