//! The tests of the program `headway-lab` as one program.

#[path = "../../headway-cli/tests/common/mod.rs"]
mod common;
mod experiments;
mod foreign;
mod gpu_machine;
#[path = "../../headway-cli/tests/help.rs"]
mod help;
#[path = "../../headway-kernels/tests/common/host.rs"]
mod host;
mod kept;
mod klt;
mod klt_reference;
mod ring;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_headway-lab");
/// How commands for it begin on pages.
const STARTS: [&str; 2] = ["cargo run --release -p headway-lab -- ", "headway-lab "];
