//! Compares what a run wrote with what the CPU forms of the kernels make of the same input in one go.
//!
//! A run cuts streams into packets, blocks and chunks, and on a GPU uses other code; the reference does neither. A lost,
//! repeated or reordered packet changes everything behind it, since the kernels carry state.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use headway_core::plan::block;
use headway_core::plan::{Parted, PipelineSource, Plan, PlannedStream, Sharded, WholePackets};
use headway_device::work::Items;
use headway_kernels::inspect::cameras::Cameras;
use headway_kernels::inspect::ring::{WaferRing, listed};
use headway_runtime::blocks::output_name;
use headway_runtime::cores::CoreStage;
use headway_runtime::intake::Intake;
use headway_runtime::kernels::Kernels;
use headway_runtime::shards;
use headway_runtime::tail::{self, StreamTails, Tail};

use crate::{Error, Failure};

/// Bytes that the reference processes at a time.
const STRIDE: u64 = 1 << 20;

/// What streams gave.
pub struct Outputs<'a> {
    /// Where their files are.
    pub folder: &'a Path,
    /// Those that have lost packets, which are not compared.
    pub lost: &'a BTreeSet<u32>,
    /// Bytes that each file holds at most; empty = all.
    pub kept: &'a [u64],
    /// What is known of the bytes behind those.
    pub ends: StreamTails,
}

/// Checks every stream of a finished run, on all CPUs. Of several that are wrong, the first one is told.
pub fn verify(
    plan: &Plan,
    kernels: &Kernels,
    intake: &Intake,
    outputs: &Outputs<'_>,
    interrupt: &AtomicBool,
    mut progress: impl FnMut(usize),
) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let (told, done) = mpsc::channel();
    let work = |told: mpsc::Sender<(usize, Result<(), Error>)>| {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && number < plan.streams.len()
        {
            let checked = check(plan, kernels, intake, outputs, number, interrupt);
            if checked.is_err() {
                // Those before it have been taken; the others need not be looked at.
                next.store(plan.streams.len(), Ordering::Relaxed);
            }
            // The receiver is there until all senders are gone.
            let _ = told.send((number, checked));
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(plan.streams.len());
        for _ in 0..threads {
            let told = told.clone();
            headway_os::threads::without_signals(|| scope.spawn(|| work(told)));
        }
        drop(told);
        let mut wrong: Option<(usize, Error)> = None;
        for (before, (number, checked)) in done.iter().enumerate() {
            progress(before + 1);
            if let Err(error) = checked
                && wrong.as_ref().is_none_or(|(first, _)| number < *first)
            {
                wrong = Some((number, error));
            }
        }
        wrong.map_or(Ok(()), |(_, error)| Err(error))
    })
}

/// Checks stream `number`.
fn check(
    plan: &Plan,
    kernels: &Kernels,
    intake: &Intake,
    outputs: &Outputs<'_>,
    number: usize,
    interrupt: &AtomicBool,
) -> Result<(), Error> {
    let stream = &plan.streams[number];
    match &plan.pipelines[stream.pipeline as usize].source {
        PipelineSource::Sharded(sharded) => {
            let file = outputs.folder.join(output_name(&stream.id));
            let items = kernels.items(stream.pipeline).as_ref();
            let wrong = wrong_result(sharded, items, &file, interrupt)?;
            if let Some(first) = wrong.or(outputs.ends.wrong_result) {
                return Err(Failure::Wrong { stream: stream.id.clone(), at: first * sharded.sharding.summary.0 }.into());
            }
        }
        PipelineSource::Streams(members) if !outputs.lost.contains(&(number as u32)) => {
            let portion = members.iter().position(|&member| member as usize == number).unwrap_or(0);
            let mut stages = stages(kernels, stream.pipeline, portion)?;
            let mut expected = |offset, bytes| reference(intake, number, offset, bytes, &mut stages);
            compare(stream, number, &mut expected, share_bytes(intake, number), outputs, interrupt)?;
        }
        PipelineSource::Packets(packets) if packets.compared && !outputs.lost.contains(&(number as u32)) => {
            let mut results = Results::new(packets, stream, kernels, intake)?;
            let total = (share_bytes(intake, number) / packets.packet().0).saturating_mul(packets.result().0);
            compare(stream, number, &mut |offset, bytes| results.part(offset, bytes), total, outputs, interrupt)?;
        }
        PipelineSource::Parts(parted) if !outputs.lost.contains(&(number as u32)) => {
            let mut packets = Packets::new(parted, stream, kernels, intake)?;
            compare(
                stream,
                number,
                &mut |_, bytes| packets.next(bytes),
                share_bytes(intake, number),
                outputs,
                interrupt,
            )?;
        }
        _ => {}
    }
    Ok(())
}

/// The stages of a pipeline for one of its portions, before the first packet.
fn stages(kernels: &Kernels, pipeline: u32, portion: usize) -> Result<Vec<CoreStage>, Error> {
    let portion = &kernels.portions(pipeline)[portion..=portion];
    let own = kernels.of_pipeline(pipeline).iter();
    own.map(|kernel| Ok(CoreStage::new(Arc::clone(&kernel.reference), portion)?)).collect()
}

