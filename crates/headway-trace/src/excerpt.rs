//! What a trace shows of a long run: its beginning, its end, and the stretches around its least slack.
//!
//! The figures of a run never come from an excerpt.

use headway_core::units::Nanos;

use crate::RunLog;
use crate::summary::grouped;
use crate::timeline::{StepJob, Timeline};

/// Equal stretches that a run is divided into; each is shown whole or not at all.
const STRETCHES: usize = 1000;

/// Which stretches of a run are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    from: Nanos,
    span: Nanos,
    /// One for each stretch; empty = everything is shown.
    shown: Vec<bool>,
    items: u64,
    total: u64,
}

/// How much happens in each stretch, and how well it goes.
pub(crate) struct Weights {
    from: Nanos,
    span: Nanos,
    items: Vec<u64>,
    slack: Vec<i64>,
}

impl Weights {
    /// No items yet in a run of `span` that begins at `from`.
    pub(crate) fn new(from: Nanos, span: Nanos) -> Self {
        Self { from, span, items: vec![0; STRETCHES], slack: vec![i64::MAX; STRETCHES] }
    }

    /// Counts an item that is drawn at `at`.
    pub(crate) fn add(&mut self, at: Nanos) {
        self.items[stretch(self.from, self.span, at)] += 1;
    }

    /// Notes that something at `at` was `slack` nanoseconds early.
    pub(crate) fn slack(&mut self, at: Nanos, slack: i64) {
        let least = &mut self.slack[stretch(self.from, self.span, at)];
        *least = slack.min(*least);
    }

    /// Chooses stretches with at most `most` items: a third of them from the beginning, a quarter from the end, the others where
    /// slack is least, each with the stretch before it. The first stretch is always there.
    pub(crate) fn choose(&self, most: u64) -> Choice {
        let total = self.items.iter().sum();
        let mut choice = Choice { from: self.from, span: self.span, shown: Vec::new(), items: total, total };
        if total <= most {
            return choice;
        }
        choice.shown = vec![false; STRETCHES];
        choice.items = 0;
        let take = |choice: &mut Choice, at: usize, most: u64| {
            let fits = choice.shown[at] || choice.items.saturating_add(self.items[at]) <= most;
            if fits && !choice.shown[at] {
                choice.shown[at] = true;
                choice.items += self.items[at];
            }
            fits
        };
        take(&mut choice, 0, u64::MAX);
        (1..STRETCHES).all(|at| take(&mut choice, at, most / 3));
        let end = choice.items.saturating_add(most / 4).min(most);
        (0..STRETCHES).rev().all(|at| take(&mut choice, at, end));
        let mut worst: Vec<usize> = (0..STRETCHES).filter(|at| self.slack[*at] < i64::MAX).collect();
        worst.sort_by_key(|&at| (self.slack[at], at));
        for at in worst {
            if take(&mut choice, at, most) && at > 0 {
                take(&mut choice, at - 1, most);
            }
        }
        choice
    }
}

/// The stretch that `at` lies in.
fn stretch(from: Nanos, span: Nanos, at: Nanos) -> usize {
    let at = u128::from(at.saturating_sub(from).0) * STRETCHES as u128 / u128::from(span.0.max(1));
    (at as usize).min(STRETCHES - 1)
}

impl Choice {
    /// Whether something that lasts from `from` to `to` touches a stretch that is shown.
    pub(crate) fn shows(&self, from: Nanos, to: Nanos) -> bool {
        let (first, last) = (stretch(self.from, self.span, from), stretch(self.from, self.span, to));
        self.shown.is_empty() || self.shown[first..=last.max(first)].contains(&true)
    }

    /// What is not shown, as a sentence; `None` if everything is. `what` names the items.
    pub(crate) fn left_out(&self, what: &str) -> Option<String> {
        if self.shown.is_empty() {
            return None;
        }
        let first = self.shown.iter().take_while(|shown| **shown).count();
        let last = self.shown.iter().rev().take_while(|shown| **shown).count();
        let count = self.shown.iter().filter(|shown| **shown).count();
        let length = |stretches: usize| Nanos(self.span.0 / STRETCHES as u64 * stretches as u64);
        Some(format!(
            "the trace shows {} of {} {what}: the first {}, the last {}, and {} around the least slack; the figures are \
             those of the whole run",
            grouped(self.items),
            grouped(self.total),
            length(first),
            length(last),
            length(count - (first + last).min(count)),
        ))
    }
}

/// A timeline to be drawn.
#[derive(Clone, Debug)]
pub struct Excerpt {
    pub(crate) timeline: Timeline,
    left_out: Option<String>,
}

