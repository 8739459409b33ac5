//! Flows of several processes under one broker: what each is promised, and what one that is killed, hangs or lies costs the others.
//!
//! Each program is this test program, started again. It has emulated GPUs of its own, and reads commands from its standard input.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway::broker::{self, BrokerOptions, BrokerStatus};
use headway::copy::{self, Direction};
use headway::flow::{Flow, FlowContract, FlowCopy, FlowNode, FlowPlace, OnMiss};
use headway::machine::{self, Machine};
use headway::units::{Bytes, Nanos};
use headway_os::fork::holds_in_a_child;
use headway_os::ipc::{Process, Signal, is_stopped};

const SOCKET: &str = "HEADWAY_TEST_BROKER";
/// Nothing takes that long, however slow the machine is.
const LIMIT: Duration = Duration::from_secs(300);
const MS: Nanos = Nanos(1_000_000);

/// An H200 whose engines change hands among processes after a millisecond.
fn h200() -> Machine {
    let mut text = machine::write(&machine::open("h200-x1").unwrap(), &[]);
    for direction in ["h2d", "d2h"] {
        text += &format!(
            "\n[[arbitration]]\ndirection = \"{direction}\"\ntime = \"20 ms\"\nwhole = [1073741824, 1000000, 100, 20000000]\n\
             process = [200, 1000000, 1000000, 1000000]\n"
        );
    }
    machine::parse("h200", &text).unwrap()
}

/// A broker on a thread.
struct Broker {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    fn start(folder: &Path, watchdog: Nanos) -> Self {
        let socket = folder.join("broker");
        let options = BrokerOptions {
            socket: Some(socket.clone()),
            machine: "h200-x1".to_owned(),
            cpus: Some(2),
            boost: false,
            watchdog,
            recover: MS * 50,
            drain: MS,
            ..BrokerOptions::default()
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (started, listening) = std::sync::mpsc::channel();
        let ends = Arc::clone(&stop);
        let serve = move || broker::serve(&options, &ends, |_| {}, |_| started.send(()).unwrap()).unwrap();
        let thread = Some(std::thread::spawn(serve));
        listening.recv().unwrap();
        Self { socket, stop, thread }
    }

    fn status(&self) -> BrokerStatus {
        broker::status(Some(&self.socket)).unwrap()
    }

