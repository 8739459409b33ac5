//! The stream experiments of `verner-2014`, V-B, by prediction as in the paper: pools of streams, and how many of them a
//! node carries under each policy.

pub mod admission;
mod border;
pub mod histories;
pub mod load;
pub mod pools;
pub mod running;
mod site;
mod split;

pub use border::{BorderPoint, BorderStudy, CPU, GainCurve, KERNEL, scaled, site, with_limit, with_setup};
pub use site::{STRATEGIES, Site, SiteError};
pub use split::{Border, Split, StreamPool, best_split, longest_prefix};
