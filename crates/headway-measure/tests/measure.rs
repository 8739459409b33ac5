//! Measuring copies, on the emulated backend with a few small sizes: what is written means what was measured.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway::Diagnosis;
use headway::explain::{Bounds, Question, explain};
use headway::gpus::CopyBackend;
use headway_core::files::machine;
use headway_core::models::transfer::{BackgroundLoad, Direction, HostMemory, Method, Statistic};
use headway_core::units::{Bytes, Nanos};
use headway_measure::{Depth, Error, MeasureOptions, MeasureStep, measure};

fn options(out: &Path) -> MeasureOptions {
    MeasureOptions {
        backend: CopyBackend::Emu,
        model: None,
        gpus: None,
        out: out.to_owned(),
        name: None,
        depth: Depth::Quick,
        force: false,
        only: Vec::new(),
        sizes: Some(vec![Bytes(64), Bytes(4096), Bytes(64 << 10)]),
        each: false,
        watch: Nanos::ZERO,
        workload: None,
        raw: None,
        interrupt: Arc::new(AtomicBool::new(false)),
    }
}

fn question(machine: &Path, bytes: u64, direction: Direction, memory: HostMemory, load: BackgroundLoad) -> Question {
    Question {
        machine: machine.to_str().unwrap().to_owned(),
        direction,
        bytes: Bytes(bytes),
        memory,
        load,
        objective: Statistic::P99,
        ..Question::default()
    }
}

#[test]
fn a_measured_file_is_read_back_and_answers_questions() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    let raw = folder.path().join("raw.jsonl.gz");
    let report = measure(&MeasureOptions { raw: Some(raw.clone()), ..options(&file) }, |_| ()).unwrap();
    assert_eq!((report.machine.as_str(), report.source.as_str()), ("node", "emu"));
    assert!(raw.metadata().unwrap().len() > 1000 && !folder.path().join("node.toml.partial.jsonl").exists());

    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("say nothing about any other"), "{text}");
    let machine = machine::parse("node", &text).unwrap();
    let again = machine::parse("again", &machine::write(&machine, &[])).unwrap();
    assert_eq!(again.profile, machine.profile);
    assert_eq!((again.capacities, again.routes), (machine.capacities.clone(), machine.routes.clone()));
    assert!(machine.calibration.is_some() && machine.kernel("spin", machine.gpus().next().unwrap()).is_some());
    assert_eq!(machine.profile.tunings.len(), 3);
    assert!(!machine.profile.posted.is_empty());

    for (direction, memory, load) in [
        (Direction::H2d, HostMemory::Touched, BackgroundLoad::Alone),
        (Direction::D2h, HostMemory::Untouched, BackgroundLoad::Alone),
        (Direction::H2d, HostMemory::Pinned, BackgroundLoad::Alone),
        (Direction::D2h, HostMemory::Pinned, BackgroundLoad::BulkSame),
    ] {
        let explanation = explain(&question(&file, 4096, direction, memory, load)).unwrap();
        let chosen = &explanation.rows[0];
        assert_eq!(chosen.verdict, "chosen", "{explanation:#?}");
        assert!(chosen.figures.n >= 10 && chosen.figures.max.is_some(), "{explanation:#?}");
        assert!(explanation.profile.contains("source emu"), "{}", explanation.profile);
    }
}

#[test]
fn a_node_that_is_watched_is_checked_with_more_batches() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    let only = vec![MeasureStep::Links, MeasureStep::Kernels];
    let report = measure(&MeasureOptions { only, watch: Nanos(1_000_000_000), ..options(&file) }, |_| ()).unwrap();
    let checked = report.calibration.unwrap();
    let found = machine::parse("node", &fs::read_to_string(&file).unwrap()).unwrap().calibration.unwrap();
    // Without that it is checked with 30.
    assert!(found.batches > 30 && found.batches == checked.batches, "{checked:?}");
    assert_eq!((found.margin_ppm, found.jitter), (checked.margin_ppm, checked.jitter));
}

