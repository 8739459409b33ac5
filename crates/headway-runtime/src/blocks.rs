//! Between streams and blocks: packs what arrived in a cycle, and takes processed blocks apart again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headway_core::log::StreamRun;
use headway_core::plan::block::{self, BlockError, BlockHeader};
use headway_core::plan::payload::Gathered;
use headway_core::plan::{Parted, PipelineSource, Plan, PlannedStream};
use headway_core::units::Bytes;
use headway_device::work::Items;

use crate::intake::{InputError, Intake};
use crate::kernels::Kernels;
use crate::outlet::{OutFile, Outlet, OutputError, file_name};
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
    /// Called once for every buffer of a pipeline's ring, before the run begins.
    ///
    /// # Errors
    /// [`DataError`].
    fn prepare(&mut self, _pipeline: u32, _slot: usize, _buffer: &mut [u8]) -> Result<(), DataError> {
        Ok(())
    }

    /// Puts the block of `cycle` into the start of `buffer`, number `slot` of the pipeline's ring.
    ///
    /// # Errors
    /// [`DataError`]; the buffer is then unspecified.
    fn supply(&mut self, pipeline: u32, cycle: u64, slot: usize, buffer: &mut [u8]) -> Result<Gathered, DataError>;
}

/// What takes blocks from the last buffers of pipelines.
pub trait Collect: Send {
    /// Takes the block of `cycle`, which went through the buffers of `slot`.
    ///
    /// # Errors
    /// [`DataError`] if it is not the block expected.
    fn collect(&mut self, pipeline: u32, cycle: u64, slot: usize, block: &[u8]) -> Result<(), DataError>;

    /// Takes the results of a packet that was divided, one from every GPU that worked on some of it.
    ///
    /// # Errors
    /// Those of `collect`; unless it is overridden, every result is refused.
    fn collect_results(&mut self, pipeline: u32, cycle: u64, results: &[&[u8]]) -> Result<(), DataError> {
        let what = format!("{} results that nobody collects", results.len());
        Err(DataError::Sequence { pipeline: format!("number {pipeline}"), cycle, what })
    }

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
    fn supply(&mut self, pipeline: u32, cycle: u64, _slot: usize, buffer: &mut [u8]) -> Result<Gathered, DataError> {
        self.gather(pipeline, cycle, buffer)
    }
}

impl Collect for Scatterer {
    fn collect_results(&mut self, pipeline: u32, cycle: u64, results: &[&[u8]]) -> Result<(), DataError> {
        self.scatter_results(pipeline, cycle, results)
    }

