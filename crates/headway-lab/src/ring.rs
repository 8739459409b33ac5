//! Blocks that lie in pinned memory before a run begins, as a network card would leave them there, and their check.
//!
//! Every buffer of a pipeline's ring is filled once with bytes of a seed; each cycle only its number is written into the
//! block's header. So no byte of payload passes the CPU on its way to a GPU, and a run can be as fast as the links. A buffer
//! comes again after as many cycles as the ring has buffers, but a kernel that carries state from block to block goes on with
//! it: of a chaining cipher no ciphertext comes twice.
//!
//! What comes back is compared with what the CPU form of the kernel makes:
//!
//! | what | how much |
//! |---|---|
//! | order of the blocks, and their whole headers: cycle, portions, offsets, sizes | every block |
//! | all bytes of some streams, drawn from the seed, as one chain from the first IV on | every block |
//! | pipelines without a kernel: another piece of the block's bytes each time | every block |
//! | all bytes of some other streams, if their state follows from how the block before ended ([`Work::resume`]) | every block, each block other streams, until all had their turn, and again |
//! | the last packet of every such stream, as the end of one chain over the whole run | once, after the last block |

mod chains;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use headway_core::plan::block::{self, BlockHeader};
use headway_core::plan::payload::Gathered;
use headway_core::plan::{PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_device::work::{Portion, Work, WorkError};
use headway_runtime::blocks::{Collect, DataError, Supply};
use headway_runtime::kernels::Kernels;
use headway_runtime::outlet::OutputError;
use headway_runtime::pattern::{self, mixed};

use self::chains::Chains;

/// Bytes of the cycle number in a block's header.
const CYCLE: Range<usize> = 8..16;

/// Blocks of cores come so often, and are checked by a form so slow, that only this part of a sample is compared as they come.
const CORE_SHARE: usize = 8;

/// How much is compared with the CPU's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Streams of each pipeline whose every byte is compared.
    pub streams: usize,
    /// Streams of each pipeline that have their turn in a block.
    pub turns: usize,
    /// After so many cycles of each pipeline, in the order of the plan, the chains of all streams are compared, which costs CPU
    /// time for every byte of the run.
    pub chains: Option<Vec<u64>>,
}

/// What was compared and found equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedBlocks {
    /// Blocks delivered in order with the header that was sent.
    pub blocks: u64,
    /// Bytes of all portions of these blocks.
    pub bytes: u64,
    /// Streams whose every byte was compared.
    pub streams: u64,
    pub stream_bytes: u64,
    /// Turns of other streams.
    pub turns: u64,
    pub turn_bytes: u64,
    /// Streams that had a turn or were compared as a whole.
    pub reached: u64,
    /// Streams whose chains over the whole run were compared at their end.
    pub chains: u64,
    /// Bytes that the CPU worked on for that.
    pub chain_bytes: u64,
}

/// Which block of a run it is, and where in the ring its bytes lie.
#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    pipeline: u32,
    cycle: u64,
    /// The buffer of the ring that was sent.
    slot: usize,
}

/// The layout of one pipeline's blocks, the same in every cycle.
#[derive(Debug)]
struct Layout {
    streams: Vec<u32>,
    lens: Vec<u64>,
    /// The header with cycle 0.
    header: Vec<u8>,
    portions: Vec<Range<usize>>,
    block: Bytes,
}

/// Blocks of streams that send one packet in every cycle.
#[derive(Clone, Debug)]
pub struct BlockRing {
    layouts: Arc<Vec<Layout>>,
    seed: u64,
}

/// A plan that a ring cannot feed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream `{stream}` does not send exactly one packet in every cycle of its pipeline")]
pub struct Uneven {
    pub stream: String,
}

impl BlockRing {
    /// A ring for the pipelines of `plan`, whose bytes follow from `seed`.
    ///
    /// # Errors
    /// [`Uneven`] if blocks would differ in layout.
    pub fn new(plan: &Plan, seed: u64) -> Result<Self, Uneven> {
        let mut layouts = Vec::new();
        for pipeline in &plan.pipelines {
            let (mut lens, mut members) = (Vec::new(), Vec::new());
            if let PipelineSource::Streams(streams) = &pipeline.source {
                members.clone_from(streams);
                for stream in streams.iter().map(|&stream| &plan.streams[stream as usize]) {
                    if stream.period != pipeline.period || stream.start != pipeline.start {
                        return Err(Uneven { stream: stream.id.clone() });
                    }
                    lens.push(stream.packet.0);
                }
            }
            let block = block::block_bytes(lens.iter().copied());
            let mut header = vec![0; block.0 as usize];
            block::write_header(&mut header, 0, &lens).expect("the buffer has `block_bytes` for these portions");
            let portions = BlockHeader::read(&header).expect("a header just written is whole").portions;
            header.truncate(block::header_bytes(lens.len()));
            layouts.push(Layout { streams: members, lens, header, portions, block });
        }
        Ok(Self { layouts: Arc::new(layouts), seed })
    }

