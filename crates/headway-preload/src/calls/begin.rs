//! Headway begins when it hands out its first function, not in a constructor, which would run in every program that a guest starts, too.

use std::ffi::{CStr, c_int};

use headway::guest::board::Board;
use headway_core::files::guest::{AsideMode, GuestOptions, VARIABLE};

use crate::base::attention::{self, ALWAYS, NEIGHBOURS, OBSERVED, PINS, variable};
use crate::base::print::print;
use crate::base::{driver, pins};
use crate::observers;

/// From this version of the driver on signatures are not known, and everything is passed on.
pub(crate) const UNKNOWN: c_int = 14_000;

/// Reads the options; before that every call is passed on. `copies` are the functions that copy.
#[cold]
pub(crate) fn begin(copies: Vec<&'static CStr>) {
    if !attention::begin() {
        return;
    }
    let too_new = driver::driver_version().filter(|version| *version >= UNKNOWN);
    if too_new.is_some() {
        attention::switch_off();
    }
    let Some(text) = variable(VARIABLE) else { return };
    if let Some(version) = too_new {
        return print(&format!(
            "headway: the driver is for CUDA {}.{}, which this version of Headway does not know; every call is passed on\n",
            version / 1000,
            version % 1000 / 10
        ));
    }
    let options = match text.parse::<GuestOptions>() {
        Ok(options) => options,
        Err(error) => return print(&format!("headway: {error}; every call is passed on\n")),
    };
    let mut reasons = 0;
    if observers::begin(options, copies) {
        reasons |= OBSERVED;
    }
    // A copy of a pinned range that Headway does not look at would see page-locked memory.
    if options.fast && options.pin_once.0 > 0 {
        pins::begin();
        reasons |= PINS;
    }
    if options.aside == AsideMode::Always {
        reasons |= ALWAYS;
    }
    if options.alone {
        Board::stay_alone();
    } else if options.aside == AsideMode::Auto {
        reasons |= NEIGHBOURS;
    }
    attention::follow(options, reasons);
}
