//! The stream framework of `verner-2014`, V-B: many streams known by rate and deadline, divided between the CPU and the
//! GPUs so that both sides meet every deadline.
//!
//! Streams of the GPUs are gathered into blocks, one per GPU and class of cycles, copied in, processed, and copied out,
//! each step in a window of one cycle: with the gather step a stream of deadline `l` has cycles of `l / 4`. [`search`]
//! finds the rectangle of streams that the CPU takes.

mod load;
mod rectangle;

pub use load::{Fluid, class_window};
pub use rectangle::{BestRectangle, Margins, Rectangle, SearchReach, search};
