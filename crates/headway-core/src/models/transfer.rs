//! Copies between host and GPU memory: what each method costs, which one is chosen, and how a long copy is cut.
//!
//! A [`Profile`] holds measured [`Curve`]s, one per [`CurveKey`]. Everything here is pure: integers, no clock.

mod abilities;
pub mod arbitration;
pub mod builtin;
mod choose;
mod curve;
mod defaults;
mod key;
pub mod learning;
pub mod links;
mod method;
mod pieces;
pub mod policy;
pub mod price;
mod profile;
mod words;

pub use self::abilities::{Abilities, CpuUse, Multiprocessors, Occupies};
pub(crate) use self::choose::MethodCase;
pub use self::choose::{
    Available, Candidate, CostFigures, MethodChoice, MethodRequest, MethodVerdict, RejectionReason, choose,
};
pub use self::curve::{Curve, CurvePoint, Statistic, TAIL_SAMPLES, tail};
pub use self::defaults::{default_tuning, defaults};
pub use self::key::{BackgroundLoad, CurveKey, Direction, HostMemory, Stores, Tuning, TuningKey};
pub use self::method::{Method, NotAMethod, ResidentShape, WindowMapping};
pub use self::pieces::Geometry;
pub use self::price::{Bounds, Price, PricedTuning, SPARE_BUFFERS};
pub use self::profile::{Profile, Stamp};
