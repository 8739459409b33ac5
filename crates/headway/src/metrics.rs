//! Metrics for Prometheus, and whether all is well, over HTTP on a loopback address or a Unix socket.
//!
//! `GET /metrics` gives the text format 0.0.4, `GET /healthz` 200 or 503 with the reason. One thread serves all clients without waiting for
//! any of them: each has two seconds for its request and its answer, and the oldest of too many makes room for the next. There is no library
//! for this: `hyper` needs a runtime, and `tiny_http` starts a thread for each connection and waits for a silent client without end.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use headway_broker::GpuStatus;
use headway_cuda::PcieCounters;
use headway_os::board::{BoardRow, PROCESSES_MAX};
use headway_os::ipc::{Bell, Poller, Socket};
use headway_os::threads;

use crate::activity::{ActivityMonitor, class_name, command, gpu_name, read_board, totals};
use crate::broker::{self, BrokerStatus, Phase};
use crate::{Error, Failure};

/// How long a client may take for its request, and for its answer.
const CLIENT_MAX: Duration = Duration::from_secs(2);
/// Clients at a time.
const CLIENTS_MAX: usize = 64;
/// A longer request is refused.
const REQUEST_MAX: usize = 4 << 10;
/// How long links are looked at.
const LOOK: Duration = PcieCounters::READ_EVERY;
/// They are looked at again after this long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
pub struct MetricsServer {
    address: MetricsAddress,
    stop: Arc<Bell>,
    /// At its end once the thread is.
    ended: Receiver<()>,
    file: Option<SocketFile>,
}

impl MetricsServer {
    /// Serves from now on.
    ///
    /// # Errors
    /// `ErrorKind::Io` if nobody can listen there, or no thread can be started.
    pub fn start(address: &MetricsAddress, source: MetricsSource) -> Result<Self, Error> {
        let failed = |source: io::Error| Failure::Metrics { address: address.to_string(), source };
        if let (MetricsAddress::Unix(path), MetricsSource::Broker(socket)) = (address, &source)
            && is_same_place(path, socket)
        {
            let error = "this is the broker's own socket: metrics need a path of their own";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, error)).into());
        }
        let stop = Arc::new(Bell::new().map_err(|error| failed(io::Error::other(error)))?);
        let (listener, file, listening_at) = listen(address).map_err(failed)?;
        let (poller, stopped) = (Poller::new(), Arc::clone(&stop));
        let poller = poller.and_then(|poller| {
            poller.add(listener.as_fd(), LISTENER)?;
            poller.add_bell(&stopped, STOP)?;
            Ok(poller)
        });
        let poller = poller.map_err(|error| failed(io::Error::other(error)))?;
        let (ends, ended) = mpsc::channel();
        let serve = move || {
            let _ends: mpsc::Sender<()> = ends;
            // Who stops waits for a bounded time only: the bell must still be there when it is heard.
            let _stopped = stopped;
            Service {
                listener,
                poller,
                source,
                links: LinkLook::default(),
                clients: BTreeMap::new(),
                accepted: FIRST_CLIENT,
            }
            .run();
        };
        threads::spawn("headway-metrics", serve).map_err(|error| failed(io::Error::other(error)))?;
        Ok(Self { address: listening_at, stop, ended, file })
    }

    /// Where it listens, with the port that the system chose for port 0.
    #[must_use]
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        // As long as the thread has the socket, no other file has the number of its file.
        if let Some(file) = self.file.take() {
            file.remove();
        }
        self.stop.ring();
        // A driver may keep the thread from hearing it for longer; it ends by itself then.
        let _ = self.ended.recv_timeout(CLIENT_MAX);
    }
}