/// Bytes that stream `number` read, with those that fill up the last block.
fn share_bytes(intake: &Intake, number: usize) -> u64 {
    let share = &intake.shares()[number];
    share.bytes + share.padding
}

/// Compares the `total` bytes that stream `number` gave with `expected`, which says so many bytes from an offset on, one after the
/// other.
fn compare(
    stream: &PlannedStream,
    number: usize,
    expected: &mut dyn FnMut(u64, u64) -> Result<Vec<u8>, Error>,
    total: u64,
    outputs: &Outputs<'_>,
    interrupt: &AtomicBool,
) -> Result<(), Error> {
    let Outputs { folder, kept, ends, .. } = outputs;
    let kept = kept.get(number).map_or(total, |kept| (*kept).min(total));
    let path = folder.join(output_name(&stream.id));
    let wrong = |at| Failure::Wrong { stream: stream.id.clone(), at };
    let mut output = BufReader::new(File::open(&path).map_err(|source| Failure::Read { path: path.clone(), source })?);
    let mut tail = Tail::default();
    let mut offset = 0;
    while offset < total {
        if interrupt.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted.into());
        }
        let until = if offset < kept { kept } else { total };
        let expected = expected(offset, STRIDE.min(until - offset))?;
        if offset >= kept {
            tail.write(&expected);
        } else if let Some(at) = difference(&mut output, &expected, &path)? {
            return Err(wrong(offset + at).into());
        }
        offset += expected.len() as u64;
    }
    if output.read(&mut [0]).map_err(|source| Failure::Read { path: path.clone(), source })? != 0 {
        return Err(wrong(total).into());
    }
    let (expected, found) = (tail.finish(), ends.digests.get(number).map_or(&[][..], Vec::as_slice));
    let differs = (0..expected.len().max(found.len())).find(|&at| expected.get(at) != found.get(at));
    if let Some(at) = differs {
        let first = kept + at as u64 * tail::STRIDE;
        let last = total.min(first + tail::STRIDE) - 1;
        return Err(Failure::WrongTail { stream: stream.id.clone(), first, last }.into());
    }
    Ok(())
}

/// The first byte of `output` that is not the one expected.
fn difference(output: &mut impl Read, expected: &[u8], path: &Path) -> Result<Option<u64>, Error> {
    let mut found = vec![0; expected.len()];
    match output.read_exact(&mut found) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => found.clear(),
        Err(source) => return Err(Failure::Read { path: path.to_owned(), source }.into()),
    }
    if found == expected {
        return Ok(None);
    }
    let differs = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len());
    Ok(Some(differs as u64))
}

/// What the lists of a wafer say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaferCounts {
    /// Lists: generations that came through.
    pub lists: u64,
    /// Defects planted in them.
    pub planted: u64,
    /// Of these, listed with exactly their place and size.
    pub found: u64,
    /// Listed although nothing was planted there.
    pub false_alarms: u64,
    /// The first list that differs from what was planted.
    pub first_wrong: Option<u64>,
}

/// Compares the lists in the file at `path` with what was planted.
///
/// # Errors
/// `ErrorKind::Io`, `ErrorKind::Interrupted`, `ErrorKind::Device` for bytes that are no list.
///
/// # Panics
/// If the stream is not that of a wafer.
pub fn lists(planned: &Sharded, path: &Path, interrupt: &AtomicBool) -> Result<WaferCounts, Error> {
    let cameras = Cameras::of(&planned.parameters).expect("the stream is that of a wafer");
    let ring = WaferRing::new(&cameras).expect("a wafer that was run can be inspected");
    let rows: Vec<Vec<[u32; 5]>> = (0..planned.sharding.ring).map(|row| ring.planted(row)).collect();
    let mut counted = WaferCounts::default();
    results(planned, path, interrupt, |row, list| {
        let (planted, listed) = (&rows[row as usize], listed(list).map_err(Failure::Device)?);
        let found = planted.iter().filter(|defect| listed.binary_search(defect).is_ok()).count();
        counted.planted += planted.len() as u64;
        counted.found += found as u64;
        counted.false_alarms += (listed.len() - found.min(listed.len())) as u64;
        if listed != *planted && counted.first_wrong.is_none() {
            counted.first_wrong = Some(counted.lists);
        }
        counted.lists += 1;
        Ok(())
    })?;
    Ok(counted)
}

/// The first result in the file at `path` that is not what it must be.
fn wrong_result(
    planned: &Sharded,
    items: &dyn Items,
    path: &Path,
    interrupt: &AtomicBool,
) -> Result<Option<u64>, Error> {
    let (mut number, mut wrong) = (0, None);
    results(planned, path, interrupt, |row, result| {
        if wrong.is_none() && !items.is_right(result, row) {
            wrong = Some(number);
        }
        number += 1;
        Ok(())
    })?;
    Ok(wrong)
}

