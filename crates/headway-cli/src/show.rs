//! Plans, findings and results as text for people.

use std::ffi::OsStr;
use std::fmt::Write;

use headway::doctor::{Examination, State};
use headway::keep::Keep;
use headway::machine::Machine;
use headway::report::{PAGE, TRACE};
use headway::run::{RequestedClass, RunReport, RunSource};
use headway::units::{Bytes, Nanos};

use crate::args::RunArgs;

/// Columns of a table: what `$COLUMNS` says, else those of the terminal, else 100.
pub(crate) fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || terminal_size::terminal_size_of(std::io::stdout()).map(|(columns, _)| columns.0.into());
    told.or_else(terminal).unwrap_or(100)
}

pub(crate) fn examination(examination: &Examination) -> String {
    let mut text = format!("headway {} ({})\n\n", examination.version, examination.commit);
    for check in &examination.checks {
        let mark = match check.state {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Limited => "limited",
        };
        let _ = writeln!(text, "{mark:<8} {:<15} {}", check.what, check.found);
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(text, "{:<24} {remedy}", "");
        }
    }
    text
}

pub(crate) fn machines(machines: &[Machine]) -> String {
    let mut text = String::new();
    for machine in machines {
        let gpus = machine.gpus().count();
        let calibrated = match &machine.calibration {
            None => "not measured, costs have no margin".to_owned(),
            Some(calibration) if calibration.is_vouched() => "not measured, its file vouches for its rates".to_owned(),
            Some(calibration) if calibration.driver == "none" => "not measured, its file states a margin".to_owned(),
            Some(calibration) if calibration.batches == 0 => "measured, no batches checked its margin".to_owned(),
            Some(calibration) => format!("measured, {} batches checked its margin", calibration.batches),
        };
        let _ = writeln!(
            text,
            "{:<20} {gpus} GPU{}, {calibrated}\n{:<20} {}",
            machine.name,
            if gpus == 1 { "" } else { "s" },
            "",
            machine.description
        );
    }
    text
}

/// What follows the name of a machine that nobody named.
pub(crate) fn chosen(usual: bool) -> &'static str {
    if usual { ", as no `--machine` was given; `headway machines` lists others" } else { "" }
}

pub(crate) fn run(report: &RunReport, args: &RunArgs) -> String {
    let mut text = report.summary.table(width());
    let _ = writeln!(text);
    imitation(&mut text, report.imitates.as_deref());
    if report.summary.source == RunSource::Sim {
        text.push_str(
            "simulated one trace at the machine's typical rates, without the margin and the jitter that the plan adds; another \
             `--seed` changes data, urgent requests and late producers, not costs. `headway plan` answers for the worst case\n",
        );
    }
    if report.verified > 0 {
        let streams = if report.verified == 1 {
            "1 stream equals".to_owned()
        } else {
            format!("{} streams equal", report.verified)
        };
        let _ = writeln!(text, "verified  {streams} what the CPU makes of the same input");
    }
    let messages = &report.messages;
    if messages.moved > 0 {
        let _ = writeln!(
            text,
            "compared  {} of {} that messages moved in {} blocks, all as they were sent",
            Bytes(messages.equal),
            Bytes(messages.moved),
            messages.blocks
        );
    }
    if args.plan.machine.is_none() {
        let _ = writeln!(text, "machine   {}{}", report.summary.machine.name, chosen(true));
    }
    let folder = &report.folder;
    let _ = writeln!(text, "results   {}", folder.display());
    let _ = writeln!(text, "page      {}", folder.join(PAGE).display());
    let _ = writeln!(text, "trace     {} (open in https://ui.perfetto.dev)", folder.join(TRACE).display());
    let _ = writeln!(text, "again     {}", again(report, args));
    text
}

/// Says what emulated GPUs imitate.
pub(crate) fn imitation(text: &mut String, imitates: Option<&str>) {
    if let Some(imitates) = imitates {
        let _ = writeln!(text, "emulated  {imitates}");
    }
}

/// The command that repeats this run.
fn again(report: &RunReport, args: &RunArgs) -> String {
    let summary = &report.summary;
    let mut command = format!("headway run {} --backend {}", quoted(&args.plan.workload), summary.source);
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(command, " --{name} {value}");
        }
    };
    option("machine", args.plan.machine.as_ref().map(quoted));
    option("gpus", args.plan.gpus.map(|gpus| gpus.to_string()));
    option("strategy", args.plan.strategy.map(|strategy| strategy.name().to_owned()));
    option("input", args.input.as_ref().map(quoted));
    option("duration", args.duration.map(exactly));
    option("seed", args.seed.map(|seed| seed.to_string()));
    option("cpu-class", (args.cpu_class != RequestedClass::Auto).then(|| args.cpu_class.word().to_owned()));
    // The folder is repeated in full: `--duration` is printed in another unit here, which would name another folder.
    let named = (summary.complete && !args.label.is_empty()).then_some(&report.folder);
    option("out", args.out.as_ref().or(named).map(quoted));
    let usual = Keep::default();
    option("sample-max", args.sample_max.map(|bytes| format!("'{} B'", bytes.0)));
    option("log-max", (args.log_max != usual.log).then(|| format!("'{} B'", args.log_max.0)));
    option("trace-max", (args.trace_max != usual.traced).then(|| args.trace_max.to_string()));
    for (name, given) in [("force", args.force), ("no-verify", args.no_verify), ("time-only", args.time_only)] {
        if given {
            let _ = write!(command, " --{name}");
        }
    }
    command
}

/// A time for a shell, in a unit that loses nothing of it.
fn exactly(time: Nanos) -> String {
    let text = time.to_string();
    if text.parse() == Ok(time) { format!("'{text}'") } else { format!("'{} ns'", time.0) }
}

/// `word` as a shell reads it back.
pub(crate) fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref().to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_only_where_a_shell_would_take_them_apart() {
        assert_eq!(quoted("workloads/encrypt.toml"), "workloads/encrypt.toml");
        assert_eq!(quoted("my data"), "'my data'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_time_is_told_as_it_is_read_back() {
        assert_eq!([100_000_000, 2_000_000_001].map(|ns| exactly(Nanos(ns))), ["'100 ms'", "'2000000001 ns'"]);
    }
}
