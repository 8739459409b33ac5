//! The MPS daemon that a broker runs: started, joined, and stopped however the broker ends. A script stands in for NVIDIA's program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::common::{Answer, command, fake_mps, root, with_more_rights};
use tempfile::TempDir;

/// Brokers of one machine file share a GPU, which has one broker at a time.
static GPU: Mutex<()> = Mutex::new(());

/// A folder with the script, and what is in its environment.
struct Place {
    folder: TempDir,
    _gpu: MutexGuard<'static, ()>,
}

impl Place {
    fn new() -> Self {
        let gpu = GPU.lock().unwrap_or_else(PoisonError::into_inner);
        Self { folder: tempfile::tempdir().unwrap(), _gpu: gpu }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn environment(&self, command: &mut Command, how: &str) {
        fake_mps(command, self.folder.path());
        command.env("FAKE_MPS", how).env("HEADWAY_BROKER", self.at("s"));
    }

    fn headway(&self, how: &str, args: &[&str]) -> Command {
        let mut command = command(self.folder.path());
        self.environment(&mut command, how);
        command.args(args);
        command
    }

    fn broker(&self, how: &str, socket: &str) -> Command {
        // The second broker of a test has a GPU of its own.
        let machine = if socket == "t" { "wafer-k20m" } else { "h200-x1" };
        let args = ["broker", "--mps", "--machine", machine, "--no-boost", "--despite-claims", "--socket", socket];
        self.headway(how, &args)
    }

    fn record(&self) -> String {
        fs::read_to_string(self.at("record")).unwrap_or_default()
    }

    /// The process that the daemon of the broker at `socket`, or its server, has noted.
    fn noted(&self, socket: &str, which: &str) -> u32 {
        fs::read_to_string(self.at(&format!("{socket}.mps/{which}"))).unwrap().trim().parse().unwrap()
    }
}

const DAEMON: &str = "nvidia-cuda-mps-control.pid";
/// Nothing takes that long, however slow the machine is.
const LIMIT: Duration = Duration::from_secs(300);

/// A broker that listens; killed when it is dropped.
struct Broker {
    child: Child,
    /// The lines of its standard error, until that ends.
    said: Receiver<String>,
}

impl Broker {
    #[track_caller]
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (tell, said) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let this = Self { child, said };
        let said = this.until("listening at");
        assert!(said.contains("listening"), "{said}");
        this
    }

