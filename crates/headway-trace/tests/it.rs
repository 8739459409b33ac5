//! The integration tests of `headway-trace` as one program: it is linked once, and `cargo test -p headway-trace
//! --test it FILE::` runs those of one file.

mod common;
mod kept_interconnect;
mod kept_runs;
mod log;
mod page_in_chromium;
mod perfetto;
mod replay;
mod summary;
