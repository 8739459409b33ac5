//! Events for whoever wants to know what Headway decided: [`event!`](crate::event!) gives them to the crate `tracing`.
//!
//! Only with the feature `tracing` is anything done. A program that has the feature and no subscriber pays one load of a shared word for
//! each event.

/// The crate that carries events to a subscriber.
#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing as carrier;

/// Tells that something happened: a level as `tracing` names it, the part of Headway as `headway::PART`, a text, and values that can be
/// displayed. The values are computed only if a subscriber wants the event.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! event {
    ($level:ident, $target:literal, $text:literal $(, $name:ident = $value:expr)* $(,)?) => {
        $crate::carrier::event!(target: $target, $crate::carrier::Level::$level, $($name = %$value,)* $text)
    };
}

/// Tells nobody: the feature `tracing` is off. The values are checked by the compiler and not computed.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! event {
    ($level:ident, $target:literal, $text:literal $(, $name:ident = $value:expr)* $(,)?) => {
        if false {
            $(let _ = format_args!("{}", $value);)*
        }
    };
}
