//! The integration tests of `headway-sim` as one program: it is linked once, and `cargo test -p headway-sim
//! --test it FILE::` runs those of one file.

mod accepted_plans;
mod accepted_sets;
mod batches;
mod broker;
mod combined;
mod flows;
mod late_messages;
mod models;
mod one_stream;
mod runs;
mod small_sets;
mod support;
