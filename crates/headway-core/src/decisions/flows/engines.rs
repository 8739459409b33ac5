//! Copy engines as flows use them, from a machine file.

use serde::{Deserialize, Serialize};

use super::FlowAssumption;
use crate::files::machine::{Calibration, Machine, RouteId};
use crate::interconnect::Network;
use crate::models::cpu::LOST_PPM;
use crate::models::transfer::Direction;
use crate::models::transfer::arbitration::DIRECTIONS;
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM, Rate};

/// No chunk is larger: beyond, even set-ups of a millisecond cost little beside the bytes.
pub const CHUNK_MAX: Bytes = Bytes(64 << 20);
/// Chunks are larger than this part of [`FlowEngine::chunk_max`] only where set-ups cost too much otherwise: what is promised waits for some of them.
const USUAL_PART: u64 = 4;
/// The largest chunk where the set-up is not what limits.
pub const CHUNK_USUAL: Bytes = Bytes(CHUNK_MAX.0 / USUAL_PART);
/// Chunks are no smaller, and multiples of it: below, set-ups cost more than bytes.
pub const CHUNK_MIN: Bytes = Bytes(64 << 10);
/// What threads are late at most where nobody measured it: the jitter of machine files.
const JITTER: Nanos = Nanos(100_000);

/// One copy engine as flows use it: its worst case, margins contained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowEngine {
    pub gpu: u32,
    pub direction: Direction,
    /// Engine time of a chunk with no byte moving.
    pub setup: Nanos,
    /// What the engine keeps while all other copies between this node's host and GPUs run.
    pub rate: Rate,
    /// The most by which threads are late: when a released job asks for the engine, and when they report to the line that a chunk has ended.
    pub jitter: Nanos,
    /// How late they are for each chunk at most, but for what adds up over all promised chunks of a busy period to [`Self::late_once`].
    /// `None` = not measured: each chunk can be late by the whole jitter.
    #[serde(default)]
    pub late_each: Option<Nanos>,
    /// Chunks without a promise that may be on the engine at a time.
    pub unpromised_in_flight: u32,
    /// No chunk is larger, also while there is no flow.
    pub chunk_max: Bytes,
    /// The smallest chunk; all chunks are multiples of it, but for a job's last one.
    pub chunk_min: Bytes,
    pub is_measured: bool,
    /// The longest for which another process keeps the engine before it changes hands; `None` = not measured.
    pub turn: Option<Nanos>,
    /// Other processes whose turns are part of the set-up; `None` = no broker counts them.
    #[serde(default)]
    pub others: Option<u32>,
}

impl FlowEngine {
    /// The longest service time of a chunk of so many bytes, as the line sees it.
    #[must_use]
    pub fn chunk_cost(&self, bytes: Bytes) -> Nanos {
        self.chunk_setup().saturating_add(self.late_once()).saturating_add(self.rate.time_for(bytes))
    }

    /// What each chunk costs beside its bytes.
    pub(super) fn chunk_setup(&self) -> Nanos {
        self.setup.saturating_add(self.jitter.saturating_sub(self.late_once()))
    }

    /// By how much all promised chunks of a busy period together may be later than [`Self::late_each`] lets each be.
    #[must_use]
    pub fn late_once(&self) -> Nanos {
        self.jitter.saturating_sub(self.late_each.unwrap_or(self.jitter))
    }

    /// The engine as a program has it beside `others` processes that copy what they like; `None` where their turns are not measured.
    ///
    /// The engine goes round among processes, and each keeps it for at most a turn. A chunk waits for one turn of each other process before it
    /// starts or, if its own process loses the engine under it, in its middle; and again for each whole turn that it takes itself. So no chunk
    /// takes more than a turn, unless the smallest one does.
    #[must_use]
    pub fn beside(&self, others: u32) -> Option<Self> {
        let (mut waits, mut chunk_max) = (Nanos::ZERO, self.chunk_max);
        if others > 0 {
            let turn = self.turn?.max(Nanos(1));
            let least = self.chunk_min.0.max(1);
            let in_a_turn = u128::from(self.rate.0) * u128::from(turn.0) / u128::from(NANOS_PER_SECOND);
            let in_a_turn = u64::try_from(in_a_turn).unwrap_or(u64::MAX).min(chunk_max.0);
            chunk_max = Bytes(least * (in_a_turn / least).max(1));
            let rounds = self.rate.time_for(chunk_max).0.div_ceil(turn.0);
            waits = Nanos(turn.0.saturating_mul(rounds).saturating_mul(others.into()));
        }
        Some(Self { setup: self.setup.saturating_add(waits), chunk_max, others: Some(others), ..self.clone() })
    }

