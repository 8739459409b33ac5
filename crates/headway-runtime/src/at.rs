//! A place in a buffer.

use headway_device::Buffer;

/// A range of a buffer of device memory.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub buffer: &'a Buffer,
    /// Offset of the first byte.
    pub offset: usize,
}
