//! The figures as text for terminals.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::summary::{SharingSummary, TaskFigures};
use crate::table::tightest;

/// Pairs of tasks, one waiting for the other, that a terminal shows.
const WAIT_LINES: usize = 8;
/// Late jobs that a terminal gets.
const LATE_LINES: usize = 5;

fn percent(ppm: u64) -> String {
    let tenths = ppm.div_ceil(1_000);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

impl SharingSummary {
    /// The figures as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "workload  {} on {} ({}), {} after the first release\nsharing   {}\nverdict   {}\n\n",
            self.workload.name, self.machine.name, self.source, self.span, self.rules, self.verdict.text
        );
        let wide = self.tasks.iter().map(|task| task.id.chars().count()).max().unwrap_or(0).clamp(4, 24);
        let _ = writeln!(
            text,
            "{:<wide$} {:>6} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9} {:>11} {:>11}",
            "task", "jobs", "mean", "p50", "p99", "max", "late", "migrated", "blocked", "bound"
        );
        let (tasks, shown) = tightest(self.tasks.iter(), "that were late most or took longest", |task| {
            Reverse((task.misses, task.max_ppm))
        });
        for task in tasks {
            text.push_str(&line(task, wide));
        }
        if !shown.is_empty() {
            let _ = writeln!(text, "          tasks{shown}");
        }
        text.push_str(
            "          responses in percent of the period; blocked: the longest wait for token and engines together\n",
        );
        let (engines, shown) = tightest(self.engines.iter(), "that were busiest", |engine| Reverse(engine.busy_ppm));
        let busy: Vec<_> = engines.iter().map(|engine| format!("{} {}", engine.id, percent(engine.busy_ppm))).collect();
        if !busy.is_empty() {
            let _ = writeln!(text, "\nbusy      {}{shown}", busy.join(", "));
        }
        for (at, wait) in self.waits.iter().take(WAIT_LINES).enumerate() {
            let head = if at == 0 { "\nwaited    " } else { "          " };
            let _ = writeln!(
                text,
                "{head}{} behind {} for {}: {} times, {} in all, {} at most",
                wait.task, wait.behind, wait.what, wait.count, wait.total, wait.max
            );
        }
        for (at, late) in self.late.iter().take(LATE_LINES).enumerate() {
            let head = if at == 0 { "\nlate      " } else { "          " };
            let _ = writeln!(text, "{head}{late}");
        }
        for what in &self.left_out {
            let _ = writeln!(text, "left out  {what}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "note      {note}");
        }
        text
    }
}

fn line(task: &TaskFigures, wide: usize) -> String {
    let bound = task.bound.map_or_else(|| "-".to_owned(), |bound| bound.blocking.to_string());
    format!(
        "{:<wide$} {:>6} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9} {:>11} {bound:>11}\n",
        task.id,
        task.jobs,
        percent(task.mean_ppm),
        percent(task.p50_ppm),
        task.p99_ppm.map_or_else(|| "-".to_owned(), percent),
        percent(task.max_ppm),
        task.misses,
        task.migrations,
        task.blocked_max[2].to_string(),
    )
}
