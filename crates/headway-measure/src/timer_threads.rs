//! Copies on several GPUs that begin together, each from a thread of its own that stays from copy to copy: a thread that has just
//! been started pays for its stack and for the driver's first call, and begins late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::rig::{Rig, Shot, Timing};
use crate::Error;

/// Looks for the others before the CPU is offered to them.
const SPINS: u32 = 10_000;

/// What a thread is to do.
#[derive(Clone, Copy)]
enum Order {
    /// Make the copy of this turn, together with the others; this many have begun when all have.
    Shoot(u32, u64),
    /// Compare what the last copy brought.
    Compare,
}

/// A thread for each GPU.
pub struct Volleys {
    hands: Vec<Hand>,
    shots: u64,
}

struct Hand {
    orders: Sender<Order>,
    answers: Receiver<Result<Option<Timing>, Error>>,
}

/// `body` with threads that make `shot` on every one of `rigs`.
pub fn with<R>(rigs: &mut [Rig], shot: &Shot, body: impl FnOnce(&mut Volleys) -> Result<R, Error>) -> Result<R, Error> {
    let begun = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut hands = Vec::new();
        for rig in rigs.iter_mut() {
            let (orders, taken) = channel();
            let (answer, answers) = channel();
            let begun = &begun;
            scope.spawn(move || serve(rig, shot, &taken, &answer, begun));
            hands.push(Hand { orders, answers });
        }
        // The threads end when nobody can give them orders any more.
        body(&mut Volleys { hands, shots: 0 })
    })
}

fn serve(
    rig: &mut Rig,
    shot: &Shot,
    orders: &Receiver<Order>,
    answer: &Sender<Result<Option<Timing>, Error>>,
    begun: &AtomicU64,
) {
    for order in orders {
        let result = match order {
            Order::Shoot(turn, all) => {
                begun.fetch_add(1, Ordering::AcqRel);
                let mut looks = 0u32;
                while begun.load(Ordering::Acquire) < all {
                    looks = looks.saturating_add(1);
                    if looks < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
                }
                rig.shoot(shot, turn).map(Some)
            }
            Order::Compare => rig.compare().map(|()| None),
        };
        if answer.send(result).is_err() {
            return;
        }
    }
}

impl Volleys {
    /// One copy on each GPU; all begin together.
    pub fn shoot(&mut self, turn: u32) -> Result<Vec<Timing>, Error> {
        self.shots += 1;
        let all = self.shots * self.hands.len() as u64;
        Ok(self.order(Order::Shoot(turn, all))?.into_iter().flatten().collect())
    }

    /// Compares what the last copies brought.
    pub fn compare(&mut self) -> Result<(), Error> {
        self.order(Order::Compare).map(drop)
    }

    /// What all answer, the first error if there is one.
    fn order(&self, order: Order) -> Result<Vec<Option<Timing>>, Error> {
        for hand in &self.hands {
            // One that is gone has panicked, which its missing answer shows.
            let _ = hand.orders.send(order);
        }
        let answers: Vec<_> = self
            .hands
            .iter()
            .map(|hand| hand.answers.recv().expect("a thread answers until it has no orders"))
            .collect();
        answers.into_iter().collect()
    }
}
