//! A machine as a program has it beside others that copy over the same engines.

use super::{CapacityKind, EndpointId, EngineClass, Machine, RouteId};
use crate::models::transfer::Direction;
use crate::units::{Nanos, Rate};

impl Machine {
    /// The longest for which another process keeps this copy engine before it changes hands, with the margin of the machine; `None` = not
    /// measured. Never a percentile: what was seen at most.
    #[must_use]
    pub fn turn(&self, gpu: EndpointId, direction: Direction) -> Option<Nanos> {
        let wait = self.profile.arbitration.get(&(gpu, direction))?.process?;
        let longest = (wait.max != Nanos::MAX).then_some(wait.max)?;
        Some(self.calibration.as_ref().map_or(longest, |of| of.with_margin(longest)))
    }

    /// The same machine beside `others` processes that copy what they like; `None` where their turns are not measured, and without routes.
    ///
    /// An engine goes round among processes, and each keeps it for at most a turn. A copy waits for a turn of each other process before it
    /// starts, and again for each turn that it takes itself: what takes `T` alone takes at most `T + others (turn + T)`. With others, `-o` and their
    /// number are appended to the hash.
    #[must_use]
    pub fn beside(&self, others: u32) -> Option<Self> {
        if others == 0 {
            return Some(self.clone());
        }
        if self.routes.is_empty() {
            return None;
        }
        let mut machine = Self { others, hash: format!("{}-o{others}", self.hash), ..self.clone() };
        let times = |time: Nanos, factor: u32| Nanos(time.0.saturating_mul(factor.into()));
        let slower = |rate: &mut Rate| rate.0 = (rate.0 / (u64::from(others) + 1)).max(1);
        for (number, route) in (0..).zip(&mut machine.routes) {
            let [out, into] = [(route.from, Direction::D2h), (route.to, Direction::H2d)];
            let turn = match self.class(RouteId(number)) {
                EngineClass::H2d => self.turn(into.0, into.1)?,
                EngineClass::D2h => self.turn(out.0, out.1)?,
                // It has an engine of each GPU.
                _ => self.turn(out.0, out.1)?.saturating_add(self.turn(into.0, into.1)?),
            };
            for setup in [&mut route.setup, &mut route.setup_queued] {
                *setup = times(*setup, others.saturating_add(1)).saturating_add(times(turn, others));
            }
        }
        for capacity in &mut machine.capacities {
            slower(&mut capacity.rate);
            slower(&mut capacity.rate_low);
            if let CapacityKind::Link { opposite: Some((_, rate)), .. } = &mut capacity.kind {
                slower(rate);
            }
        }
        machine.sets.iter_mut().flat_map(|set| &mut set.rates).for_each(slower);
        Some(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::machine::{parse, shipped, write};
    use crate::interconnect::Network;
    use crate::units::Bytes;

    #[test]
    fn a_copy_waits_for_a_turn_of_each_other_process_and_again_for_each_turn_that_it_takes() {
        assert!(shipped("h200-x1").unwrap().beside(1).is_none(), "nobody measured the turns of a shipped machine");
        let mut text = write(&shipped("h200-x1").unwrap(), &[]);
        for direction in ["h2d", "d2h"] {
            text += &format!(
                "\n[[arbitration]]\ndirection = \"{direction}\"\ntime = \"20 ms\"\nwhole = [1073741824, 1000000, 100, 20000000]\n\
                 process = [200, 900000, 1000000, 1100000]\n"
            );
        }
        let machine = parse("h200", &text).unwrap();
        assert_eq!(machine.beside(0).unwrap(), machine);
        let beside = machine.beside(2).unwrap();
        assert_eq!((beside.others, beside.hash), (2, format!("{}-o2", machine.hash)));
        let (host, gpu) = (machine.memories().next().unwrap(), machine.gpus().next().unwrap());
        let route = machine.route(host, gpu).unwrap();
        let time = |of: &Machine| {
            let rate = Network::new(of).guaranteed_rate(route, &[route]).unwrap();
            of.routes[route.at()].setup.saturating_add(rate.time_for(Bytes(64 << 20))).0
        };
        let (alone, others) = (time(&machine), time(&machine.beside(2).unwrap()));
        let turn = machine.turn(gpu, Direction::H2d).unwrap();
        assert!(turn >= Nanos(1_100_000));
        let expected = 3 * alone + 2 * turn.0;
        assert!(others.abs_diff(expected) <= 4, "{others} for {expected}");
    }
}
