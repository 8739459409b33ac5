//! One copy from the request to the report: decided, executed, decided again where a method is absent, observed.

use headway_core::models::transfer::policy::Bucket;
use headway_core::models::transfer::{Direction, Method};
use headway_core::units::Bytes;
use headway_os::{clock, event};

use super::decide::Decision;
use super::engine::EngineMoved;
use super::request::Request;
use super::{Copier, CopyError, CopyReport, How, Observation};

impl Copier {
    /// Makes the copy that `request` asks for.
    pub(super) fn copy(&self, mut request: Request<'_>, how: How) -> Result<CopyReport, CopyError> {
        let started = clock::now();
        let result = self.run(&mut request, how).map(|(decision, moved)| {
            let report = CopyReport {
                method: decision.method,
                bytes: Bytes(request.len as u64),
                chunks: moved.chunks,
                predicted: decision.predicted,
                observed: clock::now().saturating_sub(started),
                waited: moved.waited,
                ahead: moved.ahead,
                cpu: moved.cpu,
                instead_of: decision.instead_of,
            };
            if let Some(bucket) = decision.judged {
                self.judge(bucket, &report);
            }
            if let Some(advised) = decision.advised {
                advised.ended(&report);
            }
            report
        });
        self.notify_observer(request.gpu, request.direction, &result);
        result
    }

    /// Makes the copy without clock and observer.
    pub(super) fn run(&self, request: &mut Request<'_>, how: How) -> Result<(Decision<'_>, EngineMoved), CopyError> {
        let gpu = &self.gpus[request.gpu];
        if request.len == 0 {
            return Ok((Decision::of_nothing(how), EngineMoved::default()));
        }
        if gpu.is_lost() {
            return Err(CopyError::DeviceLost);
        }
        request.within_range()?;
        let mut decision = self.decide(request, how);
        event!(
            DEBUG,
            "headway::copy",
            "method chosen",
            gpu = request.gpu,
            direction = request.direction,
            bytes = request.len,
            method = decision.method,
            by = if decision.named { "the caller" } else { "auto" },
            predicted = decision.predicted.map_or_else(|| "unknown".to_owned(), |time| time.to_string()),
        );
        loop {
            match self.execute(request, &decision) {
                Ok(moved) => return Ok((decision, moved)),
                Err(error) => decision = self.decide_again(request, decision, error)?,
            }
        }
    }

    /// Calls the observer.
    pub(super) fn notify_observer(&self, gpu: usize, direction: Direction, result: &Result<CopyReport, CopyError>) {
        match result {
            Ok(report) => event!(
                DEBUG,
                "headway::copy",
                "copied",
                gpu = gpu,
                direction = direction,
                bytes = report.bytes,
                method = report.method,
                took = report.observed,
                waited = report.waited,
            ),
            Err(error) => {
                event!(
                    WARN,
                    "headway::copy",
                    "copy failed",
                    gpu = gpu,
                    direction = direction,
                    why = super::error::chain(error)
                );
            }
        }
        if let Some(observer) = self.observer.get() {
            observer(&Observation { gpu, direction, result: result.as_ref() });
        }
    }

    /// Tells the watch what a judged copy took, by the bucket's method or by the driver's own call instead.
    fn judge(&self, bucket: Bucket, report: &CopyReport) {
        if !self.watcher.judges(report.observed) {
            return;
        }
        let of_driver = Method::of_driver(bucket.direction, bucket.memory);
        if ![bucket.method, of_driver].contains(&report.method) {
            return;
        }
        let curve =
            |method| self.auto.predicted(bucket.gpu, None, method, bucket.direction, bucket.memory, report.bytes);
        let Some(driver) = curve(of_driver) else { return };
        let observed = report.observed.saturating_sub(report.waited);
        let events = if report.method == bucket.method {
            self.watcher.observe(bucket, observed, curve(bucket.method), Some(driver))
        } else {
            self.watcher.observe_instead(bucket, observed, driver)
        };
        for text in events {
            event!(WARN, "headway::copy", "a method is judged by what it took", what = text);
            self.auto.report(text);
        }
    }
}
