//! Figure II.1 on devices: unequal blocks at once over something that they share, in chunks whose ends show their rates.
//!
//! The node is measured first, unless a machine file is given. Then every set of transfers that, by what was measured, takes
//! more than a shared link or limit carries is run: both directions of one GPU, and as many GPUs in, out and both ways as are
//! needed to fill a limit.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use headway_core::files::machine::{CapacityKind, Machine};
use headway_core::interconnect::fit::FitError;
use headway_core::interconnect::{BatchBlock, BatchCompletion, Network, Scratch};
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::Gpu;

use super::outcome;
use crate::Error;
use crate::reproduce::{ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, raw_figures, said};
use headway::run::Backend;
use headway::{gpus, stamp};
use headway_measure::batches::{BatchTiming, Bed, Routes, TrialBlock};
use headway_measure::interconnect::{Scope, calibrate};
use headway_measure::node;
use headway_measure::plot::{Figure, PlotLine};
use headway_measure::session::Session;
use headway_measure::sets::{SetMemory, SetTransfer};

/// Chunks of the longest block, and bytes of one; queues take 64 at a time.
const CHUNKS: usize = 48;
const CHUNK: usize = 16 << 20;
const CHUNK_QUICK: usize = 256 << 10;
/// Repetitions; the curve is that of the median one.
const REPEATS: usize = 9;
/// A rate is that of so many chunks in a row.
const WINDOW: usize = 4;
/// The median end of the longest block is as predicted up to this, in percent.
const CLOSE: f64 = 3.0;

/// One set of unequal blocks.
struct Scene {
    name: String,
    /// Transfers with their chunks, the longest first.
    members: Vec<(SetTransfer, usize)>,
}

/// What a scene gave.
struct Shown {
    predicted: BatchCompletion,
    /// The chunks in the order of submission, by position of their transfer.
    chunks: Vec<usize>,
    /// The repetition with the median end.
    took: BatchTiming,
    ends: Vec<Nanos>,
}

/// The experiment on emulated GPUs or GPUs.
pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let backend = if setting.backend == Backend::Emu { gpus::CopyBackend::Emu } else { gpus::CopyBackend::Cuda };
    let gpus = gpus::open(backend, setting.machine.as_deref().filter(|_| setting.backend == Backend::Emu), None)?;
    let source = gpus.first().map_or("emu", |gpu| gpu.description().source.label());
    let chunk = if setting.quick { CHUNK_QUICK } else { CHUNK };
    // Chunks of one block lie behind each other in the arena, which holds three times the largest copy.
    let room = SetMemory::of(chunk * CHUNKS / 3 + chunk);
    let machine = match setting.machine.as_deref().filter(|_| backend == gpus::CopyBackend::Cuda) {
        Some(name) => headway::machine::restrict(&headway::machine::open(name)?, gpus.len())?,
        None => measured(setting, backend, &gpus, room)?,
    };
    let mut bed = Bed::new(&gpus, room)?;
    let (mut rows, mut notes, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    let mut chunks = RawFigures::default();
    for scene in scenes(&machine, gpus.len())? {
        match show(&machine, &mut bed, &scene, chunk) {
            Ok(shown) => {
                rows.extend(judge(&scene, &shown, source == "cuda"));
                chunks.add(table(&scene, &shown, chunk));
                figures.push((scene.name.replace(' ', "-"), figure(&scene, &shown, chunk, source)));
            }
            Err(error) => notes.push(format!("{} ended early: {error}", scene.name)),
        }
    }
    let described = gpus.iter().map(|gpu| gpu.description().name.clone()).collect::<Vec<_>>().join(", ");
    let mut outcome = outcome("verner-fig2.1", described, setting, rows);
    notes.push(format!(
        "Blocks of {} and less, in chunks of {}, all submitted at once by one thread; rates over {WINDOW} chunks. Predicted with \
         {}; the figure's own values are not available.",
        Bytes((chunk * CHUNKS) as u64),
        Bytes(chunk as u64),
        machine.description
    ));
    (outcome.source, outcome.notes, outcome.tables, outcome.figures) = (source, notes, vec![chunks], figures);
    Ok(outcome)
}

