//! Copies by several methods at once: who waits for whom, at costs that can be computed by hand.

use headway_core::files::machine::{EndpointId, Machine, shipped};
use headway_core::models::transfer::{
    Curve, Direction, HostMemory, Key, Load, Mapping, Method, Point, Profile, Shape, Statistic,
};
use headway_core::units::{Bytes, Nanos};
use headway_sim::transfer::{Completed, CopiesError, Requested, simulate_copies};

const RESIDENT: Method = Method::Resident(Some(Shape::Hub));

/// Four GPUs on which every way takes 10 ns and one nanosecond a byte.
fn machine() -> Machine {
    let mut machine = shipped("h200-x4").unwrap();
    machine.profile = Profile::default();
    let gpus: Vec<_> = machine.gpus().collect();
    let point = |bytes| {
        let time = Nanos(10 + bytes);
        Point { bytes: Bytes(bytes), n: 1, median: time, p99: time, max: time }
    };
    let curve = Curve::new(vec![point(0), point(1000)]).unwrap();
    let methods = [
        Method::Pageable,
        Method::Dma,
        Method::Staged,
        Method::Window(None),
        Method::PagedWindow(None),
        Method::Kernel,
        Method::Multipath,
    ];
    for &gpu in &gpus {
        for direction in [Direction::H2d, Direction::D2h] {
            for method in methods.into_iter().chain([RESIDENT]) {
                machine.profile.curves.insert(key(gpu, None, method, direction), curve.clone());
            }
        }
        for &peer in gpus.iter().filter(|peer| **peer != gpu) {
            let key = key(gpu, Some(peer), Method::Peer, Direction::Peer);
            machine.profile.curves.insert(key, curve.clone());
        }
    }
    machine
}

const fn key(gpu: EndpointId, peer: Option<EndpointId>, method: Method, direction: Direction) -> Key {
    let memory = HostMemory::Pinned;
    Key { gpu, peer, method, direction, memory, load: Load::Alone, active: 1, pieces: 1 }
}

/// A copy of `bytes` into the first GPU by the CPU 0.
fn copy(machine: &Machine, at: u64, method: Method, bytes: u64) -> Requested {
    Requested {
        at: Nanos(at),
        gpu: machine.gpus().next().unwrap(),
        peer: None,
        method,
        direction: Direction::H2d,
        memory: HostMemory::Pinned,
        bytes: Bytes(bytes),
        chunk: None,
        cpu: 0,
    }
}

fn run(machine: &Machine, requests: &[Requested]) -> Vec<Completed> {
    simulate_copies(machine, requests, Statistic::Median).unwrap()
}

const fn done(start: u64, end: u64, waited: u64) -> Completed {
    Completed { start: Nanos(start), end: Nanos(end), waited: Nanos(waited) }
}

#[test]
fn an_engine_serves_copies_of_one_direction_in_the_order_of_asking() {
    let machine = machine();
    let dma = |at, bytes| copy(&machine, at, Method::Dma, bytes);
    let out = Requested { direction: Direction::D2h, ..dma(5, 100) };
    assert_eq!(run(&machine, &[dma(7, 50), dma(5, 100), out]), [done(115, 175, 108), done(5, 115, 0), done(5, 115, 0)]);
}

#[test]
fn between_two_chunks_another_copy_may_come() {
    let machine = machine();
    let bulk = Requested { chunk: Some(Bytes(100)), ..copy(&machine, 0, Method::Dma, 250) };
    let urgent = copy(&machine, 20, Method::Dma, 5);
    // Chunks of 100, 100 and 50; the second has to wait for the 15 ns of the other copy.
    assert_eq!(run(&machine, &[bulk, urgent]), [done(0, 110 + 15 + 110 + 60, 15), done(110, 125, 90)]);
}

#[test]
fn windows_and_resident_copiers_do_not_wait_behind_bulk_on_the_engine() {
    let machine = machine();
    let bulk = copy(&machine, 0, Method::Dma, 10_000);
    for method in [Method::Window(None), Method::PagedWindow(None), Method::Kernel, RESIDENT] {
        assert_eq!(run(&machine, &[bulk, copy(&machine, 1, method, 5)])[1], done(1, 16, 0), "{method:?}");
    }
    for method in [Method::Pageable, Method::Staged, Method::Multipath] {
        assert_eq!(run(&machine, &[bulk, copy(&machine, 1, method, 5)])[1].start, Nanos(10_010), "{method:?}");
    }
}

#[test]
fn one_cpu_stores_into_one_window_at_a_time() {
    let machine = machine();
    let first = copy(&machine, 0, Method::Window(None), 90);
    let second = copy(&machine, 0, Method::Window(None), 10);
    assert_eq!(run(&machine, &[first, second])[1], done(100, 120, 100));
    assert_eq!(run(&machine, &[first, Requested { cpu: 1, ..second }])[1], done(0, 20, 0));
    // A GPU has one small mapping, whoever uses it.
    let paged = |cpu| Requested { cpu, ..copy(&machine, 0, Method::PagedWindow(None), 90) };
    assert_eq!(run(&machine, &[paged(0), paged(1)])[1], done(100, 200, 100));
}

#[test]
fn a_copy_between_gpus_takes_an_engine_of_each() {
    let machine = machine();
    let gpus: Vec<_> = machine.gpus().collect();
    let peer = |from: usize, to: usize| Requested {
        gpu: gpus[from],
        peer: Some(gpus[to]),
        direction: Direction::Peer,
        ..copy(&machine, 0, Method::Peer, 90)
    };
    assert_eq!(
        run(&machine, &[peer(0, 1), peer(1, 2), peer(2, 3)]),
        [done(0, 100, 0), done(100, 200, 100), done(200, 300, 200)]
    );
    assert_eq!(run(&machine, &[peer(0, 1), peer(2, 3)])[1], done(0, 100, 0));
}

#[test]
fn what_the_profile_or_the_machine_lacks_is_an_error_that_names_it() {
    let mut machine = machine();
    let window = Method::Window(Some(Mapping::Gdrdrv));
    let missing = copy(&machine, 0, window, 5);
    let error = simulate_copies(&machine, &[missing], Statistic::Median).unwrap_err();
    assert!(matches!(error, CopiesError::NoCurve { request: 0, method, .. } if method == window), "{error}");
    machine.engines.clear();
    let dma = copy(&machine, 0, Method::Dma, 5);
    let error = simulate_copies(&machine, &[dma], Statistic::Median).unwrap_err();
    assert!(error.to_string().contains("no engine of class H2d"), "{error}");
}

#[test]
fn a_copy_of_no_bytes_takes_what_the_smallest_takes() {
    let machine = machine();
    assert_eq!(run(&machine, &[copy(&machine, 3, Method::Dma, 0)]), [done(3, 13, 0)]);
}
