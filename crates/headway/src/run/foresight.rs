//! What a run will take of this computer, said before it takes it.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headway_core::log::{LogHeader, RunSource};
use headway_core::plan::{self, block};
use headway_core::units::{Bytes, Nanos};
use headway_device::Work;
use headway_device::work::Portion;
use headway_runtime::cores::CoreStage;
use headway_runtime::kernels::Kernels;

use crate::{Error, Failure};

/// Memory that a record takes until summary, trace and page are written, about: measured on runs of messages and of streams.
const RECORD: u128 = 200;

/// Records of a run, about: of each cycle that its data is there, that its time has come and that it is delivered; of each
/// operation that it begins and that it ends; of each packet what became of it.
fn records(header: &LogHeader) -> u128 {
    let of_pipelines = header.plan.pipelines.iter().zip(&header.cycles).map(|(pipeline, &cycles)| {
        // Endless transfers end with the last window of the others, and not with their number of cycles.
        let counted = pipeline.source.is_planned() || matches!(pipeline.source, plan::PipelineSource::Bulk(Some(_)));
        let operations: usize = pipeline.steps.iter().map(|step| step.operations.len()).sum();
        if counted { u128::from(cycles) * (3 + 2 * operations as u128) } else { 0 }
    });
    let packets = header.streams.iter().map(|stream| u128::from(stream.packets));
    of_pipelines.chain(packets).sum()
}

/// Refuses a run of length `span` whose records would take more than half of the memory that is `available`.
pub(super) fn fits(header: &LogHeader, span: Nanos, available: Bytes) -> Result<(), Error> {
    let records = records(header);
    let (needed, most) = (records * RECORD, u128::from(available.0 / 2));
    if needed <= most {
        return Ok(());
    }
    let longest = Nanos(u64::try_from(u128::from(span.0) * most / needed).unwrap_or(u64::MAX));
    // Whole seconds read better, where there are some.
    let longest = if longest.0 > 1_000_000_000 { Nanos(longest.0 / 1_000_000_000 * 1_000_000_000) } else { longest };
    let needed = Bytes(u64::try_from(needed).unwrap_or(u64::MAX));
    Err(Failure::TooLong { span, records, needed, available, longest }.into())
}

/// Memory that programs can still take, as the kernel estimates it; `None` where it does not say.
pub(super) fn available() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kilobytes.saturating_mul(1024)))
}

/// How long one CPU of this computer works for the copies and kernels of a run, with the bytes of the kernels.
pub(super) struct Labour {
    copied: Nanos,
    moved: u128,
    computed: Nanos,
    bytes: u128,
}

/// Bytes that a rate is measured with.
const SAMPLE: usize = 64 << 10;

/// Bytes of copies for which a simulation is worth a word, as they take longer than [`PATIENCE`].
const MANY: u128 = 10 << 30;

/// Shortest estimate that is worth a word.
const PATIENCE: Nanos = Nanos(10_000_000_000);

impl Labour {
    /// Measures this computer's rates, some milliseconds for each kernel, and applies them to what the run does.
    pub(super) fn of(header: &LogHeader, kernels: &Kernels) -> Self {
        let mut copied = 0;
        for (pipeline, &cycles) in header.plan.pipelines.iter().zip(&header.cycles) {
            let operations =
                pipeline.steps.iter().flat_map(|step| &step.operations).filter(|_| pipeline.source.is_planned());
            let bytes: u128 = operations
                .filter_map(|operation| match &operation.work {
                    plan::OperationWork::Copy { bytes, .. } => Some(u128::from(bytes.0)),
                    plan::OperationWork::Compute { .. } | plan::OperationWork::Hold => None,
                })
                .sum();
            copied += bytes * u128::from(cycles);
        }
        let mut labour = Self { copied: time(copied, copying()), moved: copied, computed: Nanos::ZERO, bytes: 0 };
        let mut rates = BTreeMap::new();
        for kernel in kernels.all() {
            let is_divided =
                matches!(header.plan.pipelines[kernel.pipeline as usize].source, plan::PipelineSource::Sharded(_));
            let Some(portion) = kernels.portions_of(kernel).first() else { continue };
            // All GPUs together work on the packets that are divided among them.
            if is_divided && kernel.index > 0 {
                continue;
            }
            let rate = *rates.entry(kernel.work.id().to_owned()).or_insert_with(|| rate(&kernel.work, portion));
            let streams = header.plan.streams.iter().zip(&header.streams);
            let of = streams.filter(|(stream, _)| stream.pipeline == kernel.pipeline);
            let bytes: u128 = of.map(|(_, run)| u128::from(run.bytes.0)).sum();
            // What works on other blocks than packed ones is not counted.
            if let Some(rate) = rate {
                labour.computed = labour.computed.saturating_add(time(bytes, rate));
                labour.bytes += bytes;
            }
        }
        labour
    }

