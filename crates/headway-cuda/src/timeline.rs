//! Times of device events on the host's monotonic clock.
//!
//! An event is recorded in a stream that carries nothing else, between two readings of the host clock; its time is taken to
//! be their middle. A mapped time is therefore wrong by at most half the distance of the two readings, plus the drift of
//! the clocks since (at most [`DRIFT_PPM`]), plus the resolution of event times. The pair is renewed every
//! [`RENEW_AFTER`], which also keeps the 32-bit floats in which the driver gives differences fine enough.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use headway_core::units::Nanos;
use headway_device::DeviceError;
use headway_os::clock;

use crate::driver::lock;
use crate::owned::{Context, CudaEvent, Stream};

/// How far the two clocks may run apart: twice what crystal oscillators are specified for. An assumption, not measured.
const DRIFT_PPM: u64 = 100;
/// The resolution of event times that the driver's documentation states.
const RESOLUTION: Nanos = Nanos(500);
/// Age at which the pair is renewed.
const RENEW_AFTER: Nanos = Nanos(1_000_000_000);
/// Attempts when a device is opened and when it is idle; the closest readings win.
const ATTEMPTS_AT_OPEN: u32 = 8;
const ATTEMPTS_WHEN_IDLE: u32 = 2;
/// How long one attempt may take before it is given up.
const ATTEMPT_MAX: Nanos = Nanos(20_000_000);

/// The timeline of one GPU, shared by its queues that keep time.
pub(crate) struct Clock {
    timeline: Mutex<Timeline>,
    /// Operations that these queues have under way.
    pending: AtomicUsize,
}

impl Clock {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Ok(Self { timeline: Mutex::new(Timeline::new(context)?), pending: AtomicUsize::new(0) })
    }

    /// Renews the relation when it is old; before a submission.
    pub(crate) fn maintain_for_more(&self) -> Result<(), DeviceError> {
        let idle = self.pending.load(Ordering::Acquire) == 0;
        lock(&self.timeline).maintain(clock::now(), idle)
    }

    /// Renews the relation when it is old; while operations are under way.
    pub(crate) fn maintain(&self) -> Result<(), DeviceError> {
        lock(&self.timeline).maintain(clock::now(), false)
    }

    /// Counts an operation that is under way.
    pub(crate) fn begin(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts `operations` that are not under way any more.
    pub(crate) fn end(&self, operations: usize) {
        self.pending.fetch_sub(operations, Ordering::AcqRel);
    }

    /// The host times of two reached events.
    pub(crate) fn times_of(&self, start: &CudaEvent, end: &CudaEvent) -> Result<(Nanos, Nanos), DeviceError> {
        let timeline = lock(&self.timeline);
        Ok((timeline.time_of(start)?, timeline.time_of(end)?))
    }

    /// Bound on the error of a time mapped now.
    pub(crate) fn error(&self) -> Nanos {
        lock(&self.timeline).error(clock::now())
    }
}

/// The relation between one device's events and the host clock.
struct Timeline {
    stream: Stream,
    base: CudaEvent,
    base_at: Nanos,
    half_width: Nanos,
    spare: CudaEvent,
    /// When the spare event was recorded, if its time is awaited.
    awaited_since: Option<Nanos>,
}

impl Timeline {
    fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let mut timeline = Self {
            stream: Stream::new(context)?,
            base: CudaEvent::new(context)?,
            base_at: Nanos::ZERO,
            half_width: Nanos::MAX,
            spare: CudaEvent::new(context)?,
            awaited_since: None,
        };
        timeline.attempt(ATTEMPTS_AT_OPEN)?;
        if timeline.half_width == Nanos::MAX {
            return Err(DeviceError::Unavailable {
                what: "the device's clock".into(),
                reason: format!("an event in an idle stream was not reached within {ATTEMPT_MAX}"),
                remedy: "check that no other process holds the GPU in exclusive use".into(),
            });
        }
        Ok(timeline)
    }

    /// Bound on the error of a time mapped at `now`.
    fn error(&self, now: Nanos) -> Nanos {
        self.half_width.saturating_add(drift(now.saturating_sub(self.base_at))).saturating_add(RESOLUTION)
    }

    /// The host time of a reached event.
    fn time_of(&self, event: &CudaEvent) -> Result<Nanos, DeviceError> {
        let offset = self.base.nanos_to(event)?;
        Ok(Nanos(self.base_at.0.saturating_add_signed(offset)))
    }

    /// Renews the pair when it is old. On an idle device that takes some 20 us, once a second; on a busy one it only
    /// records or queries an event, and the pair is as good as polls are frequent.
    fn maintain(&mut self, now: Nanos, idle: bool) -> Result<(), DeviceError> {
        let old = now.saturating_sub(self.base_at) >= RENEW_AFTER;
        if old && idle {
            self.awaited_since = None;
            return self.attempt(ATTEMPTS_WHEN_IDLE);
        }
        if let Some(since) = self.awaited_since {
            if self.spare.is_reached()? {
                self.awaited_since = None;
                self.consider(since, clock::now());
            }
        } else if old {
            let since = clock::now();
            self.spare.record(&self.stream)?;
            self.awaited_since = Some(since);
        }
        Ok(())
    }

    fn attempt(&mut self, times: u32) -> Result<(), DeviceError> {
        for _ in 0..times {
            let since = clock::now();
            self.spare.record(&self.stream)?;
            while !self.spare.is_reached()? {
                if clock::now().saturating_sub(since) > ATTEMPT_MAX {
                    self.awaited_since = Some(since);
                    return Ok(());
                }
            }
            self.consider(since, clock::now());
        }
        Ok(())
    }

    /// Takes the spare event, reached between the two readings, for base if that is better than keeping the old one.
    fn consider(&mut self, before: Nanos, after: Nanos) {
        let half_width = Nanos(after.saturating_sub(before).0.div_ceil(2));
        let kept = self.half_width.saturating_add(drift(after.saturating_sub(self.base_at)));
        if half_width < kept {
            std::mem::swap(&mut self.base, &mut self.spare);
            self.base_at = before.saturating_add(half_width);
            self.half_width = half_width;
        }
    }
}

const fn drift(age: Nanos) -> Nanos {
    Nanos((age.0 as u128 * DRIFT_PPM as u128 / 1_000_000) as u64)
}