    fn collect(&mut self, pipeline: u32, cycle: u64, _slot: usize, block: &[u8]) -> Result<(), DataError> {
        self.scatter(pipeline, cycle, block)
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

    /// The part of a stream's bytes that `cycle` carries: first byte and number.
    fn part(&self, pipeline: u32, cycle: u64, stream: u32) -> (u64, u64) {
        let planned = &self.plan.streams[stream as usize];
        let run = &self.runs[stream as usize];
        let packets = planned.packets_in(&self.plan.pipelines[pipeline as usize], cycle);
        let at = |packet: u64| packet.saturating_mul(planned.packet.0).min(run.bytes.0);
        let (from, to) = (at(packets.start), at(packets.end));
        (from, to - from)
    }

    fn lens(&self, pipeline: u32, cycle: u64) -> Vec<u64> {
        match &self.plan.pipelines[pipeline as usize].source {
            PipelineSource::Streams(streams) => {
                streams.iter().map(|&stream| self.part(pipeline, cycle, stream).1).collect()
            }
            PipelineSource::Parts(parted) => (0..parted.parts.len())
                .map(|part| self.pieces(parted, pipeline, cycle, part).map(|(_, bytes)| bytes).sum())
                .collect(),
            PipelineSource::Sharded(_)
            | PipelineSource::Message
            | PipelineSource::Batch(_)
            | PipelineSource::Demand
            | PipelineSource::Bulk(_)
            | PipelineSource::Urgent(_) => Vec::new(),
        }
    }

    /// What `part` has of each packet of a cycle: first byte in the stream, and number.
    fn pieces<'p>(
        &self,
        parted: &'p Parted,
        pipeline: u32,
        cycle: u64,
        part: usize,
    ) -> impl Iterator<Item = (u64, u64)> + use<'p> {
        let planned = &self.plan.streams[parted.stream as usize];
        let (packet, end) = (planned.packet.0, self.runs[parted.stream as usize].bytes.0);
        let packets = planned.packets_in(&self.plan.pipelines[pipeline as usize], cycle);
        let (offset, bytes) = (parted.offset(part), parted.parts[part].0);
        packets.map(move |number| {
            let at = |byte: u64| number.saturating_mul(packet).saturating_add(byte).min(end);
            (at(offset), at(offset + bytes) - at(offset))
        })
    }

    /// Packs the blocks of all parts into `buffer`.
    fn gather_parts(
        &self,
        parted: &Parted,
        pipeline: u32,
        cycle: u64,
        buffer: &mut [u8],
    ) -> Result<Gathered, DataError> {
        let planned = &self.plan.pipelines[pipeline as usize];
        let damaged = |source| DataError::Block { pipeline: planned.name.clone(), cycle, source };
        let mut longest = 0;
        for part in 0..parted.parts.len() {
            let room = parted.range(part);
            let Some(buffer) = buffer.get_mut(room.clone()) else {
                let available = buffer.len() as u64;
                return Err(damaged(BlockError::TooSmall { needed: room.end as u64, available }));
            };
            let bytes = self.pieces(parted, pipeline, cycle, part).map(|(_, bytes)| bytes).sum();
            block::write_header(buffer, cycle, &[bytes]).map_err(damaged)?;
            let portion = BlockHeader::read(buffer).map_err(damaged)?.portions[0].clone();
            let mut at = portion.start;
            for (from, bytes) in self.pieces(parted, pipeline, cycle, part) {
                self.intake.read(parted.stream as usize, from, &mut buffer[at..at + bytes as usize])?;
                at += bytes as usize;
            }
            let padded = portion.end.next_multiple_of(block::ALIGN);
            buffer[portion.end..padded].fill(0);
            longest = bytes.max(longest);
        }
        Ok(Gathered { block: planned.reserve, longest_portion: Bytes(longest) })
    }

    /// What [`Gatherer::gather`] packs for `cycle`, without its bytes.
    #[must_use]
    pub fn sizes(&self, pipeline: u32, cycle: u64) -> Gathered {
        let planned = &self.plan.pipelines[pipeline as usize];
        let lens = self.lens(pipeline, cycle);
        let longest = lens.iter().copied().max().unwrap_or(0);
        match &planned.source {
            PipelineSource::Sharded(sharded) => {
                Gathered { block: planned.reserve, longest_portion: sharded.sharding.item }
            }
            _ if longest == 0 => Gathered::default(),
            PipelineSource::Parts(_) => Gathered { block: planned.reserve, longest_portion: Bytes(longest) },
            _ => Gathered { block: block::block_bytes(lens), longest_portion: Bytes(longest) },
        }
    }

    /// Packs the block of `cycle` into the start of `buffer`.
    ///
    /// # Errors
    /// [`DataError`]; the buffer is then unspecified.
    pub fn gather(&self, pipeline: u32, cycle: u64, buffer: &mut [u8]) -> Result<Gathered, DataError> {
        let lens = self.lens(pipeline, cycle);
        if lens.iter().all(|&len| len == 0) {
            return Ok(Gathered::default());
        }
        let planned = &self.plan.pipelines[pipeline as usize];
        if let PipelineSource::Parts(parted) = &planned.source {
            return self.gather_parts(parted, pipeline, cycle, buffer);
        }
        let damaged = |source| DataError::Block { pipeline: planned.name.clone(), cycle, source };
        let block = block::write_header(buffer, cycle, &lens).map_err(damaged)?;
        let header = BlockHeader::read(&buffer[..block.0 as usize]).map_err(damaged)?;
        let PipelineSource::Streams(streams) = &planned.source else { return Ok(Gathered::default()) };
        for (&stream, portion) in streams.iter().zip(&header.portions) {
            let (from, _) = self.part(pipeline, cycle, stream);
            self.intake.read(stream as usize, from, &mut buffer[portion.clone()])?;
            let padded = portion.end.next_multiple_of(block::ALIGN).min(block.0 as usize);
            buffer[portion.end..padded].fill(0);
        }
        let longest_portion = Bytes(lens.iter().copied().max().unwrap_or(0));
        Ok(Gathered { block, longest_portion })
    }
}

