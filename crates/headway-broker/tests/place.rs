//! Where a broker listens: one at a time, nothing replaced or removed that is another's, and nobody else believed.

mod support;

use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use headway_broker::{
    BrokerServer, Client, ClientError, OnLoss, ProgramEngine, ServerError, ServerOptions, TaskShape, client,
};
use headway_core::decisions::flows::{FlowContract, flow_engines};
use headway_core::files::machine::shipped;
use headway_core::files::workload::OnMiss;
use headway_core::models::transfer::Direction;
use headway_core::units::{Bytes, Nanos};
use headway_os::clock;
use headway_os::ipc::{Listener, Process, Signal, Socket, SocketPacket, is_stopped, stop_when_told, this_thread, user};
use headway_os::sched::{self, SchedClass};
use rustix::fs::{FileType, Mode};
use support::{Broker, LIMIT, parameters, shape, wait_until};

/// Exit status of a broker that found another one.
const RUNNING: i32 = 7;
/// Exit status of a broker that was asked to end.
const ENDED: i32 = 8;
const NOBODY: u32 = 65_534;

fn options(socket: &Path) -> ServerOptions {
    let mut options = ServerOptions::new(socket.to_owned(), parameters(1, 1, Nanos(0)));
    (options.boost, options.urgent, options.spin) = (false, false, Nanos(0));
    options
}

fn bind(socket: &Path) -> Result<(), ServerError> {
    BrokerServer::bind(options(socket)).map(drop)
}

/// This program in another role, which `role` names.
fn again(role: &str, socket: &Path) -> Command {
    // Whether this process ignores SIGHUP, as under `nohup`, is not known.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(env::current_exe().unwrap());
    command.args(["--exact", role, "--nocapture", "--test-threads=1"]).env("PLACE_SOCKET", socket);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

fn socket_from_env() -> Option<PathBuf> {
    let socket = PathBuf::from(env::var_os("PLACE_SOCKET")?);
    // Ends with the process that started it.
    std::thread::spawn(|| {
        let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
        std::process::exit(0);
    });
    Some(socket)
}

/// Not a test: a broker in a process of its own.
#[test]
fn broker() {
    let Some(socket) = socket_from_env() else { return };
    if let Some(most) = env::var("PLACE_DESCRIPTORS").ok().and_then(|text| text.parse().ok()) {
        let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    }
    let stop = stop_when_told().unwrap();
    let boost = env::var_os("PLACE_BOOST").is_some();
    match BrokerServer::bind(ServerOptions { boost, ..options(&socket) }) {
        Ok(mut server) => {
            server.run(&stop).unwrap();
            drop(server);
            // Whatever else the harness would do.
            std::process::exit(ENDED);
        }
        Err(ServerError::Running { .. }) => std::process::exit(RUNNING),
        Err(error) => panic!("{error:?}"),
    }
}

/// Not a test: somebody who pretends to be a broker.
#[test]
fn impostor() {
    let Some(socket) = socket_from_env() else { return };
    let listener = Listener::bind(&socket, 0o777).unwrap();
    loop {
        if let Ok(Some(client)) = listener.accept() {
            let _ = client.wait(LIMIT);
            let _ = client.send(br#"{"refused":{"reason":"the impostor was asked"}}"#, &[]);
        }
        std::thread::yield_now();
    }
}

/// A process of the test, ended when dropped.
struct Other(Child);

impl Other {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    fn signal(&self, signal: Signal) {
        Process::open(self.0.id()).unwrap().signal(signal).unwrap();
    }

    fn stop(&self) {
        self.signal(Signal::Stop);
        wait_until("every thread is stopped", || is_stopped(self.0.id()));
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until nobody listens at `socket`: a child that another test has just started has the listener, too, until it runs its program.
fn wait_until_dead(socket: &Path) {
    wait_until("nobody listens", || Socket::is_dead(socket));
}

fn is_there(socket: &Path) -> bool {
    client::status(socket).is_ok()
}

#[test]
fn of_two_brokers_started_together_one_is_left_thirty_times_and_a_killed_one_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    for round in 0..30 {
        let mut pair = [(); 2].map(|()| Other::start(&mut again("broker", &socket)));
        wait_until("one gives way", || pair.iter_mut().any(|broker| broker.has_ended().is_some()));
        wait_until("the other one serves", || is_there(&socket));
        let ended: Vec<_> = pair.iter_mut().map(|broker| broker.has_ended().and_then(|status| status.code())).collect();
        assert!(ended == [Some(RUNNING), None] || ended == [None, Some(RUNNING)], "round {round}: {ended:?}");
        assert_eq!(client::status(&socket).unwrap().epoch, round + 1, "only one has counted itself");
        // Killed, so that the socket's file stays for the next pair.
    }
}

#[test]
fn what_is_no_socket_of_a_broker_is_neither_replaced_nor_removed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    symlink(at("file"), at("link")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    let stale = at("stale");
    drop(Listener::bind(&stale, 0o600).unwrap());
    wait_until_dead(&stale);
    for name in ["file", "link", "folder", "stale"] {
        let error = bind(&at(name)).unwrap_err();
        assert!(matches!(error, ServerError::Occupied { .. }), "{name}: {error}");
        assert!(fs::symlink_metadata(at(name)).is_ok(), "{name} is gone");
    }
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "precious");
    // The name under which a socket is made.
    fs::write(at("s.new"), "precious").unwrap();
    assert!(matches!(bind(&at("s")).unwrap_err(), ServerError::Occupied { .. }));
    assert_eq!(fs::read_to_string(at("s.new")).unwrap(), "precious");
    // Somebody else listens.
    let other = at("other");
    let _other = Listener::bind(&other, 0o600).unwrap();
    assert!(matches!(bind(&other).unwrap_err(), ServerError::Running { .. }));
    assert!(Socket::connect(&other).is_ok());
}

#[test]
fn a_broker_removes_only_its_own_socket_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let mut broker = Broker::at(&socket, |_| {});
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "precious").unwrap();
    broker.stop();
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
    fs::remove_file(&socket).unwrap();
    drop(broker);
    Broker::at(&socket, |_| {}).stop();
    assert!(!socket.exists(), "its own is removed");
}

