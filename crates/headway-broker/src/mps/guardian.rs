//! The guardian: a small process that starts the daemon, and stops it when the broker has ended.
//!
//! Its standard input ends with the broker, however that ends. It adopts what the daemon leaves behind (`PR_SET_CHILD_SUBREAPER`), so
//! that it can end whatever a request to quit did not end. Every wait has a bound.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use headway_os::environment::has_more_rights;
use headway_os::ipc::{Poller, Process, Signal, children, stop_when_told};
use rustix::process::{WaitOptions, getpid, set_child_subreaper, setsid, wait};

use super::{
    LOG_VARIABLE, LOGS, MEMORY_VARIABLE, PID_FILE, PIPE_VARIABLE, PROGRAM, SHARE_VARIABLE, START_LOG, is_daemon,
};

/// Where a guardian that has more rights than its caller looks for [`PROGRAM`]: the caller's `$PATH` may name a program of the caller's.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long the daemon may take to start, and to answer for the first time.
const START_MAX: Duration = Duration::from_secs(15);
/// Between two attempts to ask a daemon that has just started.
const RETRY: Duration = Duration::from_millis(50);
/// Seconds for which the daemon waits for its clients before it ends their server.
const CLIENTS_SECONDS: u32 = 2;
/// How long a request to quit may take, and then the daemon's end.
const QUIT_MAX: Duration = Duration::from_secs(10);
/// How long the end of a process that was killed is waited for.
const KILL_MAX: Duration = Duration::from_secs(5);
/// Generations of processes that are ended at most.
const ROUNDS: usize = 8;
/// What is quoted of the daemon's words.
const QUOTED_BYTES: usize = 400;

/// Says, in the line that the guardian writes, that the daemon serves; its process follows.
pub(crate) const SERVING: &str = "serving ";
/// Says that it does not; the reason follows.
pub(crate) const FAILED: &str = "failed ";
/// How long a guardian may take at its end.
pub(crate) const END_MAX: Duration = Duration::from_secs(40);

/// Is the guardian of a daemon in `folder` until the standard input has ended. Writes one line to the standard output once the
/// daemon serves, or why it does not. For the program that [`MpsOptions`](super::MpsOptions) names; it returns when all is over.
///
/// # Errors
/// What the system says where the guardian itself cannot work; nothing was started then.
pub fn guard(folder: &Path) -> io::Result<()> {
    // What is typed at the broker's terminal concerns the broker. Where this process leads a session already, nothing is to do.
    let _ = setsid();
    let told = stop_when_told().map_err(io::Error::other)?;
    set_child_subreaper(Some(getpid()))?;
    let control = Control { folder: folder.to_owned() };
    stop_left_over(&control);
    match start(&control) {
        Err(why) => {
            say(&format!("{FAILED}{}", why.replace('\n', " ")));
            end_children();
        }
        Ok(pid) => {
            say(&format!("{SERVING}{pid}"));
            wait_for_the_end(pid, || told.load(Ordering::Relaxed))?;
            stop(&control, pid);
            end_children();
        }
    }
    Ok(())
}

