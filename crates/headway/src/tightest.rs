//! Long tables for people: the lines that say most, and how many more there are. JSON has all of them.

use std::cmp::Reverse;
use std::fmt::Write;

use crate::share::TaskReport;
use headway_core::plan::{Pipeline, Plan, PlannedStep, Server};

/// Lines of a table.
pub const LINES: usize = 16;
/// Batches with tables of their own.
pub const BATCHES: usize = 4;

/// The `most` of `all` with the smallest keys, in the order of `all` if these are all of them, else in that of their keys.
pub fn tightest<'a, T, K: Ord>(
    all: impl IntoIterator<Item = &'a T>,
    most: usize,
    key: impl FnMut(&&'a T) -> K,
) -> Vec<&'a T> {
    let mut all: Vec<&T> = all.into_iter().collect();
    if all.len() > most {
        all.sort_by_key(key);
        all.truncate(most);
    }
    all
}

/// Says below a table how many of `all` it leaves out, if any, and which it has.
pub fn more(text: &mut String, all: usize, shown: usize, what: &str, order: &str) {
    if all > shown {
        let _ = writeln!(text, "and {} more {what}; above, those {order}; `--format json` has all", all - shown);
    }
}

/// Least margin first; the one that is used most of those without.
pub fn of_server(server: &Server) -> (u64, Reverse<u64>) {
    (server.verdict.margin_ppm.unwrap_or(0), Reverse(server.verdict.utilisation_ppm))
}

/// The pipelines of the tightest server first, then those that need most of a window of theirs.
pub fn of_pipeline(plan: &Plan, pipeline: &Pipeline) -> (u64, Reverse<u128>) {
    let margin =
        |server: u32| plan.servers.get(server as usize).and_then(|server| server.verdict.margin_ppm).unwrap_or(0);
    let window = |at: usize| pipeline.windows.get(at).copied().unwrap_or(pipeline.window).0.max(1);
    let used = |(at, step): (usize, &PlannedStep)| u128::from(step.cost.0) * 1_000_000 / u128::from(window(at));
    let least = pipeline.steps.iter().map(|step| margin(step.server)).min().unwrap_or(0);
    (least, Reverse(pipeline.steps.iter().enumerate().map(used).max().unwrap_or(0)))
}

/// Tasks without a bound first, then those whose jobs take most of their period.
pub fn of_task(task: &TaskReport) -> (bool, Reverse<u128>) {
    (task.tardiness.is_some(), Reverse(u128::from(task.inflated.0) * 1_000_000 / u128::from(task.period.0.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_table_keeps_its_order_and_a_long_one_has_the_tightest_and_says_how_many_more() {
        let all = [5, 3, 9, 1];
        assert_eq!(tightest(&all, 4, |key| **key), [&5, &3, &9, &1]);
        assert_eq!(tightest(&all, 2, |key| **key), [&1, &3]);
        let said = |shown| {
            let mut text = String::new();
            more(&mut text, all.len(), shown, "servers", "with the least margin");
            text
        };
        assert_eq!(said(4), "");
        assert_eq!(said(2), "and 2 more servers; above, those with the least margin; `--format json` has all\n");
    }
}
