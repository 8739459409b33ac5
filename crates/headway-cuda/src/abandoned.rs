//! What was given up on a GPU before it was seen to end, and waits that have a bound.

use std::any::Any;
use std::sync::Arc;

use headway_core::units::Nanos;
use headway_device::DeviceError;
use headway_device::graveyard::{self, Grave};
use headway_os::clock;

use crate::owned::{Context, Fate, Stream};

/// How long what is dropped waits for what it has on the GPU.
pub(crate) const DROP_MAX: Nanos = Nanos(2_000_000_000);

/// Something that the GPU may still use, with the stream in which it was queued.
struct Abandoned {
    // Dropped before what it was queued in.
    _held: Box<dyn Any + Send>,
    stream: Option<Arc<Stream>>,
    context: Arc<Context>,
}

impl Abandoned {
    fn fate(&self) -> Fate {
        let rests = match &self.stream {
            Some(stream) => stream.rests(),
            None => self.context.default_stream_rests(),
        };
        self.context.fate(rests)
    }
}

impl Grave for Abandoned {
    fn is_over(&mut self) -> bool {
        matches!(self.fate(), Fate::Over(_))
    }
}

/// Keeps `held` until the GPU has passed everything in `stream` (the default stream if there is none), or until the context has
/// ended. Later calls in the context answer that it is lost.
pub(crate) fn abandon(
    context: &Arc<Context>,
    stream: Option<&Arc<Stream>>,
    held: impl Send + 'static,
    message: Option<&str>,
) {
    context.lose();
    leave(context, stream, held, message);
}

/// Leaves `held` to the graveyard, where the context goes on.
pub(crate) fn leave(
    context: &Arc<Context>,
    stream: Option<&Arc<Stream>>,
    held: impl Send + 'static,
    message: Option<&str>,
) {
    let grave = Abandoned { _held: Box::new(held), stream: stream.cloned(), context: Arc::clone(context) };
    graveyard::bury(Box::new(grave), message);
}

/// Waits until `stream` is empty, for [`DROP_MAX`] at most; the error that stands in the way of knowing.
pub(crate) fn await_rest(context: &Context, stream: &Stream, what: &str) -> Result<(), DeviceError> {
    await_rest_for(context, stream, what, DROP_MAX)
}

/// Waits until `stream` is empty, for `bound` at most.
pub(crate) fn await_rest_for(context: &Context, stream: &Stream, what: &str, bound: Nanos) -> Result<(), DeviceError> {
    let since = clock::now();
    loop {
        match context.fate(stream.rests()) {
            Fate::Over(result) => return result,
            Fate::Unknown(error) => return Err(error),
            Fate::UnderWay => {}
        }
        if clock::now().saturating_sub(since) > bound {
            let what = format!("{what} on GPU {}", context.ordinal);
            return Err(DeviceError::Timeout { what, after: bound });
        }
        headway_os::sched::yield_now();
    }
}

/// What says that `count` operations were abandoned.
pub(crate) fn message(context: &Context, count: usize) -> String {
    format!("GPU {} did not end {count} operations within {DROP_MAX}", context.ordinal)
}
