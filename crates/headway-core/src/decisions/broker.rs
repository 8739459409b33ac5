//! What a broker decides for the users and processes that share GPUs.

pub mod limits;
mod messages;
pub mod pace;
pub mod places;
pub mod turns;
mod usage;

pub use self::messages::{BrokerLimits, HeldToken, ResumedTask, TaskShape};
pub use self::usage::{Counts, LimitUse, UserStatus};
