//! One copy from the request to the report: decided, executed, decided again where a method is absent, logged.

use headway_core::decisions::chooser::CopyTook;
use headway_core::models::transfer::Direction;
use headway_core::units::{Bytes, Nanos};
use headway_os::{clock, event};

use super::chooser::ChosenCopy;
use super::decide::Decision;
use super::engine::EngineMoved;
use super::request::Request;
use super::{Copier, CopyError, CopyReport, How};

impl Copier {
    /// Makes the copy that `request` asks for.
    pub(super) fn copy(&self, mut request: Request<'_>, how: How) -> Result<CopyReport, CopyError> {
        let started = clock::now();
        let result =
            self.run(&mut request, how).map(|(decision, moved)| self.report(&request, started, decision, moved));
        Self::log_end(request.gpu, request.direction, &result);
        result
    }

    /// Makes the copy that `request` asks for as `chosen`: no other method replaces it.
    pub(super) fn copy_as(&self, mut request: Request<'_>, chosen: ChosenCopy<'_>) -> Result<CopyReport, CopyError> {
        let started = clock::now();
        let result = self.checked(&request).and_then(|()| {
            let decision = Decision::of(chosen, true, Vec::new());
            let (decision, moved) = self.carry_out(&mut request, decision)?;
            Ok(self.report(&request, started, decision, moved))
        });
        Self::log_end(request.gpu, request.direction, &result);
        result
    }

    /// Tells the chooser how long the copy took, and reports what it did.
    fn report(&self, request: &Request<'_>, started: Nanos, decision: Decision<'_>, moved: EngineMoved) -> CopyReport {
        let choice = *decision.choice();
        let report = CopyReport {
            method: choice.method,
            reason: choice.reason,
            bytes: Bytes(request.len as u64),
            chunks: moved.chunks,
            predicted: choice.predicted,
            observed: clock::now().saturating_sub(started),
            waited: moved.waited,
            ahead: moved.ahead,
            cpu: moved.cpu,
            instead_of: decision.instead_of,
        };
        let took = CopyTook { time: report.observed.saturating_sub(report.waited), cpu: report.cpu };
        for judgement in decision.chosen.ended(took) {
            event!(WARN, "headway::copy", "a method is judged by what it took", what = judgement);
            self.events.tell(judgement.to_string());
        }
        report
    }

    pub(super) fn checked(&self, request: &Request<'_>) -> Result<(), CopyError> {
        if self.gpus[request.gpu].is_lost() {
            return Err(CopyError::DeviceLost);
        }
        request.within_range()
    }

    /// Makes the copy without clock and log.
    pub(super) fn run(&self, request: &mut Request<'_>, how: How) -> Result<(Decision<'_>, EngineMoved), CopyError> {
        if request.len == 0 {
            return Ok((self.decide(request, how), EngineMoved::default()));
        }
        self.checked(request)?;
        let decision = self.decide(request, how);
        self.carry_out(request, decision)
    }

    fn carry_out<'a>(
        &'a self,
        request: &mut Request<'_>,
        mut decision: Decision<'a>,
    ) -> Result<(Decision<'a>, EngineMoved), CopyError> {
        event!(
            DEBUG,
            "headway::copy",
            "method chosen",
            gpu = request.gpu,
            direction = request.direction,
            bytes = request.len,
            method = decision.choice().method,
            reason = decision.choice().reason,
            predicted = decision.choice().predicted.map_or_else(|| "unknown".to_owned(), |time| time.to_string()),
        );
        loop {
            match self.execute(request, &decision) {
                Ok(moved) => return Ok((decision, moved)),
                Err(error) => decision = self.decide_again(request, decision, error)?,
            }
        }
    }

    /// Logs what became of a copy.
    pub(super) fn log_end(gpu: usize, direction: Direction, result: &Result<CopyReport, CopyError>) {
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
    }
}
