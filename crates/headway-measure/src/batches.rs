//! Batches of concurrent transfers: drawn at random, run as plans run them, their bytes compared.
//!
//! One thread submits all blocks in order, each to the queue of its engine; a copy between GPUs waits until it heads the
//! queues of both ends. The time of a block counts from the first submission until this thread notices its end.

use std::sync::Arc;

use headway_core::files::machine::{EngineClass, Machine, RouteId};
use headway_core::interconnect::{BatchBlock, Trial};
use headway_core::models::transfer::Method;
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos};
use headway_device::DeviceError;
use headway_device::buffer::Access;
use headway_device::gpu::{Gpu, Operation, Queue};
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::session::Session;
use super::sets::{OFFSETS, PAGE, SetMemory, SetTransfer, Stock};
use crate::Error;

/// Smallest block of a random batch.
const SMALLEST: usize = 64 << 10;
/// A batch that has not ended after this long is given up.
const PATIENCE: Nanos = Nanos(10 * NANOS_PER_SECOND);
/// Blocks up to this size are compared whole, of longer ones this much at both ends and in the middle.
const COMPARED: usize = 256 << 10;

/// One block of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialBlock {
    pub member: SetTransfer,
    pub bytes: usize,
}

/// What one repetition of a batch took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchTiming {
    /// From the first submission until the end of each block was noticed.
    pub ends: Vec<Nanos>,
    /// What each call that submits took.
    pub calls: Vec<Nanos>,
}

/// Which transfers a random batch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mix {
    In,
    Out,
    Both,
    Peers,
    All,
}

impl Mix {
    /// As tables write it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Both => "in and out",
            Self::Peers => "between GPUs",
            Self::All => "host and peers",
        }
    }

    /// What `blocks` are.
    pub fn of(blocks: &[TrialBlock]) -> Self {
        let any = |of: fn(&SetTransfer) -> bool| blocks.iter().any(|block| of(&block.member));
        let (inward, outward) = (any(|m| matches!(m, SetTransfer::H2d(_))), any(|m| matches!(m, SetTransfer::D2h(_))));
        match (inward, outward, any(|m| matches!(m, SetTransfer::Peer(..)))) {
            (true, false, false) => Self::In,
            (false, true, false) => Self::Out,
            (true, true, false) => Self::Both,
            (false, false, _) => Self::Peers,
            _ => Self::All,
        }
    }
}

/// GPUs that `blocks` use.
pub fn gpus_of(blocks: &[TrialBlock]) -> usize {
    let mut gpus: Vec<usize> = blocks.iter().flat_map(|block| block.member.gpus()).collect();
    gpus.sort_unstable();
    gpus.dedup();
    gpus.len()
}

/// Draws batches: 2 blocks to 4 for each of some GPUs, sizes uniform in their logarithm and whole pages.
pub struct BatchDraw {
    random: Pcg64Mcg,
    gpus: usize,
    /// Pairs that can copy to each other.
    pairs: Vec<(usize, usize)>,
    room: SetMemory,
}

