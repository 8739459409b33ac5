//! What decides while a plan runs: state machines that take inputs with their times and give actions.
//!
//! The simulator, the threads of the runtime, the GPUs and the broker drive the same objects.

pub mod broker;
pub mod chooser;
pub mod cpu_budget;
pub mod cut;
pub mod dispatch;
pub mod engine_line;
pub mod engine_lock;
pub mod flows;
pub(crate) mod pairs;
pub mod predictor;
pub mod sharing;
pub mod staging;
pub mod token;
