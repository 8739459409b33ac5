//! What `auto` chose against what it took: the policy of [`headway_core::models::transfer::policy`], fed from many threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use headway_core::models::transfer::policy::{Bucket, Decision, Watch, WatchEvent, WatchLimits};
use headway_core::units::Nanos;

/// Copies shorter than this are judged one in [`SAMPLED`], as judging takes up to a microsecond.
const SHORT: Nanos = Nanos(50_000);
/// Of short copies, one in this many is judged.
const SAMPLED: u32 = 64;

/// One policy for all threads of a copier.
#[derive(Default)]
pub(super) struct Watcher {
    watch: Mutex<Watch>,
    /// Whether any method was ever demoted: until then calls need not ask.
    demotions: AtomicBool,
    short: AtomicU32,
}

impl Watcher {
    pub(super) fn new(events_max: usize) -> Self {
        let limits = WatchLimits { events_max, ..WatchLimits::default() };
        Self { watch: Mutex::new(Watch::new(limits)), ..Self::default() }
    }

    /// How a copy of `bucket` goes.
    pub(super) fn decide(&self, bucket: impl FnOnce() -> Bucket) -> Decision {
        if !self.demotions.load(Ordering::Relaxed) {
            return Decision::Use;
        }
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).handle_call(bucket())
    }

    /// Whether a copy that took this long is judged.
    pub(super) fn judges(&self, observed: Nanos) -> bool {
        observed >= SHORT || self.short.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED)
    }

    /// Judges a copy by the bucket's method; what a user should know of it.
    pub(super) fn observe(
        &self,
        bucket: Bucket,
        observed: Nanos,
        predicted: Option<Nanos>,
        driver: Option<Nanos>,
    ) -> Vec<String> {
        // Beyond `buckets_max` copies are not judged; those there are go on.
        self.judge(|watch| {
            let _ = watch.handle_observed(bucket, observed, predicted, driver);
        })
    }

    /// Judges the driver's own call, made instead of the bucket's method.
    pub(super) fn observe_instead(&self, bucket: Bucket, observed: Nanos, driver: Nanos) -> Vec<String> {
        self.judge(|watch| watch.handle_instead(bucket, observed, driver))
    }

    fn judge(&self, tell: impl FnOnce(&mut Watch)) -> Vec<String> {
        // Who finds another thread judging leaves it at that: the next copy is like this one.
        let Ok(mut watch) = self.watch.try_lock() else { return Vec::new() };
        tell(&mut watch);
        let mut texts = Vec::new();
        while let Some(event) = watch.poll_event() {
            if let WatchEvent::Demoted { .. } = event {
                self.demotions.store(true, Ordering::Relaxed);
            }
            texts.push(text(event));
        }
        texts
    }
}

fn text(event: WatchEvent) -> String {
    let name = |bucket: Bucket| {
        let Bucket { gpu, direction, memory, method, exponent } = bucket;
        format!("`{method}` {direction} of 2^{exponent} bytes and more, {memory} memory, GPU endpoint {}", gpu.0)
    };
    match event {
        WatchEvent::Demoted { bucket } => {
            format!("{} was slower than the driver several times in a row: the driver is used", name(bucket))
        }
        WatchEvent::Restored { bucket } => format!("{} is used again", name(bucket)),
        WatchEvent::Suspect { bucket, median_ppm } => {
            let percent = median_ppm / 10_000;
            format!("{} takes {percent} % of what the profile says; `headway measure` writes a new one", name(bucket))
        }
        WatchEvent::Trusted { bucket } => format!("{} takes what the profile says again", name(bucket)),
    }
}
