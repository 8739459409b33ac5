//! Rates and set-up times of a node, from measured sets, chunk series and curves, put into its machine.

use std::sync::Arc;

use headway_core::machine::{Machine, Method};
use headway_core::transfer::{Direction, HostMemory, Key, Load, Profile, Way};
use headway_core::units::{Bytes, Nanos, Rate};
use headway_device::port::Port;

use super::node::part;
use super::sample::rate;
use super::session::Session;
use super::sets::{self, Member, Pace, Set};
use crate::Error;

/// Sizes of the chunks whose times give the set-up.
const CHUNKS: [usize; 4] = [256 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Slowest rate that a machine file can hold.
const RATE_MIN: u64 = 1_000_000;

/// Set-up times of one GPU and direction: on an idle engine, and behind another operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) gpu: usize,
    pub(crate) direction: Direction,
    pub(crate) idle: Nanos,
    pub(crate) queued: Nanos,
}

/// Measures series of chunks with one and with two in flight, against the rate of `pace`'s large copies: what a chunk takes
/// longer is its set-up; the largest of all sizes counts.
pub(crate) fn setups(session: &mut Session<'_>, ports: &[Arc<dyn Port>], pace: Pace) -> Result<Vec<Setup>, Error> {
    let mut found = Vec::new();
    let chunks: Vec<usize> = CHUNKS.into_iter().filter(|chunk| *chunk < pace.chunk).collect();
    session.phase("set-up", ports.len() * 2);
    for (gpu, port) in ports.iter().enumerate() {
        for (direction, member) in [(Direction::H2d, Member::H2d(0)), (Direction::D2h, Member::D2h(0))] {
            let set = Set { name: format!("gpu{gpu} {direction} chunks"), members: vec![member] };
            let port = std::slice::from_ref(port);
            let full = session.step(&format!("rate gpu{gpu} {direction}"), |_| median(port, &set, pace))?;
            let mut longest = [Nanos::ZERO; 2];
            for &chunk in &chunks {
                for (at, in_flight) in [1, 2].into_iter().enumerate() {
                    let pace = Pace { chunk, in_flight, ..pace };
                    let key = format!("chunks gpu{gpu} {direction} {chunk} {in_flight}");
                    let found = session.step(&key, |_| median(port, &set, pace))?;
                    let (bytes, full) = (Bytes(chunk as u64), Rate(full));
                    let more = Rate(found).time_for(bytes).saturating_sub(full.time_for(bytes));
                    longest[at] = longest[at].max(more);
                }
            }
            let [idle, queued] = longest;
            found.push(Setup { gpu, direction, idle, queued: queued.min(idle) });
            session.advance()?;
        }
    }
    Ok(found)
}

/// The median rate of the only member of `set` over the repetitions of `pace`.
fn median(ports: &[Arc<dyn Port>], set: &Set, pace: Pace) -> Result<u64, Error> {
    let mut rates = Vec::new();
    for _ in 0..pace.repeats {
        rates.extend(sets::alone(ports, set, pace)?);
    }
    rates.sort_unstable();
    Ok(rates[rates.len() / 2].max(RATE_MIN))
}

/// Puts what the curves say of the driver's copies of ordinary memory, and of small peer copies, into links and routes.
pub(crate) fn put_curves(machine: &mut Machine, profile: &Profile) {
    let gpus: Vec<_> = machine.gpus().collect();
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let mut total_in = 0u64;
    for (gpu, &id) in gpus.iter().enumerate() {
        for direction in [Direction::H2d, Direction::D2h] {
            let key = |active| Key {
                gpu: id,
                peer: None,
                way: Way::of(Method::Pageable),
                direction,
                memory: HostMemory::Warm,
                load: Load::Alone,
                active,
                pieces: 1,
            };
            let Some(curve) = profile.curves.get(&key(1)) else { continue };
            let of = |point: &headway_core::transfer::Point| rate(point.bytes, point.median).max(RATE_MIN);
            // Below this size it is set-up that counts.
            let long: Vec<_> = curve.points().iter().filter(|point| point.bytes.0 >= 4 << 20).collect();
            let Some(last) = curve.points().last() else { continue };
            let fast = long.iter().map(|point| of(point)).max().unwrap_or_else(|| of(last));
            let slow = long.iter().map(|point| of(point)).min().unwrap_or(fast);
            let name = part(gpu, if direction == Direction::H2d { "driver-in" } else { "driver-out" });
            put_rate(machine, &name, fast, slow);
            let small = curve.points().iter().filter(|point| (4 << 10..=16 << 20).contains(&point.bytes.0));
            let setup = small.map(|point| point.median.saturating_sub(Rate(slow).time_for(point.bytes))).max();
            let engine = part(gpu, direction.word());
            for route in machine.routes.iter_mut().filter(|route| route.method == Method::Pageable) {
                if route.engines.iter().any(|engine_id| machine.engines[engine_id.at()].id == engine) {
                    (route.setup, route.setup_queued) = (setup.unwrap_or_default(), setup.unwrap_or_default());
                }
            }
            if direction == Direction::H2d {
                let many = profile.curves.get(&key(count)).and_then(|curve| curve.points().last());
                total_in = total_in.saturating_add(many.map_or(fast, of));
            }
        }
    }
    if total_in > 0 {
        put_rate(machine, "driver.in", total_in, total_in);
    }
    for route in machine.routes.iter_mut().filter(|route| route.method == Method::Peer) {
        let curve = profile.curves.iter().find(|(key, _)| (key.gpu, key.peer) == (route.from, Some(route.to)));
        let Some((_, curve)) = curve else { continue };
        let link = route.uses.iter().map(|(id, _)| machine.capacities[id.at()].rate).min();
        let Some(link) = link else { continue };
        let small = curve.points().iter().filter(|point| point.bytes.0 <= 1 << 20);
        let setup =
            small.map(|point| point.median.saturating_sub(link.time_for(point.bytes))).max().unwrap_or_default();
        (route.setup, route.setup_queued) = (setup, setup);
    }
}

fn put_rate(machine: &mut Machine, link: &str, rate: u64, rate_low: u64) {
    if let Some(capacity) = machine.capacities.iter_mut().find(|capacity| capacity.id == link) {
        (capacity.rate, capacity.rate_low) = (Rate(rate), Rate(rate_low.min(rate)));
    }
}
