//! Bounds how long tasks that share two GPUs wait for them.

use headway::plan::PlanOptions;
use headway::units::{Bytes, Nanos};
use headway::workload::{JobSegment, SharingTable, TaskDirection, Workload, WorkloadTask, check};
use headway::{machine, share};

/// Every 50 ms: a picture in, 5 ms of kernels, a result out, on whichever GPU is free.
fn task(number: usize) -> WorkloadTask {
    let segments = vec![
        JobSegment::Copy { direction: TaskDirection::ToGpu, bytes: Bytes(4 << 20) },
        JobSegment::Execute { kernel: "spin".to_owned(), time: Nanos(5_000_000) },
        JobSegment::Copy { direction: TaskDirection::FromGpu, bytes: Bytes(64 << 10) },
    ];
    WorkloadTask::new(&format!("tracker-{number}"), Nanos(50_000_000), segments)
}

fn main() -> Result<(), headway::Error> {
    let machine = machine::restrict(&machine::open("h200-x4")?, 2)?;
    let workload = check(&Workload {
        tasks: (0..4).map(task).collect(),
        sharing: Some(SharingTable::new(4)),
        ..Workload::new("trackers")
    })?;
    let report = share::bounds(&machine, &workload, PlanOptions::default())?;
    println!("{:?}", report.verdict);
    for task in &report.tasks {
        println!("{} waits at most {} in each period of {}", task.id, task.blocking, task.period);
    }
    Ok(())
}
