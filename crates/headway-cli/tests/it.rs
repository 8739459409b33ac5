//! The integration tests of `headway-cli` as one program: it is linked once, and `cargo test -p headway-cli
//! --test it FILE::` runs those of one file.

mod classes;
mod common;
mod emulated;
mod encrypt;
mod events;
mod golden;
mod help;
mod kept;
mod long;
mod manual;
mod mps;
mod parts;
mod readme;
mod results;
mod robust;
mod sharing;
mod top;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_headway");
