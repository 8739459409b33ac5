//! What the host gives while no engine is at work: what its CPUs make of memory, which staged copies over several links are to be
//! seen beside, and how late they wake up, which is when a staged copy begins.

use std::hint::{black_box, spin_loop};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use headway_core::models::transfer::{BackgroundLoad, Direction, HostMemory, Method, Stores};
use headway_core::units::Nanos;
use headway_os::memory::{self, Mapping};
use headway_os::{affinity, clock, copy};
use headway_runtime::copy::How;

use super::Bench;
use super::results::HOST;
use super::{methods, results::BenchRow};
use crate::Error;
use crate::copy_timer::CopySpec;
use crate::sample::{Effort, SampleFigures};

/// What each CPU goes through, all of them together at most, and the memory that each copies to, over and over, as staging buffers
/// are.
const EACH: usize = 64 << 20;
const TOTAL: usize = 4 << 30;
const BUFFER: usize = 2 << 20;
/// What it copies at a time.
const PART: usize = 512 << 10;

/// How long a thread has slept when it is woken.
const IDLE: [Nanos; 3] = [Nanos(50_000), Nanos(2_000_000), Nanos(20_000_000)];
const WAKE_UPS: Effort = Effort { warm_up: 1, n_min: 30, n_max: 100, time: Nanos(20_000_000) };

/// What CPUs do.
#[derive(Clone, Copy)]
enum Work {
    Read,
    Copy(Stores),
}

impl Work {
    const ALL: [Self; 3] = [Self::Read, Self::Copy(Stores::Plain), Self::Copy(Stores::Demoted)];

    fn name(self, cpus: usize) -> String {
        match self {
            Self::Read => format!("read by {cpus} CPUs"),
            Self::Copy(stores) => format!("copied by {cpus} CPUs {stores}"),
        }
    }

    /// Goes through `from`.
    fn make(self, to: &mut [u8], from: &[u8]) {
        match self {
            Self::Read => {
                black_box(
                    from.iter().step_by(copy::LINE_BYTES).fold(0, |sum: u64, byte| sum.wrapping_add(u64::from(*byte))),
                );
            }
            Self::Copy(stores) => {
                for (number, from) in from.chunks(PART).enumerate() {
                    let at = number * PART % to.len();
                    copy::copy(&mut to[at..at + from.len()], from, stores);
                }
            }
        }
    }
}

impl Bench<'_, '_> {
    /// Every kind of work by a quarter, half, three quarters and all but one of the CPUs, each with memory of its own.
    pub(super) fn host(&mut self) -> Result<(), Error> {
        let cpus = affinity::allowed().map_or(1, |cpus| cpus.len());
        let most = cpus.saturating_sub(1).max(1);
        let mut counts = [cpus / 4, cpus / 2, cpus * 3 / 4, most].map(|count| count.clamp(1, most)).to_vec();
        counts.dedup();
        let each = EACH.min(TOTAL / most).min(self.bytes_max()).next_multiple_of(PART);
        let mut source = Mapping::anonymous(most * each)?;
        let mut buffers = Mapping::anonymous(most * BUFFER)?;
        memory::touch(&mut source, most);
        memory::touch(&mut buffers, most);
        let effort = Effort { warm_up: 1, n_min: 5, n_max: 20, time: Nanos(20_000_000) };
        self.session.phase("host", Work::ALL.len() * counts.len());
        for work in Work::ALL {
            for &cpus in &counts {
                let figures =
                    self.session.series(HOST, effort, |_| Ok(concurrent(work, cpus, each, &mut buffers, &source)))?;
                self.keep(&work.name(cpus), cpus * each, figures);
                self.session.advance()?;
            }
        }
        self.wake_ups()
    }

    /// How long it takes until a thread that has slept for some time runs.
    fn wake_ups(&mut self) -> Result<(), Error> {
        for idle in IDLE {
            let figures = sleeper(|wake| self.session.series(HOST, WAKE_UPS, |_| Ok(wake(idle))))?;
            self.keep(&format!("wake-up of a thread that slept for {idle}"), 0, figures);
        }
        Ok(())
    }

