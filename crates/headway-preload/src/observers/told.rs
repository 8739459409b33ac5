//! Reports copies on the board that the programs of this user share. `headway top` reads it.
//!
//! Copies by several threads are told by the copier that makes them. Those that nobody looks at are not told, nor are small ones that the driver
//! makes. A small copy that a stream records counts once, when it is recorded: to ask each stream would cost more than such an error is worth.

use std::sync::OnceLock;

use headway::guest::board::EngineActivity;
use headway_core::decisions::engine_line::FlowClass;
use headway_core::files::guest::GuestClass;
use headway_core::files::guest_log::{BULK_MIN, Became, DriverReason, Towards};
use headway_core::units::{Bytes, Nanos};

use crate::base::attention::{self, COUNTED_MIN};
use crate::base::copy::{Copy, Made};
use crate::base::driver::{self, Driver, Relaxed, SUCCESS, Status};

/// GPUs of the driver's first numbers; copies of others are not told.
const DEVICES: usize = 64;
static ENGINES: [OnceLock<Option<[EngineActivity; 2]>>; DEVICES] = [const { OnceLock::new() }; DEVICES];

/// Tells of a call that has returned.
#[inline]
pub(super) fn copied(copy: Copy, made: &Made, status: Status) {
    let counts = copy.bytes >= COUNTED_MIN || made.became == Became::Aside;
    if counts && !matches!(made.became, Became::Fast | Became::PinnedOnce) {
        tell(copy, made, copy.bytes, status);
    }
}

/// Tells of a call for many copies in the direction of `first`, as of one copy.
pub(crate) fn batch(first: Copy, bytes: usize, status: Status) {
    if bytes >= COUNTED_MIN {
        tell(first, &Made::new(first), bytes, status);
    }
}

fn tell(copy: Copy, made: &Made, bytes: usize, status: Status) {
    if status != SUCCESS || attention::options().alone || made.why == Some(DriverReason::Capture) {
        return;
    }
    let Some(driver) = driver::driver() else { return };
    let Some([inward, outward]) = engines(driver) else { return };
    let engine = match made.towards {
        Towards::In => inward,
        Towards::Out => outward,
        Towards::Unknown => {
            let _relaxed = Relaxed::new(driver);
            match [copy.from, copy.to].map(|end| driver::is_on_gpu(driver, end)) {
                [false, true] => inward,
                [true, false] => outward,
                _ => return,
            }
        }
    };
    let bytes = Bytes(bytes as u64);
    let class = match attention::options().class {
        GuestClass::ByStream if bytes.0 < BULK_MIN => FlowClass::Normal,
        GuestClass::ByStream | GuestClass::Bulk => FlowClass::Bulk,
        GuestClass::Normal => FlowClass::Normal,
    };
    engine.moved(class, bytes);
    engine.copied(class, Nanos::ZERO);
    if let Some(behind) = made.behind {
        engine.came_behind(class, behind);
    }
}

/// Into the current GPU, and out of it.
fn engines(driver: &Driver) -> Option<&'static [EngineActivity; 2]> {
    let device = driver::current_device(driver)?;
    let open = || Some(EngineActivity::both(driver::uuid(driver, device)?));
    ENGINES.get(usize::try_from(device).ok()?)?.get_or_init(open).as_ref()
}
