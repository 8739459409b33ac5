//! What one client may take from the others by what it says: urgency, places, and messages that are none.

use crate::layout;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::layout::{BROKER_LONGS, BROKER_WORDS, CLIENT_LONGS, CLIENT_WORDS, Code, Entry, HEAD, RING_ENTRIES, TAIL};
use crate::support::{Broker, LIMIT, parameters, shape, wait_until};
use headway_broker::{Client, ClientError, OnLoss, RefusalReason, ServerOptions, TaskShape};
use headway_core::decisions::sharing::{JobId, JobSegment, TaskId};
use headway_core::decisions::token::TokenMode;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::{Bell, Socket, SocketPacket, Words, WordsView};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

fn connect(broker: &Broker) -> Client {
    Client::connect(&broker.socket, "one", OnLoss::Fail).unwrap()
}

/// One token, which goes to the most urgent.
fn by_urgency(options: &mut ServerOptions) {
    options.arbiter = parameters(1, 1, Nanos(0));
    options.arbiter.clusters[0].tokens.mode = TokenMode::Priority;
}

fn due_in(deadline: Nanos) -> TaskShape {
    TaskShape { period: Nanos(1), deadline, ..shape("a") }
}

/// Lets `clients` with `tasks` each ask for the token without end as if they had been due since ever, and calls `victim` while
/// they do. There are so many that one always waits.
fn besieged(broker: &Broker, clients: usize, tasks: usize, victim: impl FnOnce()) {
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..clients {
            let (over, rounds) = (&over, &rounds);
            scope.spawn(move || {
                let client = connect(broker);
                std::thread::scope(|scope| {
                    for _ in 0..tasks {
                        scope.spawn(|| {
                            let mut task = client.register(due_in(Nanos(100_000))).unwrap();
                            while !over.load(Ordering::Relaxed) {
                                task.acquire(Nanos(1), 0, Some(LIMIT)).unwrap().release(Nanos(1));
                                rounds.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                    }
                });
            });
        }
        wait_until("they are at it", || rounds.load(Ordering::Relaxed) > 100);
        victim();
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_that_is_always_due_leaves_a_share_to_one_that_has_time() {
    let broker = Broker::start(by_urgency);
    let client = connect(&broker);
    // So late that no deadline of it passes in this test.
    let mut patient = client.register(due_in(Nanos(3_000_000_000_000))).unwrap();
    besieged(&broker, 1, 16, || {
        for _ in 0..20 {
            patient.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
        }
    });
}

#[test]
fn however_many_clients_are_always_due_a_job_whose_deadline_has_passed_comes_first() {
    let broker = Broker::start(by_urgency);
    let client = connect(&broker);
    let mut honest = client.register(due_in(Nanos(1_000_000))).unwrap();
    besieged(&broker, 6, 2, || {
        for _ in 0..20 {
            honest.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
        }
    });
}

#[test]
fn a_second_acquisition_of_a_job_is_no_way_around_the_time_of_its_request() {
    let broker = Broker::start(by_urgency);
    let (one, two) = (connect(&broker), connect(&broker));
    let mut task = one.register(due_in(Nanos(100_000))).unwrap();
    let mut other = two.register(due_in(Nanos(100_000))).unwrap();
    task.acquire(Nanos(1), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    let before = clock::now();
    let held = other.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    std::thread::scope(|scope| {
        let again = scope.spawn(|| task.acquire(Nanos(1), 1, Some(LIMIT)).map(|token| token.release(Nanos(1))));
        wait_until("it waits", || two.status().unwrap().jobs.len() == 2);
        let jobs = two.status().unwrap().jobs;
        let late = jobs.iter().map(|job| job.slack_ns).min().unwrap();
        let passed = i64::try_from(clock::now().saturating_sub(before).0).unwrap();
        assert!(late >= -passed, "due {late} ns ago, and it asked {passed} ns ago at most");
        held.release(Nanos(1));
        again.join().unwrap().unwrap();
    });
}

#[test]
fn a_task_that_uses_more_than_it_declared_is_due_later_the_next_time() {
    let broker = Broker::start(by_urgency);
    let client = connect(&broker);
    let execute = JobSegment::Execute { kernel: "k".to_owned(), time: Nanos(1) };
    let liar = TaskShape { period: Nanos(1_000), deadline: Nanos(100_000), segments: vec![execute], ..shape("a") };
    let mut task = client.register(liar).unwrap();
    let release = clock::now();
    let token = task.acquire(release, 0, Some(LIMIT)).unwrap();
    let granted = clock::now();
    wait_until("a million times what it declared", || clock::now().saturating_sub(granted).0 > 1_000_000);
    let held = clock::now().saturating_sub(granted).0;
    token.release(Nanos(1));
    let _again = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let slack = client.status().unwrap().jobs[0].slack_ns;
    // At one thousandth of a GPU that is a thousand times as long, ten seconds at most, from the first release on; less what passed since.
    let later = held.saturating_sub(1).saturating_mul(1_000).min(10_000_000_000).cast_signed();
    let least = later.saturating_sub(clock::now().saturating_sub(release).0.cast_signed());
    assert!(slack >= least, "{slack} ns, expected at least {least}");
}

#[test]
fn deadlines_below_the_least_and_requests_above_the_most_are_refused() {
    let broker = Broker::start(|options| {
        options.limits.requests_per_user = 1;
        options.arbiter = parameters(1, 2, Nanos(0));
    });
    let client = connect(&broker);
    let refused = client.register(due_in(Nanos(1))).map(drop);
    assert!(matches!(&refused, Err(ClientError::Refused { reason }) if reason.contains("deadline")), "{refused:?}");
    let (mut a, mut b) = (client.register(shape("a")).unwrap(), client.register(shape("b")).unwrap());
    let token = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let refused = b.acquire(clock::now(), 0, Some(LIMIT)).map(drop);
    assert!(matches!(refused, Err(ClientError::Request(RefusalReason::Limit))), "{refused:?}");
    token.release(Nanos(1));
    wait_until("there is room", || b.acquire(clock::now(), 0, Some(LIMIT)).is_ok());
}

#[test]
fn a_user_s_segments_are_limited() {
    let broker = Broker::start(|_| {});
    let client = connect(&broker);
    let segments = vec![JobSegment::Execute { kernel: "k".repeat(64), time: Nanos(1) }; 1_024];
    let (period, deadline) = (Nanos(1 << 50), Nanos(1 << 50));
    let fat = || client.register(TaskShape { period, deadline, segments: segments.clone(), ..shape("fat") });
    let tasks: Vec<_> = (0..4).map(|_| fat().unwrap()).collect();
    let refused = fat().map(drop).unwrap_err();
    assert!(matches!(&refused, ClientError::Refused { reason } if reason.contains("segments")), "{refused}");
    client.register(shape("slim")).unwrap();
    drop(tasks);
    wait_until("there is room", || fat().is_ok());
}

#[test]
fn a_status_says_who_takes_how_much_of_each_limit() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(|options| {
        options.log = Some(folder.path().join("log"));
        options.limits.descriptors = Some(200);
        // What is written comes back so slowly that it is seen.
        options.limits.log_bytes_per_user = 640;
    });
    let tenth = |name: &str| {
        let segments = vec![JobSegment::Execute { kernel: "k".to_owned(), time: Nanos(100_000_000) }];
        TaskShape { period: Nanos(1_000_000_000), deadline: Nanos(1_000_000_000), segments, ..shape(name) }
    };
    let (client, other) = (connect(&broker), connect(&broker));
    let (mut a, _b, _c) = (
        client.register(tenth("a")).unwrap(),
        client.register(tenth("b")).unwrap(),
        other.register(tenth("c")).unwrap(),
    );
    let token = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let status = client.status().unwrap();
    let [user] = status.users[..] else { panic!("{status:#?}") };
    assert_eq!(user.uid, rustix::process::getuid().as_raw());
    let used = [user.clients, user.tasks, user.segments, user.requests].map(|limit| limit.used);
    assert_eq!(used, [2, 3, 3, 1], "{user:?}");
    let most = [user.clients, user.tasks, user.segments, user.requests, user.unidentified].map(|limit| limit.most);
    assert_eq!(most, [64, 256, 4_096, 256, 16], "{user:?}");
    assert!(user.utilisation_ppm.used == 300_000 && user.log_bytes.is_some_and(|log| log.used > 0), "{user:?}");
    assert_eq!((status.shared.tasks.used, status.shared.descriptors.most), (3, 200));
    assert_eq!(status.shared.descriptors.used, 2 * 5);
    token.release(Nanos(1));
}

#[test]
fn a_user_that_storms_is_refused_before_it_fills_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(|options| {
        options.log = Some(folder.path().join("log"));
        options.limits.log_bytes_per_user = 2_048;
    });
    let client = connect(&broker);
    let mut task = client.register(shape("a")).unwrap();
    let refused = (0..1_000).any(|_| match task.acquire(clock::now(), 0, Some(LIMIT)) {
        Ok(token) => {
            token.release(Nanos(1));
            false
        }
        Err(error) => matches!(error, ClientError::Request(RefusalReason::Limit)),
    });
    assert!(refused, "a thousand requests at two a second");
    assert!(matches!(client.register(shape("b")).map(drop), Err(ClientError::Refused { .. })));
    wait_until("it may again", || task.acquire(clock::now(), 0, Some(LIMIT)).is_ok());
}

#[test]
fn who_sends_too_long_a_message_or_descriptors_is_cut_off() {
    let broker = Broker::start(|_| {});
    let client = connect(&broker);
    let is_ended = |socket: &Socket| {
        wait_until("the end of the connection", || matches!(socket.receive(&mut [0; 4096]), Ok(SocketPacket::End)));
    };
    // A question, and then more spaces than fit: its beginning alone would be answered.
    let long = format!("\"status\"{}", " ".repeat(150 << 10));
    let socket = Socket::connect(&broker.socket).unwrap();
    socket.send(long.as_bytes(), &[]).unwrap();
    is_ended(&socket);
    let socket = Socket::connect(&broker.socket).unwrap();
    let bell = Bell::new().unwrap();
    // Kernels from 6.16 on refuse it themselves.
    if socket.send(b"\"status\"", &[bell.as_fd()]).is_ok() {
        is_ended(&socket);
    }
    assert!(client.status().is_ok());
}

#[test]
fn descriptors_that_a_client_does_not_take_count_for_its_user_until_it_goes() {
    let broker = Broker::start(|_| {});
    let client = connect(&broker);
    let used = || client.status().unwrap().shared.descriptors.used;
    let before = used();
    let silent = Socket::connect(&broker.socket).unwrap();
    silent.send(br#"{"hello":{"version":7,"name":"silent","resumed":[]}}"#, &[]).unwrap();
    silent.send(b"no message", &[]).unwrap();
    wait_until("it is cut off", || silent.is_cut());
    wait_until("it is forgotten", || client.status().unwrap().clients.len() == 1);
    assert_eq!(used(), before + 5);
    drop(silent);
    wait_until("what was on its way is dropped", || used() == before);
}

/// A message from the broker, with what came with it.
fn hear(socket: &Socket) -> (serde_json::Value, Vec<OwnedFd>) {
    let mut buffer = vec![0; 128 << 10];
    assert!(socket.wait(LIMIT), "the broker does not answer");
    let SocketPacket::Message(length, descriptors) = socket.receive(&mut buffer).unwrap() else { panic!("no message") };
    (serde_json::from_slice(&buffer[..length]).unwrap(), descriptors)
}

/// A client with one task that writes into its pages what it likes.
struct RawClient {
    socket: Socket,
    page: Words,
    answers: WordsView,
    bell: OwnedFd,
    task: TaskId,
}

impl RawClient {
    fn register(broker: &Broker) -> Self {
        let socket = Socket::connect(&broker.socket).unwrap();
        socket.send(br#"{"hello":{"version":7,"name":"breaker","resumed":[]}}"#, &[]).unwrap();
        let [page, answers, _, bell] = <[_; 4]>::try_from(hear(&socket).1).unwrap();
        let page = Words::open(page, CLIENT_LONGS, CLIENT_WORDS).unwrap();
        let answers = WordsView::open(&answers, BROKER_LONGS, BROKER_WORDS).unwrap();
        socket.send(serde_json::json!({ "register": shape("a") }).to_string().as_bytes(), &[]).unwrap();
        let task = hear(&socket).0["registered"]["task"].as_u64().unwrap();
        Self { socket, page, answers, bell, task: TaskId(u32::try_from(task).unwrap()) }
    }
}

#[test]
fn reports_of_use_count_as_what_a_user_writes_and_the_log_keeps_its_size() {
    const LOG_BYTES: u64 = 16 << 10;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let broker = Broker::start(|options| {
        (options.log, options.log_bytes, options.log_files) = (Some(log.clone()), LOG_BYTES, 2);
        options.limits.log_bytes_per_user = 8 << 10;
    });
    let client = connect(&broker);
    let RawClient { socket: _connected, page, answers, bell, task } = RawClient::register(&broker);
    let bell = Bell::open(bell);
    let used =
        Entry::Used { lock: 0, job: JobId { task, job: 1 }, begin: Nanos(1), end: Nanos(2), missing: 0 }.encode();
    for round in 1..=64 {
        for (at, long) in (0..RING_ENTRIES)
            .flat_map(|number| used.into_iter().enumerate().map(move |(at, long)| (layout::entry(number) + at, long)))
        {
            page.long(at).store(long, Ordering::Relaxed);
        }
        page.long(TAIL).store(round * RING_ENTRIES, Ordering::SeqCst);
        bell.ring();
        wait_until("the reports are read", || answers.long(HEAD) == round * RING_ENTRIES);
    }
    let lines = |path: &Path| std::fs::read_to_string(path).unwrap_or_default().matches("used").count() as u64;
    let written = lines(&log) + lines(&log.with_extension("1"));
    assert!(written > 0 && written < 64 * RING_ENTRIES / 10, "{written} of {} reports", 64 * RING_ENTRIES);
    let size = std::fs::metadata(&log).unwrap().len();
    // One turn of the broker takes some entries of each client.
    assert!(size < 2 * LOG_BYTES, "{size}");
    assert!(client.status().unwrap().memory.trouble.is_none());
}

#[test]
fn the_broker_takes_no_ring_out_of_a_bell() {
    // A client shares the open file of its bell and may make it block: a broker that reads it can be made to wait for ever.
    let broker = Broker::start(by_urgency);
    let RawClient { page, answers, bell, task, socket: _socket } = RawClient::register(&broker);
    let entry =
        Entry::Request { slot: 0, generation: 1, job: JobId { task, job: 1 }, release: clock::now(), acquisition: 0 };
    for (at, long) in entry.encode().into_iter().enumerate() {
        page.long(layout::entry(0) + at).store(long, Ordering::Relaxed);
    }
    page.long(TAIL).store(1, Ordering::SeqCst);
    rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
    wait_until("the broker has heard it", || layout::code(answers.word(0), 1) == Code::Granted);
    let mut rings = [0; 8];
    rustix::io::read(&bell, &mut rings).expect("the ring is still there");
    assert!(u64::from_ne_bytes(rings) >= 1);
}

#[test]
fn a_client_that_makes_its_bell_block_and_silences_it_stops_nobody() {
    let broker = Broker::start(|_| {});
    let client = connect(&broker);
    let raw = RawClient::register(&broker);
    // Both ends are one open file: the flags that the client sets are the broker's, too.
    rustix::fs::fcntl_setfl(&raw.bell, rustix::fs::OFlags::empty()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // Rings and takes the ring back: with a broker that reads, it sooner or later finds nothing.
                    rustix::io::write(&raw.bell, &1u64.to_ne_bytes()).unwrap();
                    rustix::io::write(&raw.bell, &1u64.to_ne_bytes()).unwrap();
                    rustix::io::read(&raw.bell, &mut [0; 8]).unwrap();
                }
                // Nobody waits for ever for a ring.
                rustix::io::write(&raw.bell, &1u64.to_ne_bytes()).unwrap();
            });
        }
        let served = (0..50).try_for_each(|_| client.status().map(drop));
        is_over.store(true, Ordering::Relaxed);
        served.unwrap();
    });
}