#[test]
fn planted_links_and_files_beside_the_socket_are_not_written_to() {
    for ending in [".epoch", ".epoch.new", ".lock", ".held", ".state", ".state.new"] {
        let folder = tempfile::tempdir().unwrap();
        let (socket, victim) = (folder.path().join("s"), folder.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.path().join(format!("s{ending}"))).unwrap();
        let bound = bind(&socket);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{ending}: {bound:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.epoch"), "my notes\n").unwrap();
    let error = bind(&folder.path().join("s")).unwrap_err();
    assert!(matches!(error, ServerError::Place { .. }), "{error}");
    assert_eq!(fs::read_to_string(folder.path().join("s.epoch")).unwrap(), "my notes\n");
}

#[test]
fn a_damaged_record_or_count_of_starts_is_refused_and_stays() {
    for (ending, damaged) in [
        (".state", "{\"garbled"),
        (".state", ""),
        (".epoch", "2147483648\n"),
        (".epoch", "18446744073709551615\n"),
        (".epoch", "-1\n"),
        (".epoch", ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        bind(&socket).unwrap();
        let file = folder.path().join(format!("s{ending}"));
        fs::write(&file, damaged).unwrap();
        let error = bind(&socket).unwrap_err();
        assert!(matches!(&error, ServerError::Place { path, .. } if *path == file), "{ending} {damaged:?}: {error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), damaged);
    }
}

#[test]
fn a_folder_that_others_may_write_in_is_refused_sticky_or_not_and_so_is_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    for mode in [0o777, 0o1777, 0o770] {
        fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(bind(&open.join("s")).unwrap_err(), ServerError::Place { .. }), "{mode:o}");
    }
    fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
    let link = folder.path().join("link");
    symlink(&open, &link).unwrap();
    assert!(matches!(bind(&link.join("s")).unwrap_err(), ServerError::Place { .. }));
    bind(&open.join("s")).unwrap();
    if user() != 0 {
        println!("skipped: only root gives a folder to another user");
        return;
    }
    for mode in [0o700, 0o1777] {
        fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        chown(&open, Some(NOBODY), None).unwrap();
        assert!(matches!(bind(&open.join("s")).unwrap_err(), ServerError::Place { .. }), "another user's, {mode:o}");
    }
}

#[test]
fn a_folder_below_one_that_another_user_can_rename_it_in_is_refused() {
    if user() != 0 {
        println!("skipped: only root gives a folder to another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (above, link) = (folder.path().join("above"), folder.path().join("link"));
    let place = above.join("between/place");
    fs::create_dir_all(&place).unwrap();
    let socket = place.join("s");
    for (owner, mode, fits) in
        [(0, 0o755, true), (0, 0o1777, true), (0, 0o777, false), (NOBODY, 0o755, false), (NOBODY, 0o1777, false)]
    {
        chown(&above, Some(owner), None).unwrap();
        fs::set_permissions(&above, fs::Permissions::from_mode(mode)).unwrap();
        let bound = bind(&socket);
        assert_eq!(bound.is_ok(), fits, "{owner} {mode:o}: {bound:?}");
        if let Err(error) = bound {
            let ServerError::Place { source, .. } = &error else { panic!("{error}") };
            let fact = if owner == 0 { "every user may rename" } else { "belongs to user 65534" };
            let text = source.to_string();
            assert!(text.contains(fact) && text.contains(&format!("`{}`", above.display())), "{text}");
        }
    }
    chown(&above, Some(0), None).unwrap();
    fs::set_permissions(&above, fs::Permissions::from_mode(0o755)).unwrap();
    // Whoever has a link on the way can have it lead elsewhere.
    symlink(above.join("between"), &link).unwrap();
    bind(&link.join("place/s")).unwrap();
    lchown(&link, Some(NOBODY), None).unwrap();
    let error = bind(&link.join("place/s")).unwrap_err();
    assert!(matches!(&error, ServerError::Place { source, .. } if source.to_string().contains("link`")), "{error:?}");
    // As `/run/user/NUMBER`: the user's, and root's above it.
    chown(&place, Some(NOBODY), None).unwrap();
    std::thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(None, Some(uid), None).unwrap();
            bind(&place.join("theirs"))
        });
        theirs.join().unwrap().unwrap();
    });
}

