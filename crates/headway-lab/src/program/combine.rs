//! The benchmark of message combining.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use headway_cli::terminal::{Bar, CommandAnswer, Out, interrupt};
use headway_lab::combine::CombineBenchOptions;
use headway_measure::bench::{self, Target};

use super::args::CombineArgs;

pub(crate) fn combine(out: &Out, args: &CombineArgs) -> Result<CommandAnswer> {
    let interrupt = interrupt(out, "nothing");
    let options = CombineBenchOptions { out: args.out.clone(), seed: args.seed, quick: args.quick, interrupt };
    let mut bar = Bar::new(!out.quiet);
    let report = headway_lab::combine::run(&options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    if !report.complete {
        out.warn(bench::ENDED_EARLY);
    }
    out.print(&report, || targets(&report.targets, &report.folder))?;
    let missed = report.targets.iter().any(|target| target.outcome == bench::TargetOutcome::NotMet);
    Ok(CommandAnswer::of_bench(report.complete, missed && report.optimised))
}

/// Targets of a benchmark and where its figures are.
fn targets(targets: &[Target], folder: &Path) -> String {
    let mut text = String::new();
    for Target { target, measured, outcome } in targets {
        let _ = writeln!(text, "{:<12} {target}\n{:<12} {measured}", outcome.label(), "");
    }
    let _ = writeln!(text, "\nsummary   {}", folder.join("summary.md").display());
    text
}