    /// Writes what the ring's buffer holds from offset `from` of the block on.
    fn fill(&self, pipeline: u32, slot: usize, from: usize, into: &mut [u8]) {
        pattern::fill(self.seed ^ mixed(u64::from(pipeline) << 32 | slot as u64), from, into);
    }
}

impl Supply for BlockRing {
    fn prepare(&mut self, pipeline: u32, slot: usize, buffers: &mut [&mut [u8]]) -> Result<(), DataError> {
        let buffer = &mut *buffers[0];
        let layout = &self.layouts[pipeline as usize];
        let header = layout.header.len();
        buffer[..header].copy_from_slice(&layout.header);
        self.fill(pipeline, slot, header, &mut buffer[header..layout.block.0 as usize]);
        for portion in &layout.portions {
            let padded = portion.end.next_multiple_of(block::ALIGN).min(layout.block.0 as usize);
            buffer[portion.end..padded].fill(0);
        }
        Ok(())
    }

    fn supply(
        &mut self,
        pipeline: u32,
        cycle: u64,
        _slot: usize,
        buffers: &mut [&mut [u8]],
    ) -> Result<Gathered, DataError> {
        let layout = &self.layouts[pipeline as usize];
        buffers[0][CYCLE].copy_from_slice(&cycle.to_le_bytes());
        let longest_portion = Bytes(layout.lens.iter().copied().max().unwrap_or(0));
        Ok(Gathered { block: layout.block, longest_portion })
    }
}

/// Bytes that are compared of each block that no kernel works on.
const PIECE: usize = 64 << 10;

/// One pipeline's streams under check.
struct Checked {
    name: String,
    /// `None` = blocks come back as they were sent.
    kernel: Option<Arc<dyn Work>>,
    portions: Vec<Portion>,
    /// Portions whose every byte is compared, ascending, with the CPU's state of them.
    whole: Vec<usize>,
    state: Vec<u8>,
    /// The next portion that has its turn, and those that have it in the next block as they stand then.
    next: usize,
    at_a_time: usize,
    turns: Vec<(usize, Portion)>,
    reached: Vec<bool>,
    cycle: u64,
}

/// Compares what comes back with what the CPU makes of a [`BlockRing`]'s blocks.
pub struct Checker {
    ring: BlockRing,
    pipelines: Vec<Checked>,
    chains: Option<Chains>,
    found: Arc<Mutex<VerifiedBlocks>>,
    own: VerifiedBlocks,
    streams: usize,
}

impl Checker {
    /// A checker for the blocks of `ring` in `plan`, and where its findings will be when the run has ended.
    ///
    /// # Errors
    /// [`DataError`] if a kernel lacks a parameter.
    pub fn new(
        ring: &BlockRing,
        plan: &Plan,
        kernels: &Kernels,
        sampling: Sampling,
    ) -> Result<(Self, Arc<Mutex<VerifiedBlocks>>), DataError> {
        let mut own = VerifiedBlocks::default();
        let mut pipelines = Vec::new();
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            let kernel = kernels.of_pipeline(number).first().map(|kernel| Arc::clone(&kernel.reference));
            let portions = kernels.portions(number).to_vec();
            let share = if plan.core_of(pipeline).is_some() { CORE_SHARE } else { 1 };
            let most = if kernel.is_some() { sampling.streams.div_ceil(share) } else { 0 };
            let (count, draws) = (portions.len() as u64, most.min(portions.len()) as u64);
            // One of each `count / draws` neighbours.
            let draw = |at: u64| (at * count + mixed(ring.seed ^ at ^ u64::from(number) << 40) % count) / draws.max(1);
            let mut whole: Vec<usize> = (0..draws).map(|at| draw(at) as usize).collect();
            whole.dedup();
            let chosen: Vec<Portion> = whole.iter().map(|&portion| portions[portion].clone()).collect();
            let sequence = |what: String| DataError::Sequence { pipeline: pipeline.name.clone(), cycle: 0, what };
            if kernels.of_pipeline(number).len() > 1 {
                return Err(sequence("several kernels work on one block".to_owned()));
            }
            let state = match &kernel {
                Some(kernel) => fresh(kernel.as_ref(), &chosen).map_err(|error| sequence(error.to_string()))?,
                None => Vec::new(),
            };
            own.streams += whole.len() as u64;
            let mut reached = vec![false; portions.len()];
            whole.iter().for_each(|&portion| reached[portion] = true);
            pipelines.push(Checked {
                name: pipeline.name.clone(),
                kernel,
                portions,
                whole,
                state,
                next: 0,
                at_a_time: sampling.turns.div_ceil(share),
                turns: Vec::new(),
                reached,
                cycle: 0,
            });
        }
        let found = Arc::new(Mutex::new(VerifiedBlocks::default()));
        let checker = Self {
            ring: ring.clone(),
            chains: sampling.chains.map(Chains::new),
            pipelines,
            found: Arc::clone(&found),
            own,
            streams: plan.streams.len(),
        };
        Ok((checker, found))
    }
}