#[test]
fn nothing_is_said_to_a_broker_of_another_user() {
    if user() != 0 {
        println!("skipped: only root starts a process as another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("theirs");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(&place, Some(NOBODY), None).unwrap();
    let socket = place.join("broker");
    // The other user may have no way to the folder of this program. A copy could not be run while a child that another thread has just
    // forked still has it open for writing.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "impostor", "--nocapture", "--test-threads=1"]).env("PLACE_SOCKET", &socket);
    let _impostor = Other::start(command.uid(NOBODY).stdin(Stdio::piped()).stdout(Stdio::null()));
    wait_until("the impostor listens", || Socket::connect(&socket).is_ok());
    let error = client::status(&socket).unwrap_err();
    assert!(matches!(error, ClientError::Stranger { uid: NOBODY, .. }), "{error}");
    let error = Client::connect(&socket, "one", OnLoss::Wait).map(drop).unwrap_err();
    assert!(matches!(error, ClientError::Stranger { uid: NOBODY, .. }), "{error}");
}

#[test]
fn a_gpu_has_one_broker_whatever_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let claim = format!("GPU-test-{}", std::process::id());
    let at = |name: &str, despite: bool| {
        let mut options = options(&folder.path().join(name));
        (options.claims, options.despite_claims) = (vec![claim.clone()], despite);
        BrokerServer::bind(options)
    };
    let first = at("one", false).unwrap();
    for despite in [false, true] {
        // Of the same user: no option helps.
        let error = at("two", despite).map(drop).unwrap_err();
        let me = Some((std::process::id(), user()));
        assert!(matches!(&error, ServerError::Claimed { holder, .. } if *holder == me), "{error}");
    }
    assert!(!folder.path().join("two").exists(), "it has not listened");
    drop(first);
    // A child that another test has just started has the claim, too, until it runs its program.
    wait_until("the claim is free", || at("two", false).is_ok());
}

#[test]
fn a_stopped_broker_is_told_of_and_when_it_goes_on_so_do_its_clients() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let broker = Other::start(&mut again("broker", &socket));
    wait_until("the broker serves", || is_there(&socket));
    let client = Client::connect(&socket, "one", OnLoss::Wait).unwrap();
    let mut task = client.register(shape("a")).unwrap();
    task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    for _ in 0..3 {
        broker.stop();
        client.bear_silence(std::time::Duration::from_millis(20));
        let is_silent = |error: &ClientError| matches!(error, ClientError::Silent { is_stopped: true, .. });
        let error = client::status(&socket).unwrap_err();
        assert!(is_silent(&error) && error.to_string().contains("is stopped"), "{error}");
        let error = client.status().unwrap_err();
        assert!(is_silent(&error), "{error}");
        let error = task.acquire(clock::now(), 0, None).map(drop).unwrap_err();
        assert!(is_silent(&error), "{error}");
        drop(client.register(shape("b")));
        broker.signal(Signal::Continue);
        client.bear_silence(LIMIT);
        // Answers to what was asked meanwhile are not taken for the answers to this.
        assert!(client.status().unwrap().clients.iter().any(|client| client.name == "one"));
        let other = client.register(shape("c")).unwrap();
        assert_ne!(other.id(), task.id());
        drop(other);
        task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    }
}

