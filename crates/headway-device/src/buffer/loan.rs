//! Memory that a caller lends for one call.

use std::fmt;
use std::io::{self, Write};
use std::ptr::NonNull;
use std::sync::Arc;

use headway_core::units::Nanos;
use headway_os::clock;

use super::{Buffer, Memory, MemoryDomain, MemoryPlace, Reservation};
use crate::graveyard;

/// Turns of a wait for lent memory that only spin.
const LOAN_SPINS: u32 = 1_000;
/// How long a loan may last beyond the call that it was made for before standard error says so.
const LOAN_TOLD_AFTER: Nanos = Nanos(10_000_000_000);
/// How long at most, before the process is ended: far longer than any copy takes, and than the driver takes to notice a fault.
const LOAN_MAX: Nanos = Nanos(600_000_000_000);

/// Lends `memory` to `body` as a buffer that gives claims for reading; `pinned` names the domain it is pinned for.
///
/// Returns, or unwinds, only when the last claim and the last handle are gone: `memory` is only borrowed, so no other way is safe.
/// Meanwhile it asks whether operations that were given up while they used `memory` have ended ([`graveyard`]). If something still holds it ten
/// minutes after `body` has ended, the process is ended with a message: a GPU that neither ends a copy nor fails writes to memory
/// whose owner takes it to be free, or the caller never gets it back.
pub fn lend<R>(memory: &[u8], pinned: Option<MemoryDomain>, body: impl FnOnce(&Buffer) -> R) -> R {
    lend_raw(memory.as_ptr().cast_mut(), memory.len(), pinned, false, body)
}

/// Lends `memory` to `body` as a buffer that gives claims for reading and writing; else as [`lend`].
pub fn lend_mut<R>(memory: &mut [u8], pinned: Option<MemoryDomain>, body: impl FnOnce(&Buffer) -> R) -> R {
    lend_raw(memory.as_mut_ptr(), memory.len(), pinned, true, body)
}

/// For implementations of [`Gpu`](crate::Gpu): lends `memory`, which somebody else frees, to `body` for reading and writing; else as [`lend`].
pub fn lend_memory<R>(memory: impl Memory, reservation: Reservation, body: impl FnOnce(&Buffer) -> R) -> R {
    lend_buffer(Buffer::of(Box::new(memory), Some(reservation), true), body)
}

fn lend_raw<R>(
    base: *mut u8,
    bytes: usize,
    pinned: Option<MemoryDomain>,
    writable: bool,
    body: impl FnOnce(&Buffer) -> R,
) -> R {
    let base = NonNull::new(base).unwrap_or(NonNull::dangling());
    let lent = Lent { base, bytes, place: MemoryPlace::Host { pinned } };
    lend_buffer(Buffer::of(Box::new(lent), None, writable), body)
}

fn lend_buffer<R>(mut buffer: Buffer, body: impl FnOnce(&Buffer) -> R) -> R {
    Arc::get_mut(&mut buffer.shared).expect("nobody else has it yet").is_lent = true;
    let mut loan = Loan(buffer);
    let result = body(&loan.0);
    loan.wait();
    result
}

/// Memory of a caller that waits for [`Loan::wait`] before it uses it again.
struct Lent {
    base: NonNull<u8>,
    bytes: usize,
    place: MemoryPlace,
}

// SAFETY: plain bytes that the lender leaves alone until the loan has ended.
unsafe impl Send for Lent {}
// SAFETY: plain bytes that the lender leaves alone until the loan has ended.
unsafe impl Sync for Lent {}

// SAFETY: the caller's slice is initialised, and borrowed until `Loan::wait` has seen the last handle go; where the slice is
// shared, claims for writing are refused.
unsafe impl Memory for Lent {
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> MemoryPlace {
        self.place
    }
}

/// Ends a loan on every way out.
pub(super) struct Loan(pub(super) Buffer);

impl Loan {
    /// Waits until no other handle and no span is left.
    fn wait(&mut self) {
        self.wait_at_most(LOAN_TOLD_AFTER, LOAN_MAX);
    }

    pub(super) fn wait_at_most(&mut self, report_after: Nanos, bound: Nanos) {
        let (mut tries, mut since, mut reported) = (0u32, None, false);
        // `get_mut` orders what other threads did with the memory before what the lender does next.
        while Arc::get_mut(&mut self.0.shared).is_none() {
            tries = tries.saturating_add(1);
            if tries < LOAN_SPINS {
                std::hint::spin_loop();
                continue;
            }
            graveyard::reap();
            headway_os::sched::yield_now();
            let now = clock::now();
            let waited = now.saturating_sub(*since.get_or_insert(now));
            if waited > report_after && !reported {
                reported = true;
                let _ = writeln!(
                    io::stderr(),
                    "headway: {self} is still in use {waited} after its copy was given up; waiting for at most {bound}"
                );
            }
            if waited > bound && Arc::get_mut(&mut self.0.shared).is_none() {
                // Neither an error nor a panic would do: both give the memory back to somebody who may free it.
                let _ = writeln!(
                    io::stderr(),
                    "headway: {self} was not given back within {bound}; ending the process, which makes the driver let go of it"
                );
                std::process::abort();
            }
        }
    }
}

impl fmt::Display for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lent memory of {} bytes at {:p}", self.0.len(), self.0.shared.memory.base())
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.wait();
    }
}
