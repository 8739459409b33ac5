//! The summary as text for terminals.

use std::cmp::Reverse;
use std::fmt::Write as _;

use headway_core::models::cpu::{DelayStatistics, Threads, Use};
use headway_core::units::{Bytes, Nanos};

use crate::summary::{
    BlamedWait, CpuSummary, JobName, JobsSummary, Response, RunSummary, ServerSummary, StepSummary, grouped,
};

/// Lines of who waited for whom that a terminal gets; the page and the JSON form have all.
const BLAME_LINES: usize = 8;
/// Lines of any other table that a terminal gets. Where there are more, each table says which it shows.
pub(crate) const LINES: usize = 16;
/// Names are cut to this at least.
const NAME_MIN: usize = 8;

/// A table whose columns know how much they matter.
struct Table {
    title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

struct Column {
    head: String,
    right: bool,
    /// Columns with the largest number go first when the width does not suffice; zero = never.
    drop: u8,
}

/// A unit shared by a column, so that its numbers line up.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    nanos: u64,
    decimals: usize,
}

impl Unit {
    /// The largest unit in which the longest of `times` is at least one.
    fn of(times: impl Iterator<Item = Nanos>) -> Self {
        let (name, nanos, decimals) = match times.max().unwrap_or_default().0 {
            0..1_000 => ("ns", 1, 0),
            1_000..1_000_000 => ("us", 1_000, 2),
            1_000_000..1_000_000_000 => ("ms", 1_000_000, 3),
            _ => ("s", 1_000_000_000, 6),
        };
        Self { name, nanos, decimals }
    }

    fn text(self, ns: i128) -> String {
        let nanos = i128::from(self.nanos);
        let sign = if ns < 0 { "-" } else { "" };
        let (whole, rest) = (ns.abs() / nanos, ns.abs() % nanos);
        if self.decimals == 0 {
            return format!("{sign}{whole}");
        }
        // Digits beyond the last one shown are cut, not rounded: 1.9996 must not read as a deadline of 2.000 reached.
        let digits = rest * 10i128.pow(self.decimals as u32) / nanos;
        format!("{sign}{whole}.{digits:0width$}", width = self.decimals)
    }

    fn time(self, time: Nanos) -> String {
        self.text(i128::from(time.0))
    }
}

impl Table {
    fn new(title: String, columns: &[(&str, bool, u8)]) -> Self {
        let columns =
            columns.iter().map(|&(head, right, drop)| Column { head: head.to_owned(), right, drop }).collect();
        Self { title, columns, rows: Vec::new() }
    }

    fn widths(&self) -> Vec<usize> {
        let cell = |at: usize| self.rows.iter().map(move |row| row[at].chars().count());
        let width = |(at, column): (usize, &Column)| cell(at).max().unwrap_or(0).max(column.head.chars().count());
        self.columns.iter().enumerate().map(width).collect()
    }

    /// Cuts names, then leaves out columns, until a line has at most `width` characters.
    fn fit(&mut self, width: usize) -> Vec<usize> {
        loop {
            let mut widths = self.widths();
            let total = widths.iter().sum::<usize>() + 2 * widths.len();
            let mut over = total.saturating_sub(width);
            for (at, column) in self.columns.iter().enumerate().filter(|(_, column)| !column.right) {
                let least = NAME_MIN.max(column.head.chars().count()).min(widths[at]);
                let cut = over.min(widths[at] - least);
                widths[at] -= cut;
                over -= cut;
            }
            let least = self.columns.iter().enumerate().max_by_key(|(_, column)| column.drop);
            match least {
                Some((at, column)) if over > 0 && column.drop > 0 => {
                    self.columns.remove(at);
                    for row in &mut self.rows {
                        row.remove(at);
                    }
                }
                _ => return widths,
            }
        }
    }

    fn write(mut self, width: usize, out: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let widths = self.fit(width);
        let heads: Vec<String> = self.columns.iter().map(|column| column.head.clone()).collect();
        let _ = writeln!(out, "\n{}", self.title);
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, column), &width) in row.iter().zip(&self.columns).zip(&widths) {
                let cell = cut(cell, width);
                let _ = if column.right { write!(line, "  {cell:>width$}") } else { write!(line, "  {cell:<width$}") };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}