#[test]
fn who_breaks_the_protocol_with_a_token_is_heard_no_more_and_its_token_stays_taken() {
    // Its process, this one, lives on: the token is free after the watchdog, which no test outlasts.
    let broker = Broker::start(by_urgency);
    let owner = connect(&broker);
    let RawClient { socket, page, answers, bell, task } = RawClient::register(&broker);
    let bell = Bell::open(bell);
    let job = JobId { task, job: 1 };
    let entry = Entry::Request { slot: 0, generation: 1, job, release: clock::now(), acquisition: 0 }.encode();
    for (at, long) in entry.into_iter().enumerate() {
        page.long(layout::entry(0) + at).store(long, Ordering::Relaxed);
    }
    page.long(TAIL).store(1, Ordering::SeqCst);
    bell.ring();
    wait_until("it has the token", || layout::code(answers.word(0), 1) == Code::Granted);
    // More than the ring can hold.
    page.long(TAIL).store(2 + RING_ENTRIES, Ordering::SeqCst);
    bell.ring();
    wait_until("it is cut off", || owner.status().unwrap().counts.cut == 1);
    assert!(socket.is_cut(), "the connection has ended");
    assert!(socket.send(b"\"status\"", &[]).is_err(), "nobody hears it");
    assert!(matches!(socket.receive(&mut [0; 4096]), Ok(SocketPacket::End)));
    let status = owner.status().unwrap();
    assert_eq!((status.gpus[0].holders.len(), status.counts.gone), (1, 0), "it has left once, with its token");
    let mut next = owner.register(shape("b")).unwrap();
    let refused = next.acquire(clock::now(), 0, Some(std::time::Duration::ZERO)).map(drop);
    assert!(matches!(refused, Err(ClientError::TimedOut)), "{refused:?}");
}
