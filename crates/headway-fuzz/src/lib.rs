//! One harness for each border: it gets bytes, crosses the border with them, and panics if a promise does not hold.
//!
//! The tests replay inputs and mutate them; the program gives harnesses to libFuzzer (`cargo xtask fuzz`).

mod broker;
mod c_abi;
mod cache;
mod imports;
mod logs;
mod machine;
mod place;
mod script;
mod workload;

use std::path::PathBuf;

/// A border and what is done with bytes that cross it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BorderHarness {
    /// Also of the folder below `corpus`.
    pub name: &'static str,
    /// Panics if a promise does not hold for these bytes.
    pub cross: fn(&[u8]),
}

/// Every border.
pub const BORDERS: &[BorderHarness] = &[
    BorderHarness { name: "workload", cross: workload::cross },
    BorderHarness { name: "machine", cross: machine::cross },
    BorderHarness { name: "profile", cross: machine::cross_profile },
    BorderHarness { name: "log", cross: logs::cross },
    BorderHarness { name: "guest-log", cross: logs::cross_guest },
    BorderHarness { name: "cache", cross: cache::cross },
    BorderHarness { name: "imports", cross: imports::cross },
    BorderHarness { name: "broker", cross: broker::cross },
    BorderHarness { name: "c-abi", cross: c_abi::cross },
];

impl BorderHarness {
    /// The border that is called so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        BORDERS.iter().find(|border| border.name == name).copied()
    }

    /// Where its inputs are kept.
    #[must_use]
    pub fn corpus(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }
}

/// An input of some kilobytes needs far less.
const MEMORY_MAX: u64 = 4 << 30;

/// Has the process fail where it asks for more address space than any harness needs: an input must not cost more memory than it has reason to.
///
/// # Panics
/// If the system refuses.
pub fn limit_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // What a sanitiser knows of each byte takes terabytes of addresses.
    if ["ASAN_OPTIONS", "TSAN_OPTIONS"].iter().any(|options| std::env::var_os(options).is_some()) {
        return;
    }
    let maximum = getrlimit(Resource::As).maximum;
    let current = Some(maximum.map_or(MEMORY_MAX, |maximum| maximum.min(MEMORY_MAX)));
    setrlimit(Resource::As, Rlimit { current, maximum }).expect("a process may lower its own limit");
}
