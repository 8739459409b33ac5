//! What the paper's results look like: seven statements about mean responses (specification of sharing, 8.3).

use std::collections::BTreeMap;

use headway_sim::sharing::{ArbitrationScheme, Migration, Scenario, Taking};

/// Mean response of every scenario, percent of the period, by code.
pub(in crate::reproduce) type Means = BTreeMap<String, f64>;

/// One statement and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reproduce) struct Check {
    pub(in crate::reproduce) number: usize,
    /// What the paper says.
    pub(in crate::reproduce) claim: &'static str,
    /// Section of the paper in which it says so.
    pub(in crate::reproduce) section: &'static str,
    pub(in crate::reproduce) holds: bool,
    /// The figures that decide.
    pub(in crate::reproduce) evidence: String,
}

const CHUNKS: [&str; 3] = ["2MB", "4MB", "X"];

/// All seven; `means` has every distinct scenario.
pub(in crate::reproduce) fn checks(means: &Means) -> Vec<Check> {
    vec![schedulable(means), order(means), affinity(means), chunking(means), group(means), gain(means), driver(means)]
}

fn mean(means: &Means, code: &str) -> f64 {
    means.get(code).copied().unwrap_or(f64::NAN)
}

/// Codes with their scenario, in the order of the codes.
fn scenarios(means: &Means) -> Vec<(&str, Scenario, f64)> {
    means.iter().filter_map(|(code, mean)| Some((code.as_str(), code.parse().ok()?, *mean))).collect()
}

fn schedulable(means: &Means) -> Check {
    let all = scenarios(means);
    let wrong: Vec<String> = all
        .iter()
        .filter(|(_, scenario, mean)| (*mean < 100.0) == (scenario.arbitration == ArbitrationScheme::TokenOnly))
        .map(|(code, _, mean)| format!("{code} {mean:.1}"))
        .collect();
    let of = |arbitration| all.iter().filter(move |(_, s, _)| s.arbitration == arbitration).map(|(_, _, mean)| *mean);
    let most = of(ArbitrationScheme::EngineLocks).fold(f64::NAN, f64::max);
    let least = of(ArbitrationScheme::TokenOnly).fold(f64::NAN, f64::min);
    let mut evidence = format!("worst with engine locks {most:.1} %, best without {least:.1} %");
    if !wrong.is_empty() {
        evidence.push_str(&format!("; on the wrong side of 100 %: {}", wrong.join(", ")));
    }
    Check {
        number: 1,
        section: "5, Observation 2",
        claim: "the mean response is below the period if and only if engine locks are used, or the driver arbitrates",
        holds: wrong.is_empty() && all.len() == 36,
        evidence,
    }
}

fn order(means: &Means) -> Check {
    let m = |code: &str| mean(means, code);
    let chunks: Vec<f64> = CHUNKS.iter().map(|chunk| m(&format!("AEdG,{chunk}"))).collect();
    let mut broken = Vec::new();
    if !chunks.is_sorted() {
        broken.push(format!("AEdG 2MB, 4MB, X: {:.2}, {:.2}, {:.2}", chunks[0], chunks[1], chunks[2]));
    }
    for chunk in CHUNKS {
        for (less, more) in [("AEdG", "AEDG"), ("AEdG", "aEdG")] {
            let (less, more) = (format!("{less},{chunk}"), format!("{more},{chunk}"));
            if m(&less) > m(&more) {
                broken.push(format!("{less} {:.2} above {more} {:.2}", m(&less), m(&more)));
            }
        }
    }
    let all = scenarios(means);
    let of = |arbitration| all.iter().filter(move |(_, scenario, _)| scenario.arbitration == arbitration);
    let worst = of(ArbitrationScheme::EngineLocks).max_by(|a, b| a.2.total_cmp(&b.2));
    let best = of(ArbitrationScheme::TokenOnly).min_by(|a, b| a.2.total_cmp(&b.2));
    if !worst.is_some_and(|(_, scenario, _)| !scenario.affinity && scenario.chunk.is_none()) {
        broken.push(format!("worst with locks is {}", worst.map_or("none", |worst| worst.0)));
    }
    if !best.is_some_and(|(_, scenario, _)| scenario.affinity && scenario.migration == Migration::Peer) {
        broken.push(format!("best without locks is {}", best.map_or("none", |best| best.0)));
    }
    let held = format!(
        "AEdG {:.2}, {:.2}, {:.2}; worst with locks {}, best without {}",
        chunks[0],
        chunks[1],
        chunks[2],
        worst.map_or("none", |worst| worst.0),
        best.map_or("none", |best| best.0)
    );
    Check {
        number: 2,
        section: "5, Observation 2; 5, Observation 4; 5, Observation 5; 5, Observation 6",
        claim: "AEdG: 2MB before 4MB before X, and before AEDG and aEdG; the worst with locks is aEdG,X, the best without AedG,4MB",
        holds: broken.is_empty(),
        evidence: if broken.is_empty() { held } else { broken.join("; ") },
    }
}

