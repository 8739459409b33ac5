//! Fits of rates that a known machine gives.

use super::*;
use crate::files::machine::{parse, write};

fn node(machine: &Machine) -> NodeFacts {
    let setup = CopySetup { idle: Nanos(7_300), queued: Nanos(2_600), submit: Nanos(1_500) };
    let directions = [Direction::H2d, Direction::D2h];
    NodeFacts {
        name: "fitted".into(),
        description: String::new(),
        endpoints: machine.endpoints.clone(),
        setups: machine.gpus().flat_map(|gpu| directions.map(|d| ((gpu, d), setup))).collect(),
        jitter: Nanos(200_000),
        date: "2026-11-21".into(),
        driver: "580".into(),
    }
}

/// Every set of copies between host and GPUs, with the rates that `machine` gives them, times a factor in ppm that `noise`
/// says for each repetition and copy.
fn samples(machine: &Machine, repeats: usize, mut noise: impl FnMut() -> u64) -> Vec<Sample> {
    let host = machine.memories().next().expect("it has one");
    let copies: Vec<_> = machine.gpus().flat_map(|gpu| [(gpu, Direction::H2d), (gpu, Direction::D2h)]).collect();
    let (network, mut scratch, mut rates) = (Network::new(machine), Scratch::new(), Vec::new());
    let mut samples = Vec::new();
    for members in 1..1_u32 << copies.len() {
        let transfers: Vec<_> = (0..copies.len()).filter(|at| members >> at & 1 == 1).map(|at| copies[at]).collect();
        let route = |&(gpu, direction): &(EndpointId, Direction)| {
            let route = if direction == Direction::H2d { machine.route(host, gpu) } else { machine.route(gpu, host) };
            route.expect("there is one")
        };
        let routes: Vec<RouteId> = transfers.iter().map(route).collect();
        network.rates(&routes, &mut scratch, &mut rates).expect("all get a share");
        for _ in 0..repeats {
            let mut noisy = |rate: &Rate| Rate(rate.0 / PPM * noise() + rate.0 % PPM);
            samples.push(Sample { transfers: transfers.clone(), rates: rates.iter().map(&mut noisy).collect() });
        }
    }
    samples
}

fn limit<'m>(machine: &'m Machine, id: &str) -> &'m Capacity {
    machine.capacities.iter().find(|c| c.id == id).unwrap_or_else(|| panic!("{id} in {:?}", machine.capacities))
}

#[track_caller]
fn close(found: u64, expected: u64) {
    assert!(found.abs_diff(expected) * 100 <= expected, "{found} is not within 1 % of {expected}");
}

/// A node of round figures.
fn by_hand(name: &str) -> Machine {
    let text = match name {
        "h200-x1" => include_str!("../../../tests/machines/h200-x1.toml"),
        _ => include_str!("../../../tests/machines/h200-x4.toml"),
    };
    parse(name, text).expect("it parses")
}

/// Uses of the limit by the first GPU: in, out.
fn uses(machine: &Machine, id: &str) -> [Option<u32>; 2] {
    let at = machine.capacities.iter().position(|c| c.id == id).expect("it is there");
    [0, 1].map(|route: usize| machine.routes[route].uses.iter().find(|(c, _)| c.at() == at).map(|(_, ppm)| *ppm))
}

#[test]
fn a_model_of_four_h200_is_recovered_from_its_own_rates() {
    let truth = by_hand("h200-x4");
    let fitted = fit(&node(&truth), &samples(&truth, 1, || PPM)).expect("all sets are there");
    for gpu in 0..4 {
        for (name, rate, both) in [("in", 55_500_000_000, 52_400_000_000), ("out", 55_400_000_000, 50_650_000_000)] {
            let link = limit(&fitted, &format!("gpu{gpu}.{name}"));
            assert_eq!((link.rate, link.rate_low), (Rate(rate), Rate(rate)));
            let CapacityKind::Link { opposite: Some((_, found)), .. } = link.kind else { panic!("paired") };
            assert_eq!(found, Rate(both));
        }
    }
    close(limit(&fitted, "io").rate.0, 189_200_000_000);
    close(limit(&fitted, "write").rate.0, 154_800_000_000);
    let [Some(inward), Some(outward)] = uses(&fitted, "io") else { panic!("both directions use it") };
    assert_eq!(inward, 1_000_000);
    close(u64::from(outward), 1_057_000);
    assert_eq!(uses(&fitted, "write"), [None, Some(1_000_000)]);
    let ratio = |m: &Machine, a: RouteId, b: RouteId| {
        u64::from(m.routes[a.at()].weight) * PPM / u64::from(m.routes[b.at()].weight)
    };
    let (host, gpu) = (truth.memories().next().expect("one"), truth.gpus().next().expect("four"));
    let routes = |m: &Machine| (m.route(host, gpu).expect("in"), m.route(gpu, host).expect("out"));
    close(ratio(&fitted, routes(&fitted).0, routes(&fitted).1), ratio(&truth, routes(&truth).0, routes(&truth).1));
    let calibration = fitted.calibration.as_ref().expect("it was fitted");
    assert_eq!((calibration.sets, calibration.repeats, calibration.sigma_ppm), (255, 1, PPM));
    assert!(calibration.max_ppm <= 10_000, "{calibration:?}");
    assert_eq!((calibration.margin_ppm, calibration.jitter), (10_000, Nanos(200_000)));
    let written = write(&fitted, &["fitted"]);
    assert_eq!(Machine { hash: String::new(), ..parse("f", &written).unwrap_or_else(|e| panic!("{e}")) }, fitted);
}