/// The first state of `portions`.
fn fresh(kernel: &dyn Work, portions: &[Portion]) -> Result<Vec<u8>, WorkError> {
    let mut state = vec![0; kernel.state_bytes(portions.len())];
    kernel.init_state(portions, &mut state)?;
    Ok(state)
}

impl Checked {
    fn wrong(&self, cycle: u64, what: String) -> DataError {
        DataError::Sequence { pipeline: self.name.clone(), cycle, what }
    }

    /// A block of `portions` only, as the ring's buffer holds them, and where they are in it.
    fn excerpt(
        &self,
        ring: &BlockRing,
        at: BlockPlace,
        portions: &[usize],
    ) -> Result<(Vec<u8>, Vec<Range<usize>>), DataError> {
        let BlockPlace { pipeline, cycle, slot } = at;
        let layout = &ring.layouts[pipeline as usize];
        let lens: Vec<u64> = portions.iter().map(|&portion| layout.lens[portion]).collect();
        let mut input = vec![0; block::block_bytes(lens.iter().copied()).0 as usize];
        let damaged = |source| DataError::Block { pipeline: self.name.clone(), cycle, source };
        block::write_header(&mut input, cycle, &lens).map_err(damaged)?;
        let ranges = BlockHeader::read(&input).map_err(damaged)?.portions;
        for (&portion, range) in portions.iter().zip(&ranges) {
            ring.fill(pipeline, slot, layout.portions[portion].start, &mut input[range.clone()]);
        }
        Ok((input, ranges))
    }

    /// Compares `portions` of a block with what the kernel makes of the ring's bytes from `state` on.
    fn compare(
        &self,
        ring: &BlockRing,
        at: BlockPlace,
        portions: &[usize],
        state: &mut [u8],
        block: &[u8],
    ) -> Result<u64, DataError> {
        let BlockPlace { pipeline, cycle, .. } = at;
        let Some(kernel) = &self.kernel else { return Ok(0) };
        let layout = &ring.layouts[pipeline as usize];
        let (input, ranges) = self.excerpt(ring, at, portions)?;
        let mut output = vec![0; input.len()];
        kernel.run(&input, &mut output, state).map_err(|error| self.wrong(cycle, error.to_string()))?;
        for (&portion, range) in portions.iter().zip(&ranges) {
            if block[layout.portions[portion].clone()] != output[range.clone()] {
                let stream = &self.portions[portion].stream;
                return Err(self.wrong(cycle, format!("bytes of stream `{stream}` are not what the CPU makes of them")));
            }
        }
        Ok(ranges.iter().map(|range| range.len() as u64).sum())
    }

