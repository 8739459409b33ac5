//! One HTML file that shows a run: no network, no fonts or scripts from elsewhere.
//!
//! Everything a workload can name is text in the page's data block or escaped text in its head. A content security policy
//! admits only the page's own script and style, by their hashes, so that nothing in a name can run.

use std::io::{self, BufWriter, Write};

use headway_core::units::Nanos;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::Log;
use crate::summary::Summary;
use crate::timeline::{Operation, Timeline};

/// Version of the JSON form of the data block `headway-data`.
pub const SCHEMA: u32 = 1;

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const BODY: &str = include_str!("page/body.html");
/// Characters per line of the tables shown where scripts are off.
const PLAIN_WIDTH: usize = 120;

/// Everything the page draws. Times are nanoseconds after the epoch; equal positions in the vectors of a struct belong
/// together.
#[derive(Serialize)]
struct Data<'a> {
    schema: u32,
    summary: &'a Summary,
    pipelines: Vec<PipelineData<'a>>,
    streams: Vec<StreamData>,
    jobs: Jobs,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct PipelineData<'a> {
    name: &'a str,
    steps: Vec<&'a str>,
}

/// The delivered packets of a stream in the order of delivery.
#[derive(Serialize)]
struct StreamData {
    start: Nanos,
    period: Nanos,
    packet: Vec<u64>,
    response: Vec<Nanos>,
}

#[derive(Default, Serialize)]
struct Jobs {
    pipeline: Vec<u32>,
    cycle: Vec<u64>,
    step: Vec<u32>,
    /// When the job joined the queue.
    ready: Vec<Nanos>,
    wait: Vec<Nanos>,
    /// Position of the job it waited for longest; -1 = none.
    cause: Vec<i64>,
    by_cause: Vec<Nanos>,
    /// 1 = took longer than planned, 2 = ended after its window, 3 = both.
    flags: Vec<u8>,
}

/// The operations of an engine, or of a server without engines, in the order of their start.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    gpu: Option<u32>,
    start: Vec<Nanos>,
    duration: Vec<Nanos>,
    job: Vec<usize>,
    bytes: Vec<u64>,
}

/// Writes the page of a run.
///
/// # Errors
/// Those of `out`.
pub fn write(log: &Log, summary: &Summary, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let timeline = Timeline::new(log);
    let title = format!("{}: {} [{}]", summary.workload.name, summary.verdict.text, summary.source);
    writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(
        out,
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src '{}'; script-src '{}'; \
         base-uri 'none'; form-action 'none'\">",
        hash(STYLE),
        hash(SCRIPT),
    )?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(out, "<meta name=\"color-scheme\" content=\"light dark\">")?;
    writeln!(out, "<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>", escape(&title))?;
    out.write_all(BODY.as_bytes())?;
    let plain = summary.table(PLAIN_WIDTH);
    writeln!(
        out,
        "<noscript><p>Scripts are off; these are the figures as text.</p><pre>{}</pre></noscript>",
        escape(&plain)
    )?;
    write!(out, "<script type=\"application/json\" id=\"headway-data\">")?;
    serde_json::to_writer(InScript(&mut out), &data(log, summary, &timeline))?;
    writeln!(out, "</script>\n<script>{SCRIPT}</script>\n</body>\n</html>")?;
    out.flush()
}

