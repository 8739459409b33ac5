//! The benchmark of arbitration between processes.

use std::fmt::Write;

use anyhow::Result;
use headway_cli::terminal::{Bar, CommandAnswer, Out, interrupt};
use headway_lab::broker::{BrokerBenchOptions, BrokerBenchReport, measure};

use super::args::BrokerBenchArgs;

pub(crate) fn broker(out: &Out, args: &BrokerBenchArgs) -> Result<CommandAnswer> {
    let options =
        BrokerBenchOptions { out: args.out.clone(), quick: args.quick, interrupt: interrupt(out, "processes") };
    out.foresee(options.estimate());
    let mut bar = Bar::new(!out.quiet);
    let report = measure(&options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    for warning in &report.warnings {
        out.warn(warning);
    }
    out.print(&report, || shown(&report))?;
    Ok(CommandAnswer::of_bench(report.complete, report.is_behind()))
}

fn shown(report: &BrokerBenchReport) -> String {
    let mut text =
        format!("machine   {}, {} CPUs, {}\n\n", report.machine.cpu, report.machine.cpus, report.machine.kernel);
    for row in &report.rows {
        let _ = writeln!(
            text,
            "{:<66} n {:>7}  median {:>9}  p99 {:>9}  max {:>9}",
            row.what,
            row.n,
            row.median.to_string(),
            row.p99.map_or_else(|| "-".to_owned(), |p99| p99.to_string()),
            row.max.to_string()
        );
    }
    text.push('\n');
    for target in &report.targets {
        let _ = writeln!(text, "{:<12} {}: {}", target.outcome.label(), target.target, target.measured);
    }
    let _ = writeln!(text, "\nsummary   {}", report.folder.join("summary.md").display());
    text
}
