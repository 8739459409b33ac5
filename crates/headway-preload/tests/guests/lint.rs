//! `--lint`: which copies it names, where they are made, and what it says would be gained.

use headway_core::files::guest::GuestOptions;
use headway_core::files::guest_log::{Call, GuestLogLine, LintFinding, Problem};

use super::log::{logged, read};
use super::{NOTHING, calls, run};

const LINT: GuestOptions = GuestOptions { lint: true, ..NOTHING };

#[test]
fn copies_that_lose_time_are_named_with_their_place_and_what_would_be_gained() {
    let Some((output, folder)) = logged("resolver", "lint", LINT) else { return };
    assert!(output.status.success(), "{output:?}");
    let lines = read(&folder.path().join("log")).lines;
    let finding =
        |line: &GuestLogLine| if let GuestLogLine::Finding(finding) = line { Some(finding.clone()) } else { None };
    let findings: Vec<LintFinding> = lines.iter().filter_map(finding).collect();
    let of = |problem, call| {
        let found: Vec<_> =
            findings.iter().filter(|finding| (finding.problem, finding.call) == (problem, call)).collect();
        assert!(found.iter().all(|finding| finding.site.starts_with("guest+0x")), "{found:?}");
        found.iter().map(|finding| finding.copies).collect::<Vec<_>>()
    };
    // The program fills the GPU from ordinary memory once.
    assert_eq!(of(Problem::Ordinary, Call::In), [1]);
    // Three blocks once each, and one of them three times before it counts as copied again and again.
    let mut once = of(Problem::Ordinary, Call::Out);
    once.sort_unstable();
    assert_eq!(once, [3, 3]);
    assert_eq!(of(Problem::Repeated, Call::Out), [17]);
    let [tiny] = of(Problem::Tiny, Call::OutAsync).try_into().unwrap();
    let [results] = of(Problem::Blocking, Call::Out).try_into().unwrap();
    // Ordinary memory makes the driver wait in the asynchronous call, too.
    let [hidden] = of(Problem::Blocking, Call::OutAsync).try_into().unwrap();
    assert!((2_900..=3_100).contains(&tiny) && (450..=550).contains(&results), "{tiny} {results}");
    assert!((1_400..=1_600).contains(&hidden), "{hidden}");
    assert!(findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.took)));
    for finding in &findings {
        // Only the rate of page-locked copies out of the GPU was seen.
        let known = finding.call == Call::Out && matches!(finding.problem, Problem::Ordinary | Problem::Repeated);
        assert_eq!(finding.gain.is_some(), known, "{finding:?}");
    }
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.matches(" at guest+0x").count(), findings.len(), "{text}");
    assert!(text.contains("not known from this run") && text.contains("at the rate of this run's page-locked copies"));
}

#[test]
fn looking_for_lost_time_changes_no_call() {
    for task in ["beside", "capture", "half", "broken"] {
        let Some(plain) = calls("resolver", task, None) else { return };
        assert_eq!(calls("resolver", task, Some(LINT)).unwrap(), plain, "{task}");
    }
}

#[test]
fn a_program_that_loses_no_time_is_told_so() {
    let Some(output) = run("resolver", "read-only", Some(LINT)) else { return };
    assert!(output.stderr.is_empty(), "a program that ends by a signal has no end: {output:?}");
    let output = run("resolver", "fork", Some(LINT)).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.matches("that lose time").count(), 1, "the forked child says nothing: {text}");
}