/// Ratio of mean responses with one letter of the code changed, for every distinct pair.
fn ratios(means: &Means, change: impl Fn(Scenario) -> Option<Scenario>) -> Vec<(String, f64)> {
    let pair = |(code, scenario, with): (&str, Scenario, f64)| {
        let without = change(scenario)?;
        Some((code.to_owned(), mean(means, &without.canonical().to_string()) / with))
    };
    scenarios(means).into_iter().filter_map(pair).collect()
}

/// Response without affinity over response with it.
pub(super) fn affinity_ratios(means: &Means) -> Vec<(String, f64)> {
    ratios(means, |scenario| scenario.affinity.then_some(Scenario { affinity: false, ..scenario }))
}

/// Response of whole copies over response of chunks.
pub(super) fn chunking_ratios(means: &Means) -> Vec<(String, f64)> {
    let tokens = |scenario: Scenario| scenario.arbitration != ArbitrationScheme::Driver && scenario.chunk.is_some();
    ratios(means, |scenario| tokens(scenario).then_some(Scenario { chunk: None, ..scenario }))
}

fn spread(ratios: &[(String, f64)]) -> String {
    let mut sorted: Vec<f64> = ratios.iter().map(|(_, ratio)| *ratio).collect();
    sorted.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else { return "no pairs".to_owned() };
    format!("{least:.3} to {most:.3}, median {:.3}", sorted[sorted.len() / 2])
}

fn affinity(means: &Means) -> Check {
    let ratios = affinity_ratios(means);
    let within = ratios.iter().filter(|(_, ratio)| (1.0..=1.1).contains(ratio)).count();
    let below = ratios.iter().filter(|(_, ratio)| *ratio < 1.0).count();
    Check {
        number: 3,
        section: "5, Observation 4",
        claim: "affinity usually improves the response, usually between 1 and 10 %, and fails to in a few cases",
        holds: within * 2 > ratios.len() && (1..=ratios.len() / 3).contains(&below),
        evidence: format!("{within} of {} pairs in 1.00 to 1.10, {below} below 1; {}", ratios.len(), spread(&ratios)),
    }
}

fn chunking(means: &Means) -> Check {
    let ratios = chunking_ratios(means);
    let above = ratios.iter().filter(|(_, ratio)| *ratio > 1.0).count();
    Check {
        number: 4,
        section: "5, Observation 5",
        claim: "chunking improves the response in most pairs",
        holds: above * 2 > ratios.len(),
        evidence: format!("{above} of {} pairs above 1; {}", ratios.len(), spread(&ratios)),
    }
}

fn group(means: &Means) -> Check {
    let to_group = |scenario: Scenario| {
        let differs = scenario.arbitration == ArbitrationScheme::EngineLocks && scenario.migration == Migration::Peer;
        (differs && scenario.taking == Taking::Nested).then_some(Scenario { taking: Taking::Group, ..scenario })
    };
    let ratios = ratios(means, to_group);
    let within = ratios.iter().filter(|(_, ratio)| (1.0..=1.04).contains(ratio)).count();
    Check {
        number: 5,
        section: "5, Observation 6",
        claim: "group locks cost little, about 2 %; similar between other pairs",
        holds: within == ratios.len() && !ratios.is_empty(),
        evidence: format!("{within} of {} pairs in 1.00 to 1.04; {}", ratios.len(), spread(&ratios)),
    }
}

