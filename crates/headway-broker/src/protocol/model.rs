//! Every interleaving and every outcome of the memory model that loom explores, for two clients and the broker. The same
//! sources as in the product, over primitives of the model checker.

#[path = "handover.rs"]
#[expect(clippy::duplicate_mod, reason = "compiled over other primitives")]
mod handover;
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
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
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
        // Whoever sleeps is called, or would sleep for ever.
        assert!(!sleeps || bell.load(Ordering::Acquire));
    });
}

/// What the broker tells two clients of a lock that one may pass to the other; read-only to them.
struct Told {
    record: [AtomicU64; 2],
    expected: AtomicU64,
}

/// The words of a lock that one client holds and another one waits for.
struct HandOver {
    holder: AtomicU64,
    heir: AtomicU64,
    cell: AtomicU64,
    told: Told,
    /// What the broker answers to the heir: its grant.
    answer: AtomicU64,
    engine: UnsafeCell<u32>,
}

impl HandOver {
    /// The holder `7` has the lock, and `8` is named.
    fn new() -> (Arc<Self>, u64, u64) {
        let zero = || AtomicU64::new(0);
        let told = Told { record: [zero(), zero()], expected: zero() };
        let (holder, heir) = (zero(), zero());
        let this = Self { holder, heir, cell: zero(), told, answer: zero(), engine: UnsafeCell::new(0) };
        let held = lease::grant(&this.holder, 1, 7);
        let promised = lease::promise(&this.heir, 1, 8);
        (Arc::new(this), held, promised)
    }

    fn name(&self, held: u64) -> bool {
        self.told.expected.store(99, Ordering::Release);
        self.told.record[0].store(5, Ordering::Relaxed);
        self.told.record[1].store(99, Ordering::Relaxed);
        lease::name(&self.holder, held)
    }

    /// The holder ends its operation.
    fn give_back(&self, held: u64) -> bool {
        self.engine.with_mut(|_| ());
        loop {
            match lease::release(&self.holder, held) {
                Released::Returned => return false,
                Released::Named => {
                    let record =
                        || (self.told.record[0].load(Ordering::Relaxed), self.told.record[1].load(Ordering::Relaxed));
                    let tell = |cell| (cell == 5).then_some(&self.cell);
                    if handover::pass(&self.holder, held, record, tell) {
                        return true;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The heir's look at whether the lock was passed to it.
    fn look(&self) -> Option<u64> {
        handover::take(&self.cell, || self.told.expected.load(Ordering::Acquire), &self.heir, 8)
    }

    /// The heir waits for the lock, uses it and gives it back.
    fn follow(&self) {
        let mine = self.look().unwrap_or_else(|| {
            loop {
                if let mine @ 1.. = self.answer.load(Ordering::Acquire) {
                    break mine;
                }
                thread::yield_now();
            }
        });
        self.engine.with_mut(|_| ());
        assert_eq!(lease::release(&self.heir, mine), Released::Returned);
    }

    /// The broker has seen that the holder is done: it grants the lock to the heir.
    fn serve_heir(&self, promised: u64) {
        self.told.expected.store(0, Ordering::Release);
        lease::fulfil(&self.heir, promised);
        self.answer.store(promised, Ordering::Release);
    }
}

/// A look at a word; where that is too early, as after the end of the thread that changes it.
fn await_return<T>(word: &AtomicU64, held: u64, thread: thread::JoinHandle<T>) -> Option<thread::JoinHandle<T>> {
    if lease::is_returned(word, held) {
        return Some(thread);
    }
    thread.join().unwrap();
    assert!(lease::is_returned(word, held));
    None
}

fn bounded(check: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 50_000;
    model.check(check);
}

#[test]
fn an_engine_passed_on_is_used_by_one_at_a_time_and_comes_back_to_the_broker() {
    bounded(|| {
        let (lock, held, promised) = HandOver::new();
        let (one, two) = (Arc::clone(&lock), Arc::clone(&lock));
        let holder = thread::spawn(move || one.give_back(held));
        let heir = thread::spawn(move || two.follow());
        let named = lock.name(held);
        let holder = await_return(&lock.holder, held, holder);
        lock.serve_heir(promised);
        await_return(&lock.heir, promised, heir);
        // The next one's turn.
        lock.engine.with_mut(|_| ());
        let was_passed = lease::was_passed(&lock.holder, held);
        assert!(named || !was_passed);
        assert!(holder.is_none_or(|holder| holder.join().unwrap() == was_passed));
    });
}

#[test]
fn an_heir_that_is_called_off_has_the_engine_or_never_gets_it() {
    bounded(|| {
        let (lock, held, promised) = HandOver::new();
        assert!(lock.name(held));
        let (one, two) = (Arc::clone(&lock), Arc::clone(&lock));
        let holder = thread::spawn(move || one.give_back(held));
        // The heir looks once, and then goes with what it has.
        let heir = thread::spawn(move || {
            let mine = two.look()?;
            two.engine.with_mut(|_| ());
            Some(lease::release(&two.heir, mine))
        });
        let called_off = lease::call_off(&lock.holder, held);
        let mut holder = Some(holder);
        if called_off {
            lock.told.expected.store(0, Ordering::Release);
            lease::take_back(&lock.heir, 2);
            holder = holder.and_then(|holder| await_return(&lock.holder, held, holder));
            // The next one's turn: neither of the two is there.
            lock.engine.with_mut(|_| ());
        }
        if let Some(holder) = holder {
            assert_eq!(holder.join().unwrap(), !called_off);
        }
        let taken = heir.join().unwrap();
        assert!(taken.is_none() || !called_off);
        if !called_off {
            lease::fulfil(&lock.heir, promised);
            assert_eq!(lease::is_returned(&lock.heir, promised), taken.is_some());
        }
    });
}

#[test]
fn an_heir_that_is_told_late_takes_nothing_at_its_next_request() {
    bounded(|| {
        let (lock, held, promised) = HandOver::new();
        assert!(lock.name(held));
        let (one, two) = (Arc::clone(&lock), Arc::clone(&lock));
        // It may be slow between passing the lock and telling the heir.
        let holder = thread::spawn(move || one.give_back(held));
        let heir = thread::spawn(move || {
            two.follow();
            // It asks again.
            two.look()
        });
        let holder = await_return(&lock.holder, held, holder);
        lock.serve_heir(promised);
        if lease::is_returned(&lock.heir, promised) {
            // Somebody else holds the lock by now, and is to pass it on by another value.
            lease::promise(&lock.heir, 2, 8);
            lock.told.expected.store(100, Ordering::Release);
        }
        assert_eq!(heir.join().unwrap(), None);
        assert!(holder.is_none_or(|holder| holder.join().unwrap()));
    });
}
