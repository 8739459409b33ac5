//! A copy as a program asked for it, and how it was made.

use std::ffi::c_void;

use headway::guest::board::Behind;
use headway_core::files::guest_log::{Became, Call, DriverReason, Host, Towards};

use crate::base::driver::{DevicePtr, Stream};

/// A copy as the guest asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) call: Call,
    /// Unknown where the call goes by the addresses.
    pub(crate) towards: Towards,
    pub(crate) to: DevicePtr,
    pub(crate) from: DevicePtr,
    pub(crate) bytes: usize,
    /// Never 0: default streams have their own handles here.
    pub(crate) stream: Stream,
}

impl Copy {
    #[inline]
    pub(crate) const fn new(call: Call, to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) -> Self {
        let towards = match call {
            Call::In | Call::InAsync => Towards::In,
            Call::Out | Call::OutAsync => Towards::Out,
            Call::Any | Call::AnyAsync | Call::Batch | Call::Attributes => Towards::Unknown,
        };
        Self { call, towards, to, from, bytes, stream }
    }

    /// The same copy as one in this direction, for calls that go by the addresses.
    pub(crate) const fn towards(self, towards: Towards) -> Self {
        Self { towards, ..self }
    }

    /// The address of the host's end; that of the destination where the direction is not known.
    pub(crate) const fn host(self) -> *mut c_void {
        (if matches!(self.towards, Towards::In) { self.from } else { self.to }) as *mut c_void
    }

    /// The address of the GPU's end; that of the source where the direction is not known.
    pub(crate) const fn there(self) -> DevicePtr {
        if matches!(self.towards, Towards::In) { self.to } else { self.from }
    }
}

/// How a copy was made, as far as it is known at the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// That of the copy that was made, also where the call does not say it.
    pub(crate) towards: Towards,
    pub(crate) host: Host,
    pub(crate) became: Became,
    /// The first reason to leave it to the driver.
    pub(crate) why: Option<DriverReason>,
    /// What was on the engine when it came, where somebody has looked.
    pub(crate) behind: Option<Behind>,
}

impl Made {
    /// Nothing was done yet with a copy.
    pub(crate) fn new(copy: Copy) -> Self {
        Self { towards: copy.towards, host: Host::default(), became: Became::default(), why: None, behind: None }
    }

    pub(crate) fn left_to_driver(&mut self, why: DriverReason) {
        self.why.get_or_insert(why);
    }

    pub(crate) fn by(&mut self, became: Became, towards: Towards) {
        (self.became, self.towards) = (became, towards);
    }
}