    /// Chunks are no larger unless set-ups cost too much.
    #[must_use]
    pub(super) fn chunk_usual(&self) -> Bytes {
        Bytes(self.chunk_max.0 / USUAL_PART).max(self.chunk_min).min(self.chunk_max)
    }

    pub(super) fn assumptions(&self) -> Vec<FlowAssumption> {
        let measured = (!self.is_measured).then_some(FlowAssumption::NotMeasured);
        let turn = self.turn;
        let sharing =
            self.others.map_or(FlowAssumption::OnlyHeadway { turn }, |others| FlowAssumption::Turns { others, turn });
        let always = [sharing, FlowAssumption::Threads { jitter: self.jitter, each: self.late_each }];
        measured.into_iter().chain(always).collect()
    }
}

/// The engines between host and GPUs that a machine file knows, GPUs numbered in its order. A GPU that no route of a direction reaches has
/// none there.
///
/// A buffer may lie in any memory of the host: of several routes the worst counts.
#[must_use]
pub fn flow_engines(machine: &Machine, unpromised_in_flight: u32) -> Vec<FlowEngine> {
    let network = Network::new(machine);
    let of = |gpu, direction| {
        let ends = machine
            .memories()
            .map(move |memory| if direction == Direction::H2d { (memory, gpu) } else { (gpu, memory) });
        ends.filter_map(|(from, to)| machine.route(from, to)).collect::<Vec<RouteId>>()
    };
    let busy: Vec<RouteId> =
        machine.gpus().flat_map(|gpu| DIRECTIONS.map(|direction| of(gpu, direction))).flatten().collect();
    let mut engines = Vec::new();
    for (number, gpu) in (0..).zip(machine.gpus()) {
        for direction in DIRECTIONS {
            let routes = of(gpu, direction);
            let setups = routes.iter().map(|route| &machine.routes[route.at()]).map(|of| of.setup.max(of.setup_queued));
            let rate = routes.iter().map(|&route| network.guaranteed_rate(route, &busy).ok()).min().flatten();
            let (Some(setup), Some(rate)) = (setups.max(), rate) else { continue };
            let calibration = machine.calibration.as_ref();
            let watch = calibration.and_then(|of| of.chunk_watch.get(&direction));
            let margin = u128::from(PPM) + u128::from(calibration.map_or(0, |of| of.margin_ppm));
            let longer_bytes = u128::from(PPM) + u128::from(watch.map_or(0, |of| of.slower_ppm));
            let slower = (u128::from(rate.0) * u128::from(PPM) / margin * u128::from(PPM) / longer_bytes) as u64;
            let kept = PPM - watch.map_or(0, |_| LOST_PPM);
            let longer = |time: Nanos| {
                let longer = (u128::from(time.0) * u128::from(PPM)).div_ceil(kept.into());
                u64::try_from(longer).map_or(Nanos::MAX, Nanos)
            };
            // Threads that sleep are later than those that were watched here.
            let together = watch.map_or(Nanos::ZERO, |of| longer(of.each.saturating_add(of.together)));
            engines.push(FlowEngine {
                gpu: number,
                direction,
                setup: longer(calibration.map_or(setup, |of| of.with_margin(setup).saturating_sub(of.jitter))),
                rate: Rate((u128::from(slower) * u128::from(kept) / u128::from(PPM)).max(1) as u64),
                jitter: calibration.map_or(JITTER, |of| of.jitter).max(together),
                late_each: watch.map(|of| longer(of.each)),
                unpromised_in_flight,
                chunk_max: CHUNK_MAX,
                chunk_min: CHUNK_MIN,
                is_measured: calibration.is_some_and(|of| !Calibration::is_vouched(of)),
                turn: machine.turn(gpu, direction),
                others: None,
            });
        }
    }
    engines
}
