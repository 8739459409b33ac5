//! `headway top`: who copies how much on which engine, now.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::{Result, bail};
use headway::activity::{Activity, ActivityMonitor, LinkActivity};
use headway::broker::{self, BrokerStatus};
use headway::units::{Nanos, Rate};
use headway_cli::terminal::{CommandAnswer, Out, OutputFormat, interrupt, printable, write_out};
use serde::Serialize;

use crate::args::TopArgs;
use crate::broker::text as status_text;

/// One look: copies of the user's programs, and the clients of the broker.
#[derive(Serialize)]
struct TopReport {
    activity: Activity,
    /// The broker; null = there is none.
    broker: Option<BrokerStatus>,
    /// Version of the JSON form.
    schema: u32,
}

pub(crate) fn top(out: &Out, args: &TopArgs) -> Result<CommandAnswer> {
    let is_once = args.once || out.format == OutputFormat::Json;
    if !is_once && !io::stdout().is_terminal() {
        bail!("the standard output is no terminal; use `--once`, with `--format json` for programs");
    }
    let stop = interrupt(out, "nothing");
    let interval = Duration::from_nanos(args.interval.0);
    let mut monitor = ActivityMonitor::new();
    loop {
        let activity = monitor.wait(interval, &stop);
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(if is_once { CommandAnswer::Interrupted } else { CommandAnswer::Yes });
        }
        // Most machines have none; one that was named must be there.
        let broker = match (broker::status(args.socket.as_deref()), &args.socket) {
            (Err(error), Some(_)) => return Err(error.into()),
            (status, _) => status.ok(),
        };
        let report = TopReport { activity, broker, schema: 1 };
        if is_once {
            out.print(&report, || text(&report))?;
            return Ok(CommandAnswer::Yes);
        }
        write_out(screen(&printable(&text(&report))).as_bytes())?;
    }
}

/// The text in place of what the terminal shows, cut to its size.
fn screen(text: &str) -> String {
    let size = terminal_size::terminal_size_of(io::stdout());
    let (columns, rows) = size.map_or((100, 24), |(columns, rows)| (usize::from(columns.0), usize::from(rows.0)));
    let lines: Vec<String> =
        text.lines().take(rows.saturating_sub(1)).map(|line| cut(line, columns) + "\x1b[K").collect();
    format!("\x1b[H{}\n\x1b[J", lines.join("\n"))
}

/// The line in so many columns, with a sign where it goes on.
fn cut(line: &str, columns: usize) -> String {
    match line.char_indices().nth(columns) {
        None => line.to_owned(),
        Some(_) => line.chars().take(columns.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn text(report: &TopReport) -> String {
    let Activity { interval, no_counters, no_board, processes, processes_max, gpus } = &report.activity;
    let mut text =
        format!("processes that tell of their copies: {processes}; in the last {interval}, misses since each began\n");
    if processes >= processes_max {
        let _ = writeln!(text, "no more than {processes_max} can: programs that began later are not counted");
    }
    if let Some(why) = no_board {
        let _ = writeln!(text, "no process can tell of its copies: {why}");
    }
    if let Some(why) = no_counters {
        let all = if gpus.iter().any(|gpu| gpu.outward.carried.is_some()) { "some links" } else { "links" };
        let _ = writeln!(text, "what {all} carry is not known: {why}");
    }
    for gpu in gpus {
        for (direction, link) in [("in", &gpu.inward), ("out", &gpu.outward)] {
            if link.carried.is_some() || !link.copiers.is_empty() {
                let _ = writeln!(text, "\n{} {direction}: {}", gpu.gpu, totals(link, *interval));
                table(&mut text, link, *interval);
            }
        }
    }
    if let Some(status) = &report.broker {
        let _ = write!(text, "\n{}", status_text(status));
    }
    text
}

fn rate(bytes: u64, interval: Nanos) -> String {
    let per_s = u128::from(bytes) * 1_000_000_000 / u128::from(interval.0.max(1));
    Rate(u64::try_from(per_s).unwrap_or(u64::MAX)).to_string()
}

fn totals(link: &LinkActivity, interval: Nanos) -> String {
    let told = rate(link.told, interval);
    match (link.carried, link.others) {
        (Some(carried), Some(others)) => {
            format!(
                "the link carried {}, {told} of these processes, {} of others",
                rate(carried, interval),
                rate(others, interval)
            )
        }
        _ => format!("{told} of these processes"),
    }
}

fn table(text: &mut String, link: &LinkActivity, interval: Nanos) {
    if link.copiers.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "{:>8} {:<15} {:<10} {:>11} {:>6} {:>8} {:>9} {:>6}  BEHIND",
        "PROCESS", "COMMAND", "CLASS", "RATE", "SHARE", "COPIES/S", "WAITED", "MISSES"
    );
    let whole = link.carried.unwrap_or(0).max(link.told).max(1);
    for copier in &link.copiers {
        let per_s = copier.copies as f64 * 1e9 / interval.0.max(1) as f64;
        let waited = if copier.waited == Nanos::ZERO { "-".to_owned() } else { copier.waited.to_string() };
        let _ = writeln!(
            text,
            "{:>8} {:<15} {:<10} {:>11} {:>5.1}% {per_s:>8.0} {waited:>9} {:>6}  {}",
            copier.pid,
            copier.command,
            copier.class,
            rate(copier.bytes, interval),
            copier.bytes as f64 * 100.0 / whole as f64,
            copier.misses,
            copier.behind.as_deref().unwrap_or("-")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_cut_says_so() {
        assert_eq!(["", "four", "fünf!"].map(|line| cut(line, 4)), ["", "four", "fün…"]);
    }
}