/// Factors in ppm that scatter by 1 % either way.
fn scatter() -> impl FnMut() -> u64 {
    let mut seed = 1_u64;
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        PPM - 10_000 + (seed >> 33) % 20_000
    }
}

#[test]
fn few_measured_sets_of_four_h200_are_explained_as_well_as_by_hand() {
    let truth = by_hand("h200-x4");
    let gpus: Vec<_> = truth.gpus().collect();
    let set = |count: usize, inward: Option<u64>, outward: Option<u64>| {
        let rates = [(Direction::H2d, inward), (Direction::D2h, outward)];
        let copies = gpus[..count].iter().flat_map(|gpu| rates.map(|(direction, rate)| ((*gpu, direction), rate)));
        let (transfers, rates) = copies.filter_map(|(copy, rate)| Some((copy, Rate(rate? * 10_000_000)))).unzip();
        Sample { transfers, rates }
    };
    let mut samples = vec![
        set(2, Some(5_550), None),
        set(3, Some(5_480), None),
        set(4, Some(4_730), None),
        set(4, None, Some(3_870)),
        set(4, Some(2_300), Some(2_780)),
    ];
    for gpu in &gpus {
        let one = |sample: Sample| {
            let transfers = sample.transfers.iter().map(|(_, direction)| (*gpu, *direction)).collect();
            Sample { transfers, ..sample }
        };
        samples
            .extend([set(1, Some(5_550), None), set(1, None, Some(5_540)), set(1, Some(5_240), Some(5_065))].map(one));
    }
    let fitted = fit(&node(&truth), &samples).expect("all sets are there");
    let calibration = fitted.calibration.as_ref().expect("it was fitted");
    assert!(calibration.max_ppm <= 15_500, "by hand 15 244: {calibration:?}");
    close(limit(&fitted, "io").rate.0, 189_200_000_000);
    close(limit(&fitted, "write").rate.0, 154_800_000_000);
}

#[test]
fn scattered_rates_give_low_rates_and_a_sigma_which_the_bound_counts_with() {
    let truth = by_hand("h200-x4");
    let fitted = fit(&node(&truth), &samples(&truth, 5, scatter())).expect("all sets are there");
    close(limit(&fitted, "write").rate.0, 154_800_000_000);
    let link = limit(&fitted, "gpu2.in");
    assert!(link.rate_low < link.rate && link.rate.0 - link.rate_low.0 < link.rate.0 / 50);
    let io = limit(&fitted, "io");
    assert!(io.rate_low < io.rate && io.rate.0 - io.rate_low.0 < io.rate.0 / 40, "{io:?}");
    let calibration = fitted.calibration.expect("it was fitted");
    assert_eq!(calibration.repeats, 5);
    assert!((1_015_000..1_021_000).contains(&calibration.sigma_ppm), "{calibration:?}");
    assert_eq!(calibration.margin_ppm, 10_000, "{calibration:?}");
    assert!(calibration.median_ppm <= calibration.p95_ppm && calibration.p95_ppm <= calibration.max_ppm);
    assert!(calibration.p95_ppm < 15_000, "{calibration:?}");
}

#[test]
fn the_margin_covers_a_repetition_that_took_longer_than_the_bound() {
    let truth = by_hand("h200-x1");
    let mut samples = samples(&truth, 5, || PPM);
    let both = samples.iter_mut().rfind(|sample| sample.transfers.len() == 2).expect("both ways at once");
    both.rates.iter_mut().for_each(|rate| rate.0 = rate.0 / 4 * 3);
    let order: Vec<BatchBlock> = (0..)
        .map(RouteId)
        .zip(&both.rates)
        .map(|(route, rate)| BatchBlock { route, bytes: Bytes(rate.0 / 10) })
        .collect();
    let fitted = fit(&node(&truth), &samples).expect("all sets are there");
    let calibration = fitted.calibration.clone().expect("it was fitted");
    let bound = |margin_ppm: u64| {
        let without_jitter = Calibration { margin_ppm, jitter: Nanos::ZERO, ..calibration.clone() };
        Network::new(&fitted).wcet(&order, Some(&without_jitter)).expect("both have rates").value
    };
    assert!(calibration.margin_ppm > 50_000, "{calibration:?}");
    assert!(bound(calibration.margin_ppm * 81 / 100) >= Nanos(100_000_000), "{calibration:?}");
    assert!(bound(calibration.margin_ppm * 79 / 100) < Nanos(100_000_000), "{calibration:?}");
}