impl BatchDraw {
    /// Draws batches for so many GPUs, within `room`; `reaches` tells which of them reach each other.
    pub fn new(seed: u64, gpus: usize, reaches: impl Fn(usize, usize) -> bool, room: SetMemory) -> Self {
        let all = (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to)));
        let pairs = all.filter(|&(from, to)| from != to && reaches(from, to)).collect();
        Self { random: Pcg64Mcg::seed_from_u64(seed), gpus, pairs, room }
    }

    fn below(&mut self, end: usize) -> usize {
        (self.random.next_u64() % end.max(1) as u64) as usize
    }

    /// The next batch.
    pub fn batch(&mut self) -> Vec<TrialBlock> {
        let mut gpus: Vec<usize> = (0..self.gpus).collect();
        let count = 1 + self.below(self.gpus);
        while gpus.len() > count {
            gpus.swap_remove(self.below(gpus.len()));
        }
        let inside: Vec<SetTransfer> = self
            .pairs
            .iter()
            .filter(|(from, to)| gpus.contains(from) && gpus.contains(to))
            .map(|&(from, to)| SetTransfer::Peer(from, to))
            .collect();
        let inward = gpus.iter().map(|gpu| SetTransfer::H2d(*gpu));
        let outward = gpus.iter().map(|gpu| SetTransfer::D2h(*gpu));
        let members: Vec<SetTransfer> = match self.below(if inside.is_empty() { 3 } else { 5 }) {
            0 => inward.collect(),
            1 => outward.collect(),
            2 => inward.chain(outward).collect(),
            3 => inside,
            _ => inward.chain(outward).chain(inside).collect(),
        };
        let count = 2 + self.below(4 * gpus.len() - 1);
        let mut used = vec![[0; 3]; self.gpus];
        (0..count).map(|_| self.block(&members, &mut used)).collect()
    }

    /// A block that finds room where it goes to.
    fn block(&mut self, members: &[SetTransfer], used: &mut [[usize; 3]]) -> TrialBlock {
        let member = members[self.below(members.len())];
        let (least, most) = ((SMALLEST.min(self.room.largest)) as f64, self.room.largest as f64);
        let share = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let (gpu, place) = member.target();
        // Only crowded batches find less room than the largest block takes.
        let left = self.room.free().saturating_sub(used[gpu][place]).max(PAGE);
        let bytes = (least * (most / least).powf(share)) as usize / PAGE * PAGE;
        let bytes = bytes.clamp(PAGE, left.min(self.room.largest).max(PAGE));
        used[gpu][place] += bytes.next_multiple_of(PAGE);
        TrialBlock { member, bytes }
    }
}

/// GPUs with memory for batches, and a queue for each engine that is submitted to.
pub struct Bed {
    pub gpus: Vec<Arc<dyn Gpu>>,
    pub stock: Vec<Stock>,
    /// Of each GPU: in, out, to peers.
    queues: Vec<[Box<dyn Queue>; 3]>,
    turn: usize,
}

/// A bed that is made when it is first used.
pub struct Lazy<'p> {
    gpus: &'p [Arc<dyn Gpu>],
    room: SetMemory,
    bed: Option<Bed>,
}

impl<'p> Lazy<'p> {
    /// Opens nothing yet.
    pub const fn new(gpus: &'p [Arc<dyn Gpu>], room: SetMemory) -> Self {
        Self { gpus, room, bed: None }
    }

    pub const fn room(&self) -> SetMemory {
        self.room
    }

    /// Opens streams and memory the first time.
    pub fn get(&mut self) -> Result<&mut Bed, Error> {
        let made = match self.bed.take() {
            Some(bed) => bed,
            None => Bed::new(self.gpus, self.room)?,
        };
        Ok(self.bed.insert(made))
    }

    /// Runs one batch several times, or recalls that.
    pub fn run(
        &mut self,
        session: &mut Session<'_>,
        key: &str,
        batch: &[TrialBlock],
        repeats: usize,
    ) -> Result<Vec<BatchTiming>, Error> {
        session.step(key, |_| self.get().and_then(|bed| bed.repeat(batch, repeats)))
    }
}

impl Bed {
    /// Opens streams and memory of every GPU, within `room`.
    pub fn new(gpus: &[Arc<dyn Gpu>], room: SetMemory) -> Result<Self, Error> {
        let stock = (0..).zip(gpus).map(|(gpu_id, gpu)| Stock::new(gpu.as_ref(), gpu_id, room));
        let queues = gpus.iter().map(|gpu| Ok([gpu.queue(false)?, gpu.queue(false)?, gpu.queue(false)?]));
        Ok(Self {
            stock: stock.collect::<Result<_, _>>()?,
            queues: queues.collect::<Result<_, DeviceError>>()?,
            gpus: gpus.to_vec(),
            turn: 0,
        })
    }