/// Takes blocks apart and appends every portion to its stream's file.
#[derive(Debug)]
pub struct Scatterer {
    gatherer: Gatherer,
    files: Vec<OutFile>,
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
        Ok(Self { gatherer, files, bounds: Bounds::default(), next, lost, items: BTreeMap::new() })
    }

    /// A scatterer that checks the results of divided packets against the items of `kernels`.
    #[must_use]
    pub fn checking(self, kernels: &Kernels) -> Self {
        Self { items: kernels.all_items(), ..self }
    }

    /// A scatterer that writes no more than the first `keep` bytes of each stream. What follows can be compared after the run: of
    /// streams by the digests in `left`; results of divided packets are compared with what they must be when they come.
    #[must_use]
    pub fn bounded(mut self, keep: Vec<u64>, left: Left) -> Self {
        self.bounds = Bounds { tails: vec![Tail::default(); self.files.len()], keep, wrong_result: None, left };
        self
    }

    /// Appends to the output of `stream`; returns how many of the bytes its file did not take.
    fn append(&mut self, stream: u32, bytes: &[u8]) -> Result<usize, OutputError> {
        let stream = stream as usize;
        let file = &mut self.files[stream];
        let Some(keep) = self.bounds.keep.get(stream) else {
            file.write(bytes)?;
            return Ok(0);
        };
        let room = keep.saturating_sub(file.written()).min(bytes.len() as u64) as usize;
        let (kept, rest) = bytes.split_at(room);
        file.write(kept)?;
        self.bounds.tails[stream].write(rest);
        Ok(rest.len())
    }

    /// Appends the portions of the block of `cycle`.
    ///
    /// # Errors
    /// [`DataError`]; a block of another cycle, out of order, or of other sizes is refused.
    pub fn scatter(&mut self, pipeline: u32, cycle: u64, block: &[u8]) -> Result<(), DataError> {
        let plan = Arc::clone(&self.gatherer.plan);
        let planned = &plan.pipelines[pipeline as usize];
        let name = || planned.name.clone();
        let damaged = |source| DataError::Block { pipeline: name(), cycle, source };
        let blocks: Vec<&[u8]> = match &planned.source {
            PipelineSource::Parts(parted) => {
                (0..parted.parts.len()).map(|part| block.get(parted.range(part)).unwrap_or_default()).collect()
            }
            _ => vec![block],
        };
        let headers =
            blocks.iter().map(|block| BlockHeader::read(block)).collect::<Result<Vec<_>, _>>().map_err(damaged)?;
        let wrong = |what: String| Err(DataError::Sequence { pipeline: name(), cycle, what });
        if let Some(other) = headers.iter().find(|header| header.cycle != cycle) {
            return wrong(format!("the block of cycle {} came back", other.cycle));
        }
        if self.lost[pipeline as usize].contains(&cycle) {
            return wrong("it came back although it was given up".to_owned());
        }
        if cycle < self.next[pipeline as usize] {
            return wrong(format!("cycle {} came back before it", self.next[pipeline as usize] - 1));
        }
        let portions = headers.iter().flat_map(|header| &header.portions);
        let lens: Vec<u64> = portions.map(|portion| portion.len() as u64).collect();
        let sent = self.gatherer.lens(pipeline, cycle);
        if lens != sent {
            return wrong(format!("portions of {lens:?} bytes came back, {sent:?} were sent"));
        }
        self.make_up(pipeline, cycle)?;
        self.next[pipeline as usize] = cycle + 1;
        match &planned.source {
            PipelineSource::Streams(streams) => {
                for (&stream, portion) in streams.iter().zip(&headers[0].portions) {
                    self.append(stream, &block[portion.clone()])?;
                }
            }
            PipelineSource::Parts(parted) => {
                let data = blocks.iter().zip(&headers).map(|(block, header)| &block[header.portions[0].clone()]);
                self.append_parts(parted, pipeline, cycle, data.collect())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Appends packets whose parts came back in blocks of their own.
    fn append_parts(
        &mut self,
        parted: &Parted,
        pipeline: u32,
        cycle: u64,
        mut data: Vec<&[u8]>,
    ) -> Result<(), OutputError> {
        let parts =
            (0..data.len()).map(|part| self.gatherer.pieces(parted, pipeline, cycle, part).map(|(_, bytes)| bytes));
        let lens: Vec<Vec<u64>> = parts.map(Iterator::collect).collect();
        for packet in 0..lens.first().map_or(0, Vec::len) {
            for (part, lens) in data.iter_mut().zip(&lens) {
                let (now, later) = part.split_at(lens[packet] as usize);
                self.append(parted.stream, now)?;
                *part = later;
            }
        }
        Ok(())
    }

    /// Appends the result of the packet of `cycle`, which every GPU has made.
    ///
    /// # Errors
    /// [`DataError`]; results that differ, that are of another packet, or come out of order are refused.
    pub fn scatter_results(&mut self, pipeline: u32, cycle: u64, results: &[&[u8]]) -> Result<(), DataError> {
        let planned = &self.gatherer.plan.pipelines[pipeline as usize];
        let wrong = |what: String| Err(DataError::Sequence { pipeline: planned.name.clone(), cycle, what });
        let PipelineSource::Sharded(sharded) = &planned.source else { return Ok(()) };
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
        if self.append(stream, first)? > 0 && self.bounds.wrong_result.is_none() {
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
            let lens = self.gatherer.lens(pipeline, cycle);
            match &plan.pipelines[pipeline as usize].source {
                PipelineSource::Streams(streams) => {
                    for (&stream, len) in streams.iter().zip(lens) {
                        self.append(stream, &vec![0; len as usize])?;
                    }
                }
                PipelineSource::Parts(parted) => {
                    self.append(parted.stream, &vec![0; lens.iter().sum::<u64>() as usize])?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes everything out and returns the bytes of each stream's file.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn finish(mut self) -> Result<Vec<u64>, OutputError> {
        for pipeline in 0..self.lost.len() as u32 {
            self.make_up(pipeline, u64::MAX)?;
        }
        let Bounds { tails, wrong_result, left, .. } = self.bounds;
        left.put(StreamTails { digests: tails.into_iter().map(Tail::finish).collect(), wrong_result });
        self.files.into_iter().map(OutFile::finish).collect()
    }
}
