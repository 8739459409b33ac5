//! Table II: copies and kernels at the same time.

use std::ops::Range;
use std::sync::Arc;

use headway_core::units::Nanos;
use headway_device::gpu::{Operation, Queue};
use headway_device::work::Argument;
use headway_device::{Access, Buffer};
use headway_kernels::study::Elementwise;
use headway_os::clock;

use super::{MIB, effort, keep, line, outcome};
use crate::Error;
use crate::plot::{Figure, Line};
use crate::reproduce::bench::{Bench, random, same, samples, submit};
use crate::reproduce::{Outcome, Row, Setting, Table, Verdict};

/// MB, sequential and overlapped, ms.
const PAPER: [(usize, f64, f64); 6] = [
    (16, 3.027, 1.972),
    (64, 12.96, 10.20),
    (128, 26.05, 20.38),
    (256, 52.19, 40.72),
    (512, 91.72, 60.43),
    (1024, 208.40, 163.23),
];

/// Queues of the device that are used at most.
const QUEUES: usize = 16;

/// In which order the steps of all segments are issued. A step is issued when the one before it in its segment has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overlap {
    /// Each segment by itself: copy in, kernel, copy out.
    Segments,
    /// All copies in, then all kernels, then all copies out.
    Steps,
}

/// The arrays of the overlap experiment.
struct Arrays {
    pinned: Buffer,
    there: Buffer,
    bytes: usize,
}

impl Arrays {
    fn copy(&self, queue: &mut Box<dyn Queue>, inwards: bool, range: Range<usize>) -> Result<(), Error> {
        let (from, to) = if inwards { (&self.pinned, &self.there) } else { (&self.there, &self.pinned) };
        let from = from.claim(range.clone(), Access::Read)?;
        let to = to.claim(range, Access::Write)?;
        submit(queue, Operation::Copy { from, to }, 0)
    }

    fn launch(&self, queue: &mut Box<dyn Queue>, range: Range<usize>) -> Result<(), Error> {
        let words = (range.len() / 4) as u32;
        let memory = self.there.claim(range, Access::Write)?;
        let arguments = vec![Argument::Memory(memory), Argument::Int(words as i32)];
        submit(queue, Operation::Launch { work: Arc::new(Elementwise), grid: Elementwise::grid(words), arguments }, 0)
    }

    /// Puts `data` where the copies in begin.
    fn fill(&self, data: &[u8]) -> Result<(), Error> {
        let mut span = self.pinned.claim(0..data.len(), Access::Write)?;
        span.bytes_mut()?.copy_from_slice(data);
        Ok(())
    }

    /// Whether the copies out brought `expected`.
    fn check(&self, what: &str, expected: &[u8]) -> Result<(), Error> {
        let span = self.pinned.claim(0..expected.len(), Access::Read)?;
        same(what, span.bytes()?, expected)
    }
}

/// One pass over the arrays: segment `at` goes through queue `at % queues.len()`.
fn overlapped(arrays: &Arrays, queues: &mut [Box<dyn Queue>], how: Overlap, segments: usize) -> Result<Nanos, Error> {
    let size = (arrays.bytes / segments).next_multiple_of(4);
    let range = |at: usize| (at * size).min(arrays.bytes)..((at + 1) * size).min(arrays.bytes);
    // Steps issued and steps ended of each segment, steps issued of all, and what each queue works on.
    let (mut issued, mut ended, mut started) = (vec![0; segments], vec![0; segments], [0; 3]);
    let mut running: Vec<Option<usize>> = vec![None; queues.len()];
    let before = clock::now();
    let until = before.saturating_add(Nanos(60_000_000_000));
    while ended.iter().any(|steps| *steps < 3) {
        for queue in 0..queues.len() {
            if let Some(at) = running[queue] {
                let Some(done) = queues[queue].poll() else { continue };
                done.result?;
                ended[at] += 1;
                running[queue] = None;
            }
            let may = |at: &usize| {
                let step: usize = issued[*at];
                step < 3
                    && ended[*at] == step
                    && (how == Overlap::Segments || step == 0 || started[step - 1] == segments)
            };
            let Some(at) = (queue..segments).step_by(queues.len()).find(may) else { continue };
            match issued[at] {
                0 => arrays.copy(&mut queues[queue], true, range(at))?,
                1 => arrays.launch(&mut queues[queue], range(at))?,
                _ => arrays.copy(&mut queues[queue], false, range(at))?,
            }
            started[issued[at]] += 1;
            issued[at] += 1;
            running[queue] = Some(at);
        }
        if clock::now() > until {
            return Err(headway::Error::Options("the device does not end its work; give it up").into());
        }
    }
    Ok(clock::now() - before)
}

/// Whether overlap shortens our run at least as much as it shortens the paper's run of the same size. `share` is ours, in
/// percent of the sequential time.
fn against((_, before, after): &(usize, f64, f64), share: f64) -> Verdict {
    Verdict::figure(share <= 100.0 * after / before)
}

/// The best of each version at one size.
struct Found {
    mib: usize,
    sequential: Nanos,
    /// Median and number of queues of the best of version 1 and of version 2.
    best: [(Nanos, usize); 2],
    chunked: Nanos,
}

impl Found {
    /// `time` in percent of the sequential one.
    fn share(&self, time: Nanos) -> f64 {
        100.0 * time.0 as f64 / self.sequential.0.max(1) as f64
    }

    fn shares(&self) -> [f64; 3] {
        [self.best[0].0, self.best[1].0, self.chunked].map(|time| self.share(time))
    }

