//! The compute steps that workloads name, each in two forms over the same packed block: one for the CPU, one as PTX.
//!
//! | id | does | state of a portion |
//! |---|---|---|
//! | `aes128-cbc` | encrypts each portion, chained from block to block | round keys and chaining value, 192 bytes |
//! | `spin` | copies each portion and computes for a time proportional to its bytes | iterations and a sum, 8 bytes |
//!
//! | `inspect`, `inspect-merge` | only for wafers: [`inspect::blocks`] | what is known of a camera, 32 bytes; none |
//!
//! The first two write in both forms the header, every portion, and zeros from a portion's end to the next multiple of 16; bytes elsewhere stay as
//! they were. The state they leave is the same too, byte for byte.
//!
//! The inspection of wafers has programs that are launched by themselves, too: [`inspect`]. Their forms agree byte for byte.
//!
//! Kernels that a workload brings in a file of its own are in [`module`].
//!
//! The PTX is generated from `kernels/*.cu` by `cargo xtask ptx` and committed, so that no CUDA toolkit is needed to build.
#![forbid(unsafe_code)]

mod aes128_cbc;
mod aes128_tables;
mod cipher;
pub mod inspect;
pub mod module;
mod portions;
mod spin;
pub mod workload;

use std::sync::Arc;

use headway_device::work::{Library, Work};

pub use aes128_cbc::Aes128Cbc;
pub use aes128_tables::Aes128Tables;
pub use cipher::Cipher;
pub use spin::Spin;

type Make = fn() -> Arc<dyn Work>;

/// Kernels of one application: no other stream can use them.
const INSPECTION: [(&str, Make); 2] = [
    (inspect::INSPECT, || Arc::new(inspect::blocks::InspectBlock)),
    (inspect::MERGE, || Arc::new(inspect::blocks::MergeBlock)),
];

const REGISTRY: [(&str, Make); 2] = [(cipher::ID, || Arc::new(Aes128Cbc)), (spin::ID, || Arc::new(Spin))];

/// The kernel that workloads call `id`.
#[must_use]
pub fn find(id: &str) -> Option<Arc<dyn Work>> {
    REGISTRY.iter().chain(&INSPECTION).find(|(known, _)| *known == id).map(|(_, make)| make())
}

/// A second CPU form of the kernel that workloads call `id`, to check what the first has made; `None` where there is none.
#[must_use]
pub fn reference(id: &str) -> Option<Arc<dyn Work>> {
    (id == cipher::ID).then(|| Arc::new(Aes128Tables) as Arc<dyn Work>)
}

/// The kernels that ship.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shipped;

impl Library for Shipped {
    fn find(&self, id: &str) -> Option<Arc<dyn Work>> {
        find(id)
    }

    fn reference(&self, id: &str) -> Option<Arc<dyn Work>> {
        reference(id)
    }

    fn ids(&self) -> Vec<&'static str> {
        ids().collect()
    }
}

/// The id of every kernel that any stream can name, in alphabetical order.
pub fn ids() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_finds_its_kernel_and_its_ptx_has_the_entry() {
        for id in ids() {
            let kernel = find(id).unwrap();
            assert_eq!(kernel.id(), id);
            let code = kernel.code();
            let ptx = str::from_utf8(code.bytes()).unwrap();
            assert!(ptx.contains(&format!(".visible .entry {}(", kernel.entry())), "{id}");
            assert!(ptx.contains(".target sm_75"), "{id}");
        }
        assert!(find("aes128-ecb").is_none());
    }

    #[test]
    fn ids_are_sorted() {
        assert!(ids().is_sorted());
    }
}