/// The file of a socket that this process has made.
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let about = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: about.dev(), inode: about.ino() })
    }

    /// Leaves what others have put in its place.
    fn remove(self) {
        if Self::of(&self.path).is_ok_and(|now| (now.device, now.inode) == (self.device, self.inode)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

enum AnyListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AnyListener {
    /// The next client. What is used of a stream here is the same for both kinds of sockets.
    fn accept(&self) -> io::Result<TcpStream> {
        let stream: TcpStream = match self {
            Self::Tcp(listener) => listener.accept()?.0,
            Self::Unix(listener) => OwnedFd::from(listener.accept()?.0).into(),
        };
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}

impl AsFd for AnyListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

fn listen(address: &MetricsAddress) -> io::Result<(AnyListener, Option<SocketFile>, MetricsAddress)> {
    match address {
        MetricsAddress::Loopback(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = MetricsAddress::Loopback(listener.local_addr()?);
            Ok((AnyListener::Tcp(listener), None, address))
        }
        MetricsAddress::Unix(path) => {
            if is_left_over(path) {
                fs::remove_file(path)?;
            }
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            Ok((AnyListener::Unix(listener), Some(SocketFile::of(path)?), address.clone()))
        }
    }
}

/// Whether two paths name one file, which need not exist.
fn is_same_place(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        Some((fs::canonicalize(path.parent()?).ok()?, path.file_name()?.to_owned()))
    };
    one == other || place(one).is_some_and(|place_of_one| place(other) == Some(place_of_one))
}

/// Whether a socket lies there that no process has.
fn is_left_over(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket()) && Socket::is_dead(path)
}

/// Numbers of descriptors for the poller; clients have those behind.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_CLIENT: u64 = 2;

struct Service {
    listener: AnyListener,
    poller: Poller,
    source: MetricsSource,
    links: LinkLook,
    /// In the order in which they came.
    clients: BTreeMap<u64, Client>,
    /// The next number.
    accepted: u64,
}

impl Service {
    fn run(mut self) {
        let mut ready = Vec::new();
        loop {
            let until = self.clients.values().map(|client| client.until).min();
            let bound = until.map(|until| until.saturating_duration_since(Instant::now()));
            if self.poller.wait(bound, &mut ready).is_err() {
                std::thread::sleep(LOOK);
            }
            if ready.contains(&STOP) {
                return;
            }
            for &number in &ready {
                match number {
                    LISTENER => self.accept(),
                    number => self.serve(number),
                }
            }
            let now = Instant::now();
            let over = self.clients.iter().filter(|(_, client)| client.until <= now).map(|(number, _)| *number);
            for number in over.collect::<Vec<_>>() {
                self.end(number);
            }
        }
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(stream) => {
                let number = self.accepted;
                self.accepted += 1;
                if self.poller.add(stream.as_fd(), number).is_err() {
                    return;
                }
                let until = Instant::now() + CLIENT_MAX;
                self.clients.insert(number, Client { stream, until, request: Vec::new(), answer: None });
                if self.clients.len() > CLIENTS_MAX
                    && let Some(oldest) = self.clients.keys().next().copied()
                {
                    self.end(oldest);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // One that went away, or no descriptors for a moment: the next one may be served.
            Err(_) => std::thread::sleep(LOOK),
        }
    }

    fn serve(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let answer = |request| answer(request, &self.source, &mut self.links);
        let await_room = |stream: &TcpStream| {
            self.poller.remove(stream.as_fd());
            self.poller.add_writable(stream.as_fd(), number).map_err(io::Error::other)
        };
        let goes_on = client.go_on(matches!(self.listener, AnyListener::Tcp(_)), answer, await_room);
        if !goes_on.unwrap_or(false) {
            self.end(number);
        }
    }

    fn end(&mut self, number: u64) {
        if let Some(client) = self.clients.remove(&number) {
            self.poller.remove(client.stream.as_fd());
        }
    }
}

struct Client {
    stream: TcpStream,
    until: Instant,
    request: Vec<u8>,
    answer: Option<Answer>,
}

struct Answer {
    bytes: Vec<u8>,
    sent: usize,
}

impl Client {
    /// Reads or writes what is possible now; whether there is more to do.
    fn go_on(
        &mut self,
        is_tcp: bool,
        answer: impl FnOnce(Request) -> Vec<u8>,
        await_room: impl FnOnce(&TcpStream) -> io::Result<()>,
    ) -> io::Result<bool> {
        let is_first = self.answer.is_none();
        if is_first {
            let mut part = [0; 512];
            let read = match self.stream.read(&mut part) {
                Ok(0) => return Ok(false),
                Ok(read) => read,
                Err(error) if is_passing(&error) => return Ok(true),
                Err(error) => return Err(error),
            };
            self.request.extend_from_slice(&part[..read]);
            let Some(request) = request(&self.request, is_tcp) else { return Ok(true) };
            self.answer = Some(Answer { bytes: answer(request), sent: 0 });
            self.until = Instant::now() + CLIENT_MAX;
        }
        if let Some(answer) = &mut self.answer {
            while answer.sent < answer.bytes.len() {
                match self.stream.write(&answer.bytes[answer.sent..]) {
                    Ok(written) => answer.sent += written,
                    Err(error) if is_passing(&error) => {
                        if is_first {
                            await_room(&self.stream)?;
                        }
                        return Ok(true);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(false)
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn answer(request: Request, source: &MetricsSource, links: &mut LinkLook) -> Vec<u8> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, kind, body) = match request {
        Request::Metrics => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", exposition(source, links)),
        Request::Health => match problem(source) {
            None => ("200 OK", TEXT, "ok\n".to_owned()),
            Some(problem) => ("503 Service Unavailable", TEXT, problem + "\n"),
        },
        Request::ForeignHost => {
            ("403 Forbidden", TEXT, "the header `Host` must name `localhost` or a loopback address\n".to_owned())
        }
        Request::Refused(status) => (status, TEXT, "GET /metrics or GET /healthz\n".to_owned()),
    };
    let bytes = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
    [head.into_bytes(), body.into_bytes()].concat()
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    Health,
    /// From a web page whose name its owner has pointed to this machine.
    ForeignHost,
    Refused(&'static str),
}

/// What is asked for; `None` if the request goes on.
fn request(text: &[u8], is_tcp: bool) -> Option<Request> {
    if !text.windows(4).any(|end| end == b"\r\n\r\n") {
        return (text.len() >= REQUEST_MAX).then_some(Request::Refused("431 Request Header Fields Too Large"));
    }
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut words = lines.next().unwrap_or_default().split(|byte| *byte == b' ');
    let (method, path) = (words.next(), words.next().and_then(|path| path.split(|byte| *byte == b'?').next()));
    if is_tcp && !lines.all(names_this_machine) {
        return Some(Request::ForeignHost);
    }
    Some(match (method, path) {
        (Some(b"GET"), Some(b"/metrics")) => Request::Metrics,
        (Some(b"GET"), Some(b"/healthz")) => Request::Health,
        (Some(b"GET"), Some(_)) => Request::Refused("404 Not Found"),
        (Some(_), Some(_)) => Request::Refused("405 Method Not Allowed"),
        _ => Request::Refused("400 Bad Request"),
    })
}

/// Of a header `Host`, whether it names a loopback address, `localhost`, or nothing. True of other headers.
fn names_this_machine(header: &[u8]) -> bool {
    let header = String::from_utf8_lossy(header);
    let Some((_, host)) = header.split_once(':').filter(|(name, _)| name.trim().eq_ignore_ascii_case("host")) else {
        return true;
    };
    let host = host.trim();
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
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
fn exposition(source: &MetricsSource, links: &mut LinkLook) -> String {
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
            page.text += links.lines(Instant::now());
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
        ("headway_deadline_misses_total", "Its copies, blocks of messages and packets that were late.", |row| {
            row.misses as f64
        }),
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
#[derive(Default)]
struct LinkLook {
    monitor: Option<ActivityMonitor>,
    lines: String,
    began: Option<Instant>,
}

impl LinkLook {
    /// What the last look found; a new one if that is too long ago. So whoever asks without pause has nobody wait for more looks.
    fn lines(&mut self, now: Instant) -> &str {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= LOOK_EVERY) {
            self.began = Some(now);
            self.lines = look_at_links(self.monitor.get_or_insert_with(ActivityMonitor::new));
        }
        &self.lines
    }
}

fn look_at_links(monitor: &mut ActivityMonitor) -> String {
    let mut page = Page::default();
    let help = "What the PCIe link carried of copies, in 25 ms of the last second.";
    page.family("headway_link_bytes_per_second", "gauge", help);
    if !monitor.has_counters() {
        return page.text;
    }
    monitor.begin();
    let activity = monitor.wait(LOOK, &AtomicBool::new(false));
    let seconds = activity.interval.0.max(1) as f64 / 1e9;
    for gpu in &activity.gpus {
        for (outward, link) in [(false, &gpu.inward), (true, &gpu.outward)] {
            if let Some(carried) = link.carried {
                page.sample(&[("gpu", &gpu.gpu), ("direction", direction(outward))], carried as f64 / seconds);
            }
        }
    }
    page.text
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
    fn a_web_page_that_points_its_name_here_learns_nothing() {
        let ask = |host: &str, is_tcp| request(format!("GET /metrics HTTP/1.1\r\n{host}\r\n").as_bytes(), is_tcp);
        for host in ["", "Host:\r\n", "host: LOCALHOST:9400\r\n", "Host: 127.0.0.1\r\n", "Host: [::1]:1\r\n"] {
            assert_eq!(ask(host, true), Some(Request::Metrics), "{host}");
        }
        for host in ["evil.test:9400", "10.0.0.1", "localhost.evil.test", "127.0.0.1:x", "localhost\r\nHost: evil.test"]
        {
            let host = format!("Host: {host}\r\n");
            assert_eq!(ask(&host, true), Some(Request::ForeignHost), "{host}");
            assert_eq!(ask(&host, false), Some(Request::Metrics), "{host}");
        }
    }

    #[test]
    fn links_are_looked_at_once_a_second_however_often_somebody_asks() {
        let (mut links, start) = (LinkLook::default(), Instant::now());
        assert!(links.lines(start).contains("headway_link_bytes_per_second"));
        for millis in [1, 500, 999] {
            links.lines(start + Duration::from_millis(millis));
            assert_eq!(links.began, Some(start), "{millis}");
        }
        links.lines(start + LOOK_EVERY);
        assert_eq!(links.began, Some(start + LOOK_EVERY));
    }

    /// Asks at `path` for the build's version.
    fn asked(path: &Path) -> bool {
        let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.contains("headway_build_info")
    }

    #[test]
    fn a_server_ends_whoever_has_taken_its_path_and_leaves_what_is_not_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let start = || MetricsServer::start(&MetricsAddress::Unix(path.clone()), MetricsSource::Run(Arc::default()));
        let server = start().unwrap();
        assert!(asked(&path));
        fs::remove_file(&path).unwrap();
        let foreign = UnixListener::bind(&path).unwrap();
        drop(server);
        assert!(path.exists(), "it is another's");
        drop(foreign);
        let server = start().unwrap();
        assert!(asked(&path));
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn who_listens_with_a_full_backlog_is_there_and_nobody_waits_for_him() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let _foreign = UnixListener::bind(&path).unwrap();
        let (sent, told) = mpsc::channel();
        let fill = path.clone();
        std::thread::spawn(move || {
            // A connection takes its place in the backlog also when its client has gone.
            while std::os::unix::net::UnixStream::connect(&fill).is_ok() {
                let _ = sent.send(());
            }
        });
        while told.recv_timeout(Duration::from_millis(500)).is_ok() {}
        assert!(!is_left_over(&path));
        assert!(MetricsServer::start(&MetricsAddress::Unix(path), MetricsSource::Run(Arc::default())).is_err());
    }

    #[test]
    fn clients_that_say_nothing_hold_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let source = MetricsSource::Run(Arc::default());
        let _server = MetricsServer::start(&MetricsAddress::Unix(path.clone()), source).unwrap();
        let connect = || std::os::unix::net::UnixStream::connect(&path).unwrap();
        let silent: Vec<_> = (0..2 * CLIENTS_MAX).map(|_| connect()).collect();
        assert!(asked(&path));
        // Those that were too many were ended, without an answer.
        silent[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!((&silent[0]).read(&mut [0]).unwrap(), 0);
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
