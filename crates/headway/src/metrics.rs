//! Metrics for Prometheus, and whether all is well, over HTTP on a loopback address or a Unix socket.
//!
//! `GET /metrics` gives the text format 0.0.4, `GET /healthz` 200 or 503 with the reason. One request is served at a time, each for two
//! seconds at most, so that a client that says nothing holds nobody up for longer. There is no library for this: `hyper` needs a runtime, and
//! `tiny_http` starts a thread for each connection and waits for a silent client without end.

use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_broker::GpuStatus;
use headway_os::board::{BoardRow, PROCESSES_MAX};
use headway_os::threads;

use crate::activity::{ActivityMonitor, class_name, command, gpu_name, read_board, totals};
use crate::broker::{self, BrokerStatus, Phase};
use crate::{Error, Failure};

/// How long a client may take for its request, and for its answer.
const CLIENT_MAX: Duration = Duration::from_secs(2);
/// A longer request is refused.
const REQUEST_MAX: usize = 4 << 10;
/// How long links are looked at for one answer.
const LOOK: Duration = Duration::from_millis(25);

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// On this machine only.
    Loopback(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err("`unix:` needs a path".to_owned()) } else { Ok(Self::Unix(path.into())) };
        }
        let usage = "give a loopback address with a port, as in `127.0.0.1:9400`, or `unix:PATH`";
        let found = text.to_socket_addrs().map_err(|error| format!("{error}; {usage}"))?;
        let (loopback, others): (Vec<_>, Vec<_>) = found.partition(|address| address.ip().is_loopback());
        match (loopback.first(), others.first()) {
            (Some(address), None) => Ok(Self::Loopback(*address)),
            (_, Some(other)) => Err(format!(
                "{} can be reached from other machines, and nothing here asks who they are; {usage}",
                other.ip()
            )),
            (None, None) => Err(format!("the name has no address; {usage}")),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "http://{address}/metrics"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What is served beside the copies of the user's programs.
#[derive(Clone, Debug)]
pub enum MetricsSource {
    /// Of the broker at this socket.
    Broker(PathBuf),
    Run(Arc<RunGauge>),
}

/// How far a run is.
#[derive(Debug, Default)]
pub struct RunGauge {
    done: AtomicU64,
    total: AtomicU64,
}

impl RunGauge {
    /// So much of `total` is done.
    pub fn show(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }
}

/// A thread that serves metrics until this is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: MetricsAddress,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Serves from now on.
    ///
    /// # Errors
    /// `ErrorKind::Io` if nobody can listen there, or no thread can be started.
    pub fn start(address: &MetricsAddress, source: MetricsSource) -> Result<Self, Error> {
        let failed = |source: io::Error| Failure::Metrics { address: address.to_string(), source };
        let (listener, address) = listen(address).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || {
            let mut monitor = None;
            loop {
                let stream = listener.accept();
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // Whoever does not listen to the end gets no answer.
                let _ = serve(&stream, &source, &mut monitor);
            }
        };
        let thread = threads::spawn("headway-metrics", serve)
            .map_err(|error| Failure::Metrics { address: address.to_string(), source: io::Error::other(error) })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens, with the port that the system chose for port 0.
    #[must_use]
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It looks at the flag when somebody connects.
        let woken = match &self.address {
            MetricsAddress::Loopback(address) => TcpStream::connect_timeout(address, CLIENT_MAX).is_ok(),
            MetricsAddress::Unix(path) => {
                let woken = UnixStream::connect(path).is_ok();
                let _ = fs::remove_file(path);
                woken
            }
        };
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

enum AnyListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AnyListener {
    /// The next client. What is used of a stream here is the same for both kinds of sockets.
    fn accept(&self) -> TcpStream {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => listener.accept().map(|(stream, _)| stream),
                Self::Unix(listener) => listener.accept().map(|(stream, _)| OwnedFd::from(stream).into()),
            };
            match accepted {
                Ok(stream) => return stream,
                // One client that went away, or no descriptors for a moment: the next one may be served.
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

fn listen(address: &MetricsAddress) -> io::Result<(AnyListener, MetricsAddress)> {
    match address {
        MetricsAddress::Loopback(address) => {
            let listener = TcpListener::bind(address)?;
            let address = MetricsAddress::Loopback(listener.local_addr()?);
            Ok((AnyListener::Tcp(listener), address))
        }
        MetricsAddress::Unix(path) => {
            if is_left_over(path) {
                fs::remove_file(path)?;
            }
            Ok((AnyListener::Unix(UnixListener::bind(path)?), address.clone()))
        }
    }
}

/// Whether a socket lies there on which nobody listens.
fn is_left_over(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn serve(mut stream: &TcpStream, source: &MetricsSource, monitor: &mut Option<ActivityMonitor>) -> io::Result<()> {
    let (status, kind, body) = match request(stream)? {
        Request::Metrics => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", exposition(source, monitor)),
        Request::Health => match problem(source) {
            None => ("200 OK", "text/plain; charset=utf-8", "ok\n".to_owned()),
            Some(problem) => ("503 Service Unavailable", "text/plain; charset=utf-8", problem + "\n"),
        },
        Request::Refused(status) => (status, "text/plain; charset=utf-8", "GET /metrics or GET /healthz\n".to_owned()),
    };
    let bytes = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
    let until = Instant::now() + CLIENT_MAX;
    let mut rest = &[head.into_bytes(), body.into_bytes()].concat()[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        let written = stream.write(rest)?;
        rest = &rest[written..];
    }
    Ok(())
}

enum Request {
    Metrics,
    Health,
    Refused(&'static str),
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn request(mut stream: &TcpStream) -> io::Result<Request> {
    let (until, mut text) = (Instant::now() + CLIENT_MAX, Vec::new());
    while !text.windows(4).any(|end| end == b"\r\n\r\n") {
        if text.len() >= REQUEST_MAX {
            return Ok(Request::Refused("431 Request Header Fields Too Large"));
        }
        stream.set_read_timeout(Some(left(until)?))?;
        let mut part = [0; 512];
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => text.extend_from_slice(&part[..read]),
        }
    }
    let first = text.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = first.split(|byte| *byte == b' ');
    let (method, path) = (words.next(), words.next().and_then(|path| path.split(|byte| *byte == b'?').next()));
    Ok(match (method, path) {
        (Some(b"GET"), Some(b"/metrics")) => Request::Metrics,
        (Some(b"GET"), Some(b"/healthz")) => Request::Health,
        (Some(b"GET"), Some(_)) => Request::Refused("404 Not Found"),
        (Some(_), Some(_)) => Request::Refused("405 Method Not Allowed"),
        _ => Request::Refused("400 Bad Request"),
    })
}

/// Why the source is not well; `None` if it is.
fn problem(source: &MetricsSource) -> Option<String> {
    let MetricsSource::Broker(socket) = source else { return None };
    match broker::status(Some(socket)) {
        Err(error) => Some(format!("the broker does not answer: {error}")),
        Ok(status) if status.gpus.iter().any(|gpu| gpu.lost) => Some("a GPU is lost".to_owned()),
        Ok(status) => status.memory.trouble.map(|trouble| format!("what happens cannot be written down: {trouble}")),
    }
}

/// The text of all metrics.
fn exposition(source: &MetricsSource, monitor: &mut Option<ActivityMonitor>) -> String {
    let mut page = Page::default();
    page.family("headway_build_info", "gauge", "Version of Headway; always 1.");
    page.sample(&[("version", crate::VERSION)], 1);
    copies(&mut page);
    match source {
        MetricsSource::Run(gauge) => {
            let [done, total] = [&gauge.done, &gauge.total].map(|of| of.load(Ordering::Relaxed) as f64);
            page.family("headway_run_progress_ratio", "gauge", "How much of the run's present phase is done.");
            page.sample(&[], if total > 0.0 { done / total } else { 0.0 });
        }
        MetricsSource::Broker(socket) => {
            links(&mut page, monitor.get_or_insert_with(ActivityMonitor::new));
            let status = broker::status(Some(socket)).ok();
            page.family("headway_broker_up", "gauge", "Whether the broker answers.");
            page.sample(&[], u8::from(status.is_some()));
            if let Some(status) = status {
                of_broker(&mut page, &status);
            }
        }
    }
    page.text
}

/// What programs have told of their copies. A series ends with its process.
fn copies(page: &mut Page) {
    let reading = read_board();
    let rows = totals(&reading);
    let labels: Vec<_> = rows.keys().map(|key| [gpu_name(key.gpu), key.pid.to_string(), command(key.pid)]).collect();
    type Value = fn(&BoardRow) -> f64;
    let families: [(&str, &str, Value); 4] = [
        ("headway_copied_bytes_total", "Bytes that a live process has told of.", |row| row.bytes as f64),
        ("headway_copies_total", "Copies that a live process has told of.", |row| row.copies as f64),
        ("headway_copy_wait_seconds_total", "Time that its copies waited for others on the engine.", |row| {
            row.waited_ns as f64 / 1e9
        }),
        ("headway_deadline_misses_total", "Its copies and packets that were late.", |row| row.misses as f64),
    ];
    for (name, help, value) in families {
        page.family(name, "counter", help);
        for ((key, row), [gpu, pid, command]) in rows.iter().zip(&labels) {
            let (direction, class) = (direction(key.outward), class_name(key.class));
            let labels =
                [("gpu", gpu.as_str()), ("direction", direction), ("class", class), ("pid", pid), ("command", command)];
            page.sample(&labels, value(row));
        }
    }
    page.family("headway_processes", "gauge", "Processes that tell of their copies.");
    page.sample(&[], reading.processes);
    page.family("headway_processes_limit", "gauge", "Processes that can; later ones are not counted.");
    page.sample(&[], PROCESSES_MAX);
}

const fn direction(outward: bool) -> &'static str {
    if outward { "out" } else { "in" }
}

/// What links carry. To count it without a gap would cost some percent of a CPU, so this is a look of [`LOOK`]. Calls of the driver may wait
/// for a reading: a run does not look.
fn links(page: &mut Page, monitor: &mut ActivityMonitor) {
    monitor.begin();
    let activity = monitor.wait(LOOK, &AtomicBool::new(false));
    let help = "What the PCIe link carried of copies, in the 25 ms before the answer.";
    page.family("headway_link_bytes_per_second", "gauge", help);
    let seconds = activity.interval.0.max(1) as f64 / 1e9;
    for gpu in &activity.gpus {
        for (outward, link) in [(false, &gpu.inward), (true, &gpu.outward)] {
            if let Some(carried) = link.carried {
                page.sample(&[("gpu", &gpu.gpu), ("direction", direction(outward))], carried as f64 / seconds);
            }
        }
    }
}

fn of_broker(page: &mut Page, status: &BrokerStatus) {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let waits = |phase: &Phase| match phase {
        Phase::WaitsForToken => true,
        Phase::Holds { waits_for, .. } => !waits_for.is_empty(),
    };
    let (counts, memory) = (&status.counts, &status.memory);
    let waiting = || status.jobs.iter().filter(|job| waits(&job.phase));
    let gauges = [
        ("headway_broker_uptime_seconds", "Since when the broker runs.", seconds(status.uptime.0)),
        (
            "headway_broker_recovering",
            "Whether it waits for its predecessor's clients.",
            f64::from(u8::from(status.recovering)),
        ),
        ("headway_broker_clients", "Clients.", status.clients.len() as f64),
        ("headway_broker_tasks", "Tasks of all users.", status.shared.tasks.used as f64),
        ("headway_broker_jobs_waiting", "Jobs that wait for a token or an engine.", waiting().count() as f64),
        (
            "headway_broker_longest_wait_seconds",
            "How long the first of them has waited.",
            seconds(waiting().map(|job| job.since.0).max().unwrap_or(0)),
        ),
        (
            "headway_broker_jobs_late",
            "Open jobs beyond their deadline.",
            status.jobs.iter().filter(|job| job.slack_ns < 0).count() as f64,
        ),
        (
            "headway_broker_memory_failing",
            "Whether what happens cannot be written down.",
            f64::from(u8::from(memory.trouble.is_some())),
        ),
    ];
    for (name, help, value) in gauges {
        page.family(name, "gauge", help);
        page.sample(&[], value);
    }
    let counters = [
        ("headway_broker_tokens_granted_total", "Tokens granted.", counts.tokens),
        ("headway_broker_engine_grants_total", "Engine requests granted.", counts.engines),
        ("headway_broker_leases_total", "Leases of engines.", counts.leases),
        ("headway_broker_refused_total", "Requests refused.", counts.refused),
        ("headway_broker_clients_cut_off_total", "Clients cut off.", counts.cut),
        ("headway_broker_write_failures_total", "How often nothing could be written.", memory.gaps),
    ];
    for (name, help, value) in counters {
        page.family(name, "counter", help);
        page.sample(&[], value);
    }
    type OfGpu = fn(&GpuStatus) -> f64;
    let of_gpus: [(&str, &str, OfGpu); 4] = [
        ("headway_broker_tokens", "Tokens of a GPU, by its number in the machine file.", |gpu| f64::from(gpu.tokens)),
        ("headway_broker_tokens_held", "Tokens that tasks hold.", |gpu| gpu.holders.len() as f64),
        ("headway_broker_engines_leased", "Whether its engines are leased to a client.", |gpu| {
            f64::from(u8::from(gpu.leased_to.is_some()))
        }),
        ("headway_broker_gpu_lost", "Whether it is lost.", |gpu| f64::from(u8::from(gpu.lost))),
    ];
    for (name, help, value) in of_gpus {
        page.family(name, "gauge", help);
        for gpu in &status.gpus {
            page.sample(&[("gpu_index", &gpu.gpu.0.to_string())], value(gpu));
        }
    }
}

/// A page in the text format of Prometheus, version 0.0.4.
#[derive(Default)]
struct Page {
    text: String,
    /// Of the family that samples belong to.
    name: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl fmt::Display) {
        self.text.push_str(self.name);
        for (at, (name, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{name}=\"{text}\"", if at == 0 { '{' } else { ',' });
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_so_that_a_program_cannot_write_a_line_of_its_own() {
        let mut page = Page::default();
        page.family("headway_copies_total", "counter", "Copies.");
        page.sample(&[("command", "a\"} 1\nb\\"), ("pid", "7")], 3);
        let sample = "headway_copies_total{command=\"a\\\"} 1\\nb\\\\\",pid=\"7\"} 3";
        assert_eq!(page.text.lines().nth(2), Some(sample));
        assert_eq!(page.text.lines().count(), 3);
    }

    #[test]
    fn only_addresses_of_this_machine_are_taken() {
        for (text, here) in [
            ("127.0.0.1:9400", true),
            ("[::1]:9400", true),
            ("127.8.0.1:1", true),
            ("0.0.0.0:9400", false),
            ("[::]:1", false),
        ] {
            assert_eq!(text.parse::<MetricsAddress>().is_ok(), here, "{text}");
        }
        assert_eq!("unix:a:b".parse(), Ok(MetricsAddress::Unix("a:b".into())));
    }
}
