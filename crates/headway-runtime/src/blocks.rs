//! Between streams and blocks: packs what arrived in a cycle, and takes processed blocks apart again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use headway_core::log::StreamRun;
use headway_core::plan::block::{self, BlockError, BlockHeader};
use headway_core::plan::payload::Gathered;
use headway_core::plan::{PipelineSource, Plan, PlannedStream, Sharded, WholePackets};
use headway_core::units::{Bytes, Nanos};
use headway_device::work::Items;

use crate::intake::{InputError, Intake};
use crate::kernels::Kernels;
use crate::outlet::{OutFile, Outlet, OutputError, file_name};
use crate::program::{CallbackFailure, Came, ProgramSink};
use crate::shards;
use crate::tail::{Left, StreamTails, Tail};

/// A block that cannot be packed, or that comes back different from what was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The input failed.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The output failed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A program's callback failed. What other streams gave until then is right.
    #[error(transparent)]
    Callback(#[from] CallbackFailure),
    /// A thread of the run has panicked; standard error has its message.
    #[error("the thread that {work} has panicked")]
    Panicked { work: &'static str },
    /// The block is damaged.
    #[error("pipeline `{pipeline}`, cycle {cycle}: damaged block")]
    Block {
        /// The pipeline's name.
        pipeline: String,
        cycle: u64,
        /// What is wrong.
        source: BlockError,
    },
    /// A block of another cycle, or with other sizes, came back.
    #[error("pipeline `{pipeline}`, cycle {cycle}: {what}; data was lost, repeated or reordered")]
    Sequence {
        /// The pipeline's name.
        pipeline: String,
        /// The cycle expected.
        cycle: u64,
        /// What came instead.
        what: String,
    },
}

/// What puts blocks into the first buffers of pipelines.
pub trait Supply: Send {
    /// Called once for the buffers of each slot of a pipeline's ring, before the run begins.
    ///
    /// # Errors
    /// [`DataError`].
    fn prepare(&mut self, _pipeline: u32, _slot: usize, _buffers: &mut [&mut [u8]]) -> Result<(), DataError> {
        Ok(())
    }

    /// Called once when time zero is known, before the first cycle is asked for. `came` is to be called whenever something has come
    /// that [`Supply::is_ready`] said was not there.
    fn begin(&mut self, _epoch: Nanos, _came: &Came) {}

    /// Whether what `cycle` needs is there; else [`Supply::supply`] would wait for it.
    ///
    /// # Errors
    /// [`DataError`] if it will never be.
    fn is_ready(&mut self, _pipeline: u32, _cycle: u64) -> Result<bool, DataError> {
        Ok(true)
    }

    /// Puts the blocks of `cycle` into the starts of `buffers`, those of `slot` of the pipeline's ring: one for each GPU that
    /// shares the packet, one for each part of it, or one.
    ///
    /// # Errors
    /// [`DataError`]; the buffers are then unspecified.
    fn supply(
        &mut self,
        pipeline: u32,
        cycle: u64,
        slot: usize,
        buffers: &mut [&mut [u8]],
    ) -> Result<Gathered, DataError>;
}

/// What takes blocks from the last buffers of pipelines.
pub trait Collect: Send {
    /// Takes the blocks of `cycle`, which went through the buffers of `slot` and were delivered at `at` after time zero: a result from
    /// each GPU that shared the packet, one block for each part of it, or one.
    ///
    /// # Errors
    /// [`DataError`] if they are not the blocks expected.
    fn collect(&mut self, at: Nanos, pipeline: u32, cycle: u64, slot: usize, blocks: &[&[u8]])
    -> Result<(), DataError>;

    /// Learns that `cycle` was given up: none of its bytes come.
    ///
    /// # Errors
    /// Those of `collect`.
    fn lose(&mut self, pipeline: u32, cycle: u64) -> Result<(), DataError> {
        let _ = (pipeline, cycle);
        Ok(())
    }

    /// Ends the run and returns the bytes of each stream.
    ///
    /// # Errors
    /// [`OutputError`].
    fn finish(self: Box<Self>) -> Result<Vec<u64>, OutputError>;
}

impl Supply for Gatherer {
    fn begin(&mut self, epoch: Nanos, came: &Came) {
        self.intake.begin(Some(epoch), Some(came));
    }

    fn is_ready(&mut self, pipeline: u32, cycle: u64) -> Result<bool, DataError> {
        if !self.intake.has_programs() {
            return Ok(true);
        }
        for source in self.portions(pipeline, cycle) {
            if !self.intake.is_there(source.stream, source.packets.end)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn supply(
        &mut self,
        pipeline: u32,
        cycle: u64,
        _slot: usize,
        buffers: &mut [&mut [u8]],
    ) -> Result<Gathered, DataError> {
        self.gather(pipeline, cycle, buffers)
    }
}

impl Collect for Scatterer {
    fn collect(
        &mut self,
        at: Nanos,
        pipeline: u32,
        cycle: u64,
        _slot: usize,
        blocks: &[&[u8]],
    ) -> Result<(), DataError> {
        self.scatter(at, pipeline, cycle, blocks)
    }

    fn lose(&mut self, pipeline: u32, cycle: u64) -> Result<(), DataError> {
        Self::lose(self, pipeline, cycle)
    }

    fn finish(self: Box<Self>) -> Result<Vec<u64>, OutputError> {
        Self::finish(*self)
    }
}

/// Packs blocks. Cheap to clone; any thread may use it.
#[derive(Clone, Debug)]
pub struct Gatherer {
    plan: Arc<Plan>,
    intake: Arc<Intake>,
    runs: Arc<[StreamRun]>,
}

impl Gatherer {
    /// A gatherer of `intake` for the pipelines of `plan`.
    #[must_use]
    pub fn new(plan: Arc<Plan>, intake: Arc<Intake>) -> Self {
        let runs = intake.runs(&plan.streams).into();
        Self { plan, intake, runs }
    }

    /// A gatherer without an input, for the streams of `plan` of which so many `packets` arrive: it has their sizes.
    #[must_use]
    pub fn of_sizes(plan: Arc<Plan>, packets: &[u64]) -> Self {
        let run = |(stream, &packets): (&PlannedStream, &u64)| StreamRun {
            packets,
            bytes: Bytes(packets.saturating_mul(stream.packet.0)),
        };
        let runs = plan.streams.iter().zip(packets).map(run).collect();
        Self { plan, intake: Arc::default(), runs }
    }

    /// Lets programs be asked for packets, by a driver whose time stands still meanwhile.
    pub(crate) fn begin_virtually(&self) {
        self.intake.begin(None, None);
    }

    /// Packets and bytes of each stream.
    #[must_use]
    pub fn runs(&self) -> &[StreamRun] {
        &self.runs
    }

    /// Cycles that each pipeline needs to carry all packets; zero for pipelines that no stream feeds.
    #[must_use]
    pub fn cycles(&self) -> Vec<u64> {
        let pipelines = self.plan.pipelines.iter();
        pipelines
            .map(|pipeline| {
                let needed = pipeline.source.streams().iter().map(|&stream| match self.runs[stream as usize].packets {
                    0 => 0,
                    packets => self.plan.streams[stream as usize].cycle_of(pipeline, packets - 1) + 1,
                });
                needed.max().unwrap_or(0)
            })
            .collect()
    }

    /// Where the portions of the blocks of `cycle` come from, one block after the other.
    fn portions(&self, pipeline: u32, cycle: u64) -> Vec<PortionSource> {
        let planned = &self.plan.pipelines[pipeline as usize];
        let source = |number: u32, offset: u64, bytes: Option<Bytes>| {
            let stream = &self.plan.streams[number as usize];
            PortionSource {
                stream: number,
                packets: stream.packets_in(planned, cycle),
                packet: stream.packet.0,
                offset,
                bytes: bytes.unwrap_or(stream.packet).0,
                end: self.runs[number as usize].bytes.0,
            }
        };
        match &planned.source {
            PipelineSource::Streams(streams) => streams.iter().map(|&stream| source(stream, 0, None)).collect(),
            PipelineSource::Packets(packets) => vec![source(packets.stream, 0, None)],
            PipelineSource::Parts(parted) => {
                let parts = parted.parts.iter().enumerate();
                parts.map(|(part, &bytes)| source(parted.stream, parted.offset(part), Some(bytes))).collect()
            }
            PipelineSource::Sharded(_)
            | PipelineSource::Message
            | PipelineSource::Batch(_)
            | PipelineSource::Demand
            | PipelineSource::Bulk(_)
            | PipelineSource::Urgent(_) => Vec::new(),
        }
    }

    /// What [`Gatherer::gather`] packs for `cycle`, without its bytes.
    #[must_use]
    pub fn sizes(&self, pipeline: u32, cycle: u64) -> Gathered {
        self.sizes_of(pipeline, &lens(&self.portions(pipeline, cycle)))
    }

    /// What blocks with portions of so many bytes are together.
    fn sizes_of(&self, pipeline: u32, lens: &[u64]) -> Gathered {
        let planned = &self.plan.pipelines[pipeline as usize];
        let longest = lens.iter().copied().max().unwrap_or(0);
        match &planned.source {
            PipelineSource::Sharded(sharded) => {
                Gathered { block: planned.reserve, longest_portion: sharded.sharding.item }
            }
            _ if longest == 0 => Gathered::default(),
            PipelineSource::Parts(_) => Gathered { block: planned.reserve, longest_portion: Bytes(longest) },
            PipelineSource::Packets(packets) => Gathered { block: packets.packet(), longest_portion: packets.packet() },
            _ => Gathered { block: block::block_bytes(lens.iter().copied()), longest_portion: Bytes(longest) },
        }
    }

    /// Packs the blocks of `cycle` into the starts of `buffers`. Those of packets that are divided have their items already, and
    /// get the number of their packet.
    ///
    /// # Errors
    /// [`DataError`]; the buffers are then unspecified.
    pub fn gather(&self, pipeline: u32, cycle: u64, buffers: &mut [&mut [u8]]) -> Result<Gathered, DataError> {
        let planned = &self.plan.pipelines[pipeline as usize];
        let damaged = |source| DataError::Block { pipeline: planned.name.clone(), cycle, source };
        if let PipelineSource::Sharded(sharded) = &planned.source {
            for (shard, buffer) in sharded.shards.iter().zip(buffers) {
                shards::number(sharded, shard, cycle, buffer).map_err(damaged)?;
            }
            return Ok(self.sizes(pipeline, cycle));
        }
        let portions = self.portions(pipeline, cycle);
        let lens = lens(&portions);
        if lens.iter().all(|&len| len == 0) || !self.wait(pipeline, cycle, &portions)? {
            return Ok(Gathered::default());
        }
        let gathered = self.pack(pipeline, cycle, &portions, &lens, buffers)?;
        for source in &portions {
            if let Some(program) = self.intake.program(source.stream) {
                program.release(source.packets.end);
            }
        }
        Ok(gathered)
    }

    /// Waits for the packets that programs give; `false` if somebody asked for the end.
    fn wait(&self, pipeline: u32, cycle: u64, portions: &[PortionSource]) -> Result<bool, DataError> {
        let mut slowest = None;
        for source in portions {
            let Some(program) = self.intake.program(source.stream) else { continue };
            if !program.wait(source.packets.end)? {
                return Ok(false);
            }
            slowest = slowest.max(Some((program.came(source.packets.end), source.stream)));
        }
        if let Some(program) = slowest.and_then(|(_, stream)| self.intake.program(stream)) {
            program.was_slowest(pipeline, cycle);
        }
        Ok(true)
    }

    /// Packs `portions`, which have `lens` bytes and are there.
    fn pack(
        &self,
        pipeline: u32,
        cycle: u64,
        portions: &[PortionSource],
        lens: &[u64],
        buffers: &mut [&mut [u8]],
    ) -> Result<Gathered, DataError> {
        let planned = &self.plan.pipelines[pipeline as usize];
        let damaged = |source| DataError::Block { pipeline: planned.name.clone(), cycle, source };
        if let (PipelineSource::Packets(packets), [buffer, ..]) = (&planned.source, &mut *buffers) {
            let (source, packet) = (&portions[0], packets.packet().0 as usize);
            // What lies behind the end of the input reads as zero.
            self.intake.read(source.stream as usize, source.packets.start * source.packet, &mut buffer[..packet])?;
            return Ok(self.sizes_of(pipeline, lens));
        }
        // Each part of a packet has a block of its own.
        let portions_each = (portions.len() / buffers.len().max(1)).max(1);
        let blocks = portions.chunks(portions_each).zip(lens.chunks(portions_each));
        for (buffer, (sources, lens)) in buffers.iter_mut().zip(blocks) {
            let block = block::write_header(buffer, cycle, lens).map_err(damaged)?;
            let header = BlockHeader::read(&buffer[..block.0 as usize]).map_err(damaged)?;
            for (source, portion) in sources.iter().zip(&header.portions) {
                let mut at = portion.start;
                for piece in source.pieces() {
                    let bytes = (piece.end - piece.start) as usize;
                    self.intake.read(source.stream as usize, piece.start, &mut buffer[at..at + bytes])?;
                    at += bytes;
                }
                let padded = portion.end.next_multiple_of(block::ALIGN).min(block.0 as usize);
                buffer[portion.end..padded].fill(0);
            }
        }
        Ok(self.sizes_of(pipeline, lens))
    }
}

/// Where a portion comes from: the same bytes of each of some packets.
struct PortionSource {
    stream: u32,
    packets: Range<u64>,
    /// Size of a packet.
    packet: u64,
    /// The first byte of a packet that belongs to it, and how many do.
    offset: u64,
    bytes: u64,
    /// Bytes of the stream: its last packet may be shorter.
    end: u64,
}

impl PortionSource {
    /// Ranges of the stream, in the order in which they follow each other in the portion.
    fn pieces(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let Self { stream: _, ref packets, packet, offset, bytes, end } = *self;
        // Whole packets follow each other.
        let each = if bytes == packet { (packets.end - packets.start).max(1) } else { 1 };
        let at = move |number: u64, byte: u64| number.saturating_mul(packet).saturating_add(byte).min(end);
        let firsts = packets.clone().step_by(each as usize);
        firsts.map(move |first| at(first, offset)..at(first + each - 1, offset + bytes))
    }

    fn len(&self) -> u64 {
        self.pieces().map(|piece| piece.end - piece.start).sum()
    }
}

fn lens(portions: &[PortionSource]) -> Vec<u64> {
    portions.iter().map(PortionSource::len).collect()
}

/// Takes blocks apart and appends every portion to its stream's file.
#[derive(Debug)]
pub struct Scatterer {
    gatherer: Gatherer,
    files: Vec<OutFile>,
    /// Programs that take the results of streams.
    sinks: BTreeMap<u32, ProgramSink>,
    /// Of a sink that failed. The others get what came with it.
    failed: Option<CallbackFailure>,
    bounds: Bounds,
    /// The next cycle of each pipeline that is not empty must be at least this one.
    next: Vec<u64>,
    /// Cycles of each pipeline that were given up and are not in the files yet: cycles before them may still come.
    lost: Vec<BTreeSet<u64>>,
    /// What the results of divided packets must be, by pipeline.
    items: BTreeMap<u32, Arc<dyn Items>>,
}

/// How much of each output goes into its file, and what becomes of the rest.
#[derive(Debug, Default)]
struct Bounds {
    /// Bytes of each stream's file; empty = all bytes of all streams.
    keep: Vec<u64>,
    tails: Vec<Tail>,
    wrong_result: Option<u64>,
    left: Left,
}

/// Name of a stream's output inside the results: another one for every stream.
#[must_use]
pub fn output_name(stream: &str) -> String {
    format!("streams/{}.bin", file_name(stream))
}

impl Scatterer {
    /// A scatterer that writes into `outlet`, and checks blocks against what `gatherer` packs.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn new(gatherer: Gatherer, outlet: &Outlet) -> Result<Self, OutputError> {
        let streams = gatherer.plan.streams.iter();
        let files = streams.map(|stream| outlet.file(&output_name(&stream.id))).collect::<Result<_, _>>()?;
        let (next, lost) =
            (vec![0; gatherer.plan.pipelines.len()], vec![BTreeSet::new(); gatherer.plan.pipelines.len()]);
        let (sinks, bounds) = (BTreeMap::new(), Bounds::default());
        Ok(Self { gatherer, files, sinks, failed: None, bounds, next, lost, items: BTreeMap::new() })
    }

    /// A scatterer that checks the results of divided packets against the items of `kernels`.
    #[must_use]
    pub fn checking(self, kernels: &Kernels) -> Self {
        Self { items: kernels.all_items(), ..self }
    }

    /// A scatterer that gives the results of these streams to programs.
    #[must_use]
    pub fn giving(self, sinks: BTreeMap<u32, ProgramSink>) -> Self {
        Self { sinks, ..self }
    }

    /// A scatterer that writes no more than the first `keep` bytes of each stream. What follows can be compared after the run: of
    /// streams by the digests in `left`; results of divided packets are compared with what they must be when they come.
    #[must_use]
    pub fn bounded(mut self, keep: Vec<u64>, left: Left) -> Self {
        self.bounds = Bounds { tails: vec![Tail::default(); self.files.len()], keep, wrong_result: None, left };
        self
    }

    /// Appends to the output of `stream` what was delivered at `at`, or zeros that stand for what was given up; returns how many of the
    /// bytes its file did not take.
    fn append(&mut self, at: Option<Nanos>, stream: u32, bytes: &[u8]) -> Result<usize, OutputError> {
        if let Some(sink) = self.sinks.get_mut(&stream)
            && let Err(failure) = sink.write(at, bytes)
        {
            self.failed.get_or_insert(failure);
        }
        let is_given = self.gatherer.intake.program(stream).is_some();
        let stream = stream as usize;
        let file = &mut self.files[stream];
        let Some(keep) = self.bounds.keep.get(stream) else {
            file.write(bytes)?;
            return Ok(0);
        };
        let room = keep.saturating_sub(file.written()).min(bytes.len() as u64) as usize;
        let (kept, rest) = bytes.split_at(room);
        file.write(kept)?;
        // Nobody can read again what a program gave, and compare.
        if !is_given {
            self.bounds.tails[stream].write(rest);
        }
        Ok(rest.len())
    }

    /// Appends the portions of the blocks of `cycle`, or the result of a packet that was divided, delivered at `at` after time zero.
    ///
    /// # Errors
    /// [`DataError`]; a block of another cycle, out of order, or of other sizes is refused, and so are results that differ.
    pub fn scatter(&mut self, at: Nanos, pipeline: u32, cycle: u64, blocks: &[&[u8]]) -> Result<(), DataError> {
        self.append_all(at, pipeline, cycle, blocks)?;
        self.failed.take().map_or(Ok(()), |failure| Err(failure.into()))
    }

    fn append_all(&mut self, at: Nanos, pipeline: u32, cycle: u64, blocks: &[&[u8]]) -> Result<(), DataError> {
        let plan = Arc::clone(&self.gatherer.plan);
        let planned = &plan.pipelines[pipeline as usize];
        let name = || planned.name.clone();
        let damaged = |source| DataError::Block { pipeline: name(), cycle, source };
        if let PipelineSource::Sharded(sharded) = &planned.source {
            return self.append_result(at, sharded, pipeline, cycle, blocks);
        }
        if let PipelineSource::Packets(packets) = &planned.source {
            return self.append_packet(at, packets, pipeline, cycle, blocks);
        }
        let headers =
            blocks.iter().map(|block| BlockHeader::read(block)).collect::<Result<Vec<_>, _>>().map_err(damaged)?;
        let wrong = |what: String| Err(DataError::Sequence { pipeline: name(), cycle, what });
        if let Some(other) = headers.iter().find(|header| header.cycle != cycle) {
            return wrong(format!("the block of cycle {} came back", other.cycle));
        }
        self.in_order(pipeline, cycle)?;
        let parts = blocks.iter().zip(&headers);
        let mut data: Vec<&[u8]> =
            parts.flat_map(|(block, header)| header.portions.iter().map(|portion| &block[portion.clone()])).collect();
        let came: Vec<u64> = data.iter().map(|portion| portion.len() as u64).collect();
        let sources = self.gatherer.portions(pipeline, cycle);
        let sent = lens(&sources);
        if came != sent {
            return wrong(format!("portions of {came:?} bytes came back, {sent:?} were sent"));
        }
        self.make_up(pipeline, cycle)?;
        self.next[pipeline as usize] = cycle + 1;
        // The parts of a packet follow each other, and then those of the next packet.
        let mut pieces: Vec<_> = sources.iter().map(PortionSource::pieces).collect();
        let mut more = true;
        while more {
            more = false;
            for (number, source) in sources.iter().enumerate() {
                let Some(piece) = pieces[number].next() else { continue };
                let (now, later) = data[number].split_at((piece.end - piece.start) as usize);
                self.append(Some(at), source.stream, now)?;
                data[number] = later;
                more = true;
            }
        }
        Ok(())
    }

    /// Refuses a cycle that was given up, and one that comes behind a later one.
    fn in_order(&self, pipeline: u32, cycle: u64) -> Result<(), DataError> {
        let what = if self.lost[pipeline as usize].contains(&cycle) {
            "it came back although it was given up".to_owned()
        } else if cycle < self.next[pipeline as usize] {
            format!("cycle {} came back before it", self.next[pipeline as usize] - 1)
        } else {
            return Ok(());
        };
        let pipeline = self.gatherer.plan.pipelines[pipeline as usize].name.clone();
        Err(DataError::Sequence { pipeline, cycle, what })
    }

    /// Appends what became of the packet of `cycle`.
    fn append_packet(
        &mut self,
        at: Nanos,
        packets: &WholePackets,
        pipeline: u32,
        cycle: u64,
        results: &[&[u8]],
    ) -> Result<(), DataError> {
        self.in_order(pipeline, cycle)?;
        let came: Vec<u64> = results.iter().map(|result| result.len() as u64).collect();
        if came != [packets.result().0] {
            let pipeline = self.gatherer.plan.pipelines[pipeline as usize].name.clone();
            let what = format!("results of {came:?} bytes came back, and one has {}", packets.result().0);
            return Err(DataError::Sequence { pipeline, cycle, what });
        }
        self.make_up(pipeline, cycle)?;
        self.next[pipeline as usize] = cycle + 1;
        self.append(Some(at), packets.stream, results[0])?;
        Ok(())
    }

    /// Appends the result of the packet of `cycle`, which every GPU has made.
    fn append_result(
        &mut self,
        at: Nanos,
        sharded: &Sharded,
        pipeline: u32,
        cycle: u64,
        results: &[&[u8]],
    ) -> Result<(), DataError> {
        let planned = &self.gatherer.plan.pipelines[pipeline as usize];
        let wrong = |what: String| Err(DataError::Sequence { pipeline: planned.name.clone(), cycle, what });
        let Some(first) = results.first() else { return wrong("no result came back".to_owned()) };
        if cycle != self.next[pipeline as usize] {
            return wrong(format!("cycle {} was expected", self.next[pipeline as usize]));
        }
        if let Some(other) = results.iter().position(|result| result != first) {
            return wrong(format!("GPU {} made another result than GPU 0", sharded.shards[other].gpu));
        }
        let Some(items) = self.items.get(&pipeline).cloned() else {
            return wrong("nothing says what the result must be".to_owned());
        };
        if let Err(what) = items.check(first, cycle) {
            return wrong(what);
        }
        self.next[pipeline as usize] = cycle + 1;
        let (stream, row) = (sharded.stream, shards::row(sharded, cycle));
        if self.append(Some(at), stream, first)? > 0 && self.bounds.wrong_result.is_none() {
            self.bounds.wrong_result = (!items.is_right(first, row)).then_some(cycle);
        }
        Ok(())
    }

    /// Remembers that `cycle` was given up. Zeros take its place, so that what follows stays in its own.
    ///
    /// A cycle can be given up while those before it are still under way.
    ///
    /// # Errors
    /// [`DataError`] for a cycle that came back or was given up before.
    pub fn lose(&mut self, pipeline: u32, cycle: u64) -> Result<(), DataError> {
        if cycle < self.next[pipeline as usize] || !self.lost[pipeline as usize].insert(cycle) {
            let pipeline = self.gatherer.plan.pipelines[pipeline as usize].name.clone();
            let what = "it was given up after it had come back, or twice".to_owned();
            return Err(DataError::Sequence { pipeline, cycle, what });
        }
        Ok(())
    }

    /// Appends zeros for the cycles before `until` that were given up.
    fn make_up(&mut self, pipeline: u32, until: u64) -> Result<(), OutputError> {
        let rest = self.lost[pipeline as usize].split_off(&until);
        let plan = Arc::clone(&self.gatherer.plan);
        for cycle in std::mem::replace(&mut self.lost[pipeline as usize], rest) {
            if let PipelineSource::Packets(packets) = &plan.pipelines[pipeline as usize].source {
                self.append(None, packets.stream, &vec![0; packets.result().0 as usize])?;
                continue;
            }
            for portion in self.gatherer.portions(pipeline, cycle) {
                self.append(None, portion.stream, &vec![0; portion.len() as usize])?;
            }
        }
        Ok(())
    }

    /// Writes everything out, waits until programs have taken their results, and returns the bytes of each stream's file. Who gave the
    /// programs knows which of them failed.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn finish(mut self) -> Result<Vec<u64>, OutputError> {
        for pipeline in 0..self.lost.len() as u32 {
            self.make_up(pipeline, u64::MAX)?;
        }
        for (_, sink) in std::mem::take(&mut self.sinks) {
            // One that failed has told it to its run.
            let _ = sink.finish();
        }
        let Bounds { tails, wrong_result, left, .. } = self.bounds;
        left.put(StreamTails { digests: tails.into_iter().map(Tail::finish).collect(), wrong_result });
        self.files.into_iter().map(OutFile::finish).collect()
    }
}
