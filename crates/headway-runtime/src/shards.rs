//! The blocks of a stream whose packets are divided among GPUs.
//!
//! A ring of buffers is filled once, before the run, with items whose results are known; in the run each place of it is sent
//! again with the number of a new packet in its block's header.

use headway_core::plan::block::{self, BlockError};
use headway_core::plan::{Shard, Sharded};
use headway_core::units::Bytes;
use headway_device::work::Items;

/// The place in the ring that `cycle` sends.
#[must_use]
pub fn row(sharded: &Sharded, cycle: u64) -> u32 {
    (cycle % u64::from(sharded.sharding.ring.max(1))) as u32
}

/// Fills `buffer` with the items of `shard` at place `row`.
pub(crate) fn fill(
    items: &dyn Items,
    sharded: &Sharded,
    shard: &Shard,
    row: u32,
    buffer: &mut [u8],
) -> Result<(), BlockError> {
    number(sharded, shard, u64::from(row), buffer)?;
    let header = block::BlockHeader::read(buffer)?;
    for (item, portion) in (shard.first..).zip(header.portions) {
        items.fill(item, row, &mut buffer[portion]);
    }
    Ok(())
}

/// Gives the items in `buffer` the number `cycle`.
pub(crate) fn number(sharded: &Sharded, shard: &Shard, cycle: u64, buffer: &mut [u8]) -> Result<Bytes, BlockError> {
    block::write_header(buffer, cycle, &vec![sharded.sharding.item.0; shard.items as usize])
}
