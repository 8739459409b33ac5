//! The CPU as a processor of streams: how many cores may serve, and what kernels cost there.

use crate::files::document::{DocumentTable, narrow};
use crate::files::error::FileError;
use crate::units::{Bytes, Nanos, Rate};

const CPU: &[&str] = &["cores", "kernels"];
const KERNEL: &[&str] = &["id", "setup", "lane", "rate"];
/// An entry of `kernels`, as help shows it.
const EXAMPLE: &str = "[{ id = \"aes128-cbc\", setup = \"5 us\", lane = \"200 ns\", rate = \"500 MB/s\" }]";
/// The most cores that may serve: one thread hands out the jobs of all of them.
const CORES_MAX: u64 = 64;

/// Cores that serve streams beside the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuCores {
    /// Cores that may serve, each with a thread of its own.
    pub cores: u32,
    /// Nobody measured it: [`CpuCores::assumed`].
    pub assumed: bool,
    /// What kernels cost on one core.
    pub kernels: Vec<CpuCost>,
}

/// The cost of a kernel on one core: `setup + portion * portions + bytes / rate`, rounded up. A core works on the portions of a job one
/// after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuCost {
    /// Kernel name as workloads write it.
    pub id: String,
    /// From handing a job to the core's thread to its end, with no data.
    pub setup: Nanos,
    /// What each stream of a job adds, whatever its size.
    pub portion: Nanos,
    /// All data of a job together.
    pub rate: Rate,
}

impl CpuCost {
    /// Worst-case time of one job over `total` bytes in `portions` portions.
    #[must_use]
    pub fn cost(&self, total: Bytes, portions: u64) -> Nanos {
        let portions = Nanos(self.portion.0.saturating_mul(portions));
        self.setup.saturating_add(portions).saturating_add(self.rate.time_for(total))
    }
}

impl CpuCores {
    /// What stands in where nobody measured: two cores that encrypt 250 MB/s together, the rate of the CPU in `verner-2014`, V-B.
    #[must_use]
    pub fn assumed() -> Self {
        let aes = CpuCost {
            id: "aes128-cbc".to_owned(),
            setup: Nanos(20_000),
            portion: Nanos(1_000),
            rate: Rate(125_000_000),
        };
        Self { cores: 2, assumed: true, kernels: vec![aes] }
    }

    /// The cost entry of kernel `id`.
    #[must_use]
    pub fn kernel(&self, id: &str) -> Option<&CpuCost> {
        self.kernels.iter().find(|kernel| kernel.id == id)
    }

    /// What all cores process together, without set-ups.
    #[must_use]
    pub fn rate(&self, id: &str) -> Rate {
        Rate(self.kernel(id).map_or(0, |kernel| kernel.rate.0.saturating_mul(u64::from(self.cores))))
    }
}

/// Reads `[cpu]`, if it is there.
pub(super) fn read(top: &mut DocumentTable<'_>) -> Result<Option<CpuCores>, FileError> {
    let Some(field) = top.take("cpu") else { return Ok(None) };
    let mut table = field.table("[cpu]", CPU)?;
    let cores = narrow(table.require("cores", "4")?.integer(0, CORES_MAX)?);
    let mut kernels: Vec<CpuCost> = Vec::new();
    for element in table.require("kernels", EXAMPLE)?.elements(EXAMPLE)? {
        let mut table = element.table("a kernel", KERNEL)?;
        let field = table.require("id", "\"aes128-cbc\"")?;
        let id = field.name()?;
        if kernels.iter().any(|other| other.id == id) {
            let help = "give one entry for each kernel".to_owned();
            return Err(field.error(format!("kernel `{id}` has two costs on the CPU"), Some(help)));
        }
        let setup = table.require("setup", "\"5 us\"")?.time()?;
        let portion = table.require("lane", "\"200 ns\"")?.time()?;
        let rate = table.require("rate", "\"500 MB/s\"")?.rate_above_zero("500 MB/s")?;
        kernels.push(CpuCost { id, setup, portion, rate });
    }
    Ok(Some(CpuCores { cores, assumed: false, kernels }))
}