    fn row(&self) -> Row {
        let paper = PAPER.iter().find(|(size, ..)| *size == self.mib);
        let claim = |(_, before, after): &(usize, f64, f64)| {
            format!("{before:.2} -> {after:.2} ms: {:.1} % of sequential", 100.0 * after / before)
        };
        let [first, second, chunked] = self.shares();
        Row {
            what: format!("{} MiB", self.mib),
            paper: paper.map_or_else(|| "not stated".into(), claim),
            ours: format!(
                "sequential {:.3} ms; version 1 {first:.1} % (S = {}), version 2 {second:.1} % (S = {}), chunks of ours \
                 {chunked:.1} %",
                self.sequential.0 as f64 / 1e6,
                self.best[0].1,
                self.best[1].1,
            ),
            verdict: paper.map_or(Verdict::NotComparable, |paper| against(paper, first.min(second))),
        }
    }
}

/// What the sizes share.
struct Study<'a> {
    setting: &'a Setting,
    arrays: Arrays,
    queues: Vec<Box<dyn Queue>>,
    data: Vec<u8>,
    /// The data after the kernel.
    expected: Vec<u8>,
    lines: Vec<Vec<String>>,
}

impl<'a> Study<'a> {
    fn new(bench: &Bench, setting: &'a Setting, most: usize) -> Result<Self, Error> {
        let gpu = bench.gpu()?;
        let queues = (0..QUEUES).map(|_| gpu.queue(false)).collect::<Result<_, _>>()?;
        let arrays = Arrays { pinned: bench.pinned(most)?, there: bench.device(most)?, bytes: most };
        let data = random(setting.seed, most);
        let mut expected = data.clone();
        for word in expected.as_chunks_mut::<4>().0 {
            *word = u32::from_le_bytes(*word).wrapping_mul(3).wrapping_add(1).to_le_bytes();
        }
        Ok(Self { setting, arrays, queues, data, expected, lines: Vec::new() })
    }

    /// The median of passes over the arrays; every result is checked.
    fn time(&mut self, name: &str, how: Overlap, queues: usize, segments: usize) -> Result<Nanos, Error> {
        let (n_min, time) = effort(self.setting);
        let bytes = self.arrays.bytes;
        let samples = samples(n_min.min(10), Nanos(time.0 / 2), || {
            self.arrays.fill(&self.data[..bytes])?;
            let time = overlapped(&self.arrays, &mut self.queues[..queues], how, segments)?;
            self.arrays.check(name, &self.expected[..bytes])?;
            Ok(time)
        })?;
        let situation = [name.to_owned(), queues.to_string(), segments.to_string(), bytes.to_string()];
        self.lines.push(line(situation, samples));
        Ok(samples.figures.median)
    }

    fn size(&mut self, mib: usize) -> Result<Found, Error> {
        self.arrays.bytes = mib * MIB;
        let sequential = self.time("sequential", Overlap::Segments, 1, 1)?;
        let counts = if self.setting.quick { &[2, 4][..] } else { &[2, 4, 8, QUEUES] };
        let mut best = [(Nanos::MAX, 0); 2];
        for &count in counts {
            for (version, how) in [Overlap::Segments, Overlap::Steps].into_iter().enumerate() {
                let name = ["version 1", "version 2"][version];
                best[version] = best[version].min((self.time(name, how, count, count)?, count));
            }
        }
        // Ours: chunks of 8 MiB on eight queues, whatever the size.
        let chunked = self.time("chunked", Overlap::Segments, 8, (mib / 8).max(8))?;
        Ok(Found { mib, sequential, best, chunked })
    }
}

/// Table II: copies and kernels at the same time.
pub(in crate::reproduce) fn table_2(setting: &Setting) -> Result<Outcome, Error> {
    let bench = Bench::open(setting)?;
    let sizes = if setting.quick { &[1, 4][..] } else { &[16, 64, 128, 256, 512, 1024] };
    let mut study = Study::new(&bench, setting, sizes.iter().max().map_or(0, |mib| mib * MIB))?;
    let mut found: Vec<Found> = Vec::new();
    for &mib in sizes {
        found.push(study.size(mib)?);
        keep(setting, "patil-table2", &bench, table(study.lines.clone()));
    }
    let lines = study.lines;
    let mut outcome = outcome("patil-table2", bench, setting);
    outcome.rows = found.iter().map(Found::row).collect();
    outcome.notes.push(
        "Each size is compared with the paper's Table II: overlap must shorten our run at least as much (lower is better). Which version \
         and how many CUDA streams the paper reports is not stated; both are run with S in the table. Arrays pinned, an \
         element-wise kernel in place, every result checked."
            .into(),
    );
    let plotted = |(at, name): (usize, &str)| {
        Line::new(name, found.iter().map(|size| (size.mib as f64, size.shares()[at])).collect())
    };
    let plotted = ["version 1", "version 2", "chunks"].into_iter().enumerate().map(plotted).collect();
    let plot = Figure::new("overlapped over sequential", outcome.source, ["MiB", "time, %"], plotted);
    outcome.figures.push(("table2".into(), plot));
    outcome.tables.push(table(lines));
    Ok(outcome)
}

fn table(lines: Vec<Vec<String>>) -> Table {
    let columns = vec!["version", "lanes", "segments", "bytes", "n", "first_ns", "median_ns", "p99_ns", "max_ns"];
    Table { name: "table2".into(), columns, lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_compared_with_the_paper_s_figures_for_it() {
        // 3.027 -> 1.972 ms is 65.1 %. 78 % is what other sizes of the paper need.
        assert_eq!(against(&PAPER[0], 65.0), Verdict::Reproduced);
        assert_eq!(against(&PAPER[0], 78.0), Verdict::NotReproduced);
        assert_eq!(against(&PAPER[1], 78.0), Verdict::Reproduced);
    }
}