/// Those of `all` with the smallest keys if there are more than [`LINES`], and the end of a title that says so.
pub(crate) fn tightest<'a, T, K: Ord>(
    all: impl Iterator<Item = &'a T>,
    which: &str,
    key: impl FnMut(&&'a T) -> K,
) -> (Vec<&'a T>, String) {
    let mut all: Vec<&T> = all.collect();
    let count = all.len();
    if count <= LINES {
        return (all, String::new());
    }
    all.sort_by_key(key);
    all.truncate(LINES);
    (all, format!(": the {LINES} of {count} {which}"))
}

/// `text` in at most `width` characters.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// A name that cannot move the terminal's cursor or change its colours.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The ordinal of a GPU, or the name of a core.
fn processor(gpu: Option<u32>, core: Option<u32>) -> String {
    match (gpu, core) {
        (Some(gpu), _) => gpu.to_string(),
        (None, Some(core)) => format!("cpu{core}"),
        (None, None) => dash(),
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn percent(ppm: u64) -> String {
    format!("{}.{} %", ppm / 10_000, ppm % 10_000 / 1_000)
}

impl RunSummary {
    /// The summary as text, in lines of at most `width` characters where names and the least important columns allow it.
    #[must_use]
    pub fn table(&self, width: usize) -> String {
        let mut out = String::new();
        self.head(&mut out);
        self.stream_table().write(width, &mut out);
        self.jobs_table("message", &self.messages).write(width, &mut out);
        self.jobs_table("demand", &self.demands).write(width, &mut out);
        self.bulk_table().write(width, &mut out);
        self.urgent_table().write(width, &mut out);
        self.engine_table().write(width, &mut out);
        self.capacity_table().write(width, &mut out);
        self.step_table().write(width, &mut out);
        self.server_table().write(width, &mut out);
        self.blame_lines(&mut out);
        out
    }

    fn head(&self, out: &mut String) {
        let (source, totals) = (self.source, &self.totals);
        let _ = writeln!(out, "{} [{source}]", self.verdict.text);
        if let Some(why) = &self.verdict.unpromised {
            let _ = writeln!(out, "  {why}");
        }
        let named = |named: &headway_core::plan::Named| format!("{} ({})", plain(&named.name), plain(&named.hash));
        let _ = writeln!(out, "  workload {}, machine {}", named(&self.workload), named(&self.machine));
        let devices: Vec<String> = self.devices.iter().map(|device| plain(device)).collect();
        if !devices.is_empty() {
            let _ = writeln!(out, "  devices {}", devices.join(", "));
        }
        for what in &self.left_out {
            let _ = writeln!(out, "  left out: {}", plain(what));
        }
        if let Some(what) = self.not_compared_text() {
            let _ = writeln!(out, "  {}", plain(&what));
        }
        let (version, commit) = (plain(&self.version), plain(&self.commit));
        let _ = writeln!(out, "  headway {version}, commit {commit}, seed {}", self.seed);
        let _ = writeln!(
            out,
            "  {}, in {}; {} operations, {} overruns, {} jobs late",
            self.done(),
            self.span,
            grouped(totals.operations),
            grouped(totals.overruns),
            grouped(totals.late),
        );
        self.cpu_lines(out);
    }

    /// The scheduling classes, what they assume, and how late the driver was.
    fn cpu_lines(&self, out: &mut String) {
        let Some(CpuSummary { used, assumes, late_max }) = &self.cpu else { return };
        let class = |of: &Threads| {
            let count = if of.count == 1 { String::new() } else { format!("{} x ", of.count) };
            format!("{count}{} {}", plain(&of.role), of.class)
        };
        let classes: Vec<String> = used.threads.iter().map(class).collect();
        let _ = writeln!(out, "  threads: {}; assumed: {}", classes.join(", "), plain(assumes));
        if let Some(driver) = used.threads.first() {
            for refused in &driver.refused {
                let _ = writeln!(out, "    {}", plain(refused));
            }
        }
        let late = |of: &DelayStatistics| {
            let DelayStatistics { count, median, p99, max, .. } = of;
            let p99 = p99.map_or_else(dash, |p99| p99.to_string());
            format!("median {median}, p99 {p99}, longest {max} ({})", grouped(*count))
        };
        let Use { woken, noticed, .. } = used;
        let _ = writeln!(out, "  driver woken late: {}; ends seen late: {}", late(woken), late(noticed));
        let _ = writeln!(
            out,
            "  the plan allows {late_max} for both together; alone, {} and {} were later",
            grouped(woken.beyond),
            grouped(noticed.beyond)
        );
    }

    /// What was delivered, of everything that the run has.
    fn done(&self) -> String {
        let totals = &self.totals;
        let mut parts = Vec::new();
        if totals.message_jobs > 0 {
            let (done, of) = (grouped(totals.message_jobs_delivered), grouped(totals.message_jobs));
            parts.push(format!("{done} of {of} jobs of messages, {}", totals.message_bytes));
        }
        if totals.demand_jobs > 0 {
            parts.push(format!(
                "{} of {} jobs of demands",
                grouped(totals.demand_jobs_done),
                grouped(totals.demand_jobs)
            ));
        }
        if totals.packets > 0 || parts.is_empty() {
            let (done, of) = (grouped(totals.delivered), grouped(totals.packets));
            parts.insert(0, format!("{done} of {of} packets, {}", totals.bytes));
        }
        parts.join(", ")
    }

    fn title(&self, what: &str) -> String {
        format!("{what} [{}]", self.source)
    }

    fn stream_table(&self) -> Table {
        let times = self.streams.iter().flat_map(|stream| {
            let longest = stream.response.map_or(Nanos::ZERO, |response| response.max);
            [stream.deadline, longest]
        });
        let unit = Unit::of(times);
        let (streams, shown) = tightest(self.streams.iter(), "nearest to their deadlines", |stream| {
            (Reverse(stream.lost + stream.misses), stream.worst_slack_ns)
        });
        let title = self.title(&format!("Streams, response times in {}{shown}", unit.name));
        let columns = [
            ("stream", false, 0),
            ("gpu", true, 5),
            ("packets", true, 0),
            // Of a run that was cut off, most packets may be missing.
            ("delivered", true, if self.incomplete.is_some() { 0 } else { 6 }),
            ("lost", true, 1),
            ("data", true, 2),
            ("min", true, 3),
            ("median", true, 2),
            ("p99", true, 1),
            ("max", true, 0),
            ("bound", true, 0),
            ("deadline", true, 0),
            ("slack", true, 4),
            ("missed", true, 0),
        ];
        let mut table = Table::new(title, &columns);
        for stream in streams {
            let time = |of: fn(&Response) -> Nanos| {
                stream.response.as_ref().map_or_else(dash, |response| unit.time(of(response)))
            };
            table.rows.push(vec![
                plain(&stream.id),
                processor(stream.gpu, stream.cpu),
                grouped(stream.packets),
                grouped(stream.delivered),
                grouped(stream.lost),
                stream.bytes.to_string(),
                time(|response| response.min),
                time(|response| response.median),
                stream.response.and_then(|response| response.p99).map_or_else(dash, |p99| unit.time(p99)),
                time(|response| response.max),
                stream.bound.map_or_else(dash, |bound| unit.time(bound)),
                unit.time(stream.deadline),
                stream.worst_slack_ns.map_or_else(dash, |slack| unit.text(i128::from(slack))),
                grouped(stream.misses),
            ]);
        }
        table
    }

    /// The response times of messages or demands; `word` names one of them.
    fn jobs_table(&self, word: &str, all: &[JobsSummary]) -> Table {
        let longest = |of: &JobsSummary| of.response.map_or(Nanos::ZERO, |response| response.max);
        let unit = Unit::of(all.iter().flat_map(|of| [of.deadline, longest(of)]));
        let (rows, shown) =
            tightest(all.iter(), "nearest to their deadlines", |of| (Reverse(of.lost + of.misses), of.worst_slack_ns));
        let name = if word == "demand" { "Demands" } else { "Messages" };
        let title = self.title(&format!("{name}, response times in {}{shown}", unit.name));
        let columns = [
            (word, false, 0),
            ("jobs", true, 0),
            ("delivered", true, 6),
            ("lost", true, 1),
            ("data", true, 4),
            ("min", true, 5),
            ("median", true, 2),
            ("p99", true, 1),
            ("max", true, 0),
            ("bound", true, 0),
            ("deadline", true, 0),
            ("slack", true, 3),
            ("missed", true, 0),
        ];
        let mut table = Table::new(title, &columns);
        for of in rows {
            let time = |time: Option<Nanos>| time.map_or_else(dash, |time| unit.time(time));
            let some = |part: fn(&Response) -> Nanos| time(of.response.as_ref().map(part));
            table.rows.push(vec![
                plain(&of.id),
                grouped(of.jobs),
                grouped(of.delivered),
                grouped(of.lost),
                if of.bytes == Bytes(0) { dash() } else { of.bytes.to_string() },
                some(|response| response.min),
                some(|response| response.median),
                time(of.response.and_then(|response| response.p99)),
                some(|response| response.max),
                time(of.bound),
                unit.time(of.deadline),
                of.worst_slack_ns.map_or_else(dash, |slack| unit.text(i128::from(slack))),
                grouped(of.misses),
            ]);
        }
        table
    }

    fn bulk_table(&self) -> Table {
        let columns = [("bulk", false, 0), ("data", true, 0), ("of", true, 1), ("chunks", true, 2), ("rate", true, 0)];
        let (bulk, shown) = tightest(self.bulk.iter(), "that were slowest", |bulk| bulk.rate);
        let title = self.title(&format!("Bulk transfers, in what others left over{shown}"));
        let mut table = Table::new(title, &columns);
        for bulk in bulk {
            table.rows.push(vec![
                plain(&bulk.id),
                bulk.bytes.to_string(),
                bulk.of.map_or_else(dash, |of| of.to_string()),
                grouped(bulk.chunks),
                bulk.rate.to_string(),
            ]);
        }
        table
    }

    fn urgent_table(&self) -> Table {
        let longest = |response: Option<Response>| response.map(|response| response.max);
        let times = self.urgent.iter().flat_map(|of| [longest(of.response), longest(of.response_behind)]);
        let unit = Unit::of(times.flatten());
        let columns = [
            ("urgent", false, 0),
            ("requests", true, 0),
            ("admitted", true, 0),
            ("longest", true, 0),
            ("missed", true, 0),
            ("behind", true, 1),
            ("longest behind", true, 2),
            ("refused", true, 0),
        ];
        let (urgent, shown) = tightest(self.urgent.iter(), "that missed or were refused most, or took longest", |of| {
            Reverse((of.misses, of.refused, longest(of.response)))
        });
        let title = self.title(&format!("Urgent requests, times from request to arrival in {}{shown}", unit.name));
        let mut table = Table::new(title, &columns);
        for of in urgent {
            let time = |response| longest(response).map_or_else(dash, |time| unit.time(time));
            table.rows.push(vec![
                plain(&of.id),
                grouped(of.requests),
                grouped(of.guaranteed),
                time(of.response),
                grouped(of.misses),
                grouped(of.best_effort),
                time(of.response_behind),
                grouped(of.refused),
            ]);
        }
        table
    }

    fn engine_table(&self) -> Table {
        let columns = [
            ("engine", false, 0),
            ("gpu", true, 3),
            ("busy", true, 2),
            ("utilisation", true, 0),
            ("operations", true, 1),
            ("data", true, 0),
        ];
        let used = self.engines.iter().filter(|engine| engine.operations > 0);
        let (used, shown) = tightest(used, "that were busiest", |engine| Reverse(engine.utilisation_ppm));
        let mut table = Table::new(self.title(&format!("Engines used{shown}")), &columns);
        for engine in used {
            table.rows.push(vec![
                plain(&engine.name),
                processor(engine.gpu, engine.cpu),
                engine.busy.to_string(),
                percent(engine.utilisation_ppm),
                grouped(engine.operations),
                engine.bytes.to_string(),
            ]);
        }
        table
    }

    fn capacity_table(&self) -> Table {
        let columns = [("link or limit", false, 0), ("rate", true, 1), ("utilisation", true, 0), ("data", true, 0)];
        let used = self.capacities.iter().filter(|capacity| capacity.bytes > Bytes(0));
        let (used, shown) = tightest(used, "that were used most", |capacity| Reverse(capacity.utilisation_ppm));
        let mut table = Table::new(self.title(&format!("Links and limits used{shown}")), &columns);
        for capacity in used {
            table.rows.push(vec![
                plain(&capacity.name),
                capacity.rate.to_string(),
                percent(capacity.utilisation_ppm),
                capacity.bytes.to_string(),
            ]);
        }
        table
    }

    fn step_table(&self) -> Table {
        let unit = Unit::of(self.steps.iter().flat_map(|step| [step.cost, step.took_max]));
        let used = |step: &StepSummary| u128::from(step.took_max.0) * 1_000_000 / u128::from(step.cost.0.max(1));
        let (steps, shown) = tightest(self.steps.iter(), "that came closest to the plan", |step| {
            Reverse((step.overruns + step.late, used(step)))
        });
        let title = self.title(&format!("Steps, times of one job in {}{shown}", unit.name));
        let columns = [
            ("pipeline", false, 0),
            ("step", false, 0),
            ("server", false, 1),
            ("jobs", true, 2),
            ("planned", true, 0),
            ("longest", true, 0),
            ("overruns", true, 0),
            ("late", true, 0),
        ];
        let mut table = Table::new(title, &columns);
        for step in steps {
            table.rows.push(vec![
                plain(&step.pipeline),
                plain(&step.step),
                plain(&step.server),
                grouped(step.jobs),
                unit.time(step.cost),
                unit.time(step.took_max),
                grouped(step.overruns),
                grouped(step.late),
            ]);
        }
        table
    }

    fn server_table(&self) -> Table {
        let wait = |server: &ServerSummary| server.longest.as_ref().map(|longest| longest.wait);
        let unit = Unit::of(self.servers.iter().filter_map(wait));
        let (servers, shown) = tightest(self.servers.iter(), "with the longest waits", |server| Reverse(wait(server)));
        let title = self.title(&format!("Queues, longest wait in {}{shown}", unit.name));
        let columns = [
            ("server", false, 0),
            ("jobs", true, 3),
            ("waited", true, 2),
            ("longest", true, 0),
            ("job", false, 0),
            ("mostly for", false, 1),
        ];
        let mut table = Table::new(title, &columns);
        for server in servers {
            let longest = server.longest.as_ref();
            let job = |job: Option<&JobName>| job.map_or_else(dash, |job| plain(&job.to_string()));
            table.rows.push(vec![
                plain(&server.name),
                grouped(server.jobs),
                grouped(server.waited),
                longest.map_or_else(dash, |longest| unit.time(longest.wait)),
                job(longest.map(|longest| &longest.job)),
                job(longest.and_then(|longest| longest.cause.as_ref())),
            ]);
        }
        table
    }

    fn blame_lines(&self, out: &mut String) {
        if self.blame.is_empty() {
            return;
        }
        let _ = writeln!(out, "\n{}", self.title("Who waited for whom"));
        for pair in self.blame.iter().take(BLAME_LINES) {
            let cause = pair.cause_name.as_deref().map_or_else(|| "a free server".to_owned(), plain);
            let waiting = plain(&pair.waiting_name);
            let BlamedWait { wait, server, job, cause: longest, .. } = &pair.longest;
            let longest = longest.as_ref().map_or(String::new(), |cause| format!(" for #{}", cause.cycle));
            let (cycle, server) = (job.cycle, plain(server));
            let total = pair.total;
            let _ = writeln!(
                out,
                "  {waiting} waited {total} for {cause}; the longest was {wait}: #{cycle}{longest} at {server}"
            );
        }
        if self.blame.len() > BLAME_LINES {
            let _ = writeln!(out, "  and {} more pairs", self.blame.len() - BLAME_LINES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_column_share_a_unit_and_are_cut_not_rounded() {
        let unit = Unit::of([Nanos(1_999_999), Nanos(30)].into_iter());
        assert_eq!(unit.time(Nanos(1_999_999)), "1.999");
        assert_eq!(unit.text(-30_500), "-0.030");
        assert_eq!(Unit::of([Nanos(999)].into_iter()).time(Nanos(999)), "999");
    }

    #[test]
    fn names_with_control_characters_are_harmless() {
        assert_eq!(plain("a\u{1b}[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
    }
}
