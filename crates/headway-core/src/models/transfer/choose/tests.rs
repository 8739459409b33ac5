//! Choices on made-up profiles.

use proptest::prelude::*;

use super::*;
use crate::models::transfer::{
    Curve, CurveKey, CurvePoint, Method, ResidentShape, Stamp, Stores, TuningKey, WindowMapping,
};

const GPU: EndpointId = EndpointId(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DMA: Method = Method::Dma;
const PAGEABLE: Method = Method::Pageable;
const STAGED: Method = Method::Staged;
const WINDOW: Method = Method::Window(Some(WindowMapping::Vulkan));
const HUB: Method = Method::Resident(Some(ResidentShape::Hub));
const KERNEL: Method = Method::Kernel;
const MULTIPATH: Method = Method::Multipath;

/// A profile that was measured, so that small leads do not count.
fn measured() -> Profile {
    Profile { stamp: Some(Stamp { source: "cuda".into(), ..Stamp::default() }), ..Profile::default() }
}

/// Points as (bytes, median, p99, max).
fn curve(points: &[(u64, u64, u64, u64)]) -> Curve {
    curve_of(100, points)
}

/// A curve whose points have `n` samples.
fn curve_of(n: u32, points: &[(u64, u64, u64, u64)]) -> Curve {
    let point = |&(bytes, median, p99, max)| CurvePoint {
        bytes: Bytes(bytes),
        n,
        median: Nanos(median),
        p99: Nanos(p99),
        max: Nanos(max),
    };
    Curve::new(points.iter().map(point).collect()).expect("ascending")
}

fn flat(points: &[(u64, u64)]) -> Curve {
    curve(&points.iter().map(|&(bytes, time)| (bytes, time, time, time)).collect::<Vec<_>>())
}

fn key(method: Method, request: &MethodRequest) -> CurveKey {
    CurveKey {
        gpu: request.gpu,
        peer: request.peer,
        method,
        direction: request.direction,
        memory: request.memory,
        load: request.load,
        active: request.active,
        pieces: request.pieces,
    }
}

fn usable(methods: &[Method]) -> Available {
    Available { methods: methods.iter().copied().collect(), ..Available::default() }
}

fn ask(direction: Direction, memory: HostMemory, bytes: u64) -> MethodRequest {
    MethodRequest::new(GPU, direction, memory, Bytes(bytes))
}

fn verdict(choice: &MethodChoice, method: Method) -> MethodVerdict {
    choice.candidates.iter().find(|c| c.method == method).unwrap_or_else(|| panic!("{method} is a candidate")).verdict
}

#[test]
fn the_least_objective_wins_and_the_others_are_listed_with_their_reason() {
    let mut request = ask(Direction::D2h, HostMemory::Pinned, 4 * KIB);
    request.load = BackgroundLoad::BulkSame;
    let mut profile = measured();
    profile.curves.insert(key(DMA, &request), flat(&[(4096, 9_100_000)]));
    profile.curves.insert(key(WINDOW, &request), curve(&[(4096, 4_200, u64::MAX, u64::MAX)]));
    profile.curves.insert(key(HUB, &request), curve(&[(4096, 3_700, 6_300, 12_000)]));
    let available = usable(&[DMA, WINDOW, HUB, KERNEL]);

    let by_median = choose(&profile, &request, &available);
    assert_eq!((by_median.method, by_median.predicted, by_median.runner_up), (HUB, Some(Nanos(3_700)), Some(WINDOW)));
    request.objective = Statistic::P99;
    let by_tail = choose(&profile, &request, &available);
    assert_eq!((by_tail.method, by_tail.predicted, by_tail.runner_up), (HUB, Some(Nanos(6_300)), Some(DMA)));
    assert_eq!(by_tail.candidates[0].method, HUB);
    assert_eq!(verdict(&by_tail, WINDOW), MethodVerdict::Rejected(RejectionReason::NoValue(Statistic::P99)));
    assert_eq!(verdict(&by_tail, KERNEL), MethodVerdict::Rejected(RejectionReason::NoCurve));
    assert_eq!(verdict(&by_tail, DMA), MethodVerdict::Rejected(RejectionReason::Slower));
    assert_eq!(by_tail.why, ["p99 6.3 us; next is `dma` with 9.1 ms"]);
}

#[test]
fn a_lead_below_three_percent_goes_to_the_driver_unless_figures_do_not_scatter() {
    let request = ask(Direction::H2d, HostMemory::Pinned, KIB);
    let available = usable(&[DMA, WINDOW]);
    let method = |theirs, source: Option<&str>| {
        let stamp = source.map(|source| Stamp { source: source.into(), ..Stamp::default() });
        let mut profile = Profile { stamp, ..Profile::default() };
        profile.curves.insert(key(DMA, &request), flat(&[(KIB, 1_000)]));
        profile.curves.insert(key(WINDOW, &request), flat(&[(KIB, theirs)]));
        choose(&profile, &request, &available)
    };
    assert_eq!(method(970, Some("cuda")).method, WINDOW);
    let close = method(971, Some("cuda"));
    assert_eq!((close.method, close.runner_up), (DMA, Some(WINDOW)));
    assert_eq!(verdict(&close, WINDOW), MethodVerdict::Rejected(RejectionReason::WithinMargin));
    assert_eq!(method(999, Some("sim")).method, WINDOW);
    assert_eq!(method(999, None).method, WINDOW);
    assert_eq!(method(1_000, None).method, DMA, "equal costs go by the order of methods");
}

#[test]
fn staging_must_lead_at_the_measured_sizes_around_and_have_no_worse_tail() {
    let request = |bytes| ask(Direction::H2d, HostMemory::Touched, bytes);
    let choice = |bytes, staged: &[(u64, u64, u64, u64)]| {
        let mut profile = measured();
        profile.curves.insert(key(PAGEABLE, &request(1)), flat(&[(100, 1_000), (200, 2_000), (300, 3_000)]));
        profile.curves.insert(key(STAGED, &request(1)), curve(staged));
        choose(&profile, &request(bytes), &usable(&[PAGEABLE, STAGED]))
    };
    let leads = [(100, 970, 970, 970), (200, 1_900, 1_900, 1_900), (300, 2_900, 2_900, 2_900)];
    assert_eq!(choice(200, &leads).method, STAGED);
    assert_eq!(
        choice(200, &leads).tuning,
        Some(crate::models::transfer::default_tuning(Direction::H2d, HostMemory::Touched))
    );
    let mut low = leads;
    low[0] = (100, 971, 971, 971);
    assert_eq!(verdict(&choice(200, &low), STAGED), MethodVerdict::Rejected(RejectionReason::StagingLead(Bytes(100))));
    assert_eq!(verdict(&choice(201, &low), STAGED), MethodVerdict::Chosen, "100 is no neighbour of 201");
    let mut high = leads;
    high[2] = (300, 2_911, 2_911, 2_911);
    assert_eq!(verdict(&choice(250, &high), STAGED), MethodVerdict::Rejected(RejectionReason::StagingLead(Bytes(300))));
    assert_eq!(choice(250, &high).tuning, None);
    let mut tail = leads;
    tail[1] = (200, 1_900, 2_001, 2_001);
    assert_eq!(verdict(&choice(200, &tail), STAGED), MethodVerdict::Rejected(RejectionReason::StagingTail));
    tail[1] = (200, 1_900, u64::MAX, u64::MAX);
    assert_eq!(verdict(&choice(200, &tail), STAGED), MethodVerdict::Rejected(RejectionReason::NoComparison));
}

#[test]
fn the_slowest_of_fewer_than_100_copies_is_no_tail() {
    let request = ask(Direction::H2d, HostMemory::Touched, 200);
    let choice = |n: u32, theirs: u32| {
        let mut profile = measured();
        profile.curves.insert(key(PAGEABLE, &request), curve_of(theirs, &[(200, 2_000, 2_000, 2_000)]));
        profile.curves.insert(key(STAGED, &request), curve_of(n, &[(200, 1_900, 9_000, 9_000)]));
        verdict(&choose(&profile, &request, &usable(&[PAGEABLE, STAGED])), STAGED)
    };
    let tail = MethodVerdict::Rejected(RejectionReason::StagingTail);
    // None at all: the figures were set.
    assert_eq!([choice(100, 100), choice(0, 0), choice(0, 100)], [tail, tail, tail]);
    assert_eq!([choice(99, 100), choice(100, 99), choice(1, 0)], [MethodVerdict::Chosen; 3]);
}

#[test]
fn exclusions_grants_and_probes_bar_methods() {
    let mut request = ask(Direction::D2h, HostMemory::Pinned, 64 * MIB);
    let mut profile = measured();
    for (method, time) in [(DMA, 900), (WINDOW, 800), (KERNEL, 500), (HUB, 400), (MULTIPATH, 100)] {
        profile.curves.insert(key(method, &request), flat(&[(64 * MIB, time)]));
    }
    let mut available = usable(&[DMA, KERNEL, HUB, MULTIPATH]);
    available.multipath = true;
    assert_eq!(choose(&profile, &request, &available).method, MULTIPATH);
    assert_eq!(
        verdict(&choose(&profile, &request, &available), WINDOW),
        MethodVerdict::Rejected(RejectionReason::NotAvailable)
    );
    available.multipath = false;
    assert_eq!(choose(&profile, &request, &available).method, HUB);
    available.no_sm = true;
    assert_eq!(choose(&profile, &request, &available).method, DMA);
    (available.no_sm, available.multipath) = (false, true);
    request.objective = Statistic::P99;
    assert_eq!(
        verdict(&choose(&profile, &request, &available), MULTIPATH),
        MethodVerdict::Rejected(RejectionReason::NotForLatency)
    );
    available.methods.remove(&HUB);
    assert_eq!(choose(&profile, &request, &available).method, KERNEL);
    request.alignment = 8;
    assert_eq!(
        verdict(&choose(&profile, &request, &available), KERNEL),
        MethodVerdict::Rejected(RejectionReason::Unaligned)
    );

    let warm = ask(Direction::D2h, HostMemory::Touched, 64 * MIB);
    for (method, time) in [(PAGEABLE, 900), (STAGED, 300), (DMA, 1), (MULTIPATH, 100)] {
        profile.curves.insert(key(method, &warm), flat(&[(64 * MIB, time)]));
    }
    let mut available = usable(&[DMA, STAGED, MULTIPATH]);
    (available.no_threads, available.multipath) = (true, true);
    let choice = choose(&profile, &warm, &available);
    assert_eq!(choice.method, PAGEABLE, "the driver's own call needs no probe");
    assert_eq!(verdict(&choice, DMA), MethodVerdict::Rejected(RejectionReason::NotPinned));
    assert_eq!(verdict(&choice, MULTIPATH), MethodVerdict::Rejected(RejectionReason::NoThreads));
}

#[test]
fn a_copy_with_a_deadline_takes_only_methods_with_a_maximum() {
    let mut request = ask(Direction::D2h, HostMemory::Pinned, KIB);
    request.objective = Statistic::Median;
    let mut profile = measured();
    profile.curves.insert(key(DMA, &request), curve(&[(KIB, 100, 200, u64::MAX)]));
    profile.curves.insert(key(HUB, &request), curve(&[(KIB, 150, 200, 400)]));
    let mut available = usable(&[DMA, HUB]);
    assert_eq!(choose(&profile, &request, &available).method, DMA);
    available.realtime = true;
    let choice = choose(&profile, &request, &available);
    assert_eq!((choice.method, verdict(&choice, DMA)), (HUB, MethodVerdict::Rejected(RejectionReason::NoBound)));
    profile.curves.remove(&key(DMA, &request));
    assert_eq!(choose(&profile, &request, &available).method, HUB, "a bound alone is enough");
    available.methods.remove(&HUB);
    let none = choose(&profile, &request, &available);
    assert_eq!((none.method, none.predicted), (DMA, None), "nothing may be promised");
}

#[test]
fn a_stale_profile_means_the_driver_and_names_the_remedy() {
    let request = ask(Direction::H2d, HostMemory::Pinned, KIB);
    let mut profile = measured();
    profile.curves.insert(key(DMA, &request), flat(&[(KIB, 1_000)]));
    profile.curves.insert(key(WINDOW, &request), flat(&[(KIB, 10)]));
    let now = Stamp { driver: "590".into(), date: "2027-01-01".into(), ..profile.stamp.clone().expect("measured") };
    let mut available = usable(&[DMA, WINDOW]);
    available.stale = profile.stamp.as_ref().and_then(|stamp| stamp.difference(&now));
    let choice = choose(&profile, &request, &available);
    assert_eq!((choice.method, verdict(&choice, WINDOW)), (DMA, MethodVerdict::Rejected(RejectionReason::Stale)));
    assert_eq!(choice.predicted, None);
    assert_eq!(
        choice.why[1],
        "the profile is stale (driver , now 590): the driver only; `headway measure` writes a new one"
    );
    let same = Stamp { driver: String::new(), commit: "fedcba9".into(), ..now };
    assert!(profile.stamp.is_some_and(|stamp| stamp.difference(&same).is_none()), "commit and date do not count");
}

#[test]
fn the_nearest_situation_with_the_drivers_figures_is_used_and_told() {
    let base = ask(Direction::D2h, HostMemory::Touched, KIB);
    let mut profile = measured();
    let mut put =
        |method, request: &MethodRequest, time| profile.curves.insert(key(method, request), flat(&[(KIB, time)]));
    put(PAGEABLE, &base, 1_000);
    put(WINDOW, &base, 10);
    put(PAGEABLE, &MethodRequest { active: 4, ..base.clone() }, 4_000);
    put(WINDOW, &MethodRequest { load: BackgroundLoad::BulkSame, ..base.clone() }, 1);
    let available = usable(&[WINDOW]);
    let of = |request: &MethodRequest| choose(&profile, request, &available);
    let mut request =
        MethodRequest { memory: HostMemory::Untouched, load: BackgroundLoad::BulkSame, active: 2, ..base };
    let choice = of(&request);
    assert_eq!((choice.method, choice.predicted), (WINDOW, Some(Nanos(10))));
    assert_eq!(choice.why[1..].len(), 3, "{:?}", choice.why);
    assert!(choice.why[1].contains("fresh") && choice.why[2].contains("bulk-same") && choice.why[3].contains('2'));
    request.active = 3;
    let choice = of(&request);
    assert_eq!((choice.method, choice.predicted), (PAGEABLE, Some(Nanos(4_000))), "four are nearer, without a window");

    request = MethodRequest { load: BackgroundLoad::Alone, active: 4, ..request };
    profile.curves.insert(key(PAGEABLE, &MethodRequest { active: 9, ..request.clone() }), flat(&[(KIB, 7)]));
    let choice = choose(&profile, &request, &available);
    assert_eq!(choice.predicted, Some(Nanos(7)), "fresh memory was measured, if with other GPUs active");
}

#[test]
fn pieces_not_measured_cost_as_requests_of_fewer() {
    let mut request = ask(Direction::H2d, HostMemory::Pinned, 1_000 * KIB);
    let mut profile = measured();
    profile.curves.insert(key(DMA, &request), flat(&[(KIB, 10), (1_000 * KIB, 90)]));
    request.pieces = 4;
    profile.curves.insert(key(DMA, &request), flat(&[(250 * KIB, 70), (1_000 * KIB, 1_000)]));
    request.pieces = 15;
    let choice = choose(&profile, &MethodRequest { memory: HostMemory::Pinned, ..request.clone() }, &usable(&[DMA]));
    assert_eq!(choice.predicted, Some(Nanos(4 * 70)));
    assert_eq!(choice.why[1], "assumed: 15 pieces cost as requests of 4, as measured");
}

#[test]
fn tunings_come_from_the_nearest_situation() {
    let request = MethodRequest { active: 3, ..ask(Direction::D2h, HostMemory::Untouched, MIB) };
    let mut profile = measured();
    let warm = MethodRequest { memory: HostMemory::Touched, ..request.clone() };
    profile.curves.insert(key(PAGEABLE, &warm), flat(&[(MIB, 1_000)]));
    profile.curves.insert(key(STAGED, &warm), flat(&[(MIB, 100)]));
    let tuning = |threads| Tuning { threads, buffer: Bytes(MIB), stores: Stores::Plain, in_flight: 2 };
    let mut put = |memory, active, threads| {
        let key = TuningKey { gpu: GPU, direction: Direction::D2h, memory, active };
        profile.tunings.insert(key, tuning(threads));
    };
    put(HostMemory::Touched, 3, 9);
    put(HostMemory::Untouched, 1, 5);
    put(HostMemory::Untouched, 4, 6);
    assert_eq!(choose(&profile, &request, &usable(&[STAGED])).tuning, Some(tuning(6)));
}

/// The reconstruction of Fujii 2013, section 4 of the specification: means of one transfer.
fn fujii() -> Profile {
    let mut profile = Profile::default();
    let sizes: Vec<u64> = (4..=26).map(|exponent| 1 << exponent).collect();
    let linear = |fixed: u64, num: u128, den: u128| {
        let points = sizes.iter().map(|&s| (s, fixed + (u128::from(s) * num).div_ceil(den) as u64));
        flat(&points.collect::<Vec<_>>())
    };
    for (direction, method, curve) in [
        (Direction::H2d, DMA, linear(50_000, 1, 5)),
        (Direction::H2d, WINDOW, linear(1_000, 100, 488)),
        (Direction::D2h, DMA, linear(50_000, 2, 1)),
        (Direction::D2h, WINDOW, linear(40_000, 1_000, 64)),
        (Direction::D2h, HUB, linear(42_000, 4_200, 256)),
    ] {
        profile.curves.insert(key(method, &ask(direction, HostMemory::Pinned, 1)), curve);
    }
    profile
}

#[test]
fn fujii_2013_single_transfers_switch_at_8_mib_in_and_512_bytes_out() {
    let (profile, available) = (fujii(), usable(&[DMA, WINDOW, HUB]));
    for exponent in 4..=26 {
        let size = 1_u64 << exponent;
        let method = |direction| choose(&profile, &ask(direction, HostMemory::Pinned, size), &available).method;
        assert_eq!(method(Direction::H2d), if size <= 8 * MIB { WINDOW } else { DMA }, "in, {size}");
        assert_eq!(method(Direction::D2h), if size <= 512 { WINDOW } else { DMA }, "out, {size}");
    }
    let out = |size| choose(&profile, &ask(Direction::D2h, HostMemory::Pinned, size), &available).method;
    assert_eq!([0, 733, 734].map(out), [WINDOW, WINDOW, DMA]);
}

#[test]
fn without_a_profile_nothing_is_used_that_could_be_worse_than_the_driver() {
    let profile = Profile::default();
    let available = usable(&[PAGEABLE, DMA, STAGED, WINDOW, HUB, KERNEL]);
    for direction in [Direction::H2d, Direction::D2h] {
        let method = |memory, bytes| choose(&profile, &ask(direction, memory, bytes), &available).method;
        for memory in [HostMemory::Touched, HostMemory::Untouched, HostMemory::File] {
            assert_eq!(method(memory, 64), WINDOW);
            assert_eq!(method(memory, MIB), PAGEABLE);
            assert_eq!(method(memory, 4 * MIB), STAGED);
            assert_eq!(method(memory, 16 * MIB), STAGED);
            assert_eq!(method(memory, 4 << 30), STAGED);
        }
        assert_eq!(method(HostMemory::Pinned, 64), WINDOW);
        for bytes in [MIB, 1 << 30, u64::MAX] {
            assert_eq!(method(HostMemory::Pinned, bytes), DMA);
        }
    }
    let choice = choose(&profile, &ask(Direction::H2d, HostMemory::Touched, 1 << 30), &available);
    assert!(choice.why[1].starts_with("default:"), "{:?}", choice.why);
    assert_eq!(choice.candidates.iter().map(|c| c.figures.n).max(), Some(0));
    let peer = MethodRequest { peer: Some(EndpointId(3)), ..ask(Direction::Peer, HostMemory::Touched, MIB) };
    assert_eq!(choose(&profile, &peer, &usable(&[DMA, Method::Peer])).method, Method::Peer);
    assert_eq!(choose(&profile, &peer, &usable(&[DMA])).method, PAGEABLE);
}

const METHODS: [Method; 7] = [PAGEABLE, DMA, STAGED, WINDOW, HUB, KERNEL, MULTIPATH];

/// Curves of all methods whose costs cross often, with some figures missing.
fn any_profile() -> impl Strategy<Value = Profile> {
    let point = (0..60_u64, 0..60_u64, 0..60_u64, 0..8_u8);
    let of_method = proptest::collection::btree_map(0..400_u64, point, 0..6);
    let stamps = prop_oneof![Just("cuda"), Just("sim")];
    (proptest::collection::vec(of_method, METHODS.len()), stamps, 1..2_000_u64).prop_map(|(methods, source, base)| {
        let mut profile = measured();
        profile.stamp = Some(Stamp { source: source.into(), ..Stamp::default() });
        for (method, points) in METHODS.iter().zip(methods) {
            let points = points.into_iter().map(|(bytes, (a, b, c, missing))| {
                let (p99, max) = (base + a + b, base + a + b + c);
                let p99 = if missing == 0 { u64::MAX } else { p99 };
                (bytes, base + a, p99, if missing <= 1 { u64::MAX } else { max })
            });
            let points: Vec<_> = points.collect();
            for memory in [HostMemory::Pinned, HostMemory::Touched] {
                if !points.is_empty() {
                    profile.curves.insert(key(*method, &ask(Direction::H2d, memory, 1)), curve(&points));
                }
            }
        }
        profile
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_best_method_is_the_one_that_is_explained(
        profile in any_profile(), pinned: bool, realtime: bool,
        objective in prop_oneof![Just(Statistic::Median), Just(Statistic::P99), Just(Statistic::Max)],
        far in proptest::collection::vec(0..u64::MAX, 20),
    ) {
        let memory = if pinned { HostMemory::Pinned } else { HostMemory::Touched };
        let request = MethodRequest { objective, ..ask(Direction::H2d, memory, 0) };
        let available = Available { realtime, multipath: true, ..usable(&METHODS) };
        let case = MethodCase::new(&profile, &request, &available);
        for bytes in (0..500).step_by(7).chain(far).chain([u64::MAX]).map(Bytes) {
            let choice = case.choice(bytes);
            prop_assert_eq!(case.best(bytes), (choice.method, choice.predicted), "at {}", bytes);
            let is_staged = choice.method.abilities().occupies.staging(memory);
            prop_assert_eq!(is_staged.then_some(case.tuning), choice.tuning);
        }
    }

    #[test]
    fn a_choice_is_never_predicted_to_be_slower_than_the_driver(
        profile in any_profile(), pinned: bool, bytes in 0..1_000_u64,
    ) {
        let memory = if pinned { HostMemory::Pinned } else { HostMemory::Touched };
        let choice = choose(&profile, &ask(Direction::H2d, memory, bytes), &usable(&METHODS));
        let own = if pinned { DMA } else { PAGEABLE };
        let median = |method| choice.candidates.iter().find(|c| c.method == method).and_then(|c| c.figures.median);
        if let (Some(chosen), Some(driver)) = (median(choice.method), median(own)) {
            prop_assert!(chosen <= driver);
        }
        prop_assert_eq!(choice.candidates.iter().filter(|c| c.verdict == MethodVerdict::Chosen).count(), 1);
        prop_assert_eq!(choice.candidates[0].method, choice.method);
    }
}
