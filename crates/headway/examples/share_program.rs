//! One of several programs that share two GPUs: asks the user's broker for one every 50 ms. Emulated GPUs stand in for real ones here.

use std::{env, thread, time::Duration};

use headway::broker::{BrokerOptions, Client, OnLoss, socket};
use headway::copy::{self, At, CpuReach, How};
use headway::share::tasks::{ClusterId, EngineWork, LockedOperation, Sharing, TaskShape, now};
use headway::units::{Bytes, Nanos};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = env::args().nth(1).ok_or("give the program a name")?;
    let copier = copy::emulated(2)?; // `copy::gpus()` opens those of this computer
    let frame = vec![7; 2 << 20]; // as long as one hold of an engine allows
    let sharing = Sharing::by_broker(Client::connect(&socket(&BrokerOptions::default()), &name, OnLoss::Fail)?);
    let (cluster, period, state, segments) = (ClusterId(0), Nanos(50_000_000), Bytes(0), Vec::new());
    let shape = TaskShape { name: name.clone(), cluster, period, deadline: period, state, segments, thread: None };
    let mut task = sharing.register(shape)?;
    let (mut longest, mut frames) = (Nanos(0), [0, 0]);
    for _ in 0..50 {
        let release = now();
        let mut job = task.job(release);
        let mut gpu = job.acquire(None)?;
        longest = longest.max(now().saturating_sub(release));
        let which = gpu.id().0 as usize;
        let there = copier.gpus()[which].device_buffer(frame.len(), CpuReach::Device)?;
        let operation = |work, bytes| LockedOperation { work, bytes, predicted: Nanos(0), budget: Nanos(0) };
        let engine = gpu.engine(operation(EngineWork::CopyIn, Bytes(2 << 20)))?;
        copier.copy_in(At { buffer: &there, offset: 0 }, &frame, How::Auto)?;
        engine.release();
        let engine = gpu.engine(operation(EngineWork::Execute, Bytes(0)))?;
        thread::sleep(Duration::from_millis(5)); // your kernels, until they have ended
        engine.release();
        drop(gpu); // somebody else's turn
        frames[which] += 1;
        thread::sleep(Duration::from_nanos(period.0.saturating_sub(now().saturating_sub(release).0)));
    }
    println!("{name}: frames on each GPU {frames:?}, longest wait for one {longest}");
    Ok(())
}
