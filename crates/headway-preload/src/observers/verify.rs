//! `--verify`: each accelerated copy that is complete when its call returns is made again by the driver, and compared.
//!
//! Copies that may still be under way when the call returns count as not compared. Waiting for them here could block: they may depend on
//! something that the program does only after the call.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_core::files::guest_log::{Became, Difference, Towards, VerifyCounts};
use headway_core::units::Bytes;

use crate::base::attention;
use crate::base::copy::Copy;
use crate::base::driver::{self, Driver, Relaxed, SUCCESS, Status};
use crate::base::pins;
use crate::base::print::print;
use crate::observers::{Accelerated, Event, log, unhooked};

/// What is read back at a time.
const PART: usize = 4 << 20;

static COMPARED: AtomicU64 = AtomicU64::new(0);
static DIFFERENT: AtomicU64 = AtomicU64::new(0);
static NOT_COMPARED: AtomicU64 = AtomicU64::new(0);

static COPIES: OnceLock<Vec<&CStr>> = OnceLock::new();

/// The functions that copy, about which something is said at exit.
pub(super) fn expect(copies: Vec<&'static CStr>) {
    COPIES.get_or_init(|| copies);
}

#[inline(always)]
pub(super) fn take(event: &mut Event<'_>) {
    if let Event::Made(Accelerated { copy, became, is_complete, status }) = event
        && **status == SUCCESS
    {
        match driver::driver().filter(|_| *is_complete) {
            Some(driver) => **status = compare(driver, *copy, *became),
            None => skip(),
        }
    }
}

/// A copy that may not be complete yet.
fn skip() {
    NOT_COMPARED.fetch_add(1, Ordering::Relaxed);
}

/// Compares a copy that is complete, and mends what differs. The answer is the driver's where it made the copy again.
fn compare(driver: &Driver, copy: Copy, became: Became) -> Status {
    let _relaxed = Relaxed::new(driver);
    let mut scratch = Vec::<u8>::new();
    if scratch.try_reserve_exact(PART.min(copy.bytes)).is_err() {
        skip();
        return SUCCESS;
    }
    let mut first = None;
    let mut at = 0;
    while at < copy.bytes {
        let length = PART.min(copy.bytes - at);
        let there = copy.there() + at as u64;
        // SAFETY: the range was looked up when the copy was made; `scratch` has room for as much. Ordinary memory is complete when
        // the call returns.
        let status = unsafe {
            (driver.cuMemcpyDtoHAsync_v2)(scratch.as_mut_ptr().cast(), there, length, driver::handle(copy.stream))
        };
        if status != SUCCESS {
            skip();
            return SUCCESS;
        }
        // SAFETY: the driver has written them.
        unsafe { scratch.set_len(length) };
        let part = &scratch[..];
        let host = copy.host().wrapping_byte_add(at).cast::<u8>();
        // SAFETY: the guest's end of the copy, which it keeps while its call lasts.
        let ours = unsafe { std::slice::from_raw_parts(host, length) };
        // Whole slices are compared by libc, without which a build that is not optimised takes a hundred times as long.
        if part != ours {
            let offset = part.iter().zip(ours).position(|(driver, ours)| driver != ours);
            // Equal now: the guest writes the memory while it is copied.
            first.get_or_insert_with(|| at + offset.unwrap_or(0));
            if copy.towards == Towards::Out {
                // SAFETY: the guest's end of the copy, which it keeps while its call lasts; the driver's own call
                // would write there.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), host, part.len()) };
            }
        }
        at += length;
    }
    COMPARED.fetch_add(1, Ordering::Relaxed);
    first.map_or(SUCCESS, |first| different(driver, copy, became, first))
}

fn different(driver: &Driver, copy: Copy, became: Became, first: usize) -> Status {
    DIFFERENT.fetch_add(1, Ordering::Relaxed);
    let Copy { call, towards, bytes, stream, .. } = copy;
    let (host, there) = (copy.host(), copy.there());
    print(&format!(
        "headway: WRONG: {} of {bytes} bytes between {:#x} and {there:#x} of the GPU, made {}, differs from the driver's from byte \
         {first} on; the driver's bytes are kept\n",
        call.name(),
        host as usize,
        became.name()
    ));
    log::differs(Difference { call, became, bytes: Bytes(bytes as u64), offset: Bytes(first as u64) });
    if towards == Towards::Out {
        return SUCCESS;
    }
    pins::give_up(host, bytes);
    // SAFETY: the guest's copy, in its stream. The driver has read ordinary memory when the call returns.
    unsafe { (driver.cuMemcpyHtoDAsync_v2)(there, host.cast_const().cast::<c_void>(), bytes, driver::handle(stream)) }
}

/// At exit.
pub(super) extern "C" fn finish() {
    if attention::is_off() {
        return;
    }
    let [compared, different, not_compared] =
        [&COMPARED, &DIFFERENT, &NOT_COMPARED].map(|count| count.load(Ordering::Relaxed));
    print(&format!(
        "headway: accelerated copies of process {}: {compared} compared with the driver's, {different} differed, {not_compared} could \
         not be compared\n",
        std::process::id()
    ));
    unhooked::say(COPIES.get().map_or(&[], Vec::as_slice));
    log::verified(VerifyCounts { compared, different, not_compared });
}