    /// Compares a piece of a block that comes back as it was sent, each time another one.
    fn piece(&self, ring: &BlockRing, at: BlockPlace, block: &[u8]) -> Result<u64, DataError> {
        let BlockPlace { pipeline, cycle, slot } = at;
        let layout = &ring.layouts[pipeline as usize];
        let (first, end) = (layout.header.len(), layout.portions.last().map_or(0, |portion| portion.end));
        let pieces = (end - first).div_ceil(PIECE).max(1) as u64;
        let from = first + (cycle % pieces) as usize * PIECE;
        let mut expected = vec![0; end.min(from + PIECE) - from];
        ring.fill(pipeline, slot, from, &mut expected);
        // Between portions there may be zeros, which the ring's words do not say: such blocks have one portion.
        if layout.portions.len() == 1 && block[from..from + expected.len()] != expected[..] {
            return Err(self.wrong(cycle, format!("bytes from {from} on are not those that were sent")));
        }
        Ok(if layout.portions.len() == 1 { expected.len() as u64 } else { 0 })
    }

    /// Compares the streams that have their turn, and remembers how those that are next go on.
    fn turn(&mut self, ring: &BlockRing, at: BlockPlace, count: usize, block: &[u8]) -> Result<(u64, u64), DataError> {
        let BlockPlace { pipeline, cycle, .. } = at;
        let turns = std::mem::take(&mut self.turns);
        let portions: Vec<usize> = turns.iter().map(|(portion, _)| *portion).collect();
        let mut bytes = 0;
        if !portions.is_empty() {
            let chosen: Vec<Portion> = turns.into_iter().map(|(_, resumed)| resumed).collect();
            let Some(kernel) = &self.kernel else { return Ok((0, 0)) };
            let state = fresh(kernel.as_ref(), &chosen);
            let mut state = state.map_err(|error| self.wrong(cycle, error.to_string()))?;
            bytes = self.compare(ring, at, &portions, &mut state, block)?;
            portions.iter().for_each(|&portion| self.reached[portion] = true);
        }
        let layout = &ring.layouts[pipeline as usize];
        for _ in 0..count.min(self.portions.len()) {
            let portion = self.next;
            self.next = (self.next + 1) % self.portions.len();
            let range = layout.portions[portion].clone();
            let resumed = self.kernel.as_ref().and_then(|kernel| kernel.resume(&self.portions[portion], &block[range]));
            self.turns.extend(resumed.map(|resumed| (portion, resumed)));
        }
        Ok((portions.len() as u64, bytes))
    }
}

impl Collect for Checker {
    fn collect(
        &mut self,
        _at: Nanos,
        pipeline: u32,
        cycle: u64,
        slot: usize,
        blocks: &[&[u8]],
    ) -> Result<(), DataError> {
        let block = blocks[0];
        let layout = &self.ring.layouts[pipeline as usize];
        let checked = &mut self.pipelines[pipeline as usize];
        if cycle != checked.cycle {
            return Err(checked.wrong(cycle, format!("cycle {} was expected", checked.cycle)));
        }
        checked.cycle += 1;
        let header = &layout.header;
        let same = block.len() as u64 == layout.block.0
            && block[..CYCLE.start] == header[..CYCLE.start]
            && block[CYCLE] == cycle.to_le_bytes()
            && block[CYCLE.end..header.len()] == header[CYCLE.end..];
        if !same {
            return Err(checked.wrong(cycle, "another header came back than was sent".to_owned()));
        }
        let place = BlockPlace { pipeline, cycle, slot };
        if checked.kernel.is_none() {
            self.own.turn_bytes += checked.piece(&self.ring, place, block)?;
        }
        let mut state = std::mem::take(&mut checked.state);
        let compared = checked.compare(&self.ring, place, &checked.whole, &mut state, block);
        checked.state = state;
        self.own.stream_bytes += compared?;
        let (turns, bytes) = checked.turn(&self.ring, place, checked.at_a_time, block)?;
        self.own.turns += turns;
        self.own.turn_bytes += bytes;
        self.own.blocks += 1;
        self.own.bytes += layout.lens.iter().sum::<u64>();
        if let Some(chains) = &mut self.chains
            && chains.note(place, block)
        {
            (self.own.chains, self.own.chain_bytes) = chains.compare(&self.ring, &self.pipelines)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<u64>, OutputError> {
        let reached = self.pipelines.iter().flat_map(|checked| &checked.reached);
        self.own.reached = reached.filter(|reached| **reached).count() as u64;
        let mut bytes = vec![0; self.streams];
        for (layout, checked) in self.ring.layouts.iter().zip(&self.pipelines) {
            let cycles = checked.cycle;
            for (&stream, len) in layout.streams.iter().zip(&layout.lens) {
                bytes[stream as usize] = len * cycles;
            }
        }
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = self.own;
        Ok(bytes)
    }
}