    /// Waits until the flows have these names.
    fn wait_for_flows(&self, names: &[&str]) {
        let start = Instant::now();
        loop {
            let found: Vec<String> = self.status().flows.into_iter().map(|flow| flow.name).collect();
            if found == names {
                return;
            }
            assert!(start.elapsed() < LIMIT, "{found:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A process of this test, as [`program`].
struct Program {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn start(broker: &Broker) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = command.args(["--exact", "program", "--nocapture", "--ignored"]).env(SOCKET, &broker.socket);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut this = Self { child, orders, answers };
        assert_eq!(this.hear(), "ready");
        this
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        self.orders.flush().unwrap();
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the program has ended");
            if let Some((_, answer)) = line.split_once("ANSWER ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.hear()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        Process::open(self.pid()).unwrap().signal(signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program does: `open NAME DEADLINE_MS`, `bound NAME`, `copy NAME`, `bulk`, `close NAME`, `leave`, `fork NAME`.
#[test]
#[ignore = "a process of the other tests"]
fn program() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let copier = Arc::new(copy::emulated(1).unwrap());
    let mut node = Some(FlowNode::of(Arc::clone(&copier), &h200()).unwrap().under(Some(Path::new(&socket))).unwrap());
    let mut flows: Vec<Flow> = Vec::new();
    println!("ANSWER ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let (order, name) = (words.next().unwrap(), words.next().unwrap_or_default().to_owned());
        let find = |flows: &[Flow]| flows.iter().position(|flow| flow.contract().name == name).unwrap();
        let answer = match order {
            "open" => {
                let deadline = MS * words.next().unwrap().parse().unwrap();
                let (gpu, direction, on_miss) = (0, Direction::D2h, OnMiss::Finish);
                let (bytes, period) = (Bytes(64 << 10), MS * 500);
                let contract = FlowContract { name, gpu, direction, bytes, period, deadline, on_miss };
                match node.as_ref().unwrap().open(contract) {
                    Ok(flow) => {
                        flows.push(flow);
                        "open".to_owned()
                    }
                    Err(error) => error.to_string(),
                }
            }
            "bound" => flows[find(&flows)].bound().0.to_string(),
            "copy" => {
                let (device, host) = (FlowPlace::device(&copier, 0, 64 << 10), FlowPlace::pinned(&copier, 0, 64 << 10));
                let copy = FlowCopy::Buffers { device: device.unwrap(), host: host.unwrap(), bytes: 64 << 10 };
                match flows[find(&flows)].copy(copy) {
                    Ok(report) => format!("{:?}", report.job.end),
                    Err(error) => error.to_string(),
                }
            }
            // For ever.
            "bulk" => {
                let copier = Arc::clone(&copier);
                std::thread::spawn(move || {
                    let bulk = FlowPlace::device(&copier, 0, 64 << 20).unwrap();
                    let mut here = vec![0_u8; 64 << 20];
                    loop {
                        copier.copy_out(&mut here, bulk.at(), copy::How::Auto).unwrap();
                    }
                });
                "copies".to_owned()
            }
            "close" => {
                drop(flows.remove(find(&flows)));
                "closed".to_owned()
            }
            "leave" => {
                flows.clear();
                node = None;
                "left".to_owned()
            }
            // A child that tries to copy, and closes all that it has inherited.
            "fork" => {
                let (device, host) = (FlowPlace::device(&copier, 0, 64 << 10), FlowPlace::pinned(&copier, 0, 64 << 10));
                let copy = FlowCopy::Buffers { device: device.unwrap(), host: host.unwrap(), bytes: 64 << 10 };
                let of = find(&flows);
                let holds = holds_in_a_child(|| {
                    let refused = flows[of].submit(copy).is_err();
                    flows.clear();
                    node = None;
                    refused
                });
                holds.to_string()
            }
            other => panic!("{other}"),
        };
        println!("ANSWER {answer}");
    }
}

fn millis(bound: &str) -> u64 {
    bound.parse::<u64>().unwrap() / MS.0
}

#[test]
fn programs_are_admitted_beside_each_other_and_who_would_suffer_is_named_with_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Nanos(600_000_000_000));
    let [mut one, mut two, mut three] = [(); 3].map(|()| Program::start(&broker));
    assert_eq!(one.ask("open camera 400"), "open");
    let alone = millis(&one.ask("bound camera"));
    assert_eq!(two.ask("open lidar 9"), "open");
    let bounds = [millis(&one.ask("bound camera")), millis(&two.ask("bound lidar"))];
    // Four chunks of its own without a promise and one with: each waits for a turn of a millisecond.
    assert!(alone < 4 && bounds[0] >= alone + 5 && (5..=9).contains(&bounds[1]), "{alone} {bounds:?}");
    let refused = three.ask("open radar 400");
    assert!(refused.contains(&format!("`lidar (process {})` could end", two.pid())), "{refused}");
    assert_eq!(millis(&one.ask("bound camera")), bounds[0], "nothing has changed");
    for program in [&mut one, &mut two] {
        program.ask("bulk");
    }
    assert_eq!([one.ask("copy camera"), two.ask("copy lidar")], ["Done", "Done"]);
    let status = broker.status();
    let flow = &status.flows[0];
    assert_eq!((flow.name.as_str(), flow.bytes, flow.deadline), ("camera", Bytes(64 << 10), MS * 400));
    assert_eq!(status.users[0].flows.used, 2);
    assert_eq!(status.clients.iter().find(|of| of.client == flow.client).unwrap().pid, one.pid());
}

/// Threads of a process; each queue of an emulated GPU has one.
fn threads(of: &Program) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", of.pid())).unwrap().count()
}

#[test]
fn a_program_makes_no_queue_when_others_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Nanos(600_000_000_000));
    let mut one = Program::start(&broker);
    assert_eq!(one.ask("open camera 400"), "open");
    let (alone, before) = (millis(&one.ask("bound camera")), threads(&one));
    for _ in 0..3 {
        let mut other = Program::start(&broker);
        assert_eq!(other.ask("open lidar 400"), "open");
        drop(other);
        let start = Instant::now();
        while millis(&one.ask("bound camera")) != alone {
            assert!(start.elapsed() < LIMIT);
        }
    }
    assert_eq!(threads(&one), before);
}

#[test]
fn a_program_that_is_killed_while_it_copies_counts_until_the_drain_has_passed_and_its_flows_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Nanos(600_000_000_000));
    let [mut one, mut two] = [(); 2].map(|()| Program::start(&broker));
    assert_eq!(one.ask("open camera 400"), "open");
    let alone = millis(&one.ask("bound camera"));
    assert_eq!(two.ask("open lidar 400"), "open");
    two.ask("bulk");
    two.order("copy lidar");
    two.signal(Signal::Kill);
    broker.wait_for_flows(&["camera"]);
    let start = Instant::now();
    while millis(&one.ask("bound camera")) != alone {
        assert!(start.elapsed() < LIMIT);
    }
    assert_eq!(one.ask("copy camera"), "Done");
    assert!(broker.status().clients.iter().all(|client| client.pid != two.pid()));
}

