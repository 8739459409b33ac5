//! The page on the protocol: its numbers are the code's, and a client in C that was written from it works.

#[path = "../src/layout.rs"]
#[allow(dead_code, unreachable_pub, reason = "the test uses a part of it")]
mod layout;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use headway_broker::{Client, OnLoss, Options, Phase};
use headway_core::decisions::sharing::log::Line;
use headway_core::units::Nanos;
use headway_os::clock;
use support::{Broker, LIMIT, parameters, shape, wait_until};

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md")).unwrap()
}

/// The numbers of the page's first table.
fn numbers() -> BTreeMap<String, u64> {
    let page = page();
    let table = page.split("## Numbers").nth(1).unwrap().split("\n## ").next().unwrap();
    let row = |line: &str| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        Some((cells.next()?.trim_matches('`').to_owned(), cells.next()?.parse().ok()?))
    };
    table.lines().filter_map(row).collect()
}

#[test]
fn the_numbers_of_the_page_are_those_of_the_code() {
    use layout::*;
    let bytes = |longs: usize, words: usize| (8 * longs + 4 * words) as u64;
    // As the messages have it, which a test cannot see: a greeting of another version is refused.
    let version = {
        let broker = Broker::start(|_| {});
        let socket = headway_os::ipc::Socket::connect(&broker.socket).unwrap();
        socket.send(br#"{"hello":{"version":0,"name":"x","resumed":[]}}"#, &[]).unwrap();
        assert!(socket.wait(LIMIT));
        let mut buffer = [0; 1024];
        let Ok(headway_os::ipc::Packet::Message(length, _)) = socket.receive(&mut buffer) else { panic!("no answer") };
        let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let behind = answer.split("speaks version ").nth(1).unwrap();
        behind.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    };
    let code: BTreeMap<String, u64> = [
        ("VERSION", version),
        ("MESSAGE_MAX", 128 << 10),
        ("GPUS_MAX", GPUS_MAX as u64),
        ("TASKS_MAX", TASKS_MAX as u64),
        ("ENGINES", ENGINES as u64),
        ("SLOTS", SLOTS as u64),
        ("RING_ENTRIES", RING_ENTRIES),
        ("REPORTS", REPORTS),
        ("ENTRY_BYTES", bytes(ENTRY_LONGS, 0)),
        ("GENERATION_MAX", u64::from(GENERATIONS)),
        ("CLIENT_TAIL", bytes(TAIL, 0)),
        ("CLIENT_LEASES", bytes(lease(0), 0)),
        ("CLIENT_LEASE_BYTES", bytes(lease(1) - lease(0), 0)),
        ("CLIENT_RING", bytes(entry(0), 0)),
        ("CLIENT_SLEEPING", bytes(CLIENT_LONGS, 0)),
        ("CLIENT_BYTES", bytes(CLIENT_LONGS, CLIENT_WORDS)),
        ("BROKER_HEAD", bytes(HEAD, 0)),
        ("BROKER_ANSWERS", bytes(answer(0), 0)),
        ("BROKER_ANSWER_BYTES", bytes(ANSWER_LONGS, 0)),
        ("BROKER_STATES", bytes(BROKER_LONGS, 0)),
        ("BROKER_BYTES", bytes(BROKER_LONGS, BROKER_WORDS)),
        ("NOTICE_ASLEEP", bytes(NOTICE_LONGS, ASLEEP)),
        ("NOTICE_BYTES", bytes(NOTICE_LONGS, NOTICE_WORDS)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    assert_eq!(numbers(), code);
    // What the tables of the page write out.
    assert_eq!((token_slot(5), engine_slot(5)), (10, 11));
    assert_eq!(state(7, Code::Revoked), 7 * 4 + 3);
    assert_eq!(entry(3) - entry(2), 8);
    assert_eq!(entry(RING_ENTRIES), entry(0));
}

/// The client in C with the page's numbers; `None` without a compiler.
fn compiled(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/client.c");
    let program = folder.join("client");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    command.args(numbers().iter().map(|(name, value)| format!("-D{name}={value}u")));
    match command.status() {
        Ok(status) => {
            assert!(status.success(), "the client in C does not compile");
            Some(program)
        }
        Err(error) => {
            println!("skipped: no C compiler named `cc` ({error})");
            None
        }
    }
}

#[test]
fn a_client_in_c_written_from_the_page_takes_turns_with_ours() {
    const ROUNDS: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path()) else { return };
    let log = folder.path().join("log");
    let broker = Broker::at(&folder.path().join("broker"), |options: &mut Options| {
        options.arbiter = parameters(1, 1, Nanos(0));
        options.log = Some(log.clone());
        // It sleeps at once, so that it must be woken.
        options.spin = Nanos(0);
    });
    let ours = Client::connect(&broker.socket, "ours", OnLoss::Wait).unwrap();
    let mut task = ours.register(shape("ours")).unwrap();
    let token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let theirs = Command::new(&program).arg(&broker.socket).arg(ROUNDS.to_string()).stdout(Stdio::piped()).spawn();
    let theirs = theirs.unwrap();
    wait_until("the client in C waits for a token", || {
        let jobs = ours.status().unwrap().jobs;
        jobs.iter().any(|job| job.name == "in C" && job.phase == Phase::WaitsForToken)
    });
    token.release(Nanos(1));
    // In turns: there is one token.
    for _ in 0..20 {
        task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    }
    let output = theirs.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(&format!("{ROUNDS} rounds, {ROUNDS} leases")), "{text}");
    // It has left when the broker has read what it said last.
    wait_until("the client in C is gone", || ours.status().unwrap().clients.iter().all(|client| client.name != "in C"));
    assert_eq!(ours.status().unwrap().counts.cut, 0);
    drop(task);
    drop(ours);
    drop(broker);
    let text = fs::read_to_string(&log).unwrap();
    let used = text.lines().filter(|line| matches!(serde_json::from_str(line), Ok(Line::Used(_)))).count();
    assert_eq!(used, ROUNDS, "what the client did by lease is in the log");
}

#[test]
fn a_client_in_c_of_another_version_is_told_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path()) else { return };
    let broker = Broker::start(|_| {});
    let output = Command::new(&program).arg(&broker.socket).args(["1", "2"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    let version = numbers()["VERSION"];
    assert!(text.contains(&format!("version {version}, the client 2")), "{text}");
}