/// To the broker, if it is still there.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Waits until the broker or the daemon has ended.
fn wait_for_the_end(pid: u32, told: impl Fn() -> bool) -> io::Result<()> {
    let poller = Poller::new().map_err(io::Error::other)?;
    poller.add(io::stdin().as_fd(), 0).map_err(io::Error::other)?;
    let Ok(daemon) = Process::open(pid) else { return Ok(()) };
    poller.add(daemon.as_fd(), 1).map_err(io::Error::other)?;
    let mut ready = Vec::new();
    // No process writes to the standard input: it is readable when the other end is closed.
    while ready.is_empty() && !told() {
        poller.wait(None, &mut ready).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Passes commands on to the daemon of a folder.
pub(crate) struct Control {
    pub(crate) folder: PathBuf,
}

impl Control {
    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.env(PIPE_VARIABLE, &self.folder).env(LOG_VARIABLE, self.folder.join(LOGS)).current_dir("/");
        // In the daemon's environment they would hold for every client.
        command.env_remove(SHARE_VARIABLE).env_remove(MEMORY_VARIABLE);
        if has_more_rights() {
            command.env("PATH", SYSTEM_PATH);
        }
        command
    }

    /// Whether the daemon took `line` within `bound`.
    pub(crate) fn tell(&self, line: &str, bound: Duration) -> bool {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { return false };
        // A program that reads nothing has ended, or is ended below: a line fits into a pipe.
        let _ = child.stdin.take().map(|mut input| writeln!(input, "{line}"));
        end_of(&mut child, bound).is_some_and(|status| status.success())
    }
}

/// Waits for a child for at most `bound`, then kills it: `None`.
fn end_of(child: &mut Child, bound: Duration) -> Option<ExitStatus> {
    let process = Process::open(child.id()).ok();
    let ended = process.as_ref().is_some_and(|process| has_ended_within(process, bound));
    if !ended {
        let _ = child.kill();
    }
    let status = child.wait().ok();
    status.filter(|_| ended)
}

/// Whether a process ends within `bound`.
pub(crate) fn has_ended_within(process: &Process, bound: Duration) -> bool {
    let start = Instant::now();
    let Ok(poller) = Poller::new() else { return process.has_ended() };
    if poller.add(process.as_fd(), 0).is_err() {
        return process.has_ended();
    }
    let mut ready = Vec::new();
    while !process.has_ended() {
        // A signal ends a wait early.
        let left = bound.saturating_sub(start.elapsed());
        if left.is_zero() || poller.wait(Some(left), &mut ready).is_err() {
            return process.has_ended();
        }
    }
    true
}

/// The process that the daemon of a folder has noted, if it is one.
fn noted(folder: &Path) -> Option<u32> {
    let text = fs::read_to_string(folder.join(PID_FILE)).ok()?;
    text.trim().parse().ok().filter(|pid| is_daemon(*pid))
}

/// Stops the daemon of a broker that was killed together with its guardian.
fn stop_left_over(control: &Control) {
    if let Some(pid) = noted(&control.folder) {
        stop(control, pid);
    }
}

/// Starts the daemon and waits until it answers: its process, or why not.
fn start(control: &Control) -> Result<u32, String> {
    let began = Instant::now();
    let log = control.folder.join(LOGS).join(START_LOG);
    let out = File::create(&log).map_err(|error| format!("cannot write `{}`: {error}", log.display()))?;
    let err = out.try_clone().map_err(|error| error.to_string())?;
    let mut command = control.command();
    command.arg("-d").stdin(Stdio::null()).stdout(out).stderr(err);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "the program `{PROGRAM}` is not in {}; it belongs to the NVIDIA driver's utilities (package `nvidia-compute-utils` \
             or `nvidia-driver-cuda`)",
            if has_more_rights() { SYSTEM_PATH } else { "$PATH" }
        ),
        _ => format!("the program `{PROGRAM}` cannot be started: {error}"),
    })?;
    let said = || {
        let text = fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[..text.len().min(QUOTED_BYTES)]).trim().to_owned();
        if text.is_empty() { "it printed nothing".to_owned() } else { format!("it printed \"{text}\"") }
    };
    match end_of(&mut child, START_MAX) {
        None => return Err(format!("`{PROGRAM} -d` did not return within {START_MAX:?} and was ended; {}", said())),
        Some(status) if !status.success() => {
            return Err(format!("`{PROGRAM} -d` ended with {status}; {}; it logs in `{}`", said(), logs(control)));
        }
        Some(_) => {}
    }
    loop {
        if !a_child_lives() {
            return Err(format!("it ended as soon as it was started; {}; it logs in `{}`", said(), logs(control)));
        }
        // A process that is just becoming another program has no command line to know it by.
        let daemon = children(std::process::id()).into_iter().find(|pid| is_daemon(*pid));
        let left = START_MAX.saturating_sub(began.elapsed());
        if let Some(pid) = daemon
            && control.tell("get_default_active_thread_percentage", left)
        {
            return Ok(pid);
        }
        if began.elapsed() >= START_MAX {
            return Err(format!("it does not answer within {START_MAX:?}; {}; it logs in `{}`", said(), logs(control)));
        }
        std::thread::park_timeout(RETRY);
    }
}

/// Whether a child of this process lives, in whatever session. Those that have ended are waited for. The kernel makes the children of a
/// process ours before it ends, so that none is missed, as one could be in a list of all processes.
fn a_child_lives() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn logs(control: &Control) -> String {
    control.folder.join(LOGS).display().to_string()
}

/// Has the daemon quit, and ends it where it does not.
pub(crate) fn stop(control: &Control, pid: u32) {
    if let Ok(daemon) = Process::open(pid)
        && !daemon.has_ended()
    {
        let took = control.tell(&format!("quit -t {CLIENTS_SECONDS}"), QUIT_MAX);
        if !took || !has_ended_within(&daemon, QUIT_MAX) {
            let _ = daemon.signal(Signal::Kill);
            has_ended_within(&daemon, KILL_MAX);
        }
    }
}

/// Ends all that the daemon has started and not ended. What a process leaves becomes our child in the next round.
fn end_children() {
    for _ in 0..ROUNDS {
        if !a_child_lives() {
            return;
        }
        for process in children(std::process::id()).into_iter().filter_map(|pid| Process::open(pid).ok()) {
            let _ = process.signal(Signal::Kill);
            has_ended_within(&process, KILL_MAX);
        }
    }
}
