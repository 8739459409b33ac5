//! Copies on several GPUs that begin together, each from a thread of its own that stays from copy to copy: a thread that has just
//! been started pays for its stack and for the driver's first call, and begins late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::copy_timer::{CopySpec, CopyTimer, Timing};
use crate::Error;

/// Looks for the others before the CPU is offered to them.
const SPINS: u32 = 10_000;

/// What a thread is to do.
#[derive(Clone, Copy)]
enum Order {
    /// Make the copy of this turn, together with the others; this many have begun when all have.
    Time(u32, u64),
    /// Compare what the last copy brought.
    Compare,
}

/// A thread for each GPU.
pub struct TimerThreads {
    threads: Vec<TimerThread>,
    copies: u64,
}

struct TimerThread {
    orders: Sender<Order>,
    answers: Receiver<Result<Option<Timing>, Error>>,
}

/// `body` with threads that make `spec` on every one of `timers`.
pub fn with<R>(
    timers: &mut [CopyTimer],
    spec: &CopySpec,
    body: impl FnOnce(&mut TimerThreads) -> Result<R, Error>,
) -> Result<R, Error> {
    let begun = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for timer in timers.iter_mut() {
            let (orders, taken) = channel();
            let (answer, answers) = channel();
            let begun = &begun;
            scope.spawn(move || serve(timer, spec, &taken, &answer, begun));
            threads.push(TimerThread { orders, answers });
        }
        // The threads end when nobody can give them orders any more.
        body(&mut TimerThreads { threads, copies: 0 })
    })
}

fn serve(
    timer: &mut CopyTimer,
    spec: &CopySpec,
    orders: &Receiver<Order>,
    answer: &Sender<Result<Option<Timing>, Error>>,
    begun: &AtomicU64,
) {
    for order in orders {
        let result = match order {
            Order::Time(turn, all) => {
                begun.fetch_add(1, Ordering::AcqRel);
                let mut looks = 0u32;
                while begun.load(Ordering::Acquire) < all {
                    looks = looks.saturating_add(1);
                    if looks < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
                }
                timer.time(spec, turn).map(Some)
            }
            Order::Compare => timer.compare().map(|()| None),
        };
        if answer.send(result).is_err() {
            return;
        }
    }
}

impl TimerThreads {
    /// One copy on each GPU; all begin together.
    pub fn time(&mut self, turn: u32) -> Result<Vec<Timing>, Error> {
        self.copies += 1;
        let all = self.copies * self.threads.len() as u64;
        Ok(self.order(Order::Time(turn, all))?.into_iter().flatten().collect())
    }

    /// Compares what the last copies brought.
    pub fn compare(&mut self) -> Result<(), Error> {
        self.order(Order::Compare).map(drop)
    }

    /// What all answer, the first error if there is one.
    fn order(&self, order: Order) -> Result<Vec<Option<Timing>>, Error> {
        for thread in &self.threads {
            // One that is gone has panicked, which its missing answer shows.
            let _ = thread.orders.send(order);
        }
        let answers: Vec<_> = self
            .threads
            .iter()
            .map(|thread| thread.answers.recv().expect("a thread answers until it has no orders"))
            .collect();
        answers.into_iter().collect()
    }
}