    /// What it says until a line has `word` in it, or its end.
    fn until(&self, word: &str) -> String {
        let mut said = String::new();
        while !said.contains(word) {
            let Ok(line) = self.said.recv_timeout(LIMIT) else { break };
            said.push_str(&line);
            said.push('\n');
        }
        said
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process runs; one that has ended and was not waited for does not.
fn runs(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[track_caller]
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn answer(mut command: Command) -> Answer {
    command.output().unwrap().into()
}

#[test]
fn a_daemon_runs_while_its_broker_does_and_guests_get_their_share_of_it() {
    let place = Place::new();
    let mut starter = place.broker("works", "s");
    starter.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10");
    let mut broker = Broker::start(starter);
    let folder = place.at("s.mps").display().to_string();
    assert_eq!(place.record().lines().next(), Some(format!("start {folder} logs {folder}/log share none").as_str()));
    let daemon = place.noted("s", DAEMON);
    let status = answer(place.headway("works", &["--format", "json", "status"])).exits(0).json();
    assert_eq!(
        (status["mps"]["pid"].as_u64(), status["mps"]["folder"].as_str()),
        (Some(daemon.into()), Some(&*folder))
    );
    assert!(
        answer(place.headway("works", &["status"])).out.contains(&format!("MPS       daemon {daemon}, in {folder}"))
    );

    let show = "echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    let guest = |options: &[&str]| {
        let args = [&["exec"], options, &["--", "sh", "-c", show]].concat();
        answer(place.headway("works", &args)).exits(0).out
    };
    assert_eq!(guest(&["--share", "90%", "--memory", "4GiB"]), format!("{folder} 90 0=4096M\n"));
    assert_eq!(guest(&["--share=25", "--socket", "s"]), format!("{folder} 25\n"));
    assert_eq!(guest(&[]), format!("{}\n", place.at("usual").display()), "nobody asked for a share");

    let server = place.noted("s", "server");
    assert!(runs(daemon) && runs(server));
    broker.signal("TERM");
    assert!(broker.child.wait().unwrap().success());
    // A broker that ends in order waits for its daemon's end.
    assert!(!runs(daemon) && !runs(server));
    assert!(place.record().contains("quit -t"), "{}", place.record());
}

#[test]
fn the_daemon_of_a_broker_that_is_killed_is_stopped() {
    let place = Place::new();
    let broker = Broker::start(place.broker("works", "s"));
    let (daemon, server) = (place.noted("s", DAEMON), place.noted("s", "server"));
    broker.signal("KILL");
    wait_until("the daemon ends", || !runs(daemon) && !runs(server));
    assert!(place.record().contains("quit -t"));
    drop(broker);
    // The place is free for the next one, with a daemon of its own.
    let _next = Broker::start(place.broker("works", "s"));
    assert!(runs(place.noted("s", DAEMON)));
}

#[test]
fn a_daemon_that_does_not_quit_is_ended_with_its_server() {
    let place = Place::new();
    let broker = Broker::start(place.broker("stubborn", "s"));
    let (daemon, server) = (place.noted("s", DAEMON), place.noted("s", "server"));
    broker.signal("KILL");
    wait_until("both end", || !runs(daemon) && !runs(server));
    assert!(place.record().contains("quit -t"));
}

#[test]
fn a_daemon_is_waited_for_until_it_can_be_told_from_other_programs() {
    let place = Place::new();
    let _broker = Broker::start(place.broker("late", "s"));
    assert!(runs(place.noted("s", DAEMON)));
}

#[test]
fn a_daemon_whose_guardian_was_killed_ends_with_the_broker() {
    let place = Place::new();
    let mut broker = Broker::start(place.broker("works", "s"));
    let daemon = place.noted("s", DAEMON);
    let parent = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    let guardian = parent.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().to_owned();
    assert!(Command::new("kill").args(["-KILL", &guardian]).status().unwrap().success());
    let said = broker.until("guardian");
    assert!(said.contains("the guardian of the MPS daemon has ended"), "{said}");
    assert!(runs(daemon));
    broker.signal("TERM");
    broker.child.wait().unwrap();
    wait_until("the daemon ends", || !runs(daemon));
}

#[test]
fn a_daemon_that_cannot_start_is_told_with_what_it_said() {
    let place = Place::new();
    for (how, said) in [
        ("fails", &["cannot start the MPS daemon", "exit status: 1", "Insufficient permissions", "s.mps/log"][..]),
        ("dies", &["it ended as soon as it was started"][..]),
        ("hangs", &["did not return within 15s"][..]),
        ("deaf", &["does not answer within 15s"][..]),
    ] {
        let answer = answer(place.broker(how, "s")).exits(2);
        assert!(said.iter().all(|part| answer.err.contains(part)), "{how}: {}", answer.err);
        assert!(!place.at("s").exists(), "{how}: nobody listens");
    }
    let mut without = place.broker("works", "s");
    without.env("PATH", "");
    let answer = answer(without).exits(2);
    assert!(
        answer.err.contains("`nvidia-cuda-mps-control` is not in $PATH") && answer.err.contains("nvidia-compute-utils")
    );
    // Nothing of all that is left: the next one starts.
    Broker::start(place.broker("works", "s"));
}

#[test]
fn another_daemon_of_this_user_is_in_the_way() {
    let place = Place::new();
    fs::create_dir(place.at("usual")).unwrap();
    let mut other = Command::new(place.at("bin/nvidia-cuda-mps-control"));
    place.environment(&mut other, "works");
    let mut other = other.args(["-d", "serve"]).spawn().unwrap();
    wait_until("the other serves", || place.at("usual/nvidia-cuda-mps-control.pid").exists());
    let answer = answer(place.broker("works", "s")).exits(2);
    let expected = [format!("process {}", other.id()), "echo quit | nvidia-cuda-mps-control".to_owned()];
    assert!(expected.iter().all(|part| answer.err.contains(part)), "{}", answer.err);
    let server = fs::read_to_string(place.at("usual/server")).unwrap();
    assert!(other.try_wait().unwrap().is_none(), "it is left alone");
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(Command::new("kill").arg(server.trim()).status().unwrap().success());
}

#[test]
fn each_of_two_brokers_has_a_daemon_of_its_own() {
    let place = Place::new();
    let _first = Broker::start(place.broker("works", "s"));
    let refused = answer(place.broker("works", "s")).exits(2);
    assert!(refused.err.contains("a broker already listens"), "{}", refused.err);
    let second = Broker::start(place.broker("works", "t"));
    let daemons = [place.noted("s", DAEMON), place.noted("t", DAEMON)];
    assert!(daemons[0] != daemons[1] && daemons.iter().all(|pid| runs(*pid)));
    second.signal("KILL");
    wait_until("the second one ends", || !runs(daemons[1]));
    assert!(runs(daemons[0]));
}

#[test]
fn a_folder_that_others_could_fill_is_neither_served_nor_joined() {
    let place = Place::new();
    let elsewhere = place.at("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, place.at("s.mps")).unwrap();
    let refused = answer(place.broker("works", "s")).exits(2);
    assert!(refused.err.contains("s.mps"), "{}", refused.err);
    fs::remove_file(place.at("s.mps")).unwrap();
    fs::create_dir(place.at("s.mps")).unwrap();
    fs::set_permissions(place.at("s.mps"), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = answer(place.broker("works", "s")).exits(2);
    assert!(refused.err.contains("others may write"), "{}", refused.err);
    assert_eq!(place.record(), "", "nothing was started");

    fs::set_permissions(place.at("s.mps"), fs::Permissions::from_mode(0o700)).unwrap();
    let _broker = Broker::start(place.broker("works", "s"));
    fs::set_permissions(place.at("s.mps"), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = answer(place.headway("works", &["exec", "--share", "50%", "--", "true"])).exits(125);
    assert!(refused.err.contains("others may write"), "{}", refused.err);
}

#[test]
fn a_daemon_that_has_ended_is_not_joined_and_the_broker_goes_on() {
    let place = Place::new();
    let mut broker = Broker::start(place.broker("works", "s"));
    assert!(Command::new("kill").args(["-KILL", &place.noted("s", DAEMON).to_string()]).status().unwrap().success());
    let said = broker.until("MPS daemon has ended");
    assert!(said.contains("start the broker again"), "{said}");
    let refused = answer(place.headway("works", &["exec", "--share", "50%", "--", "true"])).exits(125);
    assert!(refused.err.contains("runs no MPS daemon for this user"), "{}", refused.err);
    assert!(broker.child.try_wait().unwrap().is_none());
    let server = place.noted("s", "server");
    wait_until("the server was ended by the guardian", || !runs(server));
}

#[test]
fn a_share_without_a_daemon_is_refused() {
    let place = Place::new();
    let exec = ["exec", "--share", "90%", "--", "true"];
    let refused = answer(place.headway("works", &exec)).exits(125);
    assert!(
        refused.err.contains("no broker listens at") && refused.err.contains("`headway broker --mps`"),
        "{}",
        refused.err
    );
    let without =
        place.headway("works", &["broker", "--machine", "h200-x1", "--no-boost", "--despite-claims", "--socket", "s"]);
    let _broker = Broker::start(without);
    let refused = answer(place.headway("works", &exec)).exits(125);
    assert!(refused.err.contains("runs no MPS daemon for this user"), "{}", refused.err);
    for wrong in [&["exec", "--share", "0%", "--", "true"][..], &["exec", "--memory", "1GiB", "--", "true"]] {
        answer(place.headway("works", wrong)).exits(2);
    }
    answer(place.headway("works", &["broker", "--mps", "--group"])).exits(2);
}

#[test]
fn runs_on_gpus_join_the_daemon_of_the_users_broker() {
    let place = Place::new();
    let _broker = Broker::start(place.broker("works", "s"));
    let workload = root().join("workloads/encrypt.toml").display().to_string();
    let run = |backend: &str, named: bool| {
        let args = ["run", &workload, "--backend", backend, "--duration", "5 ms"];
        let mut run = place.headway("works", &args);
        if !named {
            run.env_remove("CUDA_MPS_PIPE_DIRECTORY");
        }
        answer(run).err
    };
    let joins = "joins the MPS daemon of the broker";
    // There is no GPU: what follows fails, or is simulated.
    let err = run("cuda", false);
    assert!(err.contains(joins), "{err}");
    assert!(!run("cuda", true).contains(joins), "the environment names a daemon");
    assert!(!run("sim", false).contains(joins));
}

#[test]
fn a_path_that_the_daemons_sockets_cannot_have_is_refused() {
    let place = Place::new();
    let long = place.at(&"x".repeat(60));
    fs::create_dir(&long).unwrap();
    let socket = long.join("s").display().to_string();
    let refused = answer(place.broker("works", &socket)).exits(2);
    assert!(refused.err.contains("choose a shorter `--socket`"), "{}", refused.err);
    assert!(!Path::new(&socket).exists());
}

#[test]
fn with_more_rights_than_its_caller_a_broker_runs_no_program_of_the_callers_path() {
    let place = Place::new();
    let Some(headway) = with_more_rights(place.folder.path()) else { return };
    let mut broker = Command::new(headway);
    place.environment(&mut broker, "");
    broker.args(["broker", "--mps", "--machine", "h200-x1", "--no-boost", "--despite-claims", "--socket", "s"]);
    let refused = broker.current_dir(place.folder.path()).output().unwrap();
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(place.record(), "", "{refused:?}");
}
