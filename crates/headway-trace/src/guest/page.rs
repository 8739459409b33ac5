//! The page of a guest's log: a row for each thread, stream and direction, and one for the bulk copies that were taken to be under way.

use std::collections::BTreeMap;
use std::io::{self, Write};

use headway_core::files::guest_log::{Became, Copy, DriverReason, Host, Towards};
use headway_core::units::{Bytes, Nanos};
use serde::Serialize;

use super::under_way::{BulkAhead, Role, roles};
use super::{GuestLog, GuestSummary, summarize};
use crate::page::shell::{self, Shell};
use crate::page::tracks::{self, Item, Kept, Reduced, Row, SINGLY_MAX, Track};

/// What the data block calls this kind of page.
const KIND: &str = "guest";
/// Rows of threads at most; what further ones did shares one.
const ROWS_MAX: usize = 120;
/// Windows to keep for each reason.
const WORTH_SEEING: usize = 100;
/// Marks under the axis at most.
const MARKS_MAX: usize = 2_000;
/// A small copy beside a bulk copy is marked from so many medians without one on.
const LONG: u64 = 2;
/// What the page draws a bulk copy as that is taken to be under way; below it stand the ways in which copies are made.
const UNDER_WAY: u8 = Became::PassedOn as u8 + 1;

/// Everything the page draws. Times are nanoseconds after the log began; equal positions in the vectors of a struct belong together.
#[derive(Serialize)]
struct Data<'a> {
    schema: u32,
    kind: &'static str,
    summary: &'a GuestSummary,
    span: Nanos,
    /// Times of copies that failed, or took long beside a bulk copy.
    missed: Vec<Nanos>,
    copies: Copies,
    /// Who waited beside whose bulk copies.
    waits: Vec<Waits>,
    /// What reasons are called.
    words: Vec<(DriverReason, &'static str)>,
    rows: Vec<Row>,
    kept: Kept,
}

/// The copies that are drawn.
#[derive(Default, Serialize)]
struct Copies {
    at: Vec<Nanos>,
    took: Vec<Nanos>,
    thread: Vec<u32>,
    call: Vec<&'static str>,
    direction: Vec<Towards>,
    bytes: Vec<Bytes>,
    /// In hexadecimal digits.
    stream: Vec<String>,
    host: Vec<Host>,
    became: Vec<&'static str>,
    why: Vec<Option<&'static str>>,
    status: Vec<i32>,
    of: Vec<u64>,
    /// Stream, bytes and time of the bulk copy that it was made beside.
    beside: Vec<Option<(String, Bytes, Nanos)>>,
    marked: Vec<bool>,
}

/// Small copies of one stream beside bulk copies of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Waits {
    stream: String,
    behind: String,
    /// Copies, those that a line is a sample of included.
    copies: u64,
    total: Nanos,
    longest: Nanos,
    /// Position of the longest among the copies.
    #[serde(skip)]
    at: usize,
    /// When that was called.
    longest_at: Nanos,
}

/// What is known of each copy beyond its line.
struct CopyRoles {
    roles: Vec<Role>,
    marked: Vec<bool>,
}

impl CopyRoles {
    fn of(log: &GuestLog, summary: &GuestSummary) -> Self {
        let roles = roles(&log.copies);
        let bound = summary.beside.without.median.map_or(Nanos::MAX, |median| Nanos(median.0.saturating_mul(LONG)));
        let is_marked = |(copy, role): (&Copy, &Role)| {
            copy.status != 0 || (matches!(role, Role::Small(BulkAhead::OtherStream(_))) && copy.took > bound)
        };
        let marked = log.copies.iter().zip(&roles).map(is_marked).collect();
        Self { roles, marked }
    }

    fn behind(&self, at: usize) -> Option<usize> {
        if let Role::Small(BulkAhead::OtherStream(bulk)) = self.roles[at] { Some(bulk) } else { None }
    }
}

/// Writes the page of a guest's log.
///
/// # Errors
/// Those of `out`.
pub fn write(log: &GuestLog, out: impl Write) -> io::Result<()> {
    let summary = summarize(log);
    let known = CopyRoles::of(log, &summary);
    let tracks = tracks(log, &known);
    let ends = tracks.iter().flat_map(|track| track.items.iter().map(|item| item.end));
    let span = ends.max().unwrap_or_default().max(log.end.map_or(Nanos::ZERO, |end| end.at));
    let wanted = wanted(log, &known);
    let Reduced { mut rows, kept, jobs: drawn } = tracks::reduce(&tracks, log.copies.len(), span, wanted, SINGLY_MAX);
    let positions = tracks::positions(&drawn);
    rows.iter_mut().for_each(|row| row.renumber(&positions));
    let marked = log.copies.iter().zip(&known.marked).filter(|(_, marked)| **marked).map(|(copy, _)| copy.at);
    let data = Data {
        schema: shell::SCHEMA,
        kind: KIND,
        span,
        missed: marked.take(MARKS_MAX).collect(),
        copies: copies(log, &known, &drawn),
        waits: waits(log, &known),
        words: summary.reasons.iter().map(|reason| (reason.why, reason.why.name())).collect(),
        rows,
        kept,
        summary: &summary,
    };
    let title = format!("Copies of process {}: {}", summary.pid, summary.command.join(" "));
    let incomplete =
        (!summary.ended).then_some("The log has no last line: the program was killed, ended by `_exit`, or runs on.");
    let plain = summary.table();
    Shell { title: &title, incomplete, left_out: &[], not_compared: None, plain: &plain }.write(&data, out)
}

const fn towards(direction: Towards) -> &'static str {
    match direction {
        Towards::In => "into a GPU",
        Towards::Out => "out of a GPU",
        Towards::Unknown => "by addresses",
    }
}