fn measured(
    setting: &ExperimentSetting,
    backend: gpus::CopyBackend,
    gpus: &[Arc<dyn Gpu>],
    room: SetMemory,
) -> Result<Machine, Error> {
    let model = setting.machine.as_deref();
    let mut device = gpus::device(backend, model.filter(|_| backend == gpus::CopyBackend::Emu))?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let stamp = stamp::stamp(gpus, node::date(seconds));
    let (stop, mut ignore) = (AtomicBool::new(false), |_| ());
    let mut session = Session::new(None, None, &stop, &mut ignore);
    let largest = if setting.quick { CHUNK_QUICK } else { room.largest.min(64 << 20) };
    let scope = Scope::brief(gpus.len(), largest, Nanos::ZERO);
    Ok(calibrate(&mut session, gpus, &mut device, &scope, ("node", &stamp))?.0)
}

/// Members of a scene for a number of GPUs.
type Members = fn(usize) -> Vec<SetTransfer>;

/// Both directions of the first GPU, then for each kind the fewest GPUs that fill a limit which several share.
fn scenes(machine: &Machine, gpus: usize) -> Result<Vec<Scene>, Error> {
    let both = |gpu: usize| [SetTransfer::H2d(gpu), SetTransfer::D2h(gpu)];
    let mut scenes = vec![scene("in and out of one GPU".to_owned(), both(0).to_vec())];
    let kinds: [(&str, Members); 3] = [
        ("into", |gpus| (0..gpus).map(SetTransfer::H2d).collect()),
        ("out of", |gpus| (0..gpus).map(SetTransfer::D2h).collect()),
        ("in and out of", |gpus| (0..gpus).flat_map(|gpu| [SetTransfer::H2d(gpu), SetTransfer::D2h(gpu)]).collect()),
    ];
    let (network, routes, mut scratch) = (Network::new(machine), Routes::of(machine), Scratch::new());
    for (kind, members) in kinds {
        for count in 2..=gpus {
            let routes: Vec<_> =
                members(count).into_iter().map(|member| routes.route(member)).collect::<Result<_, _>>()?;
            let shares = network.allocate(&routes, &mut scratch).map_err(FitError::from)?;
            if shares.iter().any(|share| machine.capacities[share.limited_by.at()].kind == CapacityKind::Limit) {
                scenes.push(scene(format!("{kind} {count} GPUs"), members(count)));
                break;
            }
        }
    }
    Ok(scenes)
}

/// The first block is the longest, the last one has half of it.
fn scene(name: String, members: Vec<SetTransfer>) -> Scene {
    let steps = (members.len() - 1).max(1);
    let chunks = |at: usize| CHUNKS - CHUNKS / 2 * at / steps;
    Scene { name, members: members.into_iter().enumerate().map(|(at, member)| (member, chunks(at))).collect() }
}

fn show(machine: &Machine, bed: &mut Bed, scene: &Scene, chunk: usize) -> Result<Shown, Error> {
    // Turn by turn, so that every queue has work early.
    let turns = (0..CHUNKS).flat_map(|turn| {
        let has = move |(_, (_, chunks)): &(usize, &(SetTransfer, usize))| turn < *chunks;
        scene.members.iter().enumerate().filter(has).map(|(at, _)| at)
    });
    let chunks: Vec<usize> = turns.collect();
    let blocks: Vec<TrialBlock> =
        chunks.iter().map(|at| TrialBlock { member: scene.members[*at].0, bytes: chunk }).collect();
    let order: Vec<BatchBlock> = Routes::of(machine).order(&blocks)?;
    let predicted = Network::new(machine).completion(&order).map_err(FitError::from)?;
    let mut all = bed.repeat(&blocks, REPEATS)?;
    let end = |took: &BatchTiming| took.ends.iter().copied().max().unwrap_or_default();
    all.sort_by_key(end);
    let ends = all.iter().map(end).collect();
    Ok(Shown { predicted, chunks, took: all.swap_remove(REPEATS / 2), ends })
}

impl Shown {
    /// Ends of the chunks of one transfer.
    fn ends_of(&self, member: usize, ends: &[Nanos]) -> Vec<Nanos> {
        self.chunks.iter().zip(ends).filter(|(at, _)| **at == member).map(|(_, end)| *end).collect()
    }

    /// Middle of a window of chunks, in ms, and the rate over it, in GB/s.
    fn curve(&self, member: usize, ends: &[Nanos], chunk: usize) -> Vec<(f64, f64)> {
        let ends = self.ends_of(member, ends);
        let rate = |pair: &[Nanos]| {
            let time = (pair[WINDOW] - pair[0]).0.max(1) as f64;
            ((pair[0].0 + pair[WINDOW].0) as f64 / 2e6, (chunk * WINDOW) as f64 / time)
        };
        ends.windows(WINDOW + 1).map(rate).collect()
    }
}