#[test]
fn links_that_add_up_need_no_limit_and_one_limit_is_no_two() {
    let mut truth = by_hand("h200-x4").with_gpus(2).expect("it has four");
    truth.capacities.retain(|c| c.kind != CapacityKind::Limit);
    for route in &mut truth.routes {
        route.uses.retain(|(id, _)| id.at() < truth.capacities.len());
    }
    let fitted = fit(&node(&truth), &samples(&truth, 1, || PPM)).expect("all sets are there");
    assert!(fitted.capacities.iter().all(|c| c.kind != CapacityKind::Limit), "{:?}", fitted.capacities);

    let mut truth = by_hand("h200-x4");
    let io = truth.capacities.iter().position(|c| c.id == "io").expect("it is there");
    for route in &mut truth.routes {
        route.uses.retain(|(id, _)| id.at() != io);
    }
    // Four copies in are a little short: less than a limit must explain.
    let mut weak = samples(&truth, 3, scatter());
    let four_in = |s: &&mut Sample| s.transfers.len() == 4 && s.transfers.iter().all(|(_, d)| *d == Direction::H2d);
    for rate in weak.iter_mut().filter(four_in).flat_map(|sample| &mut sample.rates) {
        rate.0 -= rate.0 / 50;
    }
    for samples in [samples(&truth, 1, || PPM), weak] {
        let fitted = fit(&node(&truth), &samples).expect("all sets are there");
        let limits: Vec<_> = fitted.capacities.iter().filter(|c| c.kind == CapacityKind::Limit).collect();
        assert_eq!(limits.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["write"]);
        close(limits[0].rate.0, 154_800_000_000);
    }
}

#[test]
fn a_limit_that_two_gpus_share_is_found_with_the_gpus_it_is_for() {
    let mut truth = by_hand("h200-x4");
    let gpus: Vec<_> = truth.gpus().collect();
    for (name, pair, rate) in [("near", [0, 2], 80), ("far", [1, 3], 70)] {
        let id = CapacityId(truth.capacities.len() as u32);
        let rate = Rate(rate * 1_000_000_000);
        truth.capacities.push(Capacity { id: name.into(), rate, rate_low: rate, kind: CapacityKind::Limit });
        for route in truth.routes.iter_mut().filter(|route| pair.iter().any(|at| gpus[*at] == route.to)) {
            route.uses.extend((route.from.0 == 0).then_some((id, PPM as u32)));
        }
    }
    let fitted = fit(&node(&truth), &samples(&truth, 1, || PPM)).expect("all sets are there");
    close(limit(&fitted, "read.gpu0-gpu2").rate.0, 80_000_000_000);
    close(limit(&fitted, "read.gpu1-gpu3").rate.0, 70_000_000_000);
    assert_eq!(uses(&fitted, "read.gpu0-gpu2"), [Some(PPM as u32), None]);
    let calibration = fitted.calibration.as_ref().expect("it was fitted");
    assert!(calibration.max_ppm <= 15_000, "{calibration:?}");
    let written = write(&fitted, &["fitted"]);
    assert_eq!(parse("f", &written).map(|read| read.capacities), Ok(fitted.capacities));
}

#[test]
fn samples_that_cannot_be_used_are_refused_by_name() {
    let truth = by_hand("h200-x1");
    let (node, all) = (node(&truth), samples(&truth, 1, || PPM));
    let gpu = truth.gpus().next().expect("one");
    let with = |change: &dyn Fn(&mut Vec<Sample>)| {
        let mut samples = all.clone();
        change(&mut samples);
        fit(&node, &samples).expect_err("refused")
    };
    let error = with(&|samples| {
        samples[0].rates.pop();
    });
    assert_eq!(error, FitError::Shape { sample: 0, transfers: 1, rates: 0 });
    let copy = |endpoint: &str, direction| FitError::Copy { sample: 1, endpoint: endpoint.into(), direction };
    let gpu0 = |direction| copy("gpu0", direction);
    assert_eq!(with(&|samples| samples[1].transfers[0] = (gpu, Direction::Peer)), gpu0(Direction::Peer));
    assert_eq!(
        with(
            &|samples| samples[1] = Sample { transfers: vec![(gpu, Direction::H2d); 2], rates: vec![Rate(1 << 30); 2] }
        ),
        gpu0(Direction::H2d)
    );
    assert_eq!(with(&|s| s[1].transfers[0].0 = EndpointId(0)), copy("host", Direction::D2h));
    assert_eq!(with(&|s| s[1].transfers[0].0 = EndpointId(9)), copy("9", Direction::D2h));
    assert_eq!(with(&|s| s[2].rates[0] = Rate(9)), FitError::Slow { sample: 2, rate: Rate(9) });
    let alone = with(&|samples| samples.retain(|s| s.transfers != [(gpu, Direction::D2h)]));
    assert_eq!(alone, FitError::NotAlone { gpu: "gpu0".into(), direction: Direction::D2h });
    let mut bare = node.clone();
    bare.setups.remove(&(gpu, Direction::H2d));
    assert!(matches!(fit(&bare, &all), Err(FitError::NoSetup { direction: Direction::H2d, .. })));
    bare.endpoints[0].kind = EndpointKind::Gpu;
    assert!(matches!(fit(&bare, &all), Err(FitError::NotAlone { .. })));
}