fn gain(means: &Means) -> Check {
    let ratio = mean(means, "aedg,X") / mean(means, "AEdG,2MB");
    Check {
        number: 6,
        section: "5, Observation 1",
        claim: "all features together improve the response three times or more: aedg,X against AEdG,2MB",
        holds: ratio >= 3.0,
        evidence: format!("{ratio:.2} times"),
    }
}

fn driver(means: &Means) -> Check {
    let (driver, ours) = (mean(means, "TG,2MB"), mean(means, "AEdG,2MB"));
    Check {
        number: 7,
        section: "5, Observation 3",
        claim: "the driver's best is about 2 % below AEdG,2MB",
        holds: (driver - ours).abs() <= 5.0,
        evidence: format!("TG,2MB {driver:.2} %, AEdG,2MB {ours:.2} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Means that have the paper's shape.
    fn ideal() -> Means {
        let value = |scenario: &Scenario| {
            let chunk = match scenario.chunk.map(|chunk| chunk.0 >> 20) {
                Some(2) => 0.0,
                Some(_) => 2.0,
                None => 4.0,
            };
            let (peer, group) = (scenario.migration == Migration::Peer, scenario.taking == Taking::Group);
            let affinity = if scenario.affinity { 0.0 } else { 5.0 };
            let rest = chunk + affinity + if peer { 0.0 } else { 1.0 } + if group { 1.5 } else { 0.0 };
            match scenario.arbitration {
                ArbitrationScheme::EngineLocks => 76.0 + rest,
                // The one without any of the four is by far the worst.
                ArbitrationScheme::TokenOnly if scenario.chunk.is_none() && !scenario.affinity && !peer => 233.0,
                ArbitrationScheme::TokenOnly => 163.0 + 2.0 * rest,
                ArbitrationScheme::Driver => 74.0 + chunk,
            }
        };
        let mut means: Means = Scenario::distinct().iter().map(|s| (s.to_string(), value(s))).collect();
        means.insert("aEdg,4MB".to_owned(), 78.0);
        means
    }

    fn failed(means: &Means) -> Vec<usize> {
        checks(means).iter().filter(|check| !check.holds).map(|check| check.number).collect()
    }

    #[test]
    fn results_of_the_paper_s_shape_pass_every_check() {
        assert_eq!(failed(&ideal()), [0; 0], "{:?}", checks(&ideal()));
    }

    #[test]
    fn each_check_fails_when_its_statement_is_broken() {
        let broken = |code: &str, mean: f64| {
            let mut means = ideal();
            means.insert(code.to_owned(), mean);
            failed(&means)
        };
        assert_eq!(broken("aEdg,2MB", 101.0), [1, 2]);
        assert_eq!(broken("AedG,X", 99.0), [1]);
        assert_eq!(broken("AEdG,4MB", 75.0), [2, 5]);
        assert_eq!(broken("aEDG,4MB", 80.0), [5]);
        assert_eq!(broken("aedg,X", 140.0), [2, 6]);
        assert_eq!(broken("TG,2MB", 82.0), [7]);
        let mut means = ideal();
        for (_, mean) in means.iter_mut().filter(|(code, _)| code.starts_with("ae")) {
            *mean *= 1.3;
        }
        means.insert("aEdg,2MB".to_owned(), 94.0);
        means.insert("aEdg,X".to_owned(), 95.0);
        assert_eq!(failed(&means), [3]);
        let mut means = ideal();
        for (_, mean) in means.iter_mut().filter(|(code, _)| code.ends_with("2MB") && code.contains('e')) {
            *mean += 20.0;
        }
        assert!(!failed(&means).contains(&4));
        for (_, mean) in means.iter_mut().filter(|(code, _)| code.ends_with("4MB")) {
            *mean += 20.0;
        }
        assert!(failed(&means).contains(&4), "{:?}", checks(&means));
    }
}
