//! One HTML file that shows a run of tasks that share GPUs: no scripts, nothing from elsewhere.
//!
//! The figures, who waited for whom, and a timeline around the longest response: a row for each task and one for each engine.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use headway_core::units::Nanos;

use super::{Doing, Engine, Job, Log, Span, Summary, waits};
use crate::page::escape;

/// Width of the timeline.
const WIDTH: u64 = 1_600;
const LEFT: u64 = 140;
const ROW: u64 = 22;
/// Periods of the shortest task that the timeline shows.
const PERIODS: u64 = 6;
/// Spans that the timeline draws at most.
const SPANS_MAX: usize = 6_000;

const STYLE: &str = "body{font:14px system-ui,sans-serif;margin:2em;max-width:1800px}pre{overflow-x:auto}\
                     svg{display:block;margin:1em 0}svg text{font:12px system-ui,sans-serif}\
                     table{border-collapse:collapse}td,th{padding:.2em .7em;border-bottom:1px solid #ccc;text-align:right}\
                     td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}";

/// Writes the page of a run.
///
/// # Errors
/// Those of `out`.
pub fn write(log: &Log, summary: &Summary, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let title = format!("{}: {} [{}]", summary.workload.name, summary.verdict.text, summary.source);
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
        escape(&title)
    )?;
    writeln!(out, "<h1>{}</h1>\n<pre>{}</pre>", escape(&title), escape(&summary.table()))?;
    timeline(log, &mut out)?;
    matrix(summary, &mut out)?;
    writeln!(out, "<h2>Late jobs</h2>")?;
    if summary.late.is_empty() {
        writeln!(out, "<p>None.</p>")?;
    }
    for late in &summary.late {
        writeln!(out, "<p>{}</p>", escape(late))?;
    }
    writeln!(out, "</body>\n</html>")?;
    out.flush()
}

const fn colour(doing: Doing) -> &'static str {
    match doing {
        Doing::CpuWait => "#d9d9d9",
        Doing::Cpu => "#7f7f7f",
        Doing::TokenWait => "#f4a9a0",
        Doing::EngineWait => "#d64f3f",
        Doing::HandOver => "#e8c468",
        Doing::Copy => "#4a90c2",
        Doing::Execute => "#4f9d5b",
    }
}

/// The window around the job with the longest response for its period.
fn window(log: &Log) -> Option<(Nanos, Nanos)> {
    let period = |job: &Job| log.header.tasks.get(job.task as usize).map_or(1, |task| task.period.0.max(1));
    let worst = log
        .jobs
        .iter()
        .max_by_key(|job| u128::from(job.done.saturating_sub(job.start).0) * 1_000_000 / u128::from(period(job)))?;
    let shortest = log.header.tasks.iter().map(|task| task.period.0).min()?;
    let least = worst.done.saturating_sub(worst.start).0;
    let wide = (shortest.saturating_mul(PERIODS)).max(least.saturating_mul(2)).max(1);
    let begin = worst.start.saturating_sub(Nanos((wide - least) / 2));
    Some((begin, begin.saturating_add(Nanos(wide))))
}

fn timeline(log: &Log, out: &mut impl Write) -> io::Result<()> {
    let Some((begin, end)) = window(log) else { return Ok(()) };
    let inside = |span: &Span| span.end > begin && span.begin < end && span.end > span.begin;
    let shown = || log.jobs.iter().enumerate().flat_map(|(at, job)| job.spans.iter().map(move |span| (at, job, span)));
    let used: std::collections::BTreeSet<Engine> =
        log.jobs.iter().flat_map(|job| &job.spans).flat_map(|span| span.engines).flatten().collect();
    let tasks = log.header.tasks.len() as u64;
    let rows: BTreeMap<Engine, u64> = used.into_iter().zip(tasks..).collect();
    let height = (tasks + rows.len() as u64) * ROW + 40;
    writeln!(out, "<h2>Around the longest response: {} from {begin} on</h2>", end.saturating_sub(begin))?;
    writeln!(out, "<p>{}</p>", legend())?;
    writeln!(out, "<svg width=\"{}\" height=\"{height}\" role=\"img\">", LEFT + WIDTH + 10)?;
    let names = log.header.tasks.iter().map(|task| task.id.clone());
    for (row, name) in names.chain(rows.keys().map(|engine| log.header.engine(*engine))).enumerate() {
        writeln!(out, "<text x=\"0\" y=\"{}\">{}</text>", row as u64 * ROW + 15, escape(&name))?;
    }
    let behind = behind(log);
    let place = |time: Nanos| {
        let part = u128::from(time.clamp(begin, end).saturating_sub(begin).0) * u128::from(WIDTH) * 100;
        (part / u128::from(end.saturating_sub(begin).0.max(1))) as f64 / 100.0
    };
    for (at, job, span) in shown().filter(|(_, _, span)| inside(span)).take(SPANS_MAX) {
        let (left, right) = (place(span.begin), place(span.end));
        let mut rows: Vec<u64> = span.engines.iter().flatten().filter_map(|engine| rows.get(engine).copied()).collect();
        if !matches!(span.doing, Doing::Copy | Doing::Execute) {
            rows.clear();
        }
        rows.push(u64::from(job.task));
        let who = format!("{} job {}", log.header.task(job.task), job.job);
        let mut what = format!("{who} {} for {}", span.doing.label(), span.time());
        if matches!(span.doing, Doing::TokenWait | Doing::EngineWait)
            && let Some(names) = behind.get(&at)
        {
            what.push_str(&format!(", in this job behind {names}"));
        }
        for row in rows {
            writeln!(
                out,
                "<rect x=\"{:.2}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>",
                LEFT as f64 + left,
                row * ROW + 2,
                (right - left).max(0.4),
                ROW - 4,
                colour(span.doing),
                escape(&what)
            )?;
        }
    }
    writeln!(out, "</svg>")
}

fn legend() -> String {
    let all =
        [Doing::TokenWait, Doing::EngineWait, Doing::Copy, Doing::Execute, Doing::Cpu, Doing::CpuWait, Doing::HandOver];
    let entry = |doing: Doing| {
        format!(
            "<span style=\"border-left:1em solid {};padding:0 1.2em 0 .4em\">{}</span>",
            colour(doing),
            doing.label()
        )
    };
    all.map(entry).concat()
}

/// Names of the jobs that each job waited for.
fn behind(log: &Log) -> BTreeMap<usize, String> {
    let mut sets: BTreeMap<usize, std::collections::BTreeSet<usize>> = BTreeMap::new();
    for wait in waits(log) {
        sets.entry(wait.job).or_default().insert(wait.behind);
    }
    let name = |job: usize| format!("{} {}", log.header.task(log.jobs[job].task), log.jobs[job].job);
    sets.into_iter().map(|(job, set)| (job, set.into_iter().map(name).collect::<Vec<_>>().join(", "))).collect()
}

/// Who waited for whom.
fn matrix(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "<h2>Who waited for whom</h2>")?;
    if summary.waits.is_empty() {
        return writeln!(out, "<p>Nobody waited.</p>");
    }
    writeln!(
        out,
        "<table><tr><th>task</th><th>behind</th><th>for</th><th>times</th><th>in all</th><th>longest</th></tr>"
    )?;
    for wait in &summary.waits {
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&wait.task),
            escape(&wait.behind),
            escape(&wait.what),
            wait.count,
            wait.total,
            wait.max
        )?;
    }
    writeln!(out, "</table>")
}
