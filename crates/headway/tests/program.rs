//! Programs that give packets, take results and ask for urgent copies while their plan runs, simulated and on emulated GPUs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use headway::copy::Access;
use headway::run::{
    Backend, MissReason, Program, RunEvent, RunEventKind, RunOptions, RunReport, StreamEnd, UrgentCopy,
};
use headway::units::Bytes;
use headway::workload::{Loaded, Workload, parse};
use headway::{Error, ErrorKind};

const BACKENDS: [Backend; 2] = [Backend::Sim, Backend::Emu];
/// For what must happen at some time.
const SOON: Duration = Duration::from_secs(60);

/// Packets that do not fill blocks, several of them in a cycle, and packets that are jobs of their own.
const WORKLOAD: &str = r#"
name = "own-data"
[run]
duration = "100 ms"
[[stream]]
id = "camera"
packet = "1001 B"
period = "2 ms"
deadline = "60 ms"
steps = [{ copy = "host -> gpu" }, { copy = "gpu -> host" }]
[[stream]]
id = "radar"
packet = "48 B"
period = "500 us"
deadline = "60 ms"
steps = [{ copy = "host -> gpu" }, { copy = "gpu -> host" }]
[[message]]
id = "frame"
period = "20 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "4 KiB" }]
[[urgent]]
id = "order"
from = "host"
to = "gpu0"
bytes = "64 KiB"
deadline = "15 ms"
otherwise = "best-effort"
[[urgent]]
id = "answer"
from = "gpu0"
to = "host"
bytes = "64 KiB"
deadline = "15 ms"
otherwise = "best-effort"
"#;

struct Bench {
    folder: tempfile::TempDir,
    workload: Loaded<Workload>,
    interrupt: Arc<AtomicBool>,
}

impl Bench {
    fn new() -> Self {
        Self::of(WORKLOAD)
    }

    fn of(text: &str) -> Self {
        let workload = parse("own-data.toml", text).unwrap();
        Self { folder: tempfile::tempdir().unwrap(), workload, interrupt: Arc::default() }
    }

    fn options(&self, backend: Backend) -> RunOptions {
        RunOptions {
            backend,
            machine: Some("h200-x1".to_owned()),
            out: Some(self.folder.path().join("results")),
            interrupt: Arc::clone(&self.interrupt),
            ..RunOptions::default()
        }
    }

    fn open(&self, backend: Backend) -> Program {
        Program::open(&self.workload, &self.options(backend)).unwrap()
    }

    fn written(&self, name: &str) -> usize {
        std::fs::read(self.folder.path().join("results").join(name)).unwrap().len()
    }
}