#[test]
fn a_program_that_says_that_it_has_closed_counts_while_its_process_lives() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Nanos(600_000_000_000));
    let [mut one, mut liar] = [(); 2].map(|()| Program::start(&broker));
    assert_eq!([one.ask("open camera 400"), liar.ask("open lidar 400")], ["open", "open"]);
    let both = one.ask("bound camera");
    liar.ask("bulk");
    liar.ask("close lidar");
    broker.wait_for_flows(&["camera"]);
    // A name is free again, and so is the place of its flow.
    assert_eq!(liar.ask("open lidar 400"), "open");
    liar.ask("leave");
    broker.wait_for_flows(&["camera"]);
    assert_eq!(one.ask("open second 400"), "open");
    assert!(millis(&one.ask("bound camera")) >= millis(&both), "its connection is gone, and it copies on");
    let status = broker.status();
    assert!(status.clients.iter().any(|client| client.pid == liar.pid() && client.draining));
}

#[test]
fn a_forked_child_that_closes_what_it_inherited_takes_no_flow_from_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Nanos(600_000_000_000));
    let mut one = Program::start(&broker);
    assert_eq!([one.ask("open camera 400"), one.ask("fork camera")], ["open", "true"]);
    // The broker hears what comes next after what the child has said.
    assert_eq!([one.ask("open lidar 400"), one.ask("copy camera")], ["open", "Done"]);
    broker.wait_for_flows(&["camera", "lidar"]);
}

#[test]
fn a_program_that_hangs_is_cut_off_and_loses_its_flows_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), MS * 3_000);
    let [mut one, mut hung] = [(); 2].map(|()| Program::start(&broker));
    assert_eq!(hung.ask("open lidar 400"), "open");
    hung.signal(Signal::Stop);
    // A thread that still ran would say that it counts on the other one, and nothing more would be asked of this program.
    let start = Instant::now();
    while !is_stopped(hung.pid()) {
        assert!(start.elapsed() < LIMIT);
        std::thread::yield_now();
    }
    // It is answered although the other one does not say that it counts on it.
    assert_eq!(one.ask("open camera 400"), "open");
    broker.wait_for_flows(&["camera"]);
    assert_eq!(one.ask("copy camera"), "Done");
    assert_eq!(broker.status().counts.cut, 1);
    hung.signal(Signal::Continue);
    // Until its thread has run that hears of it.
    let start = Instant::now();
    while !hung.ask("copy lidar").contains("flow `lidar` is lost") {
        assert!(start.elapsed() < LIMIT);
    }
    assert_eq!(hung.ask("open again 400"), "open");
    broker.wait_for_flows(&["camera", "again"]);
}

#[test]
fn flows_are_lost_with_their_broker_and_opened_again_under_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Nanos(600_000_000_000));
    let mut one = Program::start(&broker);
    assert_eq!(one.ask("open camera 400"), "open");
    drop(broker);
    let start = Instant::now();
    while !one.ask("copy camera").contains("flow `camera` is lost") {
        assert!(start.elapsed() < LIMIT);
    }
    let broker = Broker::start(folder.path(), Nanos(600_000_000_000));
    one.ask("close camera");
    assert_eq!([one.ask("open camera 400"), one.ask("copy camera")], ["open", "Done"]);
    broker.wait_for_flows(&["camera"]);
}
