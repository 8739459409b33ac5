//! What a pool has in store: pinned memory in slabs, queues, and places on the GPU for its part as a relay.

use headway_device::Buffer;
use headway_device::gpu::Queue;

use super::line::Place;

/// One queue and, on a relay, the memory that its chunks go through.
pub(super) struct Slot {
    pub(super) queue: Box<dyn Queue>,
    pub(super) through: Option<Buffer>,
    /// Whether everything on it has gone well; others are not used again.
    pub(super) clean: bool,
}

/// What was given up with copies still on the engine; kept until they end.
pub(super) struct Retired {
    pub(super) slots: Vec<Slot>,
    pub(super) slabs: Vec<Buffer>,
    /// Holds the engine.
    pub(super) place: Option<Place>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Stock {
    /// Free pinned memory.
    pub(super) slabs: Vec<Buffer>,
    /// Slabs that exist.
    pub(super) slabs_made: usize,
    /// Free queues.
    pub(super) queues: Vec<Slot>,
    /// Free places on the GPU.
    pub(super) relays: Vec<Slot>,
    /// Places on the GPU that exist, all of `relay_bytes`.
    pub(super) relays_made: usize,
    /// Their size.
    pub(super) relay_bytes: usize,
    pub(super) retired: Vec<Retired>,
}

impl Stock {
    pub(super) fn add_slab(&mut self, slab: Buffer) {
        self.slabs.push(slab);
        self.slabs_made += 1;
    }

    /// Adds a place of `bytes` bytes; gives back the smaller ones, which are of no use any more.
    #[must_use]
    pub(super) fn add_relay(&mut self, slot: Slot, bytes: usize) -> Vec<Slot> {
        let mut outgrown = Vec::new();
        if bytes > self.relay_bytes {
            outgrown = std::mem::take(&mut self.relays);
            (self.relays_made, self.relay_bytes) = (0, bytes);
        }
        self.relays.push(slot);
        self.relays_made += 1;
        outgrown
    }

    /// Takes back what a transfer had.
    pub(super) fn put(&mut self, slots: Vec<Slot>, slabs: Vec<Buffer>) {
        self.slabs.extend(slabs);
        for slot in slots {
            match &slot.through {
                None if slot.clean => self.queues.push(slot),
                None => {}
                Some(through) if slot.clean && through.len() >= self.relay_bytes => self.relays.push(slot),
                Some(through) if through.len() >= self.relay_bytes => self.relays_made -= 1,
                // It was replaced by a larger one while it was in use.
                Some(_) => {}
            }
        }
    }

    /// Takes back what was given up, as far as its copies have ended.
    pub(super) fn reclaim(&mut self) {
        for mut retired in std::mem::take(&mut self.retired) {
            for slot in &mut retired.slots {
                while slot.queue.poll().is_some() {}
            }
            if retired.slots.iter().all(|slot| slot.queue.outstanding() == 0) {
                drop(retired.place);
                self.put(retired.slots, retired.slabs);
            } else {
                self.retired.push(retired);
            }
        }
    }
}