#[test]
fn who_closes_before_the_answer_has_left_and_was_not_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let broker = Other::start(&mut again("broker", &socket));
    wait_until("the broker serves", || is_there(&socket));
    let before = client::status(&socket).unwrap().counts;
    broker.stop();
    for _ in 0..3 {
        // It says who it is, and is gone before the broker looks.
        let client = Socket::connect(&socket).unwrap();
        client.send(br#"{"hello":{"version":7,"name":"hasty","resumed":[]}}"#, &[]).unwrap();
    }
    broker.signal(Signal::Continue);
    // Each connection for the status leaves, too.
    let left = || client::status(&socket).unwrap().counts;
    wait_until("all three have left", || left().gone >= before.gone + 3);
    assert_eq!(left().cut, before.cut);
}

#[test]
fn a_flow_that_was_opened_when_nobody_waited_for_it_any_more_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let broker = Other::start(&mut again("broker", &socket));
    wait_until("the broker serves", || is_there(&socket));
    let client = Arc::new(Client::connect(&socket, "one", OnLoss::Fail).unwrap());
    let (keeps, terms) = (Arc::downgrade(&client), client.terms().unwrap());
    std::thread::spawn(move || {
        for terms in terms {
            keeps.upgrade().map(|client| client.take_terms(terms.version));
        }
    });
    let engines = flow_engines(&shipped("h200-x1").unwrap(), 2);
    let engines: Vec<_> = engines.into_iter().map(|engine| ProgramEngine { gpu: "G".to_owned(), engine }).collect();
    let contract = || FlowContract {
        name: "camera".to_owned(),
        gpu: 0,
        direction: Direction::H2d,
        bytes: Bytes(1 << 20),
        period: Nanos(100_000_000),
        deadline: Nanos(100_000_000),
        on_miss: OnMiss::Finish,
    };
    broker.stop();
    client.bear_silence(std::time::Duration::from_millis(20));
    let silent = client.open_flow(engines.clone(), contract()).unwrap_err();
    assert!(matches!(silent, ClientError::Silent { .. }), "{silent}");
    broker.signal(Signal::Continue);
    client.bear_silence(LIMIT);
    // The broker may refuse it once, if it opens the first one only then.
    wait_until("it is opened again", || client.open_flow(engines.clone(), contract()).unwrap().is_ok());
    assert_eq!(client.status().unwrap().flows.len(), 1);
}

#[test]
fn where_so_many_wait_that_nobody_is_let_in_a_client_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let broker = Other::start(&mut again("broker", &socket));
    wait_until("the broker serves", || is_there(&socket));
    broker.stop();
    let mut waiting = Vec::new();
    wait_until("nobody else is let in", || Socket::connect(&socket).map(|one| waiting.push(one)).is_err());
    let error = client::status(&socket).unwrap_err();
    assert!(matches!(error, ClientError::Crowded { .. }), "{error}");
    broker.signal(Signal::Continue);
    wait_until("they were all shown out", || is_there(&socket));
}

#[test]
fn connections_that_never_say_who_they_are_lock_nobody_out_and_are_ended() {
    let broker = Broker::start(|options| options.greeting = Nanos(200_000_000));
    let silent: Vec<Socket> = (0..100).map(|_| Socket::connect(&broker.socket).unwrap()).collect();
    let client = Client::connect(&broker.socket, "one", OnLoss::Fail).unwrap();
    assert!(is_there(&broker.socket));
    let mut task = client.register(shape("a")).unwrap();
    task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    for socket in &silent {
        wait_until("the end of a silent connection", || match socket.receive(&mut [0; 512]) {
            Ok(SocketPacket::End) => true,
            Ok(_) => false,
            Err(error) => panic!("{error}"),
        });
    }
    assert_eq!(client.status().unwrap().clients.len(), 1);
}

