//! Many small copies as one.

use std::collections::BTreeSet;

use headway_core::models::transfer::{Direction, Method};
use headway_core::units::{Bytes, Nanos};
use headway_device::Buffer;
use headway_device::gpu::{Mover, Piece};
use headway_os::clock;
use headway_runtime::copy::{At, How, ManyBy};

use super::{DIRECTIONS, STRICT, keep, outcome, strictly_faster};
use crate::Error;
use crate::reproduce::bench::{Bench, Samples, gb_per_s, random, same, samples};
use crate::reproduce::{ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, raw_figures, said};
use headway_measure::plot::{Figure, PlotLine, TO_P99};

/// Every way in which many pieces go.
const MANY: [(&str, ManyBy); 6] = [
    ("loop", ManyBy::Queue(Mover::Loop)),
    ("batch", ManyBy::Queue(Mover::Batch)),
    ("kernel", ManyBy::Queue(Mover::Kernel { blocks: 64 })),
    ("gather", ManyBy::Gather),
    ("window", ManyBy::Window),
    ("resident", ManyBy::Resident),
];

/// Room for the pieces at most; of the largest point, which is 1 GiB of pieces, and of all others.
const ROOM_MAX: (usize, usize) = (2 << 30, 256 << 20);
/// Methods that are timed at the largest point: one after the other, the driver's batch, and one copy of all.
const LARGEST: [&str; 3] = ["loop", "batch", "gather"];

/// So many pieces of one size, one direction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Point {
    size: usize,
    count: usize,
    direction: Direction,
    word: &'static str,
}

/// The memory of a point.
struct Memory {
    data: Vec<u8>,
    /// Zeros with the pieces in place.
    expected: Vec<u8>,
    there: Buffer,
    pieces: Vec<Piece>,
}

impl Memory {
    /// Pieces stand a piece apart on both sides, in opposite order.
    fn new(bench: &Bench, seed: u64, Point { size, count, .. }: Point) -> Result<Self, Error> {
        let room = 2 * size * count;
        let piece = |at| Piece { from: 2 * size * at, to: 2 * size * (count - 1 - at), len: size };
        let pieces: Vec<_> = (0..count).map(piece).collect();
        let (data, mut expected) = (random(seed, room), vec![0; room]);
        for Piece { from, to, len } in &pieces {
            expected[*to..to + len].copy_from_slice(&data[*from..from + len]);
        }
        Ok(Self { data, expected, there: bench.mapped(room)?, pieces })
    }
}

#[derive(Clone, Copy)]
struct Effort {
    n_min: u32,
    /// How long samples are taken at least.
    time: Nanos,
    /// A method whose first copy takes longer is left out.
    patience: Nanos,
}

/// What one method gave at one point.
struct Timed {
    point: Point,
    name: &'static str,
    samples: Samples,
}

#[derive(Default)]
struct Study {
    timed: Vec<Timed>,
    /// Methods that were left out somewhere, and why.
    skipped: BTreeSet<String>,
}

