//! Feature trackers as tasks that share GPUs: real kernels on pictures, every wait timed (Elliott 2013, 5).
//!
//! A [`Camera`] is one task. Its jobs are frames: they get a GPU from whoever arbitrates, bring their state there, track, and
//! look for new corners. Beside the tracker's own work a frame can carry a [`FrameLoad`], since one frame is far too small for a
//! GPU of today.

mod camera;
mod frame;
mod memory;
mod pictures;

pub use self::camera::{Camera, Course, GpuAssignment, Tracked};
pub use self::memory::FrameLoad;
pub use self::pictures::Video;
