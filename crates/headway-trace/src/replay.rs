//! Feeds a log's inputs to a new dispatcher and compares what it does.

use headway_core::decisions::dispatch::{DispatchRefused, Dispatcher, DispatcherLimits};
use headway_core::log::RecordBody;
use headway_core::units::Nanos;
use serde::Serialize;

use crate::RunLog;

/// A log that replayed without a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayedRun {
    /// Inputs fed.
    pub inputs: u64,
    /// Actions compared.
    pub actions: u64,
    /// Events compared.
    pub events: u64,
    /// Whether every cycle was delivered; `false` for a run that was halted or stopped, and for a log that was cut.
    pub finished: bool,
    /// Records of the run that the log lacks, and that were not compared: it had reached its size.
    pub omitted: u64,
}

/// The first place where the dispatcher did something else than the log says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log and its replay part at record {record} (line {} of the file)\n  the log has:      {expected}\n  \
     the replay gives: {got}\nthe log was edited, or another version of Headway wrote it: replay it with that version",
    record + 2
)]
pub struct Divergence {
    /// Position of the record among the records, from 0; their number if the log ends too early.
    pub record: u64,
    /// What the log has there.
    pub expected: String,
    /// What the dispatcher did.
    pub got: String,
}

/// Feeds every input of `log` to a new dispatcher with [`DispatcherLimits::default`] and compares actions and events in order.
///
/// Actions and events are compared byte for byte in their JSON form, and must have the time of the input before them. Wherever the
/// log feeds an input after time moved on or after actions or events were polled, nothing may be left to poll.
///
/// # Errors
/// [`Divergence`] at the first difference; an input that the dispatcher refuses is one.
pub fn replay(log: &RunLog) -> Result<ReplayedRun, Divergence> {
    let plan = log.header().plan.clone();
    let refused = |record: usize, expected: String, got: &DispatchRefused| Divergence {
        record: record as u64,
        expected,
        got: format!("a refusal: {got}"),
    };
    let mut dispatcher = Dispatcher::new(plan, DispatcherLimits::default())
        .map_err(|error| refused(0, "a plan that can be run".to_owned(), &error))?;
    let mut replayed = ReplayedRun { inputs: 0, actions: 0, events: 0, finished: false, omitted: log.omitted() };
    let mut feeding = None;
    let mut now = Nanos::ZERO;
    for (at, record) in log.records().iter().enumerate() {
        match &record.what {
            RecordBody::Input(input) => {
                if feeding != Some(record.at) {
                    drained(&mut dispatcher, at, || json(input))?;
                }
                feeding = Some(record.at);
                now = record.at;
                dispatcher.handle(record.at, input).map_err(|error| refused(at, json(input), &error))?;
                replayed.inputs += 1;
            }
            RecordBody::Action(action) => {
                feeding = None;
                same(at, (record.at, action), (now, dispatcher.poll_action().as_ref()), "no action")?;
                replayed.actions += 1;
            }
            RecordBody::Event(event) => {
                feeding = None;
                same(at, (record.at, event), (now, dispatcher.poll_event().as_ref()), "no event")?;
                replayed.events += 1;
            }
        }
    }
    // Where a log was cut, the dispatcher may have more to say.
    if log.omitted() == 0 {
        drained(&mut dispatcher, log.records().len(), || "the end of the log".to_owned())?;
    }
    replayed.finished = dispatcher.is_finished();
    Ok(replayed)
}

/// Checks that the dispatcher has nothing more to say before the log's next `expected` record.
fn drained(dispatcher: &mut Dispatcher, at: usize, expected: impl FnOnce() -> String) -> Result<(), Divergence> {
    let action = dispatcher.poll_action().map(|action| json(&action));
    match action.or_else(|| dispatcher.poll_event().map(|event| json(&event))) {
        None => Ok(()),
        Some(got) => Err(Divergence { record: at as u64, expected: expected(), got }),
    }
}

fn same<T: Serialize>(
    at: usize,
    logged: (Nanos, &T),
    polled: (Nanos, Option<&T>),
    none: &str,
) -> Result<(), Divergence> {
    let expected = json(logged.1);
    let got = polled.1.map_or_else(|| none.to_owned(), json);
    let record = at as u64;
    match got == expected {
        true if logged.0 == polled.0 => Ok(()),
        true => Err(Divergence {
            record,
            expected: format!("{expected} at {} ns", logged.0.0),
            got: format!("the same at {} ns, the time of the input before it", polled.0.0),
        }),
        false => Err(Divergence { record, expected, got }),
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("records are plain data with text keys, which always have a JSON form")
}
