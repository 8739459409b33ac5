//! The page on the protocol: its numbers are the code's, and a client in C that was written from it works.

use crate::layout;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Broker, LIMIT, parameters, shape, wait_until};
use headway_broker::{Client, OnLoss, Phase, ServerOptions};
use headway_core::decisions::sharing::log::BrokerLogLine;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::{Socket, SocketPacket};
use serde_json::Value;

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
        let socket = Socket::connect(&broker.socket).unwrap();
        socket.send(br#"{"hello":{"version":0,"name":"x","resumed":[]}}"#, &[]).unwrap();
        assert!(socket.wait(LIMIT));
        let mut buffer = [0; 1024];
        let Ok(SocketPacket::Message(length, _)) = socket.receive(&mut buffer) else { panic!("no answer") };
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

/// What a connection hears after these packets: the answers' kinds, and `end` if it was ended.
fn heard(broker: &Broker, packets: &[&[u8]]) -> Vec<String> {
    let socket = Socket::connect(&broker.socket).unwrap();
    for packet in packets {
        // A connection that was ended takes no more.
        let _ = socket.send(packet, &[]);
    }
    // Whatever was said before has been answered when this is, and nothing answers it once the connection is ended.
    let _ = socket.send(br#""status""#, &[]);
    let mut questions = 1 + packets.iter().filter(|packet| **packet == br#""status""#).count();
    let (mut kinds, mut buffer) = (Vec::new(), vec![0; 128 << 10]);
    loop {
        assert!(socket.wait(LIMIT), "neither an answer nor an end: {kinds:?}");
        match socket.receive(&mut buffer) {
            Ok(SocketPacket::Message(length, _)) => {
                let answer: Value = serde_json::from_slice(&buffer[..length]).unwrap();
                let kind = answer.as_str().map(str::to_owned);
                kinds.push(kind.unwrap_or_else(|| answer.as_object().unwrap().keys().next().unwrap().clone()));
                if kinds.last().is_some_and(|kind| kind == "status") {
                    questions -= 1;
                    if questions == 0 {
                        kinds.pop();
                        return kinds;
                    }
                }
            }
            Ok(SocketPacket::Nothing) => {}
            _ => {
                kinds.push("end".to_owned());
                return kinds;
            }
        }
    }
}

#[test]
fn what_the_page_says_is_refused_is_and_what_it_says_ends_the_connection_does() {
    let broker = Broker::start(|_| {});
    let hello = |version: u64| format!(r#"{{"hello":{{"version":{version},"name":"x","resumed":[]}}}}"#);
    let greeting = hello(numbers()["VERSION"]);
    let task = |change: &str| {
        let whole = r#"{"register":{"name":"t","cluster":0,"period":1000,"deadline":50000000,"state":0,"segments":[],"thread":null}}"#;
        let (from, to) = change.split_once(" -> ").unwrap();
        assert!(whole.contains(from));
        whole.replace(from, to)
    };
    let long = vec![b' '; (128 << 10) + 1];
    let cases: [(&str, Vec<u8>, &[&str]); 14] = [
        ("a task", task(r#""t" -> "u""#).into(), &["welcome", "registered"]),
        ("without what may be null", task(r#","thread":null -> "#).into(), &["welcome", "registered"]),
        ("a cluster that is not there", task(r#""cluster":0 -> "cluster":7"#).into(), &["welcome", "refused"]),
        ("a period of zero", task("1000 -> 0").into(), &["welcome", "refused"]),
        ("somebody else's task", br#"{"withdraw":{"task":7}}"#.to_vec(), &["welcome", "refused"]),
        ("a GPU that is not there", br#"{"lost":{"gpu":77}}"#.to_vec(), &["welcome", "refused"]),
        ("an unknown field", task(r#""state":0 -> "state":0,"more":1"#).into(), &["welcome", "end"]),
        ("a missing field", task(r#""state":0, -> "#).into(), &["welcome", "end"]),
        ("below zero", task("1000 -> -1").into(), &["welcome", "end"]),
        ("too large", task(r#""cluster":0 -> "cluster":4294967296"#).into(), &["welcome", "end"]),
        ("an unknown kind", br#"{"hallo":{}}"#.to_vec(), &["welcome", "end"]),
        ("no JSON", b"hello".to_vec(), &["welcome", "end"]),
        ("a packet that is too long", long, &["welcome", "end"]),
        ("a second greeting", greeting.clone().into(), &["welcome", "end"]),
    ];
    for (what, packet, expected) in cases {
        assert_eq!(heard(&broker, &[greeting.as_bytes(), &packet]), expected, "{what}");
    }
    assert_eq!(heard(&broker, &[greeting.as_bytes(), b""]), ["welcome", "end"], "an empty packet");
    assert_eq!(heard(&broker, &[task(r#""t" -> "u""#).as_bytes()]), ["end"], "a task before the greeting");
    assert_eq!(heard(&broker, &[br#""status""#, greeting.as_bytes()]), ["status", "welcome"], "asked first");
    assert_eq!(heard(&broker, &[hello(0).as_bytes()]), ["refused", "end"], "another version");
    let claim = greeting.replace("[]", r#"[{"id":5,"shape":{"name":"t","cluster":0,"period":1000,"deadline":50000000,"state":0,"segments":[],"thread":null},"held":null}]"#);
    assert_eq!(heard(&broker, &[claim.as_bytes()]), ["refused", "end"], "a claim after the time");
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
    let broker = Broker::at(&folder.path().join("broker"), |options: &mut ServerOptions| {
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
    let used = text.lines().filter(|line| matches!(serde_json::from_str(line), Ok(BrokerLogLine::Used(_)))).count();
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
