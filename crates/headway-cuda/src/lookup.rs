//! What the driver knows of an address.

use std::ffi::{c_int, c_uint, c_void};

use headway_device::{DeviceError, HostKind};

use crate::checked::call;
use crate::owned::Context;
use crate::table::{self, Address, Ordinal};

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddressFacts {
    kind: c_uint,
    managed: c_uint,
    ordinal: Ordinal,
}

impl AddressFacts {
    /// Asks the driver; the context must be current.
    pub(crate) fn of(context: &Context, address: Address) -> Result<Self, DeviceError> {
        let mut known = Self::default();
        let mut attributes: [c_int; 3] = [table::POINTER_MEMORY_TYPE, table::POINTER_IS_MANAGED, table::POINTER_DEVICE];
        let mut answers: [*mut c_void; 3] =
            [(&raw mut known.kind).cast(), (&raw mut known.managed).cast(), (&raw mut known.ordinal).cast()];
        let (count, attributes, answers) = (attributes.len() as c_uint, attributes.as_mut_ptr(), answers.as_mut_ptr());
        // SAFETY: three attributes with a place of 4 bytes for each answer, none of which is longer; the address is only looked up.
        context.note(unsafe { call!(context.driver, cuPointerGetAttributes(count, attributes, answers, address)) })?;
        Ok(known)
    }

    /// Whether the driver moves this memory by itself.
    pub(crate) fn is_managed(self) -> bool {
        self.managed != 0
    }

    /// Whether it is memory of the context's GPU.
    pub(crate) fn is_on(self, context: &Context) -> bool {
        (self.kind, self.ordinal) == (table::MEMORY_TYPE_DEVICE, context.ordinal)
    }

    /// The number of the GPU whose memory it is, if it is one's.
    pub(crate) fn gpu(self) -> Option<u32> {
        (self.kind == table::MEMORY_TYPE_DEVICE).then(|| self.ordinal.unsigned_abs())
    }

    /// The kind of host memory, which is ordinary if the driver does not know it.
    pub(crate) fn host_kind(self) -> Result<HostKind, DeviceError> {
        match (self.kind, self.is_managed()) {
            (0, false) => Ok(HostKind::Pageable),
            (table::MEMORY_TYPE_HOST, false) => Ok(HostKind::Pinned),
            (_, managed) => {
                let reason = if managed { "it is managed by the driver" } else { "it is not host memory" };
                Err(DeviceError::Invalid { what: "host memory", reason: reason.into() })
            }
        }
    }
}
