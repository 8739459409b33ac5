//! Rows of copies that were timed in turns.

use headway_core::models::transfer::BackgroundLoad;
use headway_runtime::copy::How;

use super::Bench;
use super::methods::row;
use super::results::BenchRow;
use super::targets::{allowed, is_open};
use crate::Error;
use crate::copy_timer::CopyTimer;
use crate::sample::{Effort, SampleFigures};
use crate::turns::{self, Entrant, Rules, Undecided};

impl Bench<'_, '_> {
    /// Makes the copies in turns and adds their rows. A kind that fails is left out with a warning.
    pub(super) fn turns(
        &mut self,
        timer: &mut CopyTimer,
        mut entrants: Vec<Entrant>,
        part: &'static str,
        load: BackgroundLoad,
        effort: Effort,
    ) -> Result<(), Error> {
        let compares = entrants.first().is_some_and(|entrant| entrant.spec.how == How::Auto);
        let rules = Rules { effort, parks: false, spares: true, undecided: compares.then_some(undecided as Undecided) };
        turns::take(self.session, timer, &mut entrants, rules)?;
        for entrant in &entrants {
            match &entrant.failed {
                None => self.rows.extend(row_of(entrant, part, load)),
                Some(error) => {
                    let size = entrant.spec.bytes;
                    self.session.warnings.push(format!("{} is left out at {size} bytes: {error}", entrant.name));
                }
            }
        }
        Ok(())
    }
}

fn row_of(entrant: &Entrant, part: &'static str, load: BackgroundLoad) -> Option<BenchRow> {
    let cpu = SampleFigures::of(&entrant.cpu).map(|figures| figures.median);
    let took = entrant.took.filter(|_| entrant.spec.how == How::Auto).map(|method| method.to_string());
    entrant.figures().map(|figures| row(part, &entrant.name, &entrant.spec, load, cpu, took).with(figures))
}

/// `auto`, which comes first, and the best of the others, while their spread leaves open whether it is behind.
fn undecided(entrants: &[Entrant]) -> Vec<usize> {
    let Some(auto) = entrants.first().and_then(Entrant::figures) else { return Vec::new() };
    let others = entrants.iter().enumerate().skip(1).filter(|(_, entrant)| entrant.failed.is_none());
    let others = others.filter_map(|(at, entrant)| Some((at, entrant.figures()?)));
    let Some((best, figures)) = others.min_by_key(|(_, figures)| figures.median) else { return Vec::new() };
    let limit = allowed(figures.median);
    if is_open(auto.median.0.abs_diff(limit.0), auto.notch(), figures.notch()) { vec![0, best] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use headway_core::models::transfer::{Direction, HostMemory, Method};
    use headway_core::units::Nanos;

    use super::*;
    use crate::copy_timer::CopySpec;

    fn entrant(how: How, times: &[u64]) -> Entrant {
        let spec = CopySpec { how, direction: Direction::H2d, memory: HostMemory::Touched, bytes: 64, window: None };
        let mut entrant = Entrant::new(String::new(), spec);
        entrant.times.extend(times.iter().copied().map(Nanos));
        entrant
    }

    #[test]
    fn a_comparison_that_hangs_on_the_spread_goes_on_with_both_sides() {
        let of = |auto: &[u64], best: &[u64]| {
            let by = |method| How::By(method);
            let slow = entrant(by(Method::Dma), &[90_000; 8]);
            undecided(&[entrant(How::Auto, auto), slow, entrant(by(Method::Staged), best)])
        };
        let spread = [10_000, 10_100, 10_200, 10_300, 10_400, 10_500, 10_600, 10_700];
        assert_eq!(of(&spread, &[10_000; 8]), [0, 2], "10.3 us are allowed, and 10.3 us measured");
        assert_eq!(of(&[10_301; 8], &[10_000; 8]), [0; 0], "behind by more than the spread, which is none");
        assert_eq!(of(&[10_000; 8], &spread), [0; 0], "not behind");
        assert_eq!(undecided(&[entrant(How::Auto, &[1; 4])]), [0; 0]);
    }
}
