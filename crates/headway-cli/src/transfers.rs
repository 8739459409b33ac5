//! The commands on copies: `measure`, `bench transfers`, `explain`.

use std::fmt::Write;

use anyhow::Result;
use headway::explain::{self as explaining, Question};
use headway::explain::{Bounds, CostFigures, Explanation, Prefer, Price, TAIL_SAMPLES, cpu_seconds};
use headway::units::Nanos;
use headway_cli::terminal::{Bar, CommandAnswer, Out, interrupt};
use headway_measure::bench::{self, TargetOutcome};
use headway_measure::{self as measuring, Depth};
use serde::Serialize;

use crate::args::{BenchArgs, ExplainArgs, FlowBenchArgs, MeasureArgs, PreferArg};
use crate::show::{chosen, imitation, quoted};

pub(crate) fn measure(out: &Out, args: &MeasureArgs) -> Result<CommandAnswer> {
    let depth = match (args.quick, args.full) {
        (true, _) => Depth::Quick,
        (_, true) => Depth::Full,
        _ => Depth::Normal,
    };
    let options = measuring::MeasureOptions {
        backend: args.backend.into(),
        model: args.model.clone(),
        gpus: args.gpus,
        out: args.out.clone(),
        name: args.name.clone(),
        depth,
        force: args.force,
        only: args.only.clone(),
        sizes: args.sizes.clone(),
        each: args.each,
        watch: args.watch.unwrap_or_default(),
        workload: args.workload.clone(),
        raw: args.raw.clone(),
        interrupt: interrupt(out, "nothing but the journal"),
    };
    out.foresee(options.estimate());
    let mut bar = Bar::new(!out.quiet);
    let report = measuring::measure(&options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    for warning in &report.warnings {
        out.warn(warning);
    }
    out.print(&report, || measured(&report))?;
    Ok(CommandAnswer::Yes)
}

fn measured(report: &measuring::MeasureReport) -> String {
    let mut text = format!(
        "machine   {} (source {}), {} curves with {} points\nfile      {}\n",
        report.machine,
        report.source,
        report.curves,
        report.points,
        report.file.display()
    );
    imitation(&mut text, report.imitates.as_deref());
    for reason in &report.useless {
        let _ = writeln!(text, "useless   for planning: {reason}");
    }
    if let Some(found) = &report.calibration {
        let percent = |ppm: u64| format!("{:.2} %", ppm as f64 / 1e4);
        let _ = writeln!(
            text,
            "model     off by {} (median), {} (at most) in {} batches; plans add {} and {}",
            percent(found.median_ppm),
            percent(found.max_ppm),
            found.batches,
            percent(found.margin_ppm),
            found.jitter
        );
        if let Some(watch) = &found.driver_watch {
            let _ = writeln!(text, "driver    {watch}\n          {}", watch.limits());
        }
        for (direction, watch) in &found.chunk_watch {
            let _ = writeln!(text, "chunks    {direction} {watch}");
        }
    }
    let _ = writeln!(text, "\nlink or limit                    rate");
    for (name, rate) in &report.rates {
        let _ = writeln!(text, "{name:<24} {rate:>12}");
    }
    if !report.tunings.is_empty() {
        let _ = writeln!(text, "\nstaged works best with");
    }
    for (situation, tuning) in &report.tunings {
        let _ = writeln!(
            text,
            "{situation:<28} {:>2} thread{}, buffers of {}, {} stores, {} in flight",
            tuning.threads,
            if tuning.threads == 1 { " " } else { "s" },
            tuning.buffer,
            tuning.stores,
            tuning.in_flight
        );
    }
    let _ =
        writeln!(text, "\nfirst GPU, idle: the fastest method from each size on, of methods within 3 % the simplest");
    for (situation, thresholds) in &report.thresholds {
        let steps: Vec<String> = thresholds.iter().map(|(from, method)| format!("{from}: {method}")).collect();
        let _ = writeln!(text, "{situation:<12} {}", steps.join(", "));
    }
    let file = quoted(&report.file);
    let _ = writeln!(text, "\nwhy      headway explain --bytes '4 KiB' --direction d2h --machine {file}");
    let _ = writeln!(text, "check    headway bench transfers --machine {file}");
    text
}

pub(crate) fn bench(out: &Out, args: &BenchArgs) -> Result<CommandAnswer> {
    let options = bench::TransferBenchOptions {
        backend: args.backend.into(),
        model: args.model.clone(),
        machine: args.machine.clone(),
        gpus: args.gpus,
        sizes: args.sizes.clone(),
        methods: args.methods.clone(),
        out: args.out.clone(),
        quick: args.quick,
        interrupt: interrupt(out, "nothing"),
    };
    out.foresee(options.estimate());
    let mut bar = Bar::new(!out.quiet);
    let report = bench::transfers(&options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    for warning in &report.warnings {
        out.warn(warning);
    }
    out.print(&report, || benched(&report))?;
    let missed = report.targets.iter().any(|target| target.outcome == TargetOutcome::NotMet);
    // Targets are for GPUs: what is emulated neither meets nor misses them.
    Ok(CommandAnswer::of_bench(report.complete, missed && report.source == "cuda"))
}

pub(crate) fn bench_flows(out: &Out, args: &FlowBenchArgs) -> Result<CommandAnswer> {
    let options = bench::FlowBenchOptions {
        backend: args.backend.into(),
        model: args.model.clone(),
        machine: args.machine.clone(),
        broker: args.socket.clone(),
        only: args.only.map(Into::into),
        duration: args.duration,
        out: args.out.clone(),
        interrupt: interrupt(out, "what is done"),
    };
    out.foresee(args.duration * 2);
    let mut bar = Bar::new(!out.quiet);
    let report = bench::flows(&options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    for warning in &report.warnings {
        out.warn(warning);
    }
    out.print(&report, || flows_benched(&report))?;
    Ok(CommandAnswer::of_bench(report.complete, report.missed() > 0 && report.source == "cuda"))
}

fn flows_benched(report: &bench::FlowBenchReport) -> String {
    let mut text = format!("source    {}, {}, machine {}\n", report.source, report.gpu, report.machine);
    imitation(&mut text, report.imitates.as_deref());
    let _ = writeln!(
        text,
        "\n{:<6} {:<12} {:>8} {:>7} {:>12} {:>12} {:>12}  bulk",
        "by", "flow", "n", "missed", "median", "max", "bound"
    );
    for row in &report.rows {
        let bulk = row.bulk_share();
        let times = [row.median, row.max, row.bound].map(|time| time.to_string());
        let _ = writeln!(
            text,
            "{:<6} {:<12} {:>8} {:>7} {:>12} {:>12} {:>12}  {bulk}",
            row.by, row.flow, row.n, row.missed, times[0], times[1], times[2]
        );
    }
    let _ = writeln!(text, "\nsummary   {}", report.folder.join("summary.md").display());
    text
}

fn benched(report: &bench::TransferBenchReport) -> String {
    let mut text = format!("source    {}, profile {}\n", report.source, report.profile);
    imitation(&mut text, report.imitates.as_deref());
    text.push('\n');
    for target in &report.targets {
        let _ = writeln!(text, "{:<12} {}\n{:<12} {}", target.outcome.label(), target.target, "", target.measured);
    }
    if let Some(prediction) = &report.prediction {
        let _ = writeln!(text, "\npredicted    {prediction}");
    }
    let _ = writeln!(text, "\nrows      {} in {}", report.rows.len(), report.folder.join("rows.csv").display());
    let _ = writeln!(text, "summary   {}", report.folder.join("summary.md").display());
    text
}

#[derive(Serialize)]
struct ExplainAnswer<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    /// Version of the JSON form.
    schema: u32,
}

pub(crate) fn explain(out: &Out, args: &ExplainArgs) -> Result<CommandAnswer> {
    let question = Question {
        machine: args.machine.clone().unwrap_or_else(|| headway::machine::USUAL.to_owned()),
        gpu: args.gpu.clone(),
        peer: args.peer.clone(),
        direction: args.direction,
        bytes: args.bytes,
        pieces: args.pieces,
        memory: args.host.into(),
        load: args.load,
        active: args.active,
        objective: args.objective,
        excluded: args.exclude.iter().copied().map(Into::into).collect(),
        bounds: bounds(args),
    };
    let explanation = explaining::explain(&question)?;
    let json = ExplainAnswer { explanation: &explanation, schema: 1 };
    out.print(&serde_json::to_value(json)?, || explained(&explanation, args))?;
    Ok(CommandAnswer::Yes)
}

fn bounds(args: &ExplainArgs) -> Bounds {
    let none = Bounds::default();
    Bounds {
        cpus_max: args.cpus.unwrap_or(none.cpus_max),
        pinned_max: args.pinned.unwrap_or(none.pinned_max),
        multiprocessors_max: args.multiprocessors.unwrap_or(none.multiprocessors_max),
        prefer: match args.prefer {
            PreferArg::Cheapest => Prefer::Cheapest,
            PreferArg::Fastest => Prefer::Fastest,
        },
    }
}

/// What a copy keeps busy, as `7 CPUs 48 MiB`.
fn priced(price: &Price) -> String {
    let mut parts = vec![format!("{} CPU{}", price.cpus, if price.cpus == 1 { "" } else { "s" })];
    parts.extend(price.cpu_per_gb.map(|per_gb| format!("{} CPU s/GB", cpu_seconds(per_gb))));
    parts.extend((price.pinned.0 > 0).then(|| format!("{} pinned", price.pinned)));
    parts.extend((price.multiprocessors > 0).then(|| format!("{} SM", price.multiprocessors)));
    parts.join(", ")
}

fn explained(explanation: &Explanation, args: &ExplainArgs) -> String {
    let long = args.long;
    let usual = chosen(args.machine.is_none());
    let mut text = format!(
        "{}\nmachine {}{usual}\nprofile {}\n\n",
        explanation.question, explanation.machine, explanation.profile
    );
    let some_are_few = explanation.rows.iter().any(|row| (1..TAIL_SAMPLES).contains(&row.figures.n));
    for row in &explanation.rows {
        let CostFigures { median, p99, max, n } = row.figures;
        let _ = write!(
            text,
            "{:<13} {:<9} median {:<9}  p99 {:<9}  max {:<9} ",
            row.method,
            row.form,
            shown(median),
            shown(p99),
            shown(max)
        );
        // Few samples have no p99, and their maximum says little: say how many there were.
        if long || (1..TAIL_SAMPLES).contains(&n) {
            let _ = write!(text, " n {n:<6}");
        } else if some_are_few {
            let _ = write!(text, " {:<8}", "");
        }
        let _ = writeln!(text, " {}", row.verdict);
    }
    if let Some(row) = explanation.rows.first() {
        let _ = writeln!(text, "\nprice     {}", priced(&row.price));
    }
    for line in &explanation.why {
        let _ = writeln!(text, "\n{line}");
    }
    text
}

fn shown(time: Option<Nanos>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}