impl Excerpt {
    /// All of `timeline`, or where it has more than `most` operations and packets, parts of it that have so many.
    #[must_use]
    pub fn new(log: &RunLog, timeline: Timeline, most: u64) -> Self {
        let choice = weigh(log, &timeline).choose(most);
        match choice.left_out("operations and packets") {
            None => Self { timeline, left_out: None },
            left_out => Self { timeline: cut(&timeline, &choice), left_out },
        }
    }

    /// What it lacks, as a sentence; `None` if it is whole.
    #[must_use]
    pub fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }
}

fn weigh(log: &RunLog, timeline: &Timeline) -> Weights {
    let mut weights = Weights::new(timeline.epoch, timeline.span());
    for operation in &timeline.operations {
        weights.add(operation.submitted);
    }
    let mut packets = false;
    for packet in timeline.packets(log) {
        packets = true;
        weights.add(packet.delivered);
        weights.slack(packet.delivered, packet.deadline.0.cast_signed() - packet.delivered.0.cast_signed());
    }
    for job in &timeline.jobs {
        let (Some(completed), Some(deadline)) = (job.completed, job.deadline) else { continue };
        // Windows close long before packets are due: where there are packets, only late jobs matter.
        if !packets || job.late.is_some() {
            weights.slack(completed, deadline.0.cast_signed() - completed.0.cast_signed());
        }
    }
    weights
}

/// The jobs of the chosen stretches with those that they waited for, their operations, and what was delivered there.
fn cut(timeline: &Timeline, choice: &Choice) -> Timeline {
    let within = |job: &StepJob| {
        let from = job.ready.or(job.submitted).unwrap_or(timeline.epoch);
        choice.shows(from, job.completed.or(job.submitted).unwrap_or(from))
    };
    let chosen: Vec<bool> = timeline.jobs.iter().map(within).collect();
    let mut kept = chosen.clone();
    for (job, _) in timeline.jobs.iter().zip(&chosen).filter(|(_, chosen)| **chosen) {
        for cause in job.waits.iter().filter_map(|wait| wait.cause) {
            kept[cause] = true;
        }
    }
    let mut places = vec![None; kept.len()];
    let mut jobs: Vec<StepJob> = Vec::new();
    for (at, job) in timeline.jobs.iter().enumerate().filter(|(at, _)| kept[*at]) {
        places[at] = Some(jobs.len());
        jobs.push(job.clone());
    }
    for wait in jobs.iter_mut().map(|job| &mut job.waits) {
        // Only jobs outside the stretches can have waited for one that is not there.
        wait.retain(|wait| wait.cause.is_none_or(|cause| places[cause].is_some()));
        wait.iter_mut().for_each(|wait| wait.cause = wait.cause.and_then(|cause| places[cause]));
    }
    let operations = timeline.operations.iter();
    let operations = operations.filter_map(|operation| {
        places[operation.job].map(|job| crate::timeline::SubmittedOperation { job, ..*operation })
    });
    let deliveries = timeline.deliveries.iter().copied().filter(|delivery| choice.shows(delivery.at, delivery.at));
    Timeline {
        epoch: timeline.epoch,
        end: timeline.end,
        operations: operations.collect(),
        jobs,
        deliveries: deliveries.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights() -> Weights {
        let mut weights = Weights::new(Nanos(500), Nanos(1_000_000));
        for at in 0..10_000 {
            weights.add(Nanos(500 + at * 100));
            weights.slack(Nanos(500 + at * 100), 50);
        }
        weights.slack(Nanos(500 + 700_000), -3);
        weights
    }

    #[test]
    fn what_fits_is_shown_whole() {
        let choice = weights().choose(10_000);
        assert!(choice.left_out("items").is_none() && choice.shows(Nanos(600), Nanos(700)));
    }

    #[test]
    fn a_long_run_shows_its_beginning_its_end_and_its_worst_stretch() {
        let choice = weights().choose(1_200);
        // Ten items a stretch: forty from the beginning, thirty from the end, the worst one and the one before it.
        let shown = |at: u64| choice.shows(Nanos(500 + at * 1_000), Nanos(500 + at * 1_000));
        assert!((0..40).all(shown) && (970..1_000).all(shown) && shown(699) && shown(700));
        assert!(choice.items <= 1_200 && !shown(500), "{choice:?}");
        assert!(choice.shows(Nanos(500_500), Nanos(700_500)), "what lasts into a stretch is shown");
        let text = choice.left_out("items").unwrap();
        assert!(text.contains("of 10 000 items") && text.contains("the last 30 us"), "{text}");
    }
}