    /// What a user should know before the run of length `span` begins on `cpus` CPUs; nothing where it is short and easy.
    pub(super) fn notice(&self, source: RunSource, span: Nanos, cpus: usize) -> Option<String> {
        match source {
            RunSource::Sim if self.computed > PATIENCE => Some(format!(
                "one CPU of this computer computes for about {} what kernels make of {} of streams, and checking takes as long \
                 again, shared by {cpus} CPUs; `--time-only` leaves both out",
                whole(self.computed),
                Bytes(u64::try_from(self.bytes).unwrap_or(u64::MAX))
            )),
            RunSource::Sim if self.moved > MANY => Some(format!(
                "this computer moves {} for the copies and compares what comes out; `--time-only` leaves both out",
                Bytes(u64::try_from(self.moved).unwrap_or(u64::MAX))
            )),
            RunSource::Emu => {
                let needed = self.copied.saturating_add(self.computed);
                let there = u128::from(span.0) * cpus as u128;
                (u128::from(needed.0) * 2 > there && span > Nanos::ZERO).then(|| {
                    format!(
                        "this computer cannot keep up: copies and kernels of {span} would keep one of its CPUs busy for about \
                         {needed}, and it has {cpus}; deadlines that GPUs hold are missed here (`--backend sim` keeps to them)"
                    )
                })
            }
            _ => None,
        }
    }
}

/// A time without what is less than a second.
fn whole(time: Nanos) -> Nanos {
    Nanos(time.0 / 1_000_000_000 * 1_000_000_000)
}

/// How long `bytes` take at `rate` bytes a second.
fn time(bytes: u128, rate: u64) -> Nanos {
    Nanos(u64::try_from(bytes * 1_000_000_000 / u128::from(rate.max(1))).unwrap_or(u64::MAX))
}

/// Bytes a second of the fastest of three goes over `bytes` bytes.
fn fastest(bytes: usize, mut go: impl FnMut()) -> u64 {
    let took = (0..3).map(|_| {
        let since = Instant::now();
        go();
        since.elapsed().max(Duration::from_nanos(1))
    });
    let least = took.min().unwrap_or(Duration::from_secs(1));
    (bytes as f64 / least.as_secs_f64()) as u64
}

fn copying() -> u64 {
    const BYTES: usize = 8 << 20;
    let (from, mut to) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    fastest(BYTES, || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    })
}

/// What the CPU form of a kernel does; `None` if it takes other blocks than packed ones.
fn rate(kernel: &Arc<dyn Work>, portion: &Portion) -> Option<u64> {
    let mut stage = CoreStage::new(Arc::clone(kernel), std::slice::from_ref(portion)).ok()?;
    let mut input = vec![0; block::block_bytes([SAMPLE as u64]).0 as usize];
    block::write_header(&mut input, 0, &[SAMPLE as u64]).ok()?;
    let mut output = vec![0; input.len()];
    stage.run(&input, &mut output).ok()?;
    Some(fastest(SAMPLE, || drop(stage.run(&input, &mut output))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_given_where_a_computer_is_slow_and_not_where_it_is_fast() {
        let second = Nanos(1_000_000_000);
        let labour =
            |seconds: u64| Labour { copied: second, moved: 1 << 30, computed: second * seconds, bytes: 1 << 30 };
        assert_eq!(labour(9).notice(RunSource::Sim, second, 2), None);
        let text = labour(30).notice(RunSource::Sim, second, 2).unwrap();
        assert!(text.contains("about 30 s") && text.contains("`--time-only`"), "{text}");
        let many = Labour { moved: MANY + 1, ..labour(0) }.notice(RunSource::Sim, second, 2).unwrap();
        assert!(many.contains("GB") && many.contains("`--time-only`"), "{many}");
        // Three seconds of work in four seconds of two CPUs are well below one half.
        assert_eq!(labour(2).notice(RunSource::Emu, second * 4, 2), None);
        let text = labour(4).notice(RunSource::Emu, second * 4, 2).unwrap();
        assert!(text.contains("cannot keep up") && text.contains("about 5 s"), "{text}");
        assert_eq!(labour(30).notice(RunSource::Cuda, second, 2), None);
    }
}
