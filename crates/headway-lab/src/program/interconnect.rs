//! The benchmark of the interconnect model.

use std::fmt::Write;

use anyhow::Result;
use headway_cli::terminal::{Bar, CommandAnswer, Out, interrupt};
use headway_lab::interconnect::{InterconnectBenchOptions, InterconnectBenchReport, run};
use headway_measure::bench::TargetOutcome;

use super::args::InterconnectArgs;

pub(crate) fn interconnect(out: &Out, args: &InterconnectArgs) -> Result<CommandAnswer> {
    let options = InterconnectBenchOptions {
        backend: args.backend.into(),
        model: args.model.clone(),
        machine: args.machine.clone(),
        gpus: args.gpus,
        batches: args.batches,
        repeats: args.repeats,
        largest: args.largest,
        watch: args.watch,
        seed: args.seed,
        out: args.out.clone(),
        interrupt: interrupt(out, "nothing but the batches that were run"),
    };
    out.foresee(options.estimate());
    let mut bar = Bar::new(!out.quiet);
    let report = run(&options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    for warning in &report.warnings {
        out.warn(warning);
    }
    out.print(&report, || shown(&report))?;
    let missed = report.targets.iter().any(|target| target.outcome == TargetOutcome::NotMet);
    // Targets are for GPUs: what is emulated neither meets nor misses them.
    Ok(CommandAnswer::of_bench(report.complete, missed && report.source != "emu"))
}

fn shown(report: &InterconnectBenchReport) -> String {
    let mut text = format!("source    {}, machine {}\n", report.source, report.machine);
    if let Some(imitates) = &report.imitates {
        let _ = writeln!(text, "emulated  {imitates}");
    }
    text.push('\n');
    for target in &report.targets {
        let _ = writeln!(text, "{:<12} {}\n{:<12} {}", target.outcome.label(), target.target, "", target.measured);
    }
    let percent = |ppm: u64| format!("{}.{:02} %", ppm / 10_000, ppm % 10_000 / 100);
    let _ =
        writeln!(text, "\n{:<16} {:>5} {:>10} {:>10} {:>10} {:>9}", "batches", "n", "median", "p95", "max", "exceeded");
    for group in &report.groups {
        let errors = &group.batches;
        let _ = writeln!(
            text,
            "{:<16} {:>5} {:>10} {:>10} {:>10} {:>9}",
            group.what,
            errors.n,
            percent(errors.median_ppm),
            percent(errors.p95_ppm),
            percent(errors.max_ppm),
            group.exceeded
        );
    }
    let _ = writeln!(text, "\nsummary   {}", report.folder.join("summary.md").display());
    text
}
