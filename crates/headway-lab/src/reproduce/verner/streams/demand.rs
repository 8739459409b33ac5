//! The streams that ask to be encrypted: the paper's pool, as streams of packets.

use crate::simulation::verner::load::gathered_bytes;
use crate::simulation::verner::pools::{KINDS, Reading, StreamKind};
use headway_core::files::machine::Machine;
use headway_core::files::workload::{
    CopyEndpoint, Cycle, Grouping, OnMiss, Stream, StreamPlacement, StreamStep, Workload,
};
use headway_core::plan::stream::{Fluid, class_window};
use headway_core::units::Nanos;
use headway_kernels::Cipher;

use super::ExperimentSetting;
use crate::Error;

/// The kernel of the streams.
pub(super) const KERNEL: &str = "aes128-cbc";
/// Cycles from the arrival of a byte to the end of its last step: gather, in, encrypt, out.
pub(super) const CYCLES: u64 = 4;
/// Cycles of a stream on a core of the CPU: gather, encrypt.
pub(super) const CYCLES_ON_CPU: u64 = 2;
/// The pool has as many streams as kernels could encrypt if they were so many times as fast as the machine file says.
const BEYOND: u64 = 4;

/// A sequence of streams.
pub(super) struct Demand {
    kind: StreamKind,
    seed: u64,
    scale: u64,
    deadline_min: Nanos,
    most: Option<usize>,
    streams: Vec<Fluid>,
    /// The sum of the rates of every prefix.
    rates: Vec<u64>,
    /// Streams of the pool that were left out on the way.
    pub(super) left_out: usize,
}

impl Demand {
    /// The pool of workload `number` as `setting` asks for it, with more streams than `machine` can carry.
    pub(super) fn new(setting: &ExperimentSetting, number: u32, machine: &Machine) -> Result<Self, Error> {
        let options = &setting.streams;
        let kind = KINDS.iter().find(|kind| kind.number == number);
        let kind = *kind.ok_or(headway::Failure::Options("the paper's workloads have the numbers 1 to 12"))?;
        let kernel = |gpu| machine.kernel(KERNEL, gpu).map_or(0, |kernel| kernel.rate.0);
        let most: u64 = machine.gpus().map(kernel).sum::<u64>() + machine.cpu_or_assumed().rate(KERNEL).0;
        let bits = most.saturating_mul(8).saturating_mul(BEYOND) / options.rate_scale.max(1);
        let pool = kind.pool(Reading::Truncate, setting.seed, bits);
        let all = pool.len();
        let scaled = |stream: Fluid| Fluid { bits_per_second: stream.bits_per_second * options.rate_scale, ..stream };
        let mut streams: Vec<Fluid> =
            pool.into_iter().filter(|stream| stream.deadline >= options.deadline_min).map(scaled).collect();
        let left_out = all - streams.len();
        streams.truncate(options.streams_max.unwrap_or(usize::MAX));
        if streams.is_empty() {
            return Err(headway::Failure::Options(
                "no stream of the workload has a deadline that long; lower `--deadline-min`",
            )
            .into());
        }
        let mut sum = 0;
        let rates = streams.iter().map(|stream| {
            sum += stream.bits_per_second;
            sum
        });
        let rates = rates.collect();
        let (seed, scale, deadline_min) = (setting.seed, options.rate_scale, options.deadline_min);
        let most = options.streams_max;
        Ok(Self { kind, seed, scale, deadline_min, most, streams, rates, left_out })
    }

    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn number(&self) -> u32 {
        self.kind.number
    }