/// How often the threads of a process have slept.
fn sleeps(pid: u32) -> u64 {
    let of = |status: PathBuf| -> u64 {
        let text = fs::read_to_string(status).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse().unwrap()
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(|thread| of(thread.unwrap().path().join("status"))).sum()
}

#[test]
fn a_broker_without_descriptors_says_so_sleeps_and_serves_again_when_there_are_some() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let mut broker = Other::start(again("broker", &socket).env("PLACE_DESCRIPTORS", "100"));
    wait_until("the broker serves", || is_there(&socket));
    let first = Client::connect(&socket, "first", OnLoss::Fail).unwrap();
    let (mut kept, mut refused) = (Vec::new(), 0);
    for _ in 0..40 {
        match Client::connect(&socket, "more", OnLoss::Fail) {
            Ok(client) => kept.push(client),
            Err(ClientError::Refused { reason }) => {
                assert!(reason.contains("descriptors"), "{reason}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0 && !kept.is_empty(), "{} served, {refused} refused", kept.len());
    let silent: Vec<_> = (0..20).filter_map(|_| Socket::connect(&socket).ok()).collect();
    // One that has nothing to do sleeps four times a second; one that is told of the same connection again and again never.
    let before = sleeps(broker.0.id());
    wait_until("the broker sleeps", || sleeps(broker.0.id()) >= before + 8);
    assert!(first.status().is_ok() && broker.has_ended().is_none());
    drop((kept, silent));
    wait_until("there is room again", || Client::connect(&socket, "later", OnLoss::Fail).is_ok());
}

#[test]
fn a_broker_that_would_have_no_descriptors_for_clients_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let mut command = again("broker", &socket);
    let mut started = command.env("PLACE_DESCRIPTORS", "64").stderr(Stdio::piped()).spawn().unwrap();
    let stdin = started.stdin.take();
    let started = started.wait_with_output().unwrap();
    drop(stdin);
    let said = String::from_utf8_lossy(&started.stderr);
    assert!(!started.status.success() && said.contains("TooFewDescriptors { limit: 64, least: 96 }"), "{said}");
    assert!(!socket.exists());
}

#[test]
fn a_start_that_is_refused_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("s"), "precious").unwrap();
    assert!(matches!(bind(&at("s")).unwrap_err(), ServerError::Occupied { .. }));
    let error = bind(Path::new("@s")).unwrap_err();
    assert!(matches!(&error, ServerError::Place { .. }), "{error}");
    assert!(matches!(client::status(Path::new("@s")).unwrap_err(), ClientError::Abstract { .. }));
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name == "s.lock"), "{left:?}");
    // A name taken by a broker is no start that is refused.
    let mut broker = Broker::at(&at("b"), |_| {});
    assert!(matches!(bind(&at("b")).unwrap_err(), ServerError::Running { .. }));
    assert!(at("b.lock").exists());
    broker.stop();
}

#[test]
fn files_beside_the_socket_with_other_names_are_not_written_to() {
    for ending in [".epoch", ".lock", ".state", ".held"] {
        let folder = tempfile::tempdir().unwrap();
        let (socket, victim) = (folder.path().join("s"), folder.path().join("victim"));
        fs::write(&victim, "").unwrap();
        fs::hard_link(&victim, folder.path().join(format!("s{ending}"))).unwrap();
        let error = bind(&socket).unwrap_err();
        assert!(matches!(&error, ServerError::Place { source, .. } if source.to_string().contains("hard links")));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "", "{ending}");
    }
}

