//! What a broker writes down, and what it does when it cannot.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Broker, LIMIT, operation, parameters, shape, wait_until};
use headway_broker::{
    BrokerServer, BrokerStatus, Client, ClientError, DiskFaults, OnLoss, Phase, ServerError, ServerOptions, TaskShape,
    Tell, client,
};
use headway_core::decisions::broker::Input;
use headway_core::decisions::broker::log::{BrokerLogLine, StartReason};
use headway_core::decisions::engine_lock::{EngineRole, EngineWork};
use headway_core::decisions::sharing::{GpuId, JobSegment};
use headway_core::units::Nanos;
use headway_os::clock;

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

/// A disk whose files with one ending fail while there is an error.
#[derive(Clone, Default)]
struct Disk {
    errno: Arc<AtomicI32>,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Disk {
    fn is(&self, errno: i32) {
        self.errno.store(errno, Ordering::SeqCst);
    }

    fn options(&self, ending: &'static str, options: &mut ServerOptions) {
        let (errno, messages) = (Arc::clone(&self.errno), Arc::clone(&self.messages));
        options.faults = Some(DiskFaults::new(move |path| {
            let errno = Some(errno.load(Ordering::SeqCst)).filter(|errno| *errno != 0);
            // However long the test takes: the file that would follow a broken one fails too.
            errno.filter(|_| path.to_string_lossy().trim_end_matches(".new").ends_with(ending))
        }));
        options.tell = Some(Tell::new(move |text| messages.lock().unwrap().push(text.to_owned())));
    }

    fn messages(&self) -> Vec<String> {
        self.messages.lock().unwrap().clone()
    }
}

fn one_gpu(options: &mut ServerOptions) {
    options.arbiter = parameters(1, 1, Nanos(0));
}

fn connect(broker: &Broker, name: &str) -> Client {
    Client::connect(&broker.socket, name, OnLoss::Wait).unwrap()
}

/// The lines of a log; half a line may stand before a start only.
fn lines(log: &Path) -> Vec<BrokerLogLine> {
    let (mut lines, mut torn) = (Vec::new(), false);
    for line in fs::read_to_string(log).unwrap().lines().filter(|line| !line.is_empty()) {
        let read = serde_json::from_str(line);
        assert!(!torn || matches!(read, Ok(BrokerLogLine::Broker(_))), "{line}");
        torn = read.is_err();
        lines.extend(read);
    }
    lines
}

/// Makes all decisions of a log again; why each of its parts began.
fn replay(log: &Path) -> Vec<(StartReason, u64)> {
    let (mut book, mut starts) = (None, Vec::new());
    for line in lines(log) {
        match line {
            BrokerLogLine::Broker(start) => {
                book = Some(start.begin().unwrap());
                starts.push((start.why, start.missing));
            }
            BrokerLogLine::Fed(fed) => {
                let book = book.as_mut().expect("a log begins with a start");
                assert_eq!(fed.again(book), fed);
            }
            _ => {}
        }
    }
    starts
}

fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    PathBuf::from(path)
}

#[test]
fn a_full_or_broken_disk_does_not_end_the_broker_and_when_it_is_well_again_a_snapshot_is_written() {
    for (ending, errno) in [(".log", ENOSPC), (".log", EIO), (".held", EIO), (".state", ENOSPC), ("", ENOSPC)] {
        let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
        let (socket, log) = (folder.path().join("broker"), folder.path().join("broker.log"));
        let broker = Broker::at(&socket, |options| {
            one_gpu(options);
            options.log = Some(log.clone());
            disk.options(ending, options);
        });
        let client = connect(&broker, "one");
        let mut task = client.register(shape("a")).unwrap();
        task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
        disk.is(errno);
        for _ in 0..20 {
            // Another client and task each time: who is served changes too.
            let other = connect(&broker, "other");
            let mut second = other.register(shape("b")).unwrap();
            second.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
            task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
        }
        let memory = client.status().unwrap().memory;
        let trouble = memory.trouble.expect("there is trouble");
        assert!(trouble.contains(&folder.path().display().to_string()) && trouble.contains("os error"), "{trouble}");
        assert_eq!(disk.messages().len(), 1, "told once: {:?}", disk.messages());
        disk.is(0);
        wait_until("the disk is used again", || client.status().unwrap().memory.trouble.is_none());
        assert_eq!(
            (disk.messages().len(), client.status().unwrap().memory.gaps),
            (2, 1),
            "{ending}: {:?}",
            disk.messages()
        );
        task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
        drop(task);
        drop(client);
        drop(broker);
        let starts = replay(&log);
        let gaps: Vec<u64> =
            starts.iter().filter(|(why, _)| *why == StartReason::Gap).map(|(_, missing)| *missing).collect();
        assert_eq!(gaps.len(), 1, "{ending}: {starts:?}");
        assert!(gaps[0] > 20, "{ending}: {gaps:?}");
    }
}

