//! What experiments simulate: the transfer methods of Fujii and others under load, and the node, pools and histories of Verner and
//! others.

pub mod fujii;
pub mod verner;