#[test]
fn who_waits_for_whom_is_asked_of_every_gpu_both_ways_and_can_be_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    let only = vec![MeasureStep::Links, MeasureStep::Arbitration];
    let options = MeasureOptions { only, sizes: Some(vec![Bytes(64)]), gpus: Some(2), ..options(&file) };
    measure(&options, |_| ()).unwrap();
    let read = || machine::parse("node", &fs::read_to_string(&file).unwrap()).unwrap();
    let found = read().profile.arbitration;
    assert_eq!(found.len(), 4, "two GPUs, two directions");
    for asked in found.values() {
        assert_eq!(asked.whole.chunk, Bytes(4 << 20), "of sizes this small");
        assert!(asked.time > Nanos::ZERO && asked.whole.wait.n > 0);
        let pieces: Vec<u64> = asked.words.iter().map(|cut| cut.chunk.0 >> 20).collect();
        assert_eq!(pieces, [1, 2]);
        assert_eq!(asked.streams.len(), 2);
        assert_eq!(asked.process, None, "emulated GPUs are of one process");
        assert!(asked.words.iter().all(|cut| cut.wait.n >= 2 && cut.share_ppm > 0));
    }
    let again = MeasureOptions { only: vec![MeasureStep::Arbitration], force: true, ..options };
    measure(&again, |_| ()).unwrap();
    assert_eq!(read().profile.arbitration.len(), 4);
}

#[test]
fn requests_of_many_pieces_are_measured_by_every_mover_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    // 256 pieces of 64 bytes fit, 8192 do not.
    measure(&MeasureOptions { sizes: Some(vec![Bytes(16 << 10)]), ..options(&file) }, |_| ()).unwrap();
    let machine = machine::parse("node", &fs::read_to_string(&file).unwrap()).unwrap();
    let many = |direction, memory| {
        let keys = machine.profile.curves.keys().filter(move |key| key.pieces > 1);
        let keys = keys.filter(|key| (key.direction, key.memory, key.pieces) == (direction, memory, 256));
        keys.map(|key| key.method.any_form()).collect::<Vec<_>>()
    };
    use Method::{Dma, Kernel, Pageable, Resident, Staged, Window};
    for direction in [Direction::H2d, Direction::D2h] {
        assert_eq!(many(direction, HostMemory::Pinned), [Pageable, Dma, Window(None), Resident(None), Kernel]);
        assert_eq!(many(direction, HostMemory::Touched), [Pageable, Staged, Window(None), Resident(None)]);
    }
    let posted = machine.profile.posted.keys().any(|key| key.pieces == 256 && matches!(key.method, Window(_)));
    assert!(posted, "stores are posted");

    for memory in [HostMemory::Pinned, HostMemory::Touched] {
        let question =
            Question { pieces: 256, ..question(&file, 16 << 10, Direction::H2d, memory, BackgroundLoad::Alone) };
        let explanation = explain(&question).unwrap();
        assert!(explanation.rows[0].figures.n >= 3, "{explanation:#?}");
        assert!(!explanation.why.iter().any(|line| line.starts_with("assumed")), "{explanation:#?}");
    }
}

#[test]
fn a_file_that_exists_is_kept_unless_forced_and_parts_of_it_can_be_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    fs::write(&file, "mine").unwrap();
    assert!(matches!(measure(&options(&file), |_| ()), Err(Error::Exists { .. })));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let few = MeasureOptions { sizes: Some(vec![Bytes(64)]), force: true, ..options(&file) };
    measure(&few, |_| ()).unwrap();
    let before = machine::parse("before", &fs::read_to_string(&file).unwrap()).unwrap();
    measure(&MeasureOptions { only: vec![MeasureStep::Kernels], ..few.clone() }, |_| ()).unwrap();
    let after = machine::parse("after", &fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&after.profile.curves, &after.capacities), (&before.profile.curves, &before.capacities));

    let camera = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/camera.toml");
    let of_workload = MeasureOptions { only: vec![MeasureStep::Workload], workload: Some(camera), ..few.clone() };
    measure(&of_workload, |_| ()).unwrap();
    let with_own = machine::parse("own", &fs::read_to_string(&file).unwrap()).unwrap();
    let own =
        with_own.kernels.iter().find(|cost| cost.id == "camera:edges").expect("the cost of the workload's kernel");
    assert!(own.setup > Nanos(1), "{own:?}");
    let shipped: Vec<_> = with_own.kernels.iter().filter(|cost| cost.id != "camera:edges").collect();
    assert_eq!(shipped, after.kernels.iter().collect::<Vec<_>>());
    measure(&MeasureOptions { only: vec![MeasureStep::Kernels], ..few.clone() }, |_| ()).unwrap();
    let kept = machine::parse("kept", &fs::read_to_string(&file).unwrap()).unwrap();
    assert!(kept.kernels.contains(own), "{:?}", kept.kernels);

    let missing = MeasureOptions { only: vec![MeasureStep::Workload], ..few };
    let told = measure(&missing, |_| ()).unwrap_err().to_string();
    assert!(told.contains("`--workload FILE` is missing"), "{told}");
}