#[test]
fn a_record_that_was_cut_short_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let mut broker = Broker::at(&socket, |_| {});
    let client = Client::connect(&socket, "one", OnLoss::Wait).unwrap();
    let (mut a, mut b) = (client.register(shape("a")).unwrap(), client.register(shape("b")).unwrap());
    let held = (a.acquire(clock::now(), 0, Some(LIMIT)).unwrap(), b.acquire(clock::now(), 0, Some(LIMIT)).unwrap());
    broker.stop();
    let record = folder.path().join("s.held");
    let whole = fs::read(&record).unwrap();
    // A first line and two tokens, of 64 bytes each; what follows is room for more.
    let used = whole.iter().rposition(|byte| *byte != b' ').unwrap() + 1;
    assert_eq!(used, 3 * 64);
    let cut = [used - 1, used - 32, used - 64, 100, 64, 63, 10, 0].map(|length| whole[..length].to_vec());
    let wrong = (0..20).map(|at| [&whole[..at], b"#", &whole[at + 1..]].concat());
    for damaged in cut.into_iter().chain(wrong) {
        fs::write(&record, &damaged).unwrap();
        let error = bind(&socket).unwrap_err();
        let text = String::from_utf8_lossy(&damaged).into_owned();
        assert!(matches!(&error, ServerError::Place { path, .. } if *path == record), "{text}: {error}");
    }
    fs::write(&record, &whole).unwrap();
    // One bit of any byte.
    for file in [record.clone(), folder.path().join("s.state")] {
        let whole = fs::read(&file).unwrap();
        let used = whole.iter().rposition(|byte| *byte != b' ').unwrap() + 1;
        for at in 0..used {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, &damaged).unwrap();
            let error = bind(&socket).unwrap_err();
            assert!(matches!(&error, ServerError::Place { path, .. } if *path == file), "byte {at}: {error}");
        }
        fs::write(&file, &whole).unwrap();
    }
    // One of the two alone says that there was a broker, but not whom it served.
    for missing in ["s.held", "s.state"] {
        let (file, aside) = (folder.path().join(missing), folder.path().join("aside"));
        fs::rename(&file, &aside).unwrap();
        let error = bind(&socket).unwrap_err();
        assert!(matches!(&error, ServerError::Place { path, .. } if *path == file), "{missing}: {error}");
        assert!(!file.exists());
        fs::rename(&aside, &file).unwrap();
    }
    fs::set_permissions(&record, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(bind(&socket).unwrap_err(), ServerError::Place { path, .. } if path == record));
    fs::set_permissions(&record, fs::Permissions::from_mode(0o600)).unwrap();
    bind(&socket).unwrap();
    std::mem::forget(held);
}

#[test]
fn a_log_lies_where_nobody_else_can_take_it_away_and_is_no_file_with_two_names() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, place) = (folder.path().join("s"), folder.path().join("logs"));
    let with = |log: PathBuf| BrokerServer::bind(ServerOptions { log: Some(log), ..options(&socket) }).map(drop);
    let text = |error: ServerError| match error {
        ServerError::Log { source, .. } => source.to_string(),
        error => panic!("{error}"),
    };
    assert!(text(with(place.join("log")).unwrap_err()).contains("make it"));
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(text(with(place.join("log")).unwrap_err()).contains("chmod"));
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(place.join("victim"), "precious\n").unwrap();
    fs::hard_link(place.join("victim"), place.join("log")).unwrap();
    assert!(text(with(place.join("log")).unwrap_err()).contains("hard links"));
    assert_eq!(fs::read_to_string(place.join("victim")).unwrap(), "precious\n");
    with(place.join("other")).unwrap();
}

#[test]
fn who_asks_a_broker_to_end_finds_no_socket_and_no_lock_taken() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::HUP, rustix::process::Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("broker");
        let mut broker = Other::start(&mut again("broker", &socket));
        wait_until("the broker serves", || is_there(&socket));
        let pid = rustix::process::Pid::from_raw(broker.0.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        wait_until("it ends", || broker.has_ended().is_some());
        assert_eq!(broker.has_ended().unwrap().code(), Some(ENDED), "{signal:?}");
        assert!(!socket.exists());
        bind(&socket).unwrap();
    }
}

#[test]
fn however_a_broker_ends_no_thread_stays_raised() {
    for kills in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("broker");
        let broker = Other::start(again("broker", &socket).env("PLACE_BOOST", "1"));
        wait_until("the broker serves", || is_there(&socket));
        let client = Client::connect(&socket, "one", OnLoss::Fail).unwrap();
        let priority = client.status().unwrap().priority;
        if !priority.starts_with("follows") {
            println!("skipped: a priority {priority}");
            return;
        }
        let mut task = client.register(TaskShape { thread: Some(this_thread()), ..shape("a") }).unwrap();
        let token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
        wait_until("it is raised", || matches!(sched::current(), Ok(SchedClass::Fifo { .. })));
        let pid = rustix::process::Pid::from_raw(broker.0.id().cast_signed()).unwrap();
        let signal = if kills { rustix::process::Signal::KILL } else { rustix::process::Signal::TERM };
        rustix::process::kill_process(pid, signal).unwrap();
        wait_until("it is an ordinary thread", || matches!(sched::current(), Ok(SchedClass::Other)));
        drop(token);
    }
}

