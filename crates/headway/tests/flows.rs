//! Flows of one program on emulated GPUs: what is refused, and what is left when they are gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headway::copy::{self, Copier, Direction, How, Method};
use headway::flow::{FlowContract, FlowCopy, FlowNode, FlowPlace, OnMiss};
use headway::units::{Bytes, Nanos};
use headway::{ErrorKind, machine};

/// Nothing takes that long, however slow the machine is.
const LIMIT: Duration = Duration::from_secs(300);
const MIB: usize = 1 << 20;

fn node(copier: &Arc<Copier>) -> FlowNode {
    FlowNode::of(Arc::clone(copier), &machine::open("h200-x4").unwrap()).unwrap()
}

fn contract(gpu: u32) -> FlowContract {
    let (period, deadline) = (Nanos(100_000_000), Nanos(1_000_000));
    let name = format!("camera {gpu}");
    FlowContract {
        name,
        gpu,
        direction: Direction::H2d,
        bytes: Bytes(MIB as u64),
        period,
        deadline,
        on_miss: OnMiss::Finish,
    }
}

#[test]
fn a_copy_to_another_gpu_than_the_contract_says_is_refused() {
    let copier = Arc::new(copy::emulated(2).unwrap());
    let flow = node(&copier).open(contract(0)).unwrap();
    let copy_to = |gpu| {
        let (device, host) = (FlowPlace::device(&copier, gpu, MIB), FlowPlace::pinned(&copier, gpu, MIB));
        FlowCopy::Buffers { device: device.unwrap(), host: host.unwrap(), bytes: MIB }
    };
    for refused in [flow.copy(copy_to(1)).map(drop), flow.submit(copy_to(1)).map(drop)] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Options, "{refused}");
        assert!(refused.to_string().contains("another GPU"), "{refused}");
    }
    flow.copy(copy_to(0)).unwrap();
}

#[test]
fn a_gpu_of_the_machine_that_the_copier_has_not_takes_no_flow() {
    let copier = Arc::new(copy::emulated(1).unwrap());
    let node = node(&copier);
    assert!(node.engines().iter().all(|engine| engine.gpu == 0));
    let refused = node.open(contract(2)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("camera 2"), "{refused}");
}

#[test]
fn other_copies_have_their_chunks_again_when_a_node_is_dropped_with_its_flows() {
    let copier = Arc::new(copy::emulated(1).unwrap());
    let (to, from) =
        (FlowPlace::device(&copier, 0, 64 * MIB).unwrap(), FlowPlace::pinned(&copier, 0, 64 * MIB).unwrap());
    let chunks = || {
        let how = How::By(Method::Dma);
        copier.copy_pinned(Direction::H2d, to.at(), from.at(), 64 * MIB, how).unwrap().chunks
    };
    let before = chunks();
    let flow = node(&copier).open(contract(0)).unwrap();
    assert!(chunks() > before, "a flow has them smaller");
    drop(flow);
    let start = Instant::now();
    while chunks() > before {
        assert!(start.elapsed() < LIMIT);
    }
    // Nobody promises there any more.
    node(&copier).open(contract(0)).unwrap();
}

#[test]
fn a_flow_whose_copies_have_ended_can_be_opened_again_as_soon_as_it_is_dropped() {
    let copier = Arc::new(copy::emulated(1).unwrap());
    let node = node(&copier);
    let (device, host) = (FlowPlace::device(&copier, 0, MIB).unwrap(), FlowPlace::pinned(&copier, 0, MIB).unwrap());
    for time in 0..50 {
        let flow = node.open(contract(0)).unwrap_or_else(|error| panic!("the {time}th time: {error}"));
        let copy = FlowCopy::Buffers { device: device.clone(), host: host.clone(), bytes: MIB };
        flow.submit(copy).unwrap().wait(LIMIT).unwrap();
        // The copy was in time, and nothing promised is there any more.
        drop(flow);
    }
}

#[test]
fn a_flow_that_needs_smaller_chunks_waits_for_promised_copies_that_are_under_way() {
    const LONG: usize = 64 * MIB;
    let copier = Arc::new(copy::emulated(1).unwrap());
    let node = node(&copier);
    let long = FlowContract {
        name: "long".to_owned(),
        bytes: Bytes(LONG as u64),
        deadline: Nanos(100_000_000),
        ..contract(0)
    };
    let long = node.open(long).unwrap();
    let (device, host) = (FlowPlace::device(&copier, 0, LONG).unwrap(), FlowPlace::pinned(&copier, 0, LONG).unwrap());
    for time in 0..10 {
        let copy = FlowCopy::Buffers { device: device.clone(), host: host.clone(), bytes: LONG };
        let ticket = long.submit(copy).unwrap();
        let opened = node.open(contract(0));
        ticket.wait(LIMIT).unwrap();
        let flow = opened.unwrap_or_else(|error| panic!("the {time}th time: {error}"));
        flow.close();
    }
}