    /// Runs `order` once.
    pub fn run(&mut self, order: &[TrialBlock]) -> Result<BatchTiming, Error> {
        self.turn += 1;
        let moves = self.moves(order)?;
        let mut run = Run::new(order, moves, self.gpus.len());
        while run.left > 0 {
            if run.waiting > 0 {
                run.submit(&mut self.queues)?;
            }
            for queue in self.queues.iter_mut().flatten().filter(|queue| queue.outstanding() > 0) {
                while let Some(done) = queue.poll() {
                    run.ended(done.tag as usize);
                    done.result?;
                }
            }
            if run.left > 0 {
                run.patience()?;
                std::thread::yield_now();
            }
        }
        Ok(run.took)
    }

    /// Runs `order` as often as asked, once before that counts; the bytes of that first time are compared.
    pub fn repeat(&mut self, order: &[TrialBlock], repeats: usize) -> Result<Vec<BatchTiming>, Error> {
        self.run(order)?;
        self.compare(order)?;
        (0..repeats).map(|_| self.run(order)).collect()
    }

    /// Source offset and place in the target's arena of each block.
    fn places(&self, order: &[TrialBlock]) -> Vec<(usize, usize)> {
        let mut used = vec![[0; 3]; self.gpus.len()];
        let place = |(at, block): (usize, &TrialBlock)| {
            let (gpu, place) = block.member.target();
            let to = used[gpu][place];
            used[gpu][place] += block.bytes.next_multiple_of(PAGE);
            ((self.turn * 7 + at * 3) % OFFSETS * PAGE, to)
        };
        order.iter().enumerate().map(place).collect()
    }

    fn moves(&self, order: &[TrialBlock]) -> Result<Vec<Option<Operation>>, Error> {
        let one = |(block, (from, to)): (&TrialBlock, (usize, usize))| {
            let source = self.stock[block.member.source()].source(block.member);
            let (gpu, place) = block.member.target();
            let from = source.claim(from..from + block.bytes, Access::Read)?;
            let to = self.stock[gpu].arenas[place].claim(to..to + block.bytes, Access::Write)?;
            Ok(Some(Operation::Copy { from, to }))
        };
        order.iter().zip(self.places(order)).map(one).collect()
    }

    /// Compares what the last run brought: short blocks whole, of long ones both ends and the middle.
    fn compare(&self, order: &[TrialBlock]) -> Result<(), Error> {
        let mut landing = vec![0; COMPARED];
        for (block, (from, to)) in order.iter().zip(self.places(order)) {
            let (gpu, place) = block.member.target();
            let expected = self.stock[block.member.source()].bytes(block.member);
            let middle = (block.bytes / 2).min(block.bytes.saturating_sub(COMPARED));
            let mut parts = vec![0, middle, block.bytes.saturating_sub(COMPARED)];
            parts.dedup();
            for part in parts {
                let bytes = COMPARED.min(block.bytes - part);
                let span = self.stock[gpu].arenas[place].claim(to + part..to + part + bytes, Access::Read)?;
                let found = &mut landing[..bytes];
                match block.member {
                    SetTransfer::D2h(_) => found.copy_from_slice(span.bytes()?),
                    SetTransfer::H2d(_) | SetTransfer::Peer(..) => self.gpus[gpu].copy_out(found, &span)?,
                }
                let wanted = &expected[from + part..from + part + bytes];
                if let Some(at) = found.iter().zip(wanted).position(|(a, b)| a != b) {
                    let copy = format!("{:?} of {} bytes in a batch", block.member, block.bytes);
                    return Err(Error::WrongCopy { copy, gpu, at: (part + at) as u64 });
                }
            }
        }
        Ok(())
    }
}

/// One repetition under way.
struct Run<'b> {
    order: &'b [TrialBlock],
    /// What was not submitted yet.
    moves: Vec<Option<Operation>>,
    waiting: usize,
    left: usize,
    /// Of each GPU and engine: whose queue has blocks on it, and how many.
    busy: Vec<[(usize, usize); 4]>,
    begun: Nanos,
    took: BatchTiming,
}

