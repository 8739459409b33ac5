//! Bulk copies of programs that are no guests, which nobody announces: what small copies of this program take tells whether they wait for them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use headway_core::decisions::aside::{AsideChoice, SmallMethod};
use headway_core::files::guest::AsideMode;
use headway_core::units::Nanos;

use crate::base::attention::{self, STRANGERS, TIMED};
use crate::base::copy::Copy;
use crate::base::neighbours::now_ns;

/// Larger copies take longer by themselves.
const BYTES_MAX: usize = 64 << 10;
/// One copy in so many is timed while nothing is known to be on the engine.
const ONE_IN: u32 = 8;

static COPIES: AtomicU32 = AtomicU32::new(0);
static CHOICE: Mutex<AsideChoice> = Mutex::new(AsideChoice::new());

/// [`TIMED`] if this copy is to be timed, else 0. Calls that return before their copy has ended take no time that says anything.
#[inline]
pub(crate) fn sample(copy: &Copy) -> u32 {
    let is_small = copy.call.waits() && copy.bytes <= BYTES_MAX;
    if is_small && attention::options().aside == AsideMode::Auto && is_turn() { TIMED } else { 0 }
}

fn is_turn() -> bool {
    COPIES.fetch_add(1, Ordering::Relaxed).is_multiple_of(ONE_IN)
}

/// How a copy is to be made, and since when it is.
pub(crate) struct SmallCopy {
    pub(crate) method: SmallMethod,
    since: Option<u64>,
}

impl SmallCopy {
    /// Something on the engine would delay it.
    pub(crate) const ASIDE: Self = Self { method: SmallMethod::Kernel, since: None };

    /// A copy that waits for nobody who is known.
    pub(crate) fn new(reasons: u32) -> Self {
        let in_use = if reasons & STRANGERS == 0 { SmallMethod::Engine } else { SmallMethod::Kernel };
        let Some(mut choice) = (reasons & TIMED != 0).then(|| CHOICE.try_lock().ok()).flatten() else {
            return Self { method: in_use, since: None };
        };
        Self { method: choice.handle_copy(), since: Some(now_ns()) }
    }

    /// It has been made.
    pub(crate) fn end(self) {
        let Some(since) = self.since else { return };
        let took = Nanos(now_ns().saturating_sub(since));
        let Ok(mut choice) = CHOICE.try_lock() else { return };
        choice.handle_took(self.method, took);
        match choice.uses() {
            SmallMethod::Kernel => attention::attend(STRANGERS, 0),
            SmallMethod::Engine => attention::attend(0, STRANGERS),
        }
    }
}
