//! The search for a rectangle of streams with short deadlines and low rates that the CPU takes (specification of messages, 6).
//!
//! The caller's planner says what fits: with more streams on the CPU its margin falls and that of the GPUs, whose cycles get
//! longer, rises. So of all `d*` with one `r*` only those are looked at that bisection for equal margins needs.

use super::Fluid;
use crate::units::{Nanos, PPM};

/// Streams inside: at most this rate, and a deadline below this one, or equal to it and an earlier position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    /// `d*`; the largest time = any deadline.
    pub deadline: Nanos,
    /// Where streams with a deadline of exactly `d*` are divided.
    pub position: usize,
    /// `r*`, bits per second.
    pub bits_per_second: u64,
}

impl Rectangle {
    /// Whether the stream at `position` is inside.
    #[must_use]
    pub fn has(&self, position: usize, stream: Fluid) -> bool {
        stream.bits_per_second <= self.bits_per_second && (stream.deadline, position) < (self.deadline, self.position)
    }
}

/// The largest factors on all costs with which everything holds, parts per million; the largest number where there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins {
    pub cpu: u64,
    /// Of the rest.
    pub gpus: u64,
}

impl Margins {
    /// Of both.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.cpu.min(self.gpus)
    }
}

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchReach {
    /// Quantiles of the rates that are tried as `r*`; `d*` is exact for each.
    pub quantiles: usize,
    /// Values of `r*` tried between the best one and each neighbour.
    pub refined: usize,
    /// Ends with the first rectangle that is accepted.
    pub any: bool,
}

impl SearchReach {
    /// 32 values of `r*`, and finer ones around the best.
    pub const FULL: Self = Self { quantiles: 32, refined: 8, any: false };
}

/// What a search chose, with what it promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BestRectangle {
    pub rectangle: Rectangle,
    /// Whether each stream is inside.
    pub on_cpu: Vec<bool>,
    /// What it gives.
    pub margins: Margins,
}

impl BestRectangle {
    /// Whether all deadlines hold.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.margins.least() >= PPM
    }
}

/// A search under way.
struct Search<'a, F> {
    streams: &'a [Fluid],
    /// Positions by (deadline, position).
    by_deadline: Vec<usize>,
    /// Rates, ascending.
    rates: Vec<u64>,
    margins: F,
    /// What was asked before.
    known: Vec<(Vec<bool>, Margins)>,
    best: Option<BestRectangle>,
    any: bool,
}

impl<E, F: FnMut(&[bool]) -> Result<Margins, E>> Search<'_, F> {
    /// The streams with at most this rate, by deadline.
    fn inside(&self, bits_per_second: u64) -> Vec<usize> {
        let slow = |at: &&usize| self.streams[**at].bits_per_second <= bits_per_second;
        self.by_deadline.iter().filter(slow).copied().collect()
    }

    /// The margins with the first `count` streams of `inside` on the CPU.
    fn look(&mut self, bits_per_second: u64, inside: &[usize], count: usize) -> Result<Margins, E> {
        let mut on_cpu = vec![false; self.streams.len()];
        inside[..count].iter().for_each(|&at| on_cpu[at] = true);
        if let Some((_, margins)) = self.known.iter().find(|(known, _)| *known == on_cpu) {
            return Ok(*margins);
        }
        let margins = (self.margins)(&on_cpu)?;
        self.known.push((on_cpu.clone(), margins));
        if self.best.as_ref().is_none_or(|best| margins.least() > best.margins.least()) {
            let (deadline, position) =
                inside.get(count).map_or((Nanos::MAX, usize::MAX), |&at| (self.streams[at].deadline, at));
            let rectangle = Rectangle { deadline, position, bits_per_second };
            self.best = Some(BestRectangle { rectangle, on_cpu, margins });
        }
        Ok(margins)
    }

    /// Looks for the `d*` with equal margins among the streams with at most this rate.
    fn column(&mut self, bits_per_second: u64) -> Result<(), E> {
        let inside = self.inside(bits_per_second);
        let (mut low, mut high) = (1, inside.len() + 1);
        while low < high && !self.is_done() {
            let middle = low + (high - low) / 2;
            let margins = self.look(bits_per_second, &inside, middle)?;
            if margins.cpu < PPM && margins.gpus < PPM {
                break; // More on one side only takes more from it.
            }
            if margins.cpu < margins.gpus {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.any && self.best.as_ref().is_some_and(BestRectangle::is_accepted)
    }

    /// `r*` at `quantile` of `of`.
    fn rate_at(&self, quantile: usize, of: usize) -> u64 {
        let rank = (self.rates.len() * quantile).div_ceil(of).clamp(1, self.rates.len());
        self.rates[rank - 1]
    }

    fn run(&mut self, reach: SearchReach) -> Result<(), E> {
        self.look(0, &[], 0)?;
        if self.streams.is_empty() {
            return Ok(());
        }
        let quantiles = reach.quantiles.max(1);
        let mut best: Option<(u64, usize)> = None;
        let mut before = None;
        for quantile in (1..=quantiles).rev() {
            let rate = self.rate_at(quantile, quantiles);
            if self.is_done() || before.replace(rate) == Some(rate) {
                continue;
            }
            self.column(rate)?;
            if self.best.as_ref().is_some_and(|found| best.is_none_or(|(least, _)| found.margins.least() > least)) {
                best = self.best.as_ref().map(|found| (found.margins.least(), quantile));
            }
        }
        let Some((_, quantile)) = best else { return Ok(()) };
        let fine = quantiles * (reach.refined + 1);
        let centre = quantile * (reach.refined + 1);
        for at in (centre.saturating_sub(reach.refined).max(1)..=(centre + reach.refined).min(fine)).rev() {
            if self.is_done() || reach.refined == 0 {
                break;
            }
            self.column(self.rate_at(at, fine))?;
        }
        Ok(())
    }
}

/// The rectangle with the greatest margin of those that are tried, the empty one among them.
///
/// `margins` says what holds with the given streams on the CPU; once its CPU does not, it need not look at the rest and may
/// say anything above that.
///
/// # Errors
/// What `margins` fails with.
pub fn search<E>(
    streams: &[Fluid],
    reach: SearchReach,
    margins: impl FnMut(&[bool]) -> Result<Margins, E>,
) -> Result<BestRectangle, E> {
    let mut by_deadline: Vec<usize> = (0..streams.len()).collect();
    by_deadline.sort_by_key(|&at| (streams[at].deadline, at));
    let mut rates: Vec<u64> = streams.iter().map(|stream| stream.bits_per_second).collect();
    rates.sort_unstable();
    let mut search = Search { streams, by_deadline, rates, margins, known: Vec::new(), best: None, any: reach.any };
    search.run(reach)?;
    Ok(search.best.expect("the empty rectangle was looked at"))
}