/// Processes that threads of the process `pid` have started and that are still there.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end meanwhile.
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).ok());
    texts.flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// A broker with a raised thread, this one, and the guardian that knows of it; `None` where nothing can be raised.
fn raised(socket: &Path) -> Option<(Other, u32)> {
    let broker = Other::start(again("broker", socket).env("PLACE_BOOST", "1"));
    wait_until("the broker serves", || is_there(socket));
    let client = Client::connect(socket, "one", OnLoss::Fail).unwrap();
    let priority = client.status().unwrap().priority;
    if !priority.starts_with("follows") {
        println!("skipped: a priority {priority}");
        return None;
    }
    let mut task = client.register(TaskShape { thread: Some(this_thread()), ..shape("a") }).unwrap();
    std::mem::forget(task.acquire(clock::now(), 0, Some(LIMIT)).unwrap());
    std::mem::forget(task);
    std::mem::forget(client);
    wait_until("it is raised", || matches!(sched::current(), Ok(SchedClass::Fifo { .. })));
    let guardian = children(broker.0.id())[0];
    Some((broker, guardian))
}

fn kill(pid: u32) {
    Process::open(pid).unwrap().signal(Signal::Kill).unwrap();
}

#[test]
fn a_thread_that_stays_raised_as_broker_and_guardian_are_killed_is_lowered_by_the_next_broker() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let Some((broker, guardian)) = raised(&socket) else { return };
    // It cannot start another guardian meanwhile.
    broker.stop();
    kill(guardian);
    drop(broker);
    assert!(matches!(sched::current(), Ok(SchedClass::Fifo { .. })), "nobody is there to lower it");
    let _next = Other::start(again("broker", &socket).env("PLACE_BOOST", "1"));
    wait_until("it is an ordinary thread", || matches!(sched::current(), Ok(SchedClass::Other)));
}

#[test]
fn a_guardian_that_is_killed_while_a_thread_is_raised_is_replaced_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let Some((broker, guardian)) = raised(&socket) else { return };
    kill(guardian);
    wait_until("another one is there", || children(broker.0.id()).iter().any(|pid| *pid != guardian));
    kill(broker.0.id());
    wait_until("it is an ordinary thread", || matches!(sched::current(), Ok(SchedClass::Other)));
}

