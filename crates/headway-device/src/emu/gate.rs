//! Engines of an emulated gpu: one operation at a time, at its pace.

use std::sync::{Condvar, Mutex, PoisonError};

use headway_core::units::{Bytes, Nanos, Rate};
use headway_os::clock;

use crate::buffer::lock;

/// What one operation takes at least: `setup + bytes / rate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationPace {
    /// Time with no byte moving.
    pub setup: Nanos,
    /// Rate; `None` = as fast as the CPU copies.
    pub rate: Option<Rate>,
}

impl OperationPace {
    /// As fast as the CPU copies.
    pub const FREE: Self = Self { setup: Nanos::ZERO, rate: None };

    pub(super) fn time(self, bytes: usize) -> Nanos {
        self.setup.saturating_add(self.rate.map_or(Nanos::ZERO, |rate| rate.time_for(Bytes(bytes as u64))))
    }

    pub(super) fn slower(self, other: Self) -> Self {
        let rate = match (self.rate, other.rate) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Self { setup: self.setup.max(other.setup), rate }
    }
}

/// Serves one at a time, first come, first served.
#[derive(Default)]
pub(super) struct Gate {
    tickets: Mutex<Tickets>,
    freed: Condvar,
}

#[derive(Default)]
struct Tickets {
    next: u64,
    serving: u64,
}

/// The right to a gate, until dropped.
pub(super) struct Turn<'a>(&'a Gate);

impl Gate {
    pub(super) fn enter(&self) -> Turn<'_> {
        let mut tickets = lock(&self.tickets);
        let own = tickets.next;
        tickets.next += 1;
        while tickets.serving != own {
            tickets = self.freed.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.tickets).serving += 1;
        self.0.freed.notify_all();
    }
}

/// Does `body` under `gates`, entered in their order, and keeps them for at least `time`. Whatever stands in `began` was earlier;
/// else it is when the gates were entered.
///
/// A thread that needs two gates must take them in this order: outgoing peer gates come before incoming ones.
pub(super) fn occupy<R>(gates: &[&Gate], time: Nanos, began: &mut Option<Nanos>, body: impl FnOnce() -> R) -> R {
    let _turns: Vec<Turn<'_>> = gates.iter().map(|gate| gate.enter()).collect();
    let started = clock::now();
    began.get_or_insert(started);
    let result = body();
    if time > Nanos::ZERO {
        clock::sleep_until(started.saturating_add(time));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_gate_serves_one_at_a_time() {
        let (gate, inside) = (Gate::default(), AtomicU32::new(0));
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..200 {
                        occupy(&[&gate], Nanos::ZERO, &mut None, || {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
    }

    #[test]
    fn an_operation_keeps_its_gate_for_setup_and_bytes_over_rate() {
        let pace = OperationPace { setup: Nanos(300_000), rate: Some(Rate(64_000_000)) };
        let started = clock::now();
        occupy(&[&Gate::default()], pace.time(64), &mut None, || ());
        assert!(clock::now() >= started.saturating_add(Nanos(301_000)));
        assert_eq!(pace.slower(OperationPace::FREE), pace);
        let slower = OperationPace { setup: Nanos(1), rate: Some(Rate(5)) };
        assert_eq!(pace.slower(slower), OperationPace { setup: Nanos(300_000), rate: Some(Rate(5)) });
    }
}