#[test]
fn a_broker_starts_on_a_full_disk_unless_it_must_remember() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let (socket, log) = (folder.path().join("broker"), folder.path().join("broker.log"));
    let change = |options: &mut ServerOptions| {
        one_gpu(options);
        options.log = Some(log.clone());
        disk.options("", options);
    };
    disk.is(ENOSPC);
    let mut must = ServerOptions::new(socket.clone(), parameters(1, 1, Nanos(0)));
    must.must_remember = true;
    change(&mut must);
    let refused = BrokerServer::bind(must).map(drop).unwrap_err();
    assert!(matches!(refused, ServerError::Place { .. } | ServerError::Log { .. }), "{refused}");
    let broker = Broker::at(&socket, change);
    let client = connect(&broker, "one");
    let mut task = client.register(shape("a")).unwrap();
    task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    disk.is(0);
    wait_until("the disk is used again", || client.status().unwrap().memory.trouble.is_none());
    // A place that is wrong is the user's mistake, and said at once.
    let mut wrong = ServerOptions::new(folder.path().join("other"), parameters(1, 1, Nanos(0)));
    wrong.log = Some(folder.path().join("none/log"));
    assert!(
        matches!(BrokerServer::bind(wrong).map(drop), Err(ServerError::Log { source, .. }) if source.kind() == io::ErrorKind::NotFound)
    );
}

fn waiting(status: &BrokerStatus) -> usize {
    status.jobs.iter().filter(|job| job.phase == Phase::WaitsForToken).count()
}

#[test]
fn a_broker_that_must_remember_grants_nothing_until_it_can_be_written_down() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let (socket, log) = (folder.path().join("broker"), folder.path().join("broker.log"));
    let broker = Broker::at(&socket, |options| {
        one_gpu(options);
        options.log = Some(log.clone());
        options.must_remember = true;
        disk.options(".log", options);
    });
    let (one, two) = (connect(&broker, "one"), connect(&broker, "two"));
    let (mut a, mut b) = (one.register(shape("a")).unwrap(), two.register(shape("b")).unwrap());
    a.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    disk.is(ENOSPC);
    // Who gives up meanwhile leaves nothing behind.
    let gone = a.acquire(clock::now(), 0, Some(Duration::ZERO)).map(drop);
    assert!(matches!(gone, Err(ClientError::TimedOut)), "{gone:?}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| b.acquire(clock::now(), 0, Some(LIMIT)).map(|token| token.release(Nanos(1))));
        wait_until("a grant is kept back, or given", || {
            let status = one.status().unwrap();
            let kept_back = waiting(&status) == 1 && status.memory.withheld > 0 && status.memory.trouble.is_some();
            kept_back || waiter.is_finished()
        });
        assert!(!waiter.is_finished(), "granted, although nothing could be written down");
        assert!(one.status().unwrap().gpus[0].holders.is_empty());
        assert!(disk.messages()[0].contains("nobody is granted anything"), "{:?}", disk.messages());
        disk.is(0);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(one.status().unwrap().memory.withheld, 0);
    a.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    drop((a, b));
    drop((one, two, broker));
    replay(&log);
}

