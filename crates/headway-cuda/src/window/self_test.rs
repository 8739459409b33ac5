//! The last step of a probe: every byte through the window, compared by the driver's own copies.

use headway_device::DeviceError;
use headway_device::gpu::Window;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{Missing, Refusal};

/// Sizes that are tried, each way.
const SIZES: [usize; 6] = [1, 63, 64, 65, 4096, (1 << 20) + 3];
/// Bytes before and after that must stay as they are.
const GUARD_BYTES: usize = 128;
/// Where the tried bytes start: not at the start of a line, nor of anything else.
const AT: usize = GUARD_BYTES + 7;
const GUARD: u8 = 0xA5;

/// Memory that a window must have for the test.
pub(crate) const BYTES: usize = AT + SIZES[SIZES.len() - 1] + GUARD_BYTES;

/// The other way to the same memory.
pub(crate) trait Bench {
    fn window(&self) -> &dyn Window;
    /// Writes by another method.
    fn write(&self, at: usize, from: &[u8]) -> Result<(), DeviceError>;
    /// Reads by another method.
    fn read(&self, at: usize, to: &mut [u8]) -> Result<(), DeviceError>;
}

/// Stores and loads every size, and compares.
pub(crate) fn run(bench: &impl Bench) -> Result<(), Refusal> {
    for (round, len) in (1u64..).zip(SIZES) {
        let around = AT - GUARD_BYTES..AT + len + GUARD_BYTES;
        let data = random(round, len);
        bench.write(around.start, &vec![GUARD; around.len()])?;
        // SAFETY: the memory has `BYTES` bytes, and is the test's alone.
        unsafe { bench.window().store(AT, &data) };
        let mut seen = vec![0; around.len()];
        bench.read(around.start, &mut seen)?;
        compare("stored", &data, &seen)?;
        let data = random(!round, len);
        bench.write(AT, &data)?;
        let mut seen = vec![GUARD; around.len()];
        // SAFETY: the memory has `BYTES` bytes, and is the test's alone.
        unsafe { bench.window().load(AT, &mut seen[GUARD_BYTES..GUARD_BYTES + len]) };
        compare("loaded", &data, &seen)?;
    }
    Ok(())
}

/// Compares `seen`, guards included, with `data` between guards.
fn compare(verb: &str, data: &[u8], seen: &[u8]) -> Result<(), Refusal> {
    let guard = std::iter::repeat_n(&GUARD, GUARD_BYTES);
    let expected = guard.clone().chain(data).chain(guard);
    let Some((at, (want, have))) = expected.zip(seen).enumerate().find(|(_, (want, have))| want != have) else {
        return Ok(());
    };
    // A guard before the data has a negative number.
    let at = at as i64 - GUARD_BYTES as i64;
    Err(Refusal::Missing(Missing {
        word: "SelfTestFailed",
        detail: format!("self-test failed at byte {at} of {} {verb}: {have:#04x} instead of {want:#04x}", data.len()),
        remedy: "do not use this window; report the GPU and the driver's version",
    }))
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use headway_core::models::transfer::WindowMapping;

    use super::*;

    /// Plain memory behind both ways, the window with a fault.
    struct Faulty {
        bytes: UnsafeCell<Vec<u8>>,
        store: fn(at: usize, from: &[u8], memory: &mut [u8]),
        load: fn(at: usize, to: &mut [u8], memory: &[u8]),
    }

    // SAFETY: used by one thread.
    unsafe impl Sync for Faulty {}

    // SAFETY: the tests' faults stay within the memory.
    unsafe impl Window for Faulty {
        fn mapping(&self) -> WindowMapping {
            WindowMapping::Vulkan
        }
        unsafe fn store(&self, at: usize, from: &[u8]) {
            // SAFETY: used by one thread, and no reference outlives a call.
            (self.store)(at, from, unsafe { &mut *self.bytes.get() });
        }
        unsafe fn load(&self, at: usize, to: &mut [u8]) {
            // SAFETY: used by one thread, and no reference outlives a call.
            (self.load)(at, to, unsafe { &*self.bytes.get() });
        }
    }

    impl Bench for Faulty {
        fn window(&self) -> &dyn Window {
            self
        }
        fn write(&self, at: usize, from: &[u8]) -> Result<(), DeviceError> {
            // SAFETY: used by one thread, and no reference outlives a call.
            let memory = unsafe { &mut *self.bytes.get() };
            memory[at..at + from.len()].copy_from_slice(from);
            Ok(())
        }
        fn read(&self, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
            // SAFETY: used by one thread, and no reference outlives a call.
            to.copy_from_slice(&unsafe { &*self.bytes.get() }[at..at + to.len()]);
            Ok(())
        }
    }

    fn store(at: usize, from: &[u8], memory: &mut [u8]) {
        memory[at..at + from.len()].copy_from_slice(from);
    }

    fn load(at: usize, to: &mut [u8], memory: &[u8]) {
        to.copy_from_slice(&memory[at..at + to.len()]);
    }

    fn verdict(store: fn(usize, &[u8], &mut [u8]), load: fn(usize, &mut [u8], &[u8])) -> Option<String> {
        let bench = Faulty { bytes: UnsafeCell::new(vec![0; BYTES]), store, load };
        match run(&bench) {
            Ok(()) => None,
            Err(Refusal::Missing(missing)) => Some(missing.detail),
            Err(Refusal::Failed(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn a_sound_window_passes() {
        assert_eq!(verdict(store, load), None);
    }

    #[test]
    fn a_store_that_writes_whole_lines_is_found_by_the_guards() {
        let whole = |at: usize, from: &[u8], memory: &mut [u8]| {
            memory[at + from.len()] = 0;
            store(at, from, memory);
        };
        let text = verdict(whole, load).unwrap();
        assert_eq!(text, "self-test failed at byte 1 of 1 stored: 0x00 instead of 0xa5");
        let before = |at: usize, from: &[u8], memory: &mut [u8]| {
            memory[at - 1] = 0;
            store(at, from, memory);
        };
        assert!(verdict(before, load).unwrap().starts_with("self-test failed at byte -1 of 1 stored"));
    }

    #[test]
    fn a_store_that_loses_its_last_bytes_is_found() {
        let lossy = |at: usize, from: &[u8], memory: &mut [u8]| store(at, &from[..from.len() / 64 * 64], memory);
        assert!(verdict(lossy, load).unwrap().starts_with("self-test failed at byte 0 of 1 stored"));
        let late = |at: usize, from: &[u8], memory: &mut [u8]| store(at, &from[..from.len().min(1 << 20)], memory);
        assert!(verdict(late, load).unwrap().starts_with("self-test failed at byte 1048576 of 1048579 stored"));
    }

    #[test]
    fn a_load_of_old_bytes_is_found() {
        let stale = |at: usize, to: &mut [u8], memory: &[u8]| load(at - 1, to, memory);
        assert!(verdict(store, stale).unwrap().contains("loaded"));
    }
}
