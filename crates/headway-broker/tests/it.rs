//! The integration tests of `headway-broker`, but for those that start their own program again, as one program: it is linked once, and
//! `cargo test -p headway-broker --test it FILE::` runs those of one file.

mod conformance;
#[path = "../src/layout.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests use a part of it")]
mod layout;
mod limits;
mod lost;
mod memory;
mod sharing;
mod support;
mod turns;
