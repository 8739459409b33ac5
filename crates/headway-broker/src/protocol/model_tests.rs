//! Every interleaving and every outcome of the memory model that loom explores, for two clients and the broker. The same
//! sources as in the product, over primitives of the model checker.

#[path = "handshake.rs"]
#[expect(clippy::duplicate_mod, reason = "compiled over other primitives")]
mod handshake;
#[path = "lease.rs"]
#[expect(clippy::duplicate_mod, reason = "compiled over other primitives")]
mod lease;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::sync::{Arc, Notify};
use loom::thread;

use self::lease::{Released, Revoked};
use self::sync::{AtomicU64, Ordering};

/// A client that uses the engine if it can get it without asking, and gives it back.
fn use_engine(word: &AtomicU64, engine: &UnsafeCell<u32>, owner: u32) -> Option<Released> {
    let mine = lease::acquire(word, owner)?;
    engine.with_mut(|_| ());
    Some(lease::release(word, mine))
}

#[test]
fn two_threads_of_a_client_never_use_a_leased_engine_at_once() {
    loom::model(|| {
        let word = Arc::new(AtomicU64::new(0));
        let engine = Arc::new(UnsafeCell::new(0));
        lease::lend(&word, 1);
        let other = {
            let (word, engine) = (Arc::clone(&word), Arc::clone(&engine));
            thread::spawn(move || use_engine(&word, &engine, 1))
        };
        let one = use_engine(&word, &engine, 2);
        let two = other.join().unwrap();
        assert!(one.is_some() || two.is_some());
        assert!([one, two].into_iter().flatten().all(|released| released == Released::Kept));
    });
}

#[test]
fn the_next_client_runs_only_after_a_revoked_lease_is_given_back_and_nothing_is_lost() {
    loom::model(|| {
        let (first, second) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let engine = Arc::new(UnsafeCell::new(0));
        lease::lend(&first, 1);
        let holder = {
            let (first, engine) = (Arc::clone(&first), Arc::clone(&engine));
            thread::spawn(move || [use_engine(&first, &engine, 1), use_engine(&first, &engine, 1)])
        };
        let waiter = {
            let (second, engine) = (Arc::clone(&second), Arc::clone(&engine));
            thread::spawn(move || {
                while lease::granted(&second, 2).is_none() {
                    thread::yield_now();
                }
                engine.with_mut(|_| ());
            })
        };
        // The broker.
        let revoked = lease::revoke(&first);
        if let Revoked::Busy { owner, word } = revoked {
            assert_eq!(owner, 1);
            while !lease::is_returned(&first, word) {
                thread::yield_now();
            }
        }
        lease::grant(&second, 1, 2);
        let returned = holder.join().unwrap().into_iter().flatten().filter(|it| *it == Released::Returned).count();
        assert_eq!(returned, usize::from(revoked != Revoked::Free));
        waiter.join().unwrap();
    });
}

#[test]
fn a_lock_taken_from_a_client_that_comes_back_stays_with_the_next_generation() {
    loom::model(|| {
        let word = Arc::new(AtomicU64::new(0));
        let first = lease::grant(&word, 1, 7);
        let late = {
            let word = Arc::clone(&word);
            thread::spawn(move || lease::release(&word, first))
        };
        lease::take_back(&word, 2);
        let second = lease::grant(&word, 3, 7);
        assert_ne!(late.join().unwrap(), Released::Kept);
        assert!(!lease::is_returned(&word, second));
    });
}

/// The publisher and the sleeper meet in `value`; a bell that is rung stays rung.
#[test]
fn a_wake_up_is_never_lost() {
    loom::model(|| {
        let value = Arc::new(AtomicU64::new(0));
        let (asleep, bell) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let publisher = {
            let (value, asleep, bell) = (Arc::clone(&value), Arc::clone(&asleep), Arc::clone(&bell));
            thread::spawn(move || {
                value.store(1, Ordering::Release);
                if handshake::must_wake(|| asleep.load(Ordering::Relaxed)) {
                    bell.store(true, Ordering::Release);
                }
            })
        };
        let idle = || value.load(Ordering::Acquire) == 0;
        let sleeps = handshake::may_sleep(|| asleep.store(true, Ordering::Relaxed), idle);
        publisher.join().unwrap();
        // A sleeper must be woken, or it would sleep for ever.
        assert!(!sleeps || bell.load(Ordering::Acquire));
    });
}

/// A lock that one client holds and another one waits for: two lease words, the broker's answer to the waiting client, and
/// for broker and waiting client whether it sleeps and what wakes it.
struct HandOver {
    holder: AtomicU64,
    waiter: AtomicU64,
    answer: AtomicU64,
    waiter_sleeps: AtomicBool,
    futex: Notify,
    broker_sleeps: AtomicBool,
    bell: Notify,
    engine: UnsafeCell<u32>,
}

impl HandOver {
    fn new() -> Self {
        let (long, flag) = (|| AtomicU64::new(0), || AtomicBool::new(false));
        Self {
            holder: long(),
            waiter: long(),
            answer: long(),
            waiter_sleeps: flag(),
            futex: Notify::new(),
            broker_sleeps: flag(),
            bell: Notify::new(),
            engine: UnsafeCell::new(0),
        }
    }

    fn hold(&self, held: u64) {
        self.engine.with_mut(|_| ());
        assert_eq!(lease::release(&self.holder, held), Released::Returned);
        if handshake::must_wake(|| self.broker_sleeps.load(Ordering::Relaxed)) {
            self.bell.notify();
        }
    }

    fn wait(&self) {
        let is_open = || self.answer.load(Ordering::Acquire) == 0;
        while is_open() {
            if handshake::may_sleep(|| self.waiter_sleeps.store(true, Ordering::Relaxed), is_open) {
                self.futex.wait();
            }
        }
        self.engine.with_mut(|_| ());
        assert_eq!(lease::release(&self.waiter, self.answer.load(Ordering::Acquire)), Released::Returned);
    }

    fn arbitrate(&self, held: u64) {
        let is_idle = || !lease::is_returned(&self.holder, held);
        while is_idle() {
            if handshake::may_sleep(|| self.broker_sleeps.store(true, Ordering::Relaxed), is_idle) {
                self.bell.wait();
            }
        }
        self.answer.store(lease::grant(&self.waiter, 2, 8), Ordering::Release);
        if handshake::must_wake(|| self.waiter_sleeps.load(Ordering::Relaxed)) {
            self.futex.notify();
        }
    }
}

/// A sleeper that is never woken would stand still for ever, which the model checker finds.
#[test]
fn an_engine_handed_over_is_used_by_one_at_a_time_although_broker_and_waiter_may_sleep() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let lock = Arc::new(HandOver::new());
        let held = lease::grant(&lock.holder, 1, 7);
        let (one, two) = (Arc::clone(&lock), Arc::clone(&lock));
        let threads = [thread::spawn(move || one.hold(held)), thread::spawn(move || two.wait())];
        lock.arbitrate(held);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
