//! Two cameras, a control message and a bulk upload on an emulated GPU; `copy::gpus()` opens those of this computer.

use std::sync::Arc;

use headway::copy::{self, Direction, How};
use headway::flow::{Flow, FlowContract, FlowCopy, FlowNode, FlowPlace, OnMiss};
use headway::units::{Bytes, Nanos};
use headway::{Error, machine};

fn contract(name: &str, direction: Direction, kib: u64, ms: u64) -> FlowContract {
    let (name, bytes, period, on_miss) = (name.to_owned(), Bytes(kib << 10), Nanos(ms * 1_000_000), OnMiss::Finish);
    FlowContract { name, gpu: 0, direction, bytes, period, deadline: Nanos(5_000_000), on_miss }
}

fn main() -> Result<(), Error> {
    let copier = Arc::new(copy::emulated(1)?);
    let node = FlowNode::of(Arc::clone(&copier), &machine::open("h200-x1")?)?;
    let left = node.open(contract("left camera", Direction::H2d, 6 << 10, 33))?;
    let right = node.open(contract("right camera", Direction::H2d, 6 << 10, 33))?;
    let control = node.open(contract("control", Direction::D2h, 4, 50))?;
    if let Err(refused) = node.open(contract("radar", Direction::H2d, 1 << 20, 20)) {
        println!("{refused}");
    }
    let show = |flow: &Flow, bytes: usize| -> Result<(), Error> {
        let (device, host) = (FlowPlace::device(&copier, 0, bytes)?, FlowPlace::pinned(&copier, 0, bytes)?);
        let ticket = flow.submit(FlowCopy::Buffers { device, host, bytes })?;
        let job = ticket.wait(std::time::Duration::from_secs(10))?.job;
        println!("{}: {} of at most {}", flow.contract().name, job.response, job.bound);
        job.blame.iter().for_each(|why| println!("  {why}"));
        Ok(())
    };
    std::thread::scope(|scope| {
        let (bulk, weights, copier) = (FlowPlace::device(&copier, 0, 64 << 20)?, vec![1; 64 << 20], &copier);
        scope.spawn(move || copier.copy_in(bulk.at(), &weights, How::Auto).map(drop));
        show(&left, 6 << 20)?;
        show(&right, 6 << 20)?;
        show(&control, 4 << 10)
    })
}