/// What the whole set did, and what the longest block gained when the others had ended.
fn judge(scene: &Scene, shown: &Shown, is_gpu: bool) -> Vec<PaperRow> {
    let verdict = |holds: bool| if is_gpu { PaperVerdict::own(holds) } else { PaperVerdict::NotComparable };
    let Shown { predicted, took, ends, .. } = shown;
    let measured = ends[ends.len() / 2];
    let off = (measured.0 as f64 / predicted.finish.0.max(1) as f64 - 1.0) * 100.0;
    let mut rows = vec![PaperRow {
        what: format!("{}: time of all blocks", scene.name),
        paper: said("II-C", "an accurate prediction by a separate work, whose error is not stated"),
        ours: format!(
            "predicted {}, median {measured} of {} ({} to {}): {off:+.2} %",
            predicted.finish,
            ends.len(),
            ends[0],
            ends[ends.len() - 1]
        ),
        verdict: verdict(off.abs() <= CLOSE),
        why: format!(
            "the median must be within {CLOSE} % of the prediction; emulated devices are not judged, since their rates are chosen"
        ),
    }];
    let change = |all: &[Nanos]| {
        let longest = shown.ends_of(0, all);
        let shortest = shown.ends_of(scene.members.len() - 1, all).last().copied().unwrap_or_default();
        let others = (1..scene.members.len()).filter_map(|at| shown.ends_of(at, all).last().copied()).max()?;
        // The first chunks begin one after the other: they tell little.
        let concurrent: Vec<Nanos> = longest.iter().copied().filter(|end| *end <= shortest).skip(1).collect();
        let alone: Vec<Nanos> = longest.into_iter().filter(|end| *end > others).collect();
        let each = |ends: &[Nanos]| {
            let (first, last) = (ends.first()?, ends.last()?);
            (ends.len() > 2).then(|| (ends.len() - 1) as f64 / (last.0 - first.0).max(1) as f64)
        };
        Some(each(&alone)? / each(&concurrent)?)
    };
    let found = change(&predicted.blocks).zip(change(&took.ends));
    rows.push(PaperRow {
        what: format!("{}: the longest block once it is alone", scene.name),
        paper: said("II-A", "the aggregate bandwidth decreases when the shorter transfer completes"),
        ours: found.map_or_else(
            || "it was not alone for long enough".to_owned(),
            |(predicted, measured)| format!("{measured:.3} times its rate beside the others, predicted {predicted:.3}"),
        ),
        verdict: found.map_or(PaperVerdict::NotComparable, |(predicted, measured)| {
            verdict((measured / predicted - 1.0).abs() * 100.0 <= CLOSE)
        }),
        why: format!(
            "the change of rate must be within {CLOSE} % of the predicted one, for at least three chunks alone"
        ),
    });
    rows
}

fn name(member: SetTransfer) -> String {
    match member {
        SetTransfer::H2d(gpu) => format!("into gpu{gpu}"),
        SetTransfer::D2h(gpu) => format!("out of gpu{gpu}"),
        SetTransfer::Peer(from, to) => format!("gpu{from} to gpu{to}"),
    }
}

fn table(scene: &Scene, shown: &Shown, chunk: usize) -> RawFigures {
    let mut numbers = vec![0usize; scene.members.len()];
    let chunks = shown.chunks.iter().zip(shown.predicted.blocks.iter().zip(&shown.took.ends));
    let mut number = |at: usize| {
        numbers[at] += 1;
        numbers[at]
    };
    raw_figures!("chunks", chunks, |(at, (predicted, measured))| Columns {
        scene: scene.name,
        transfer: name(scene.members[*at].0),
        chunk: number(*at),
        bytes: chunk,
        predicted_ns: predicted,
        measured_ns: measured,
    })
}

fn figure(scene: &Scene, shown: &Shown, chunk: usize, source: &str) -> Figure {
    let mut lines = Vec::new();
    for (at, (member, _)) in scene.members.iter().enumerate() {
        for (what, ends) in [("predicted", &shown.predicted.blocks), ("measured", &shown.took.ends)] {
            lines.push(PlotLine::new(format!("{}, {what}", name(*member)), shown.curve(at, ends, chunk)));
        }
    }
    Figure::new(format!("Figure II.1: {}", scene.name), source, ["ms", "GB/s"], lines)
}