impl<'b> Run<'b> {
    fn new(order: &'b [TrialBlock], moves: Vec<Option<Operation>>, gpus: usize) -> Self {
        let none = vec![Nanos::ZERO; order.len()];
        let took = BatchTiming { ends: none.clone(), calls: none };
        let (waiting, left, busy) = (order.len(), order.len(), vec![[(0, 0); 4]; gpus]);
        Self { order, moves, waiting, left, busy, begun: clock::now(), took }
    }

    /// Submits, in order, what heads its engines or follows on the same queue.
    fn submit(&mut self, queues: &mut [[Box<dyn Queue>; 3]]) -> Result<(), DeviceError> {
        let mut barred = vec![[false; 4]; self.busy.len()];
        for (at, block) in self.order.iter().enumerate() {
            let (queue, engines) = (block.member.queue(), block.member.engines());
            if self.moves[at].is_none() {
                continue;
            }
            let is_free = |(gpu, engine): (usize, usize)| {
                let (owner, count) = self.busy[gpu][engine];
                !barred[gpu][engine] && (count == 0 || owner == queue.0)
            };
            if !engines.clone().all(is_free) {
                engines.for_each(|(gpu, engine)| barred[gpu][engine] = true);
                continue;
            }
            let Some(what) = self.moves[at].take() else { continue };
            let before = clock::now();
            queues[queue.0][queue.1].submit(what, at as u64)?;
            self.took.calls[at] = clock::now() - before;
            self.waiting -= 1;
            for (gpu, engine) in engines {
                self.busy[gpu][engine] = (queue.0, self.busy[gpu][engine].1 + 1);
            }
        }
        Ok(())
    }

    fn ended(&mut self, at: usize) {
        self.took.ends[at] = clock::now() - self.begun;
        self.left -= 1;
        for (gpu, engine) in self.order[at].member.engines() {
            self.busy[gpu][engine].1 -= 1;
        }
    }

    fn patience(&self) -> Result<(), DeviceError> {
        if clock::now() > self.begun + PATIENCE {
            return Err(DeviceError::Timeout { what: "a batch of copies".to_owned(), after: PATIENCE });
        }
        Ok(())
    }
}

/// The routes of pinned copies and of copies between GPUs.
pub struct Routes<'m> {
    machine: &'m Machine,
    gpus: Vec<headway_core::files::machine::EndpointId>,
}

impl<'m> Routes<'m> {
    /// The routes that batches use.
    pub fn of(machine: &'m Machine) -> Self {
        Self { machine, gpus: machine.gpus().collect() }
    }

    /// The route of `member`.
    ///
    /// # Errors
    /// [`headway::ErrorKind::Options`] if the machine has none.
    pub fn route(&self, member: SetTransfer) -> Result<RouteId, Error> {
        let gpu = |at: usize| self.gpus.get(at).copied();
        let fits = |(id, route): &(RouteId, &headway_core::files::machine::Route)| {
            let class = self.machine.class(*id);
            route.method != Method::Pageable
                && match member {
                    SetTransfer::H2d(to) => class == EngineClass::H2d && Some(route.to) == gpu(to),
                    SetTransfer::D2h(from) => class == EngineClass::D2h && Some(route.from) == gpu(from),
                    SetTransfer::Peer(from, to) => (Some(route.from), Some(route.to)) == (gpu(from), gpu(to)),
                }
        };
        let found = (0..).map(RouteId).zip(&self.machine.routes).find(fits).map(|(id, _)| id);
        Ok(found.ok_or(headway::Failure::Options(
            "the machine file lacks a route that this node has; measure the node anew",
        ))?)
    }

    /// `blocks` as the model knows them.
    pub fn order(&self, blocks: &[TrialBlock]) -> Result<Vec<BatchBlock>, Error> {
        let one =
            |block: &TrialBlock| Ok(BatchBlock { route: self.route(block.member)?, bytes: Bytes(block.bytes as u64) });
        blocks.iter().map(one).collect()
    }

    /// A batch that was run.
    pub fn trial(&self, blocks: &[TrialBlock], took: &[BatchTiming]) -> Result<Trial, Error> {
        Ok(Trial { order: self.order(blocks)?, took: took.iter().map(|took| took.ends.clone()).collect() })
    }
}

