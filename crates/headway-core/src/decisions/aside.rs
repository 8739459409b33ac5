//! Whether small copies out of a GPU go by the copy engine or by a kernel where nothing is known of who else is on the engine.
//!
//! Programs that are no guests announce nothing. What small copies take by either method says which one waits. Most copies go by the method in
//! use; a few are *trials* of the other.

use crate::units::Nanos;

/// Copies by the method in use between two trials of the other one.
const TRIAL_EVERY: u32 = 64;
/// Copies go by a kernel if that takes so much less, and by the engine again when a kernel saves less than half of it.
const SAVED: u64 = 50_000;
/// The part of a new time in the average.
const WEIGHT: u64 = 4;

/// Who moves a small copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallMethod {
    /// The driver's own call.
    Engine,
    /// A kernel in the copy's own stream.
    Kernel,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct AsideChoice {
    uses: SmallMethod,
    /// Averages of what copies took, by the engine and by a kernel.
    engine: Option<u64>,
    kernel: Option<u64>,
    since_trial: u32,
}

impl Default for AsideChoice {
    fn default() -> Self {
        Self::new()
    }
}

impl AsideChoice {
    /// Copies go by the engine until a trial says better.
    #[must_use]
    pub const fn new() -> Self {
        Self { uses: SmallMethod::Engine, engine: None, kernel: None, since_trial: 0 }
    }

    /// The method in use.
    #[must_use]
    pub const fn uses(&self) -> SmallMethod {
        self.uses
    }

    /// How a copy that can be timed is made.
    pub fn handle_copy(&mut self) -> SmallMethod {
        self.since_trial += 1;
        if self.since_trial < TRIAL_EVERY {
            return self.uses;
        }
        self.since_trial = 0;
        match self.uses {
            SmallMethod::Engine => SmallMethod::Kernel,
            SmallMethod::Kernel => SmallMethod::Engine,
        }
    }

    /// A copy by `method` took so long.
    pub fn handle_took(&mut self, method: SmallMethod, time: Nanos) {
        let average = match method {
            SmallMethod::Engine => &mut self.engine,
            SmallMethod::Kernel => &mut self.kernel,
        };
        let before = average.unwrap_or(time.0);
        *average = Some(before - before / WEIGHT + time.0 / WEIGHT);
        let (Some(engine), Some(kernel)) = (self.engine, self.kernel) else { return };
        let saved = engine.saturating_sub(kernel);
        match self.uses {
            SmallMethod::Engine if saved > SAVED => self.uses = SmallMethod::Kernel,
            SmallMethod::Kernel if saved < SAVED / 2 => self.uses = SmallMethod::Engine,
            SmallMethod::Engine | SmallMethod::Kernel => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes so many copies; how many went by a kernel.
    fn make(choice: &mut AsideChoice, copies: u32, engine: u64, kernel: u64) -> u32 {
        let mut by_kernel = 0;
        for _ in 0..copies {
            let method = choice.handle_copy();
            by_kernel += u32::from(method == SmallMethod::Kernel);
            let time = if method == SmallMethod::Kernel { kernel } else { engine };
            choice.handle_took(method, Nanos(time));
        }
        by_kernel
    }

    #[test]
    fn copies_go_by_a_kernel_while_the_engine_is_busy_and_by_the_engine_when_it_is_free_again() {
        let mut choice = AsideChoice::new();
        assert_eq!(make(&mut choice, 640, 12_000, 14_000), 10, "a trial now and then");
        let busy = make(&mut choice, 640, 1_055_000, 48_000);
        assert!(busy > 640 - 2 * TRIAL_EVERY, "{busy}");
        let free = make(&mut choice, 6_400, 12_000, 30_000);
        assert!(free < 6_400 / 2, "{free}");
        assert_eq!(choice.uses(), SmallMethod::Engine);
    }

    #[test]
    fn kernels_that_wait_longer_than_the_engine_are_left_alone() {
        let mut choice = AsideChoice::new();
        let by_kernel = make(&mut choice, 6_400, 1_000_000, 1_291_000);
        assert_eq!(by_kernel, 100, "another process computes in time slices");
    }
}