/// Bytes of all files of a log.
fn log_bytes(log: &Path) -> u64 {
    let name = log.file_name().unwrap().to_string_lossy();
    let files = fs::read_dir(log.parent().unwrap()).unwrap().map(Result::unwrap);
    let of_log = files.filter(|file| file.file_name().to_string_lossy().starts_with(&*name));
    of_log.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

#[test]
fn a_user_with_large_tasks_fills_no_log_for_good_of_a_broker_that_must_remember() {
    // Four files of 64 KiB fit into each of these disks, and into the second one no two snapshots of the user's tasks.
    for disk_bytes in [3 << 20, 1 << 20] {
        let folder = tempfile::tempdir().unwrap();
        let (socket, log) = (folder.path().join("broker"), folder.path().join("broker.log"));
        let broker = Broker::at(&socket, |options| {
            one_gpu(options);
            options.log = Some(log.clone());
            options.must_remember = true;
            (options.log_bytes, options.log_files) = (64 << 10, 4);
            let log = log.clone();
            options.faults = Some(DiskFaults::new(move |path| {
                let is_of_log = path.to_string_lossy().contains("broker.log");
                (is_of_log && log_bytes(&log) >= disk_bytes).then_some(ENOSPC)
            }));
        });
        let honest = connect(&broker, "honest");
        let mut task = honest.register(shape("a")).unwrap();
        let mut use_token = || task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
        let client = connect(&broker, "large");
        let segments = vec![JobSegment::Execute { kernel: "\u{ad}".repeat(21), time: Nanos(u64::MAX >> 12) }; 1_024];
        let (period, deadline) = (Nanos(1 << 62), Nanos(1 << 62));
        let large = || client.register(TaskShape { period, deadline, segments: segments.clone(), ..shape("large") });
        // The fourth comes and goes, so that the log is written.
        let tasks: Vec<_> = (0..3).map(|_| large().unwrap()).collect();
        for _ in 0..20 {
            use_token();
            drop(large().unwrap());
        }
        drop(tasks);
        drop(client);
        use_token();
        let memory = honest.status().unwrap().memory;
        assert!(memory.trouble.is_none() && (memory.gaps == 0 || disk_bytes < 2 << 20), "{memory:?}");
        drop(task);
        drop(honest);
        drop(broker);
        replay(&log);
    }
}

#[test]
fn a_log_has_as_many_files_as_it_may_each_readable_without_the_others_and_nothing_is_forgotten() {
    const BYTES: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let (socket, log) = (folder.path().join("broker"), folder.path().join("broker.log"));
    let change = |options: &mut ServerOptions| {
        options.recover = Nanos(600_000_000_000);
        options.log = Some(log.clone());
        (options.log_bytes, options.log_files) = (BYTES, 3);
    };
    let mut broker = Broker::at(&socket, change);
    let client = connect(&broker, "one");
    client.declare_lost(GpuId(1)).unwrap();
    let mut task = client.register(shape("a")).unwrap();
    for _ in 0..300 {
        task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1_000));
    }
    let token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    broker.stop();
    let names: BTreeSet<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("broker.log"))
        .collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["broker.log", "broker.log.1", "broker.log.2"]);
    for file in [log.clone(), sibling(&log, ".1"), sibling(&log, ".2")] {
        let starts = replay(&file);
        assert_eq!(starts[0], (StartReason::Rotated, 0), "{}", file.display());
        // A line and a snapshot more than the limit.
        let bytes = fs::metadata(&file).unwrap().len();
        assert!(bytes < BYTES + 10_000, "{} has {bytes} bytes", file.display());
    }
    // The line that told of the lost GPU is in none of them.
    assert!(!fs::read_to_string(&log).unwrap().contains("gpu-lost"));
    let _broker = Broker::at(&socket, change);
    wait_until("the client is back", || client::status(&socket).is_ok_and(|status| !status.recovering));
    let status = client::status(&socket).unwrap();
    assert!(status.gpus[1].lost, "{status:?}");
    assert_eq!(status.gpus[0].holders.len(), 1);
    assert!(!token.is_revoked());
}

