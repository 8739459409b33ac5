//! The streams that may run on either: which of them the CPU takes (`verner-2014`, V-B; specification of messages, 6).

use super::{Machine, Nanos, Outcome, Plan, PlanError, PlanOptions, Workload};
use crate::files::workload::{Stream, StreamPlacement};
use crate::plan::Division;
use crate::plan::stream::{Fluid, Margins, Rectangle, SearchReach, search};
use crate::units::{NANOS_PER_SECOND, PPM};

/// Like [`super::best`], with every stream that may run on either given its place.
pub(super) fn best(machine: &Machine, workload: &Workload, options: PlanOptions) -> Result<Plan, PlanError> {
    let either: Vec<usize> =
        (0..workload.streams.len()).filter(|&at| workload.streams[at].gpu == StreamPlacement::Either).collect();
    if either.is_empty() {
        return super::best(machine, workload, options, false);
    }
    let cpu = machine.cpu_or_assumed();
    let known = |stream: &Stream| cpu.cores > 0 && stream.kernels().all(|kernel| cpu.kernel(kernel).is_some());
    // A kernel that the CPU has no cost of runs on GPUs.
    let either: Vec<usize> = either.into_iter().filter(|&at| known(&workload.streams[at])).collect();
    let streams: Vec<Fluid> = either.iter().map(|&at| fluid(&workload.streams[at])).collect();
    let mut plans = 0;
    let found = search(&streams, SearchReach::FULL, |on_cpu| {
        plans += 1;
        Ok::<_, PlanError>(margins(&planned(machine, workload, options, &either, on_cpu)?))
    })?;
    let plan = planned(machine, workload, options, &either, &found.on_cpu)?;
    let Rectangle { deadline, position, bits_per_second } = found.rectangle;
    let tied = |at: &usize| streams[*at].deadline == deadline && found.on_cpu[*at];
    let division = Division {
        deadline,
        ties: (0..position.min(streams.len())).filter(tied).count() as u32,
        bits_per_second,
        on_cpu: found.on_cpu.iter().filter(|on_cpu| **on_cpu).count() as u32,
        of: streams.len() as u32,
        cpu_margin_ppm: found.margins.cpu,
        gpus_margin_ppm: found.margins.gpus,
        tried: plans,
    };
    Ok(Plan { division: Some(division), ..plan })
}

fn planned(
    machine: &Machine,
    workload: &Workload,
    options: PlanOptions,
    either: &[usize],
    on_cpu: &[bool],
) -> Result<Plan, PlanError> {
    let mut placed = workload.clone();
    for stream in placed.streams.iter_mut().filter(|stream| stream.gpu == StreamPlacement::Either) {
        stream.gpu = StreamPlacement::Auto;
    }
    for (&at, _) in either.iter().zip(on_cpu).filter(|(_, on_cpu)| **on_cpu) {
        placed.streams[at].gpu = StreamPlacement::Cpu;
    }
    super::best(machine, &placed, options, false)
}

/// A stream's rate, rounded up, and deadline.
fn fluid(stream: &Stream) -> Fluid {
    let bits = u128::from(stream.packet.0) * 8 * u128::from(NANOS_PER_SECOND);
    let rate = bits.div_ceil(u128::from(stream.period.0.max(1)));
    Fluid { bits_per_second: u64::try_from(rate).unwrap_or(u64::MAX), deadline: stream.deadline }
}

/// The least margins of the cores and of all other servers; 0 where the test could not tell.
#[must_use]
pub fn margins(plan: &Plan) -> Margins {
    let mut margins = Margins { cpu: u64::MAX, gpus: u64::MAX };
    for server in &plan.servers {
        let margin = match (server.verdict.outcome, server.verdict.margin_ppm) {
            (Outcome::Schedulable, margin) => margin.unwrap_or(PPM),
            (Outcome::NotSchedulable, margin) => margin.unwrap_or(0).min(PPM - 1),
            (Outcome::Undecided, _) => 0,
        };
        let on_core = server.engines.first().is_some_and(|engine| plan.core(engine.at()).is_some());
        let least = if on_core { &mut margins.cpu } else { &mut margins.gpus };
        *least = margin.min(*least);
    }
    margins
}

impl Division {
    /// Why streams are on the CPU, in a sentence.
    #[must_use]
    pub fn reason(&self) -> String {
        if self.on_cpu == 0 {
            return format!(
                "none of {} streams on the CPU: no rectangle of short deadlines and low rates gives more margin",
                self.of
            );
        }
        let limit = if self.deadline == Nanos::MAX {
            "any deadline".to_owned()
        } else {
            let ties = if self.ties == 0 { String::new() } else { format!(" (and {} of just this one)", self.ties) };
            format!("deadlines below {}{ties}", self.deadline)
        };
        format!(
            "{} of {} streams on the CPU: those with {limit} and at most {:.3} Mbit/s, since short deadlines would shorten the \
             cycles of the GPUs; the best of {} rectangles, with a margin of x{:.2} on the CPU and x{:.2} beside it",
            self.on_cpu,
            self.of,
            self.bits_per_second as f64 / 1e6,
            self.tried,
            self.cpu_margin_ppm.min(1000 * PPM) as f64 / 1e6,
            self.gpus_margin_ppm.min(1000 * PPM) as f64 / 1e6,
        )
    }
}