#[cfg(test)]
mod tests {
    use headway_device::emu::{EmuGpu, EmuSpec};

    use super::*;

    const ROOM: SetMemory = SetMemory::of(1 << 20);

    fn gpus(count: usize) -> Vec<Arc<dyn Gpu>> {
        let gpu = |at| Arc::new(EmuGpu::open(EmuSpec::new(&format!("emu{at}")))) as Arc<dyn Gpu>;
        (0..count).map(gpu).collect()
    }

    #[test]
    fn random_batches_have_every_mix_and_fit_into_the_arenas() {
        let mut draw = BatchDraw::new(1, 3, |_, _| true, ROOM);
        let (mut mixes, mut gpus) = (Vec::new(), Vec::new());
        for _ in 0..2_000 {
            let batch = draw.batch();
            assert!((2..=12).contains(&batch.len()), "{batch:?}");
            let mut used = [[0; 3]; 3];
            for block in &batch {
                assert!((1..=ROOM.largest).contains(&block.bytes), "{batch:?}");
                let (gpu, place) = block.member.target();
                used[gpu][place] += block.bytes;
                assert!(used[gpu][place] <= ROOM.arena, "{batch:?}");
                used[gpu][place] = used[gpu][place].next_multiple_of(PAGE);
            }
            mixes.push(Mix::of(&batch));
            gpus.push(gpus_of(&batch));
        }
        for mix in [Mix::In, Mix::Out, Mix::Both, Mix::Peers, Mix::All] {
            assert!(mixes.iter().filter(|found| **found == mix).count() > 100, "{mix:?}");
        }
        assert!((1..=3).all(|count| gpus.contains(&count)));
        let again: Vec<_> = std::iter::repeat_with(|| draw.batch()).take(3).collect();
        let mut other = BatchDraw::new(1, 3, |_, _| true, ROOM);
        (0..2_000).for_each(|_| drop(other.batch()));
        assert_eq!(again, std::iter::repeat_with(|| other.batch()).take(3).collect::<Vec<_>>());
    }

    #[test]
    fn every_block_of_a_batch_brings_its_bytes_in_the_order_of_its_engines() {
        let mut bed = Bed::new(&gpus(3), ROOM).unwrap();
        let block = |member, bytes| TrialBlock { member, bytes };
        // The third waits for both of the first two: it leaves as the first one does and enters as the second.
        let order = [
            block(SetTransfer::Peer(0, 1), 900_000),
            block(SetTransfer::Peer(2, 1), 70_000),
            block(SetTransfer::Peer(0, 1), 1),
            block(SetTransfer::H2d(0), 1 << 20),
            block(SetTransfer::D2h(2), 300_000),
            block(SetTransfer::H2d(0), 65_600),
        ];
        for took in bed.repeat(&order, 3).unwrap() {
            let ends = &took.ends;
            assert!(ends[0] <= ends[1] && ends[1] <= ends[2] && ends[3] <= ends[5], "{ends:?}");
        }
        let mut draw = BatchDraw::new(7, 3, |_, _| true, ROOM);
        for _ in 0..40 {
            bed.repeat(&draw.batch(), 1).unwrap();
        }
    }

    #[test]
    fn a_wrong_byte_ends_a_batch_with_its_place() {
        let mut bed = Bed::new(&gpus(1), ROOM).unwrap();
        let order = [TrialBlock { member: SetTransfer::D2h(0), bytes: 1 << 20 }];
        bed.run(&order).unwrap();
        bed.compare(&order).unwrap();
        let last = (1 << 20) - 1;
        let mut span = bed.stock[0].arenas[1].claim(last..last + 1, Access::Write).unwrap();
        span.bytes_mut().unwrap()[0] ^= 1;
        drop(span);
        let error = bed.compare(&order).unwrap_err();
        assert!(matches!(error, Error::WrongCopy { at, .. } if at == last as u64), "{error:?}");
    }
}