    /// The workload as the paper writes it.
    pub(super) fn name(&self) -> &'static str {
        self.kind.text
    }

    pub(super) fn text(&self) -> String {
        let scale = if self.scale == 1 { String::new() } else { format!(", rates x{}", self.scale) };
        let most = self.most.map_or_else(String::new, |most| format!(", at most {most} streams"));
        format!(
            "workload {} ({}){scale}, reading A, seed {}, deadlines of at least {}{most}",
            self.kind.number, self.kind.text, self.seed, self.deadline_min
        )
    }

    /// The sum of the rates of the first `count` streams.
    pub(super) fn bits_per_second(&self, count: usize) -> u64 {
        count.checked_sub(1).map_or(0, |last| self.rates[last])
    }

    /// The first `count` streams.
    pub(super) fn streams(&self, count: usize) -> &[Fluid] {
        &self.streams[..count]
    }

    /// The first streams, as many as `on_cpu` is long, or those of them that `part` names, as a workload; `None` if there are
    /// none. A packet of each stream is what its rate brings in a cycle, in whole blocks of the cipher, and counts from the
    /// arrival of its first byte. On the GPUs all have one cycle, on the CPU each that of its class.
    pub(super) fn workload(&self, on_cpu: &[bool], part: PlannedStreams) -> Option<Workload> {
        let count = on_cpu.len();
        let shortest = |inside: bool| {
            let side = self.streams.iter().zip(on_cpu).filter(|(_, on_cpu)| **on_cpu == inside);
            side.map(|(stream, _)| stream.deadline).min().unwrap_or(Nanos::MAX)
        };
        let (on_gpus, on_cores) = (Nanos(shortest(false).0 / CYCLES), Nanos(shortest(true).0 / CYCLES_ON_CPU));
        let stream = |at: usize| {
            let fluid = self.streams[at];
            let (gpu, cycle) = if on_cpu[at] {
                (StreamPlacement::Cpu, class_window(on_cores, Nanos(fluid.deadline.0 / CYCLES_ON_CPU), u32::MAX))
            } else {
                (StreamPlacement::Auto, on_gpus)
            };
            self.stream(at, gpu, cycle)
        };
        let wanted = |at: &usize| match part {
            PlannedStreams::All => true,
            PlannedStreams::Cpu => on_cpu[*at],
            PlannedStreams::Gpus => !on_cpu[*at],
        };
        let streams: Vec<Stream> = (0..count).filter(wanted).map(stream).collect();
        if streams.is_empty() {
            return None;
        }
        let name = format!("aes-{}-seed{}-x{}-{count}", self.kind.number, self.seed, self.scale);
        Some(Workload {
            hash: name.clone(),
            name,
            description: self.text(),
            // Runs have times of their own.
            duration: Nanos(1_000_000_000),
            seed: self.seed,
            cycle: Cycle::Paper,
            grouping: Grouping::Gpu,
            transform: headway_core::plan::combine::CombineEffort::default(),
            streams,
            messages: Vec::new(),
            demands: Vec::new(),
            unplanned: Vec::new(),
            tasks: Vec::new(),
            sharing: None,
        })
    }

    /// A stream with one packet in each `cycle`.
    fn stream(&self, at: usize, gpu: StreamPlacement, cycle: Nanos) -> Stream {
        let fluid = self.streams[at];
        let cipher = Cipher { key: secret(self.seed, 2 * at as u64), iv: secret(self.seed, 2 * at as u64 + 1) };
        Stream {
            id: format!("s{at}"),
            packet: gathered_bytes(fluid.bits_per_second, cycle),
            period: cycle,
            deadline: fluid.deadline,
            start: Nanos::ZERO,
            gpu,
            steps: vec![
                StreamStep::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu },
                StreamStep::Compute { kernel: KERNEL.to_owned() },
                StreamStep::Copy { from: CopyEndpoint::OwnGpu, to: CopyEndpoint::Host },
            ],
            on_miss: OnMiss::Finish,
            parameters: cipher.parameters(),
            sharding: None,
            parts: Vec::new(),
        }
    }
}

/// Which streams of a division are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlannedStreams {
    /// All of them.
    All,
    /// Those on the CPU.
    Cpu,
    /// The others.
    Gpus,
}

/// Sixteen bytes that differ for every seed and number.
fn secret(seed: u64, number: u64) -> [u8; 16] {
    let mixed = |value: u64| {
        let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (value ^ (value >> 32)).to_le_bytes()
    };
    let (first, second) = (mixed(number ^ seed.rotate_left(32)), mixed(!number ^ seed.rotate_left(17)));
    std::array::from_fn(|at| if at < 8 { first[at] } else { second[at - 8] })
}
