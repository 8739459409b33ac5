//! Pipelines whose steps work on all GPUs at once.

use serde::{Deserialize, Serialize};

use super::block::block_bytes;
use super::{OperationWork, PlannedStep};
use crate::files::workload::{Parameters, Sharding};
use crate::units::Bytes;

/// A stream whose packets are divided among all GPUs, each of which has a shard of every packet.
///
/// Copies and kernels have one operation for each shard, in their order; the exchange has [`Sharded::peers`]. The first kernel
/// works on the shard's own items; those behind it work on what the first ones made of all items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Logged", try_from = "Logged")]
pub struct Sharded {
    /// The stream, by position in the plan's streams.
    pub stream: u32,
    /// How its packets are divided.
    pub sharding: Sharding,
    /// Parameters that the `OperationWork` of each step is made with.
    pub parameters: Parameters,
    /// The items of each GPU that has some.
    pub shards: Vec<Shard>,
    /// The copies of a step go one after the other.
    pub one_by_one: bool,
}

/// The items of a packet that one GPU works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Ordinal of the GPU.
    pub gpu: u32,
    /// Its first item.
    pub first: u32,
    /// How many follow each other.
    #[serde(rename = "cameras")]
    pub items: u32,
}

impl Sharded {
    /// Shards of `items` among `gpus`, as equal as can be, the larger ones first.
    #[must_use]
    pub fn deal(items: u32, gpus: u32) -> Vec<Shard> {
        let parts = gpus.min(items);
        let mut first = 0;
        let shard = |gpu| {
            let items = items / parts + u32::from(gpu < items % parts);
            let shard = Shard { gpu, first, items };
            first += items;
            shard
        };
        (0..parts).map(shard).collect()
    }

    /// Source and target of every copy of the exchange, by position in [`Sharded::shards`]: in each round every GPU sends to
    /// another one.
    pub fn peers(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let count = self.shards.len();
        (1..count).flat_map(move |round| (0..count).map(move |from| (from, (from + round) % count)))
    }

    /// Size of the packed block that carries the items of `shard`.
    #[must_use]
    pub fn block(&self, shard: &Shard) -> Bytes {
        block_bytes((0..shard.items).map(|_| self.sharding.item.0))
    }

    /// Bytes of the summaries of `shard` among those of all items.
    #[must_use]
    pub fn summaries_of(&self, shard: &Shard) -> std::ops::Range<usize> {
        let before = |items: u32| self.sharding.summaries(items).0 as usize;
        before(shard.first)..before(shard.first + shard.items)
    }

    /// Operations of kernel step `step` of `steps`, if its cost depends on them.
    #[must_use]
    pub fn operations(&self, steps: &[PlannedStep], step: usize) -> Option<u32> {
        if is_first_kernel(steps, step) { self.sharding.operations } else { None }
    }

    /// What operation `index` of step `step` of `steps` works on.
    #[must_use]
    pub fn bytes(&self, steps: &[PlannedStep], step: usize, index: u32) -> Bytes {
        match steps[step].operations[index as usize].work {
            OperationWork::Copy { bytes, .. } => bytes,
            OperationWork::Compute { .. } | OperationWork::Hold => {
                self.launch_bytes(is_first_kernel(steps, step), index)
            }
        }
    }

    /// What launch `index` of the first kernel, or of one behind it, works on.
    #[must_use]
    pub fn launch_bytes(&self, is_first: bool, index: u32) -> Bytes {
        if !is_first {
            return self.sharding.summaries(self.sharding.items);
        }
        let items = self.shards.get(index as usize).map_or(0, |shard| shard.items);
        Bytes(self.sharding.item.0.saturating_mul(u64::from(items)))
    }
}

/// Whether no step before `step` computes.
#[must_use]
pub fn is_first_kernel(steps: &[PlannedStep], step: usize) -> bool {
    let computes = |step: &PlannedStep| matches!(step.operations.first(), Some(it) if matches!(it.work, OperationWork::Compute { .. }));
    !steps.iter().take(step).any(computes)
}

/// [`Sharded`] as plans and logs hold it.
///
/// Its first application was the inspection of wafers, whose names stayed in the format: `wafer` holds the parameters, and how
/// packets are divided follows from them. Where it does not, `sharding` says it.
#[derive(Clone, Serialize, Deserialize)]
struct Logged {
    stream: u32,
    wafer: Parameters,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sharding: Option<Sharding>,
    shares: Vec<Shard>,
    one_by_one: bool,
}

/// How packets with these parameters are divided in logs that do not say so: images of 16-bit pixels.
fn implied(parameters: &Parameters) -> Option<Sharding> {
    let number = |name| parameters.number(name).and_then(|number| u32::try_from(number).ok());
    let pixels = u64::from(number("width")?).checked_mul(u64::from(number("height")?))?;
    Some(Sharding {
        items: number("cameras")?,
        item: Bytes(pixels.checked_mul(2)?),
        summary: Bytes(4096),
        operations: Some(number(Sharding::OPERATIONS)?),
        ring: number("ring")?,
    })
}

impl From<Sharded> for Logged {
    fn from(sharded: Sharded) -> Self {
        let Sharded { stream, sharding, parameters, shards, one_by_one } = sharded;
        let sharding = (implied(&parameters) != Some(sharding)).then_some(sharding);
        Self { stream, wafer: parameters, sharding, shares: shards, one_by_one }
    }
}

impl TryFrom<Logged> for Sharded {
    type Error = &'static str;

    fn try_from(logged: Logged) -> Result<Self, Self::Error> {
        let Logged { stream, wafer: parameters, sharding, shares: shards, one_by_one } = logged;
        let sharding = sharding.or_else(|| implied(&parameters)).ok_or("nothing says how packets are divided")?;
        Ok(Self { stream, sharding, parameters, shards, one_by_one })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"{"stream":0,"wafer":{"cameras":15,"width":200,"height":1000,"pitch":100,"defects":12,"operations":1000,"ring":10,"seed":5},"shares":[{"gpu":0,"first":0,"cameras":15}],"one_by_one":false}"#;

    #[test]
    fn a_log_of_the_first_application_is_read_and_written_as_it_was() {
        let sharded: Sharded = serde_json::from_str(OLD).unwrap();
        let expected =
            Sharding { items: 15, item: Bytes(400_000), summary: Bytes(4096), operations: Some(1000), ring: 10 };
        assert_eq!(sharded.sharding, expected);
        assert_eq!(sharded.parameters.number("defects"), Some(12));
        assert_eq!(serde_json::to_string(&sharded).unwrap(), OLD);
    }

    #[test]
    fn another_application_is_logged_with_its_sharding_and_its_parameters() {
        let mut sharded: Sharded = serde_json::from_str(OLD).unwrap();
        sharded.parameters = Parameters::default().with_number("bands", 3);
        sharded.sharding.operations = None;
        let text = serde_json::to_string(&sharded).unwrap();
        assert!(text.contains(r#""sharding":{"items":15"#), "{text}");
        assert_eq!(serde_json::from_str::<Sharded>(&text).unwrap(), sharded);
        let without = text.replace("\"sharding\"", "\"other\"");
        assert!(serde_json::from_str::<Sharded>(&without).unwrap_err().to_string().contains("how packets are divided"));
    }
}
