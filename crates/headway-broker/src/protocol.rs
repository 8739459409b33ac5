//! What happens on shared words, in functions over single words and their orders. The model checker runs the same sources
//! over its own primitives.

pub(crate) mod handshake;
pub(crate) mod lease;
#[cfg(test)]
mod model_tests;
mod sync;
#[cfg(test)]
mod tests;