#[test]
fn files_with_the_names_of_the_brokers_that_no_broker_made_stay_as_they_are() {
    let text = "# This file is automatically @generated by Cargo.\nversion = 4\n".repeat(20);
    for ending in [".lock", ".held", ".state", ".state.new", ".epoch", ".epoch.new", ".new"] {
        let folder = tempfile::tempdir().unwrap();
        let (socket, file) = (folder.path().join("Cargo"), folder.path().join(format!("Cargo{ending}")));
        fs::write(&file, &text).unwrap();
        for _ in 0..2 {
            let error = bind(&socket).unwrap_err();
            let names = match &error {
                ServerError::Place { path, .. } | ServerError::Occupied { path, .. } => *path == file,
                _ => false,
            };
            assert!(names, "{ending}: {error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text, "{ending}");
        }
        fs::remove_file(&file).unwrap();
        bind(&socket).unwrap();
    }
}

#[test]
fn links_pipes_sockets_and_folders_with_the_names_of_the_brokers_files_stay_and_are_named() {
    type Plant = fn(&Path);
    let plants: [(&str, Plant); 4] = [
        ("link", |file| symlink("victim", file).unwrap()),
        ("pipe", |file| rustix::fs::mknodat(rustix::fs::CWD, file, FileType::Fifo, Mode::RUSR, 0).unwrap()),
        ("folder", |file| fs::create_dir(file).unwrap()),
        ("socket", |file| drop(Listener::bind(file, 0o600).unwrap())),
    ];
    for ending in [".lock", ".held", ".state", ".state.new", ".epoch", ".epoch.new", ".new"] {
        for (kind, plant) in plants {
            // A broker that was killed may have left a socket of that name.
            if (ending, kind) == (".new", "socket") {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let (socket, file) = (folder.path().join("s"), folder.path().join(format!("s{ending}")));
            fs::write(folder.path().join("victim"), "precious").unwrap();
            plant(&file);
            let which = || fs::symlink_metadata(&file).map(|found| (found.ino(), found.mode())).unwrap();
            let before = which();
            let error = bind(&socket).unwrap_err();
            let (names, says) = match &error {
                ServerError::Place { path, source } => (*path == file, source.to_string()),
                ServerError::Occupied { path, .. } => (*path == file, error.to_string()),
                _ => (false, String::new()),
            };
            assert!(
                names && (says.contains("move it away") || says.contains("remove it")),
                "{ending} {kind}: {error:?}"
            );
            assert_eq!(which(), before, "{ending} {kind}");
            assert_eq!(fs::read_to_string(folder.path().join("victim")).unwrap(), "precious");
            fs::remove_file(&file).or_else(|_| fs::remove_dir(&file)).unwrap();
            bind(&socket).unwrap();
        }
    }
}

#[test]
fn a_socket_that_somebody_listens_at_stays_where_a_broker_would_make_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, new) = (folder.path().join("s"), folder.path().join("s.new"));
    let theirs = Listener::bind(&new, 0o600).unwrap();
    let error = bind(&socket).unwrap_err();
    assert!(matches!(&error, ServerError::Occupied { path, is_socket: true } if *path == new), "{error}");
    assert!(Socket::connect(&new).is_ok());
    // As a broker leaves it that was killed.
    drop(theirs);
    wait_until_dead(&new);
    bind(&socket).unwrap();
}

#[test]
fn a_log_is_none_of_the_brokers_other_files_and_no_text_of_somebody_else() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let with =
        |log: &Path| BrokerServer::bind(ServerOptions { log: Some(log.to_owned()), ..options(&socket) }).map(drop);
    let refused = |log: &Path| match with(log).unwrap_err() {
        ServerError::Log { path, .. } => assert_eq!(path, log),
        error => panic!("{}: {error}", log.display()),
    };
    for ending in ["", ".new", ".lock", ".held", ".state", ".state.new", ".epoch", ".epoch.new"] {
        let log = folder.path().join(format!("s{ending}"));
        refused(&log);
        assert!(!log.exists(), "{ending}");
        bind(&socket).unwrap();
        refused(&log);
        bind(&socket).unwrap();
        fs::read_dir(folder.path()).unwrap().for_each(|file| fs::remove_file(file.unwrap().path()).unwrap());
    }
    let text = folder.path().join("text");
    fs::write(&text, "precious\n").unwrap();
    refused(&text);
    assert_eq!(fs::read_to_string(&text).unwrap(), "precious\n");
    // One that a broker began, cut short, is continued.
    let log = folder.path().join("log");
    with(&log).unwrap();
    let begun = fs::read(&log).unwrap();
    fs::write(&log, &begun[..5]).unwrap();
    with(&log).unwrap();
}

#[test]
fn a_gpu_that_a_broker_of_another_network_namespace_has_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let claim = format!("GPU-elsewhere-{}", std::process::id());
    let file = Path::new("/dev/shm").join(format!("headway-gpu-{claim}.lock"));
    let at = |name: &str, despite: bool| {
        let options = options(&folder.path().join(name));
        BrokerServer::bind(ServerOptions { claims: vec![claim.clone()], despite_claims: despite, ..options })
    };
    if fs::write(&file, "").is_err() {
        println!("skipped: nothing can be made in /dev/shm");
        return;
    }
    // As such a broker does; the abstract socket of there is not seen here.
    let locked = fs::File::open(&file).unwrap();
    locked.lock().unwrap();
    for despite in [false, true] {
        let error = at("one", despite).map(drop).unwrap_err();
        assert!(matches!(&error, ServerError::Locked { file: named, .. } if *named == file), "{error}");
    }
    assert!(file.exists() && !folder.path().join("one").exists());
    locked.unlock().unwrap();
    let first = at("one", false).unwrap();
    let taken = fs::File::open(&file).unwrap();
    assert!(taken.try_lock().is_err(), "it has the lock");
    drop((taken, first));
    assert!(!file.exists(), "nothing is left");
}