impl Study {
    /// Times one method and checks every byte; a method that is refused or far too slow is noted.
    fn method(
        &mut self,
        bench: &Bench,
        memory: &Memory,
        point: Point,
        (name, by): (&'static str, ManyBy),
        effort: Effort,
    ) -> Result<(), Error> {
        let room = memory.data.len();
        let inwards = point.direction == Direction::H2d;
        let (mut host, mut before) =
            if inwards { (memory.data.clone(), vec![0; room]) } else { (vec![0; room], memory.data.clone()) };
        bench.time(Direction::H2d, &memory.there, &mut before, How::By(Method::Pageable))?;
        let device = At { buffer: &memory.there, offset: 0 };
        let mut once = || {
            let before = clock::now();
            if inwards {
                bench.copier.copy_many_in(device, &host, &memory.pieces, Some(by))
            } else {
                bench.copier.copy_many_out(&mut host, device, &memory.pieces, Some(by))
            }?;
            Ok(clock::now() - before)
        };
        let samples = match once() {
            Ok(first) if first > effort.patience => {
                let (size, count) = (point.size, point.count);
                self.skipped.insert(format!("{name} at {count} x {size} B {}: one copy takes {first}", point.word));
                return Ok(());
            }
            Ok(first) => Samples { first, ..samples(effort.n_min, effort.time, &mut once)? },
            Err(Error::Headway(headway::Failure::Copy(error))) => {
                self.skipped.insert(format!("{name}: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if inwards {
            bench.verify(name, &memory.there, &memory.expected)?;
        } else {
            same(name, &host, &memory.expected)?;
        }
        self.timed.push(Timed { point, name, samples });
        Ok(())
    }

    /// The best method against one copy after the other.
    fn row(&self, point: Point) -> Option<PaperRow> {
        let at_point = || self.timed.iter().filter(|timed| timed.point == point);
        let each = at_point().find(|timed| timed.name == "loop")?.samples.figures;
        let others = at_point().filter(|timed| timed.name != "loop");
        let best = others.min_by_key(|timed| timed.samples.figures.median)?;
        let figures = best.samples.figures;
        let ratio = each.median.0 as f64 / figures.median.0.max(1) as f64;
        let verdict = match point.count {
            1 => PaperVerdict::NotComparable,
            _ => PaperVerdict::own(strictly_faster(figures, each)),
        };
        Some(PaperRow {
            what: format!("{} x {} B {}", point.count, point.size, point.word),
            paper: said("4", "many smaller transfers in one large transfer give better results; no figures"),
            ours: format!("{} {} against {} one by one: {ratio:.1} times", best.name, figures.median, each.median),
            verdict,
            why: verdict.why(
                format!("the paper has no figure; the best method of many against one by one: {STRICT}"),
                if point.count == 1 {
                    "one piece is no batch".to_owned()
                } else {
                    format!("{STRICT}; they overlap, or one by one is faster: pieces of this size fill the link by themselves")
                },
            ),
        })
    }

    fn table(&self) -> RawFigures {
        raw_figures!("batch", &self.timed, |Timed { point, name, samples }| Columns {
            method: name,
            direction: point.word,
            piece_bytes: point.size,
            pieces: point.count,
            ..Samples(samples)
        })
    }

    /// Rates of pieces of one size, one direction.
    fn figure(&self, size: usize, (direction, word): (Direction, &str), source: &str) -> (String, Figure) {
        let rate = |timed: &Timed| gb_per_s(Bytes((size * timed.point.count) as u64), timed.samples.figures.median);
        let slow = |timed: &Timed| gb_per_s(Bytes((size * timed.point.count) as u64), timed.samples.figures.p99);
        let line = |(name, _): (&str, ManyBy)| {
            let own = || {
                let same =
                    |timed: &&Timed| (timed.name, timed.point.size, timed.point.direction) == (name, size, direction);
                self.timed.iter().filter(same)
            };
            let points = own().map(|timed| (timed.point.count as f64, rate(timed))).collect();
            PlotLine::new(name, points)
                .bars(own().map(|timed| (timed.point.count as f64, slow(timed), rate(timed))).collect())
        };
        let title = format!("pieces of {size} B, {word}, median");
        let lines = MANY.into_iter().map(line).collect();
        let figure = Figure::new(title, source, ["pieces", "GB/s"], lines).bars(TO_P99);
        (format!("batch-{word}-{size}"), figure)
    }
}

/// Many small copies as one.
pub(in crate::reproduce) fn batch(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let bench = Bench::open(setting)?;
    let sizes: &[usize] = if setting.quick { &[64, 4096] } else { &[64, 512, 4096, 16_384, 65_536] };
    let counts: &[usize] = if setting.quick { &[1, 16] } else { &[1, 16, 64, 256, 2048, 8192, 16_384] };
    // The few copies of a quick run are all timed, however slow the machine is.
    let effort = if setting.quick {
        Effort { n_min: 5, time: Nanos(5_000_000), patience: Nanos(u64::MAX) }
    } else {
        Effort { n_min: 5, time: Nanos(60_000_000), patience: Nanos(3_000_000_000) }
    };
    let is_largest = |size: usize, count: usize| 2 * size * count > ROOM_MAX.1;
    let fits = |size: usize, count: usize| !is_largest(size, count) || 2 * size * count == ROOM_MAX.0;
    let (mut study, mut rows) = (Study::default(), Vec::new());
    for &size in sizes {
        for &count in counts.iter().filter(|count| fits(size, **count)) {
            for (direction, word) in DIRECTIONS {
                let point = Point { size, count, direction, word };
                let memory = Memory::new(&bench, setting.seed, point)?;
                for method in MANY.into_iter().filter(|(name, _)| !is_largest(size, count) || LARGEST.contains(name)) {
                    study.method(&bench, &memory, point, method, effort)?;
                }
                rows.extend(study.row(point));
            }
            keep(setting, "patil-batch", &bench, study.table());
        }
    }
    let mut outcome = outcome("patil-batch", bench, setting);
    outcome.rows = rows;
    outcome.notes.extend(study.skipped.iter().map(|text| format!("Not used: {text}")));
    for &size in sizes {
        outcome.figures.extend(DIRECTIONS.map(|direction| study.figure(size, direction, outcome.source)));
    }
    outcome.tables.push(study.table());
    Ok(outcome)
}