/// Byte `at` of packet `packet` of a stream of `salt`.
fn byte(salt: u64, packet: u64, at: usize) -> u8 {
    let mixed = (packet * 8191 + at as u64 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

fn fill(salt: u64, packet: u64, buffer: &mut [u8]) {
    buffer.iter_mut().enumerate().for_each(|(at, to)| *to = byte(salt, packet, at));
}

fn differs(salt: u64, packet: u64, buffer: &[u8]) -> bool {
    buffer.iter().enumerate().any(|(at, found)| *found != byte(salt, packet, at))
}

/// Binds the source of a stream to bytes that follow from its packets.
fn give(program: &mut Program, stream: &str, salt: u64) {
    let given = program.source(stream, move |packet, buffer| {
        fill(salt, packet.packet, buffer);
        Ok(())
    });
    given.unwrap();
}

/// Binds the sink of a stream, and returns the numbers of the packets that come with the right bytes.
fn take(program: &mut Program, stream: &str, salt: u64) -> Arc<Mutex<Vec<u64>>> {
    let taken = Arc::<Mutex<Vec<u64>>>::default();
    let taking = Arc::clone(&taken);
    let bound = program.sink(stream, move |result, buffer| {
        if differs(salt, result.packet, buffer) {
            return Err(format!("packet {} has other bytes", result.packet).into());
        }
        assert!(result.delivered > result.arrived && result.deadline > result.arrived, "{result:?}");
        taking.lock().unwrap().push(result.packet);
        Ok(())
    });
    bound.unwrap();
    taken
}

fn count(report: &RunReport, stream: &str, end: StreamEnd) -> (u64, u64) {
    let of = report.callbacks.iter().find(|of| of.stream == stream && of.end == end);
    of.map_or((0, 0), |of| (of.packets, of.late))
}

#[test]
fn a_program_gives_packets_and_takes_what_becomes_of_them() {
    for backend in BACKENDS {
        let bench = Bench::new();
        let mut program = bench.open(backend);
        assert_eq!(program.plan().streams.len(), 2);
        give(&mut program, "camera", 1);
        give(&mut program, "radar", 2);
        let (cameras, radars) = (take(&mut program, "camera", 1), take(&mut program, "radar", 2));
        let report = program.run(|_| ()).unwrap();
        let (cameras, radars) = (cameras.lock().unwrap().clone(), radars.lock().unwrap().clone());
        // A busy computer may let a sink be late, and no packet comes twice or out of order.
        assert!(cameras.is_sorted_by(|a, b| a < b) && radars.is_sorted_by(|a, b| a < b), "{backend:?}");
        for (stream, taken, packets) in [("camera", cameras, 50), ("radar", radars, 200)] {
            assert_eq!(count(&report, stream, StreamEnd::Source).0, packets, "{backend:?}");
            let (took, dropped) = count(&report, stream, StreamEnd::Sink);
            assert_eq!((took, took + dropped), (taken.len() as u64, packets), "{backend:?}: {:?}", report.warnings);
            assert!(backend == Backend::Emu || dropped == 0);
        }
        assert_eq!((report.verified, bench.written("streams/camera.bin")), (0, 0));
        assert!(headway::report::replay(&report.folder).unwrap().finished);
    }
}

#[test]
fn ends_that_are_not_bound_have_samples_and_files() {
    for backend in BACKENDS {
        let bench = Bench::new();
        let mut program = bench.open(backend);
        give(&mut program, "radar", 2);
        let taken = Arc::<AtomicU64>::default();
        let taking = Arc::clone(&taken);
        let bound = program.sink("camera", move |_, frame| {
            taking.fetch_add(frame.len() as u64, Ordering::Relaxed);
            Ok(())
        });
        bound.unwrap();
        let report = program.run(|_| ()).unwrap();
        // The camera's sample is compared all the same, though no file has it.
        assert_eq!(report.verified, 1, "{backend:?}: {:?}", report.warnings);
        let dropped = count(&report, "camera", StreamEnd::Sink).1;
        assert_eq!(taken.load(Ordering::Relaxed), 1001 * (50 - dropped), "{backend:?}");
        let found = std::fs::read(report.folder.join("streams/radar.bin")).unwrap();
        assert_eq!(found.len(), 200 * 48);
        assert!(found.chunks(48).zip(0..).all(|(bytes, packet)| !differs(2, packet, bytes)), "{backend:?}");
        assert_eq!(bench.written("streams/camera.bin"), 0);
    }
}

#[test]
fn a_file_is_cut_among_the_streams_that_no_program_gives() {
    let bench = Bench::new();
    let input = bench.folder.path().join("input");
    // The last packet is shorter.
    std::fs::write(&input, (0..10_000u32).map(|at| at as u8).collect::<Vec<u8>>()).unwrap();
    let options = RunOptions { input: Some(input), ..bench.options(Backend::Sim) };
    let mut program = Program::open(&bench.workload, &options).unwrap();
    give(&mut program, "radar", 2);
    let taken = Arc::<Mutex<Vec<u8>>>::default();
    let taking = Arc::clone(&taken);
    let bound = program.sink("camera", move |_, frame| {
        taking.lock().unwrap().extend_from_slice(frame);
        Ok(())
    });
    bound.unwrap();
    let report = program.run(|_| ()).unwrap();
    assert_eq!((report.verified, count(&report, "radar", StreamEnd::Source).0), (1, 200));
    assert!(taken.lock().unwrap().iter().enumerate().all(|(at, byte)| *byte == at as u8));
    assert_eq!(taken.lock().unwrap().len(), 10_000);
}

fn refused(bound: Result<(), Error>) -> String {
    let error = bound.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Options, "{error}");
    error.to_string()
}

#[test]
fn what_cannot_be_bound_is_refused_by_name() {
    let bench = Bench::new();
    let mut program = bench.open(Backend::Sim);
    let said = refused(program.source("camara", |_, _| Ok(())));
    assert_eq!(said, "workload `own-data` has no stream `camara`; did you mean `camera`?");
    let said = refused(program.sink("lidar-front", |_, _| Ok(())));
    assert!(said.ends_with("has no stream `lidar-front`; streams: `camera`, `radar`"), "{said}");
    let said = refused(program.source("frame", |_, _| Ok(())));
    assert!(said.contains("`frame` is a message; only streams have a source"), "{said}");
    let said = refused(program.sink("order", |_, _| Ok(())));
    assert!(said.contains("`order` is a request for urgent copies; only streams have a sink"), "{said}");
    give(&mut program, "camera", 1);
    let said = refused(program.source("camera", |_, _| Ok(())));
    assert!(said.contains("stream `camera` has a source already"), "{said}");
    let said = refused(program.urgent("orders").map(drop));
    assert!(said.contains("no `[[urgent]]` of the name `orders`; did you mean `order`?"), "{said}");
    let said = refused(program.urgent("order").map(drop));
    assert!(said.contains("a simulation has no memory of GPUs for urgent copies `order`"), "{said}");

    let on_gpu =
        WORKLOAD.replace("{ copy = \"host -> gpu\" }, { copy = \"gpu -> host\" }", "{ copy = \"gpu -> host\" }");
    let bench = Bench::of(&on_gpu);
    let said = refused(bench.open(Backend::Sim).source("camera", |_, _| Ok(())));
    assert!(said.contains("the packets of stream `camera` lie on a GPU before the run begins"), "{said}");

    let options = RunOptions { time_only: true, ..bench.options(Backend::Sim) };
    let mut program = Program::open(&bench.workload, &options).unwrap();
    assert!(refused(program.sink("camera", |_, _| Ok(()))).contains("a run of times alone moves no bytes"));
}

/// Runs a program whose `camera` ends at some packet; what it says, and that the results of the other stream were kept.
fn failed(bench: &Bench, program: Program) -> String {
    let error = program.run(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback, "{error}");
    let folder = bench.folder.path().join("results");
    assert!(error.to_string().contains(&format!("until then is in `{}`", folder.display())), "{error}");
    let note = std::fs::read_to_string(folder.join("INCOMPLETE.txt")).unwrap();
    assert!(note.starts_with("The run was ended by the ") && note.contains("`camera`"), "{note}");
    let found = std::fs::read(folder.join("streams/radar.bin.incomplete")).unwrap();
    assert!(found.chunks(48).zip(0..).all(|(bytes, packet)| !differs(2, packet, bytes)), "{}", found.len());
    assert!(!headway::report::replay(&folder).unwrap().finished);
    error.to_string()
}

#[test]
fn a_callback_that_fails_or_panics_ends_the_run_and_is_named_with_its_packet() {
    for backend in BACKENDS {
        for panics in [false, true] {
            let bench = Bench::new();
            let mut program = bench.open(backend);
            give(&mut program, "radar", 2);
            let bound = program.source("camera", move |packet, _| match packet.packet {
                7 if panics => panic!("the lens cap is on"),
                7 => Err("no light".into()),
                _ => Ok(()),
            });
            bound.unwrap();
            let said = failed(&bench, program);
            let why = if panics { "it panicked: the lens cap is on" } else { "no light" };
            assert!(said.starts_with(&format!("the source of stream `camera` failed at packet 7: {why}; ")), "{said}");

            let bench = Bench::new();
            let mut program = bench.open(backend);
            give(&mut program, "radar", 2);
            let bound = program.sink("camera", move |_, _| match panics {
                true => panic!("nobody looks"),
                false => Err("no screen".into()),
            });
            bound.unwrap();
            let said = failed(&bench, program);
            let why = if panics { "it panicked: nobody looks" } else { "no screen" };
            assert!(said.starts_with(&format!("the sink of stream `camera` failed at packet 0: {why}; ")), "{said}");
        }
    }
}

#[test]
fn a_callback_that_does_not_return_ends_the_run_and_nothing_hangs() {
    for backend in BACKENDS {
        for end in [StreamEnd::Source, StreamEnd::Sink] {
            let bench = Bench::new();
            let mut program = bench.open(backend);
            give(&mut program, "radar", 2);
            program.patience(Duration::from_millis(50));
            // Until the test ends.
            let (hold, held) = mpsc::channel::<()>();
            let held = Mutex::new(held);
            let wait = move || held.lock().unwrap().recv().unwrap_or(());
            match end {
                StreamEnd::Source => program.source("camera", move |_, _| {
                    wait();
                    Ok(())
                }),
                StreamEnd::Sink => program.sink("camera", move |_, _| {
                    wait();
                    Ok(())
                }),
            }
            .unwrap();
            let said = if end == StreamEnd::Source {
                failed(&bench, program)
            } else {
                program.run(|_| ()).unwrap_err().to_string()
            };
            let why = format!("the {end} of stream `camera` failed at packet 0: it has not returned for 50 ms; ");
            assert!(said.starts_with(&why), "{backend:?}: {said}");
            drop(hold);
        }
    }
}

#[test]
fn a_source_that_is_late_is_named_and_counted() {
    const LATE: u64 = 20;
    let bench = Bench::new();
    let mut program = bench.open(Backend::Emu);
    give(&mut program, "radar", 2);
    let bound = program.source("camera", |packet, _| {
        if packet.packet == LATE {
            let left = packet.time_left().unwrap();
            // Its deadline is over when its bytes are there.
            thread::sleep(left + Duration::from_millis(400));
            assert_eq!(packet.time_left(), Some(Duration::ZERO));
        }
        Ok(())
    });
    bound.unwrap();
    let events = program.events(100_000);
    let report = program.run(|_| ()).unwrap();
    let (given, late) = count(&report, "camera", StreamEnd::Source);
    assert!(given == 50 && late > 0, "{given} {late}");
    let named = |warning: &String| {
        warning.starts_with("the source of stream `camera` gave ") && warning.contains(" of 50 packets too late")
    };
    assert!(report.warnings.iter().any(named), "{:?}", report.warnings);
    assert_eq!(events.lost(), 0);
    let events: Vec<RunEvent> = events.collect();
    let of = |wanted: &dyn Fn(&RunEventKind) -> bool| events.iter().any(|event| wanted(&event.kind));
    assert!(of(&|kind| matches!(kind, RunEventKind::SourceLate { stream, packet, packets, .. }
        if stream == "camera" && (*packet..packet + packets).contains(&LATE))));
    let missed = |kind: &RunEventKind| {
        matches!(kind, RunEventKind::Missed { stream, packet: LATE, why: MissReason::SourceLate { stream: by, .. }, .. }
            if stream == "camera" && by == "camera")
    };
    assert!(of(&missed), "{events:?}");
}

#[test]
fn nobody_waits_for_a_source_but_its_own_packets() {
    // Another deadline is another pipeline: packets of one block come together.
    let bench = Bench::of(&WORKLOAD.replacen("deadline = \"60 ms\"", "deadline = \"250 ms\"", 1));
    let mut program = bench.open(Backend::Emu);
    program.patience(SOON);
    let streams = &program.plan().streams;
    assert_ne!(streams[0].pipeline, streams[1].pipeline);
    let (tell, told) = mpsc::channel::<()>();
    let told = Mutex::new(told);
    let bound = program.source("camera", move |packet, _| {
        // Until all of the radar's packets were asked for, whose blocks go on meanwhile.
        if packet.packet == 0 {
            told.lock().unwrap().recv_timeout(SOON / 2)?;
        }
        Ok(())
    });
    bound.unwrap();
    let bound = program.source("radar", move |packet, _| {
        if packet.packet == 199 {
            tell.send(())?;
        }
        Ok(())
    });
    bound.unwrap();
    let report = program.run(|_| ()).unwrap();
    assert_eq!(count(&report, "camera", StreamEnd::Source).0, 50);
}

#[test]
fn a_sink_that_is_not_ready_loses_results_and_delays_nobody() {
    let bench = Bench::new();
    let mut program = bench.open(Backend::Emu);
    give(&mut program, "camera", 1);
    let radars = take(&mut program, "radar", 0);
    give(&mut program, "radar", 0);
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let bound = program.sink("camera", move |_, _| {
        // For the first packet until something was dropped; then the sender is gone.
        let _ = released.lock().unwrap().recv_timeout(SOON);
        Ok(())
    });
    bound.unwrap();
    let mut events = program.events(100_000);
    let waiter = thread::spawn(move || {
        let dropped = events.by_ref().find(|event| matches!(event.kind, RunEventKind::ResultDropped { .. }));
        drop(release);
        dropped.map(|event| event.to_string())
    });
    let report = program.run(|_| ()).unwrap();
    let said = waiter.join().unwrap().expect("something was dropped");
    assert!(said.contains("the sink of stream `camera` was not ready for the result of packet "), "{said}");
    let (took, dropped) = count(&report, "camera", StreamEnd::Sink);
    assert!(dropped > 0 && took + dropped == 50, "{took} {dropped}");
    let (took, lost) = count(&report, "radar", StreamEnd::Sink);
    assert_eq!((took + lost, radars.lock().unwrap().len() as u64), (200, took));
    assert!(report.warnings.iter().any(|warning| warning.contains("results, which were dropped")));
}

#[test]
fn an_interrupt_ends_a_run_whose_source_waits() {
    for backend in BACKENDS {
        let bench = Bench::new();
        let mut program = bench.open(backend);
        give(&mut program, "radar", 2);
        let interrupt = Arc::clone(&bench.interrupt);
        let (hold, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let bound = program.source("camera", move |packet, _| {
            if packet.packet == 5 {
                interrupt.store(true, Ordering::Relaxed);
                let _ = held.lock().unwrap().recv();
            }
            Ok(())
        });
        bound.unwrap();
        match program.run(|_| ()) {
            Ok(report) => assert!(report.summary.incomplete.is_some(), "{backend:?}"),
            // Before there was anything to keep.
            Err(error) => assert!(error.is_interrupted(), "{error}"),
        }
        drop(hold);
    }
}

#[test]
fn a_program_asks_for_urgent_copies_of_its_own_bytes() {
    let bench = Bench::new();
    let mut program = bench.open(Backend::Emu);
    program.patience(SOON);
    let (asked_all, all_asked) = mpsc::channel::<()>();
    let all_asked = Mutex::new(all_asked);
    let bound = program.source("camera", move |packet, _| {
        // The run does not end before everything was asked for: then the sender is gone.
        if packet.packet == 49 {
            let _ = all_asked.lock().unwrap().recv_timeout(SOON);
        }
        Ok(())
    });
    bound.unwrap();
    let (order, answer) = (program.urgent("order").unwrap(), program.urgent("answer").unwrap());
    let (from, on_gpu, back) =
        (order.from_place(10_000).unwrap(), order.to_place(10_000).unwrap(), answer.to_place(10_000).unwrap());
    fill(9, 0, from.buffer.claim(0..10_000, Access::Write).unwrap().bytes_mut().unwrap());

    let wrong = |error: Error, part: &str| assert!(error.to_string().contains(part), "{error}");
    let ask = |copy| order.ask(copy).map(drop).unwrap_err();
    wrong(
        ask(UrgentCopy::new(&on_gpu, &from, Bytes(10))),
        "moves bytes from pinned memory of the host to GPU 0, and one of its ends lies elsewhere",
    );
    wrong(ask(UrgentCopy::new(&from, &on_gpu, Bytes(20_000))), "of 20 kB does not fit; its ends have room for 10 kB");
    wrong(ask(UrgentCopy::new(&from, &on_gpu, Bytes(10))), "no run takes urgent copies `order` now");

    let events = program.events(100_000);
    let other = thread::spawn(move || {
        let _asked_all = asked_all;
        let since = Instant::now();
        let first = loop {
            match order.ask(UrgentCopy::new(&from, &on_gpu, Bytes(10_000))) {
                Ok(ticket) => break ticket.wait(SOON)?,
                Err(_) if since.elapsed() < SOON => thread::yield_now(),
                Err(error) => return Err(error),
            }
        };
        let second = answer.ask(UrgentCopy::new(&on_gpu, &back, Bytes(10_000)))?.wait(SOON)?;
        let hopeless = UrgentCopy {
            deadline: Some(headway::units::Nanos(1)),
            otherwise: Some(headway::workload::Otherwise::Refuse),
            ..UrgentCopy::new(&from, &on_gpu, Bytes(10_000))
        };
        let refused = order.ask(hopeless)?.wait(SOON).unwrap_err();
        Ok((first, second, refused, back))
    });
    let report = program.run(|_| ()).unwrap();
    let (first, second, refused, back) = other.join().unwrap().unwrap();
    assert!(first.response.0 > 0 && second.response.0 > 0, "{first:?} {second:?}");
    assert!(refused.is_answer() && refused.to_string().starts_with("an urgent copy `order` is refused: "), "{refused}");
    let found = back.buffer.claim(0..10_000, Access::Read).unwrap();
    assert!(!differs(9, 0, found.bytes().unwrap()));
    let told: Vec<String> = events.map(|event| event.to_string()).collect();
    for part in [
        "urgent copy 0 of `order` is there",
        "urgent copy 0 of `answer` is there",
        "urgent copy 1 of `order` is refused",
    ] {
        assert!(told.iter().any(|event| event.contains(part)), "{part}: {told:?}");
    }
    assert!(report.summary.incomplete.is_none());
}