/// As the driver's documentation names them where they have names.
fn stream(handle: u64) -> String {
    match handle {
        1 => "default".to_owned(),
        2 => "per-thread default".to_owned(),
        handle => format!("{handle:#x}"),
    }
}

/// The tracks of threads, in their order, and those of bulk copies under way by stream. A track of each thread, stream and direction.
fn tracks(log: &GuestLog, known: &CopyRoles) -> Vec<Track> {
    let mut of_threads: BTreeMap<(u32, u64, Towards), Vec<Item>> = BTreeMap::new();
    let mut under_way: BTreeMap<u64, Vec<Item>> = BTreeMap::new();
    for (at, copy) in log.copies.iter().enumerate() {
        let item = Item {
            start: copy.at,
            end: copy.at.saturating_add(copy.took),
            job: at,
            bytes: copy.bytes,
            kind: copy.became as u8,
            waits: known.behind(at).is_some(),
            marked: known.marked[at],
        };
        of_threads.entry((copy.thread, copy.stream, copy.direction)).or_default().push(item);
        if let Role::Bulk(start, end) = known.roles[at] {
            let item = Item { start, end, kind: UNDER_WAY, waits: false, marked: false, ..item };
            under_way.entry(copy.stream).or_default().push(item);
        }
    }
    let mut threads: Vec<((u32, u64, Towards), Vec<Item>)> = of_threads.into_iter().collect();
    if threads.len() > ROWS_MAX {
        // Who did least shares the last row.
        threads.sort_by_key(|(_, items)| std::cmp::Reverse(items.len()));
        let mut rest: Vec<Item> = threads.split_off(ROWS_MAX - 1).into_iter().flat_map(|(_, items)| items).collect();
        rest.sort_by_key(|item| item.start);
        threads.sort_by_key(|(key, _)| *key);
        threads.push(((u32::MAX, 0, Towards::Unknown), rest));
    }
    let of_thread = |((thread, handle, direction), items): ((u32, u64, Towards), Vec<Item>)| {
        let name = if thread == u32::MAX {
            "further threads and streams".to_owned()
        } else {
            format!("thread {thread}, stream {}, {}", stream(handle), towards(direction))
        };
        Track { name, group: Some(thread), items }
    };
    let bulk = |(handle, mut items): (u64, Vec<Item>)| {
        items.sort_by_key(|item| item.start);
        Track { name: format!("bulk out of a GPU, stream {} (assumed)", stream(handle)), group: None, items }
    };
    threads.into_iter().map(of_thread).chain(under_way.into_iter().take(ROWS_MAX).map(bulk)).collect()
}

/// Where to look, what matters most first: the longest wait beside a bulk copy, the slowest copies, those that failed.
fn wanted(log: &GuestLog, known: &CopyRoles) -> Vec<(Nanos, Nanos)> {
    let all = || log.copies.iter().enumerate();
    let window = |(_, copy): &(usize, &Copy)| (copy.at, copy.at.saturating_add(copy.took));
    let by_time = |mut copies: Vec<(usize, &Copy)>| {
        copies.sort_by_key(|(_, copy)| std::cmp::Reverse(copy.took));
        copies.iter().take(WORTH_SEEING).map(window).collect::<Vec<_>>()
    };
    let waited = by_time(all().filter(|(at, _)| known.behind(*at).is_some()).collect());
    let slowest = by_time(all().collect());
    let failed = by_time(all().filter(|(_, copy)| copy.status != 0).collect());
    waited.into_iter().chain(slowest).chain(failed).collect()
}

fn copies(log: &GuestLog, known: &CopyRoles, drawn: &[bool]) -> Copies {
    let mut copies = Copies::default();
    for (at, copy) in log.copies.iter().enumerate().filter(|(at, _)| drawn[*at]) {
        copies.at.push(copy.at);
        copies.took.push(copy.took);
        copies.thread.push(copy.thread);
        copies.call.push(copy.call.name());
        copies.direction.push(copy.direction);
        copies.bytes.push(copy.bytes);
        copies.stream.push(stream(copy.stream));
        copies.host.push(copy.host);
        copies.became.push(copy.became.name());
        copies.why.push(copy.why.map(DriverReason::name));
        copies.status.push(copy.status);
        copies.of.push(copy.of);
        copies.marked.push(known.marked[at]);
        copies.beside.push(known.behind(at).map(|bulk| {
            let bulk = &log.copies[bulk];
            (stream(bulk.stream), bulk.bytes, bulk.at)
        }));
    }
    copies
}

/// By stream and the bulk copies' stream, the longest total first.
fn waits(log: &GuestLog, known: &CopyRoles) -> Vec<Waits> {
    let mut waits: BTreeMap<(u64, u64), Waits> = BTreeMap::new();
    for (at, copy) in log.copies.iter().enumerate() {
        let Some(bulk) = known.behind(at) else { continue };
        let behind = log.copies[bulk].stream;
        let wait = waits.entry((copy.stream, behind)).or_insert_with(|| Waits {
            stream: stream(copy.stream),
            behind: stream(behind),
            copies: 0,
            total: Nanos::ZERO,
            longest: Nanos::ZERO,
            at,
            longest_at: copy.at,
        });
        wait.copies = wait.copies.saturating_add(copy.of);
        wait.total = wait.total.saturating_add(Nanos(copy.took.0.saturating_mul(copy.of)));
        if copy.took > wait.longest {
            (wait.longest, wait.at, wait.longest_at) = (copy.took, at, copy.at);
        }
    }
    let mut waits: Vec<Waits> = waits.into_values().collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.total));
    waits.truncate(ROWS_MAX);
    waits
}
