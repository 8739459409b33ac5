//! The integration tests of `headway-kernels` as one program: it is linked once, and `cargo test -p headway-kernels
//! --test it FILE::` runs those of one file.

mod common;
mod cpu_forms;
mod gpu_sources;
#[path = "common/host.rs"]
mod host;
mod inspect;
