//! The integration tests of `headway-core` as one program: it is linked once, and `cargo test -p headway-core
//! --test it FILE::` runs those of one file.

mod arbitration_files;
#[path = "dispatch/bench.rs"]
mod bench;
#[path = "dispatch/case.rs"]
mod case;
mod checked_workloads;
mod choices;
mod chunk_sizes;
mod cores;
mod dispatch;
mod exhaustive_staging;
mod gangs;
mod machine_files;
mod modules;
mod oracle_response_time_analysis;
mod overload;
mod parted;
mod planner;
mod plans;
mod profile_files;
mod sharded;
mod task_files;
mod uneven;
mod unplanned;
mod workload_files;