/// Calls `each` with every result in the file at `path`, and with the place in the ring that its packet was sent from.
fn results(
    planned: &Sharded,
    path: &Path,
    interrupt: &AtomicBool,
    mut each: impl FnMut(u32, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let error = |source| Failure::Read { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(error)?);
    let mut result = vec![0; planned.sharding.summary.0 as usize];
    for cycle in 0.. {
        match file.read_exact(&mut result) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(error(e).into()),
        }
        if interrupt.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted.into());
        }
        each(shards::row(planned, cycle), &result)?;
    }
    Ok(())
}

/// What kernels of modules make of a stream, packet by packet.
struct Results<'a> {
    packets: &'a WholePackets,
    intake: &'a Intake,
    /// Each kernel with the size of what it makes.
    stages: Vec<(usize, CoreStage)>,
    /// The packet made last, and what became of it.
    last: Option<(u64, Vec<u8>)>,
}

impl<'a> Results<'a> {
    fn new(
        packets: &'a WholePackets,
        stream: &PlannedStream,
        kernels: &Kernels,
        intake: &'a Intake,
    ) -> Result<Self, Error> {
        let mut stages = Vec::new();
        for kernel in kernels.of_pipeline(stream.pipeline) {
            let made = packets.bytes(kernel.step as usize + 1).0 as usize;
            stages.push((made, CoreStage::new(Arc::clone(&kernel.reference), kernels.portions_of(kernel))?));
        }
        Ok(Self { packets, intake, stages, last: None })
    }

    /// At most `bytes` bytes of all results from `offset` on, of one result.
    fn part(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, Error> {
        let (packet, result) = (self.packets.packet().0, self.packets.result().0);
        let number = offset / result;
        if self.last.as_ref().is_none_or(|(last, _)| *last != number) {
            let mut data = vec![0; packet as usize];
            self.intake.read(self.packets.stream as usize, number * packet, &mut data)?;
            for (made, stage) in &mut self.stages {
                let mut next = vec![0; *made];
                stage.run(&data, &mut next)?;
                data = next;
            }
            self.last = Some((number, data));
        }
        let made = self.last.as_ref().map_or(&[][..], |(_, made)| made.as_slice());
        let from = (offset % result) as usize;
        let until = made.len().min(from + bytes as usize);
        Ok(made[from..until].to_vec())
    }
}

/// What the kernels make of a stream whose packets have parts, packet by packet.
struct Packets<'a> {
    parted: &'a Parted,
    stream: &'a PlannedStream,
    intake: &'a Intake,
    /// Of each part.
    stages: Vec<Vec<CoreStage>>,
    /// Bytes of the stream.
    total: u64,
    /// The first byte that is not made yet.
    at: u64,
    /// Made and not asked for.
    ready: VecDeque<u8>,
}

impl<'a> Packets<'a> {
    fn new(
        parted: &'a Parted,
        stream: &'a PlannedStream,
        kernels: &Kernels,
        intake: &'a Intake,
    ) -> Result<Self, Error> {
        let mut stages: Vec<Vec<CoreStage>> = parted.parts.iter().map(|_| Vec::new()).collect();
        for kernel in kernels.of_pipeline(stream.pipeline) {
            let portions = kernels.portions_of(kernel);
            stages[portions[0].item as usize].push(CoreStage::new(Arc::clone(&kernel.reference), portions)?);
        }
        let share = &intake.shares()[parted.stream as usize];
        let (total, at) = (share.bytes + share.padding, 0);
        Ok(Self { parted, stream, intake, stages, total, at, ready: VecDeque::new() })
    }

    /// The next `bytes` bytes.
    fn next(&mut self, bytes: u64) -> Result<Vec<u8>, Error> {
        while (self.ready.len() as u64) < bytes && self.at < self.total {
            for (part, stages) in self.stages.iter_mut().enumerate() {
                let from = (self.at + self.parted.offset(part)).min(self.total);
                let len = self.parted.parts[part].0.min(self.total - from);
                if len > 0 {
                    self.ready.extend(reference(self.intake, self.parted.stream as usize, from, len, stages)?);
                }
            }
            self.at += self.stream.packet.0;
        }
        let bytes = (bytes as usize).min(self.ready.len());
        Ok(self.ready.drain(..bytes).collect())
    }
}

/// What the kernels make of `bytes` bytes of a stream from `offset` on.
fn reference(
    intake: &Intake,
    stream: usize,
    offset: u64,
    bytes: u64,
    stages: &mut [CoreStage],
) -> Result<Vec<u8>, Error> {
    let size = block::block_bytes([bytes]).0 as usize;
    let mut data = vec![0; size];
    block::write_header(&mut data, 0, &[bytes]).expect("a block of one stride fits its own size");
    let portion = block::header_bytes(1)..block::header_bytes(1) + bytes as usize;
    intake.read(stream, offset, &mut data[portion.clone()])?;
    for stage in stages {
        let mut next = vec![0; size];
        stage.run(&data, &mut next)?;
        data = next;
    }
    Ok(data[portion].to_vec())
}