#[test]
fn what_is_used_by_lease_is_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("broker.log");
    let broker = Broker::at(&folder.path().join("broker"), |options| {
        one_gpu(options);
        options.log = Some(log.clone());
    });
    let client = connect(&broker, "one");
    let mut task = client.register(shape("a")).unwrap();
    let id = task.id();
    let mut token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    wait_until("the engines are leased", || client.status().unwrap().gpus[0].leased_to.is_some());
    let before = clock::now();
    // More than the ring has room for at once: who is not told is counted.
    for _ in 0..2_000 {
        token.engine(operation(EngineWork::Execute)).unwrap().release();
    }
    token.engine(operation(EngineWork::CopyOut)).unwrap().release();
    let engines = client.status().unwrap().counts.engines;
    token.release(Nanos(1));
    drop(task);
    drop(client);
    drop(broker);
    assert_eq!(engines, 0, "all by lease");
    let (mut used, mut missed, mut last) = (0, 0, None);
    for line in lines(&log) {
        let BrokerLogLine::Fed(fed) = line else { continue };
        let Input::Used { job, lock, begin, end, missing, .. } = fed.input else { continue };
        assert!(job.task == id && before <= begin && begin <= end, "{fed:?}");
        (used, missed, last) = (used + 1, missed + missing, Some(lock.engine));
    }
    let (told, last_is_told) = (used + missed, last == Some(EngineRole::Out));
    assert!(told == 2_001 || !last_is_told && told < 2_001, "{told} of 2001");
    assert!(used > 100, "{used} are told");
}

#[test]
fn a_log_stays_bounded_where_something_else_has_the_name_of_an_older_file() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let (socket, log) = (folder.path().join("broker"), folder.path().join("broker.log"));
    let theirs = sibling(&log, ".1");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("notes"), "precious").unwrap();
    let broker = Broker::at(&socket, |options| {
        one_gpu(options);
        (options.log, options.log_bytes, options.log_files) = (Some(log.clone()), 16 << 10, 3);
        disk.options(".none", options);
    });
    let client = connect(&broker, "one");
    let mut task = client.register(shape("a")).unwrap();
    for _ in 0..1_000 {
        task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    }
    let obstacle = client.status().unwrap().memory.obstacle;
    assert_eq!(obstacle, Some(theirs.display().to_string()));
    drop(task);
    drop(client);
    drop(broker);
    let length = fs::metadata(&log).unwrap().len();
    assert!(length < 3 * (16 << 10), "{length}");
    assert_eq!(fs::read_to_string(theirs.join("notes")).unwrap(), "precious");
    assert!(!sibling(&log, ".2").exists());
    let messages = disk.messages();
    assert!(messages.len() == 1 && messages[0].contains(&theirs.display().to_string()), "{messages:?}");
    replay(&log);
}

#[test]
fn what_somebody_puts_in_the_way_of_a_running_broker_s_files_stays_and_is_told_of() {
    for ending in ["broker.state.new", "broker.log.new"] {
        let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
        let broker = Broker::at(&folder.path().join("broker"), |options| {
            one_gpu(options);
            (options.log, options.log_bytes) = (Some(folder.path().join("broker.log")), 16 << 10);
            disk.options(".none", options);
        });
        let client = connect(&broker, "one");
        let mut task = client.register(shape("a")).unwrap();
        let (planted, victim) = (folder.path().join(ending), folder.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        // The record's second file is there already, and the broker may be about to make it again.
        wait_until("the link is planted", || {
            let _ = fs::remove_file(&planted);
            symlink(&victim, &planted).is_ok()
        });
        let told = format!("no broker made `{}`; move it away", planted.display());
        wait_until("the broker reports the planted link", || {
            // Another client each time, and a line or two more in the log.
            drop(connect(&broker, "other"));
            task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
            disk.messages().iter().any(|message| message.contains(&told))
        });
        assert!(fs::symlink_metadata(&planted).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_file(&planted).unwrap();
        wait_until("all is well", || client.status().unwrap().memory.trouble.is_none());
    }
}
