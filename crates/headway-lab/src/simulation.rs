//! What experiments simulate: the transfer methods of Fujii and others under load, the trackers of GPUSync, and the node, pools and
//! histories of Verner and others.

pub mod fujii;
pub mod klt;
pub mod verner;