#[test]
fn an_interrupted_measurement_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    let options = MeasureOptions { sizes: Some(vec![Bytes(64), Bytes(256)]), ..options(&file) };
    let interrupt = Arc::clone(&options.interrupt);
    let stop = |progress: headway::run::Progress| {
        if progress.phase == "alone" && progress.done == 3 {
            interrupt.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    assert!(matches!(measure(&options, stop), Err(Error::Paused { .. })));
    let journal = folder.path().join("node.toml.partial.jsonl");
    let kept = fs::read_to_string(&journal).unwrap().lines().count();
    assert!(!file.exists() && kept > 3, "{kept}");
    let again = MeasureOptions { interrupt: Arc::new(AtomicBool::new(false)), ..options };
    // MeasureOptions that would measure something else are refused, and what is done stays.
    for other in [
        MeasureOptions { depth: Depth::Normal, ..again.clone() },
        MeasureOptions { only: vec![MeasureStep::Links], ..again.clone() },
        MeasureOptions { sizes: Some(vec![Bytes(64), Bytes(257)]), ..again.clone() },
        MeasureOptions { watch: Nanos(1), ..again.clone() },
    ] {
        let error = measure(&other, |_| ()).unwrap_err();
        assert!(matches!(error, Error::OtherJournal { .. }) && error.help().is_some(), "{error}");
        assert_eq!(fs::read_to_string(&journal).unwrap().lines().count(), kept, "{error}");
    }
    let report = measure(&again, |_| ()).unwrap();
    assert!(report.warnings.iter().any(|warning| warning.starts_with("going on: ")), "{:?}", report.warnings);
    assert!(file.exists() && !journal.exists());
}

#[test]
fn two_gpus_are_measured_together_and_a_part_without_a_file_to_complete_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.toml");
    let two = MeasureOptions {
        model: Some("h200-x4".to_owned()),
        gpus: Some(2),
        sizes: Some(vec![Bytes(4096), Bytes(1 << 20)]),
        ..options(&file)
    };
    assert!(matches!(
        measure(&MeasureOptions { only: vec![MeasureStep::Curves], ..two.clone() }, |_| ()),
        Err(Error::Headway(headway::Failure::Options(_)))
    ));
    measure(&two, |_| ()).unwrap();
    let machine = machine::parse("two", &fs::read_to_string(&file).unwrap()).unwrap();
    let keys = || machine.profile.curves.keys();
    assert!(keys().any(|key| key.active == 2 && key.direction == Direction::D2h));
    assert!(keys().any(|key| key.peer.is_some()));
    assert!(machine.capacities.iter().any(|capacity| capacity.id == "gpu1.peer-in"));
    let one = MeasureOptions { gpus: Some(1), force: true, only: vec![MeasureStep::Kernels], ..two };
    assert!(matches!(measure(&one, |_| ()), Err(Error::OtherNode { file: 2, here: 1, .. })));
}

#[test]
fn tunings_have_prices_and_the_cheapest_near_the_fastest_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    let sizes = Some(vec![Bytes(1 << 20)]);
    let staging = MeasureOptions { only: vec![MeasureStep::Links, MeasureStep::Staging], sizes, ..options(&file) };
    measure(&staging, |_| ()).unwrap();
    let profile = machine::parse("node", &fs::read_to_string(&file).unwrap()).unwrap().profile;
    assert_eq!(profile.tunings.len(), 3);
    for key in profile.tunings.keys() {
        let prices = profile.prices_of(key);
        assert!(prices.iter().all(|priced| priced.bytes == Bytes(1 << 20) && priced.cpu > Nanos::ZERO), "{prices:?}");
        let picked = profile.tuning(key, &Bounds::default()).unwrap();
        let price = prices.iter().find(|priced| priced.tuning == picked).expect("what is taken has a price");
        let near = |time: Nanos| time.0 * 100 <= prices[0].time.0 * 105;
        assert!(near(price.time), "{picked:?} of {prices:?}");
        assert!(prices.iter().all(|other| !near(other.time) || other.cpu >= price.cpu), "{picked:?} of {prices:?}");
    }
}