/// Text as HTML, for elements and attribute values in quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Passes JSON on in a form that cannot end the script element it stands in: outside strings JSON has no `<`, `>` or `&`.
struct InScript<W>(W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| matches!(byte, b'<' | b'>' | b'&')) {
            let (last, before) = part.split_last().expect("a part that was split off has a byte");
            match last {
                b'<' | b'>' | b'&' => {
                    self.0.write_all(before)?;
                    write!(self.0, "\\u{last:04x}")?;
                }
                _ => self.0.write_all(part)?,
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A source expression of a content security policy.
fn hash(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = "sha256-".to_owned();
    for group in Sha256::digest(text.as_bytes()).chunks(3) {
        let word = group.iter().enumerate().fold(0u32, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at) & 63) as usize];
            encoded.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    encoded
}

fn data<'a>(log: &'a Log, summary: &'a Summary, timeline: &Timeline) -> Data<'a> {
    let plan = &log.header().plan;
    let pipelines = plan.pipelines.iter().map(|pipeline| PipelineData {
        name: &pipeline.name,
        steps: pipeline.steps.iter().map(|step| step.name.as_str()).collect(),
    });
    Data {
        schema: SCHEMA,
        summary,
        pipelines: pipelines.collect(),
        streams: streams(log, timeline),
        jobs: jobs(timeline),
        rows: rows(log, timeline),
    }
}

fn streams(log: &Log, timeline: &Timeline) -> Vec<StreamData> {
    let empty = |stream: &headway_core::plan::PlannedStream| StreamData {
        start: stream.start,
        period: stream.period,
        packet: Vec::new(),
        response: Vec::new(),
    };
    let mut streams: Vec<StreamData> = log.header().plan.streams.iter().map(empty).collect();
    for packet in timeline.packets(log) {
        let stream = &mut streams[packet.stream as usize];
        stream.packet.push(packet.packet);
        stream.response.push(packet.response());
    }
    streams
}

fn jobs(timeline: &Timeline) -> Jobs {
    let mut jobs = Jobs::default();
    let after = |time: Option<Nanos>| time.unwrap_or(timeline.epoch).saturating_sub(timeline.epoch);
    for job in &timeline.jobs {
        let longest = job.longest_wait();
        jobs.pipeline.push(job.pipeline);
        jobs.cycle.push(job.cycle);
        jobs.step.push(job.step);
        jobs.ready.push(after(job.ready));
        jobs.wait.push(job.wait());
        jobs.cause.push(longest.and_then(|wait| wait.cause).map_or(-1, |cause| cause as i64));
        jobs.by_cause.push(longest.map_or(Nanos::ZERO, |wait| wait.time));
        jobs.flags.push(u8::from(job.overrun) | u8::from(job.late.is_some()) << 1);
    }
    jobs
}

fn rows<'a>(log: &'a Log, timeline: &Timeline) -> Vec<Row<'a>> {
    let plan = &log.header().plan;
    let mut operations: Vec<Vec<&Operation>> = vec![Vec::new(); plan.engines.len() + plan.servers.len()];
    for operation in timeline.operations.iter().filter(|operation| operation.ended.is_some()) {
        let engines = &timeline.planned(log, operation).engines;
        let abstract_row = plan.engines.len() + timeline.step(log, operation.job).server as usize;
        for row in engines.iter().map(|engine| engine.at()).chain(engines.is_empty().then_some(abstract_row)) {
            operations[row].push(operation);
        }
    }
    let engines = plan.engines.iter().map(|engine| (engine.name.as_str(), engine.gpu, true));
    let servers = plan.servers.iter().map(|server| (server.name.as_str(), None, server.engines.is_empty()));
    let named = engines.chain(servers).zip(operations).filter(|((.., shown), _)| *shown);
    named.map(|((name, gpu, _), operations)| row(name, gpu, operations, timeline.epoch)).collect()
}

fn row<'a>(name: &'a str, gpu: Option<u32>, operations: Vec<&Operation>, epoch: Nanos) -> Row<'a> {
    let mut ended: Vec<_> =
        operations.iter().filter_map(|op| op.ended.map(|ended| (ended.started, ended, *op))).collect();
    ended.sort_by_key(|(started, ..)| *started);
    let mut row = Row { name, gpu, start: vec![], duration: vec![], job: vec![], bytes: vec![] };
    for (started, ended, operation) in ended {
        row.start.push(started.saturating_sub(epoch));
        row.duration.push(ended.finished.saturating_sub(started));
        row.job.push(operation.job);
        row.bytes.push(operation.bytes.0);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_a_script_cannot_end_it_and_stays_the_same_json() {
        let mut text = Vec::new();
        let name = "</script><img src=x onerror=alert(1)>&amp;<!--";
        serde_json::to_writer(InScript(&mut text), name).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains(['<', '>', '&']), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), name);
    }

    #[test]
    fn hashes_are_those_of_the_content_security_policy() {
        // `printf 'alert(1);' | openssl dgst -sha256 -binary | base64`
        assert_eq!(hash("alert(1);"), "sha256-5jFwrAK0UV47oFbVg/iCCBbxD8X1w+QvoOUepu4C2YA=");
    }
}
