//! The streams that may run on either: which of them the CPU takes (`verner-2014`, V-B; specification of messages, 6).

use std::borrow::Cow;

use super::PlanError;
use crate::files::machine::CpuCores;
use crate::files::workload::{Stream, StreamPlacement, Workload};
use crate::plan::stream::{Fluid, Margins, Rectangle, SearchReach, search};
use crate::plan::{Division, Outcome, Plan};
use crate::units::{NANOS_PER_SECOND, Nanos, PPM};

/// The workload with every stream that may run on either given its place, so that `plan` gives it the greatest margin, and which
/// these are; `None` = there are no such streams.
pub(super) fn place<'w>(
    cpu: &CpuCores,
    workload: &'w Workload,
    mut plan: impl FnMut(&Workload) -> Result<Plan, PlanError>,
) -> Result<(Cow<'w, Workload>, Option<Division>), PlanError> {
    if workload.streams.iter().all(|stream| stream.gpu != StreamPlacement::Either) {
        return Ok((Cow::Borrowed(workload), None));
    }
    // A kernel that the CPU has no cost of runs on GPUs.
    let known = |stream: &Stream| cpu.cores > 0 && stream.kernels().all(|kernel| cpu.kernel(kernel).is_some());
    let may = |stream: &Stream| stream.gpu == StreamPlacement::Either && known(stream);
    let either: Vec<usize> = (0..workload.streams.len()).filter(|&at| may(&workload.streams[at])).collect();
    let streams: Vec<Fluid> = either.iter().map(|&at| fluid(&workload.streams[at])).collect();
    let mut tried = 0;
    let found = search(&streams, SearchReach::FULL, |on_cpu| {
        tried += 1;
        Ok::<_, PlanError>(margins(&plan(&placed(workload, &either, on_cpu))?))
    })?;
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
        tried,
    };
    Ok((Cow::Owned(placed(workload, &either, &found.on_cpu)), Some(division)))
}

fn placed(workload: &Workload, either: &[usize], on_cpu: &[bool]) -> Workload {
    let mut placed = workload.clone();
    for stream in placed.streams.iter_mut().filter(|stream| stream.gpu == StreamPlacement::Either) {
        stream.gpu = StreamPlacement::Auto;
    }
    for (&at, _) in either.iter().zip(on_cpu).filter(|(_, on_cpu)| **on_cpu) {
        placed.streams[at].gpu = StreamPlacement::Cpu;
    }
    placed
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