    /// Nothing is copied to a GPU: of a row of ordinary memory on its way only the host's half is left.
    fn keep(&mut self, name: &str, bytes: usize, figures: SampleFigures) {
        let how = How::By(Method::Staged);
        let spec = CopySpec { how, direction: Direction::H2d, memory: HostMemory::Touched, bytes, window: None };
        let row = methods::row(HOST, name, &spec, BackgroundLoad::Alone, None, None).with(figures);
        self.rows.push(BenchRow { gpus: 0, ..row });
    }
}

/// `body` with a thread that it can let sleep for so long and wake, and that says how long it took to run.
fn sleeper<R>(body: impl FnOnce(&mut dyn FnMut(Nanos) -> Nanos) -> R) -> R {
    // The number of the last wake-up, 0 to end, and when the thread ran then.
    let (number, ran) = (AtomicU64::new(1), AtomicU64::new(0));
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut seen = 1;
            loop {
                let now = number.load(Ordering::Acquire);
                if now == 0 {
                    return;
                }
                if now == seen {
                    thread::park();
                } else {
                    seen = now;
                    ran.store(clock::now().0, Ordering::Release);
                }
            }
        });
        let _end = End(&number, sleeper.thread());
        body(&mut |idle| {
            ran.store(0, Ordering::Release);
            let until = clock::now() + idle;
            while clock::now() < until {
                spin_loop();
            }
            let woken = clock::now();
            number.fetch_add(1, Ordering::AcqRel);
            sleeper.thread().unpark();
            loop {
                match ran.load(Ordering::Acquire) {
                    0 => thread::yield_now(),
                    ran => return Nanos(ran).saturating_sub(woken),
                }
            }
        })
    })
}

/// Ends the thread of [`sleeper`], after a panic too: else its scope would wait for ever.
struct End<'a>(&'a AtomicU64, &'a thread::Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        self.1.unpark();
    }
}

/// How long `cpus` threads take that begin together, each with `each` bytes.
fn concurrent(work: Work, cpus: usize, each: usize, buffers: &mut [u8], source: &[u8]) -> Nanos {
    let barrier = Barrier::new(cpus + 1);
    thread::scope(|scope| {
        let parts = buffers.chunks_mut(BUFFER).zip(source.chunks(each)).take(cpus);
        let threads: Vec<_> = parts
            .map(|(to, from)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    work.make(to, from);
                    clock::now()
                })
            })
            .collect();
        barrier.wait();
        let began = clock::now();
        let ends =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ends.max().map_or(Nanos::ZERO, |end| end.saturating_sub(began))
    })
}

/// Of the rows of the host that begin with `what`, "copied" or "read", that with the most bytes per second.
pub(super) fn fastest<'r>(rows: &'r [BenchRow], what: &str) -> Option<&'r BenchRow> {
    rows.iter().filter(|row| row.part == HOST && row.method.starts_with(what)).max_by_key(|row| row.rate())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_is_woken_every_time() {
        let woken = sleeper(|wake| (0..20).map(|_| wake(Nanos(1_000))).filter(|took| *took > Nanos::ZERO).count());
        assert_eq!(woken, 20);
    }

    #[test]
    fn names_are_one_column_of_a_table() {
        assert!(Work::ALL.iter().all(|work| !work.name(7).contains([',', '|'])));
    }

    #[test]
    fn every_byte_of_every_part_is_copied_into_the_buffer() {
        let source: Vec<u8> = (0..5 * PART + 192).map(|at| (at / 64) as u8).collect();
        let mut buffers = vec![0; 2 * BUFFER];
        for work in [Work::Copy(Stores::Plain), Work::Copy(Stores::Demoted)] {
            buffers.fill(0xA5);
            concurrent(work, 1, source.len(), &mut buffers, &source);
            let (first, second) = buffers.split_at(BUFFER);
            // The fifth part and the rest overwrite the first two.
            assert_eq!(first[..PART], source[4 * PART..5 * PART]);
            assert_eq!(first[PART..PART + 192], source[5 * PART..]);
            assert_eq!(first[PART + 192..], source[PART + 192..4 * PART]);
            assert!(second.iter().all(|byte| *byte == 0xA5), "one CPU, one buffer");
        }
    }
}
