//! Rates in the README say where they come from.

use super::Finding;
use crate::tree::Tree;

/// What a paragraph with a rate must hold: a link to the run, or the word that says that no GPU produced it.
const LINKS: [&str; 3] = ["(bench/runs/", "(bench/results.md", "facts"];
const LABELS: [&str; 4] = ["sim", "simulated", "emu", "emulated"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for paragraph in paragraphs(tree.text("README.md").unwrap_or_default()) {
        let has_source = paragraph.iter().any(|(_, line)| has_source(line));
        for (number, _) in paragraph.iter().filter(|(_, line)| line.contains("GB/s") && !has_source) {
            let message =
                "a rate without its source, use a link to its folder in bench/runs, or say that it is simulated";
            findings.push(Finding::new("README.md", *number, message));
        }
    }
    findings
}

fn has_source(line: &str) -> bool {
    let is_label = |word: &str| LABELS.contains(&word.to_lowercase().as_str());
    LINKS.iter().any(|link| line.contains(link)) || line.split(|letter: char| !letter.is_alphanumeric()).any(is_label)
}

/// Runs of lines that are not blank, with their numbers. A table belongs to the paragraph before it.
fn paragraphs(text: &str) -> Vec<Vec<(usize, &str)>> {
    let mut paragraphs: Vec<Vec<(usize, &str)>> = Vec::new();
    let mut after_blank = true;
    for (number, line) in (1..).zip(text.lines()) {
        let is_blank = line.trim().is_empty();
        let starts = after_blank && !is_blank && !line.starts_with('|');
        match paragraphs.last_mut() {
            Some(last) if !starts => last.push((number, line)),
            _ => paragraphs.push(vec![(number, line)]),
        }
        after_blank = is_blank;
    }
    paragraphs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(&Tree::of([("README.md", text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_rate_without_a_source_is_found() {
        assert_eq!(lines("It copies\nat 50 GB/s.\n\nA [run](bench/runs/a).\n"), [2]);
        assert_eq!(lines("| method | rate |\n|---|---|\n| dma | 50 GB/s |\n"), [3]);
    }

    #[test]
    fn a_link_or_a_label_in_the_paragraph_is_a_source() {
        assert_eq!(lines("It copies at 50 GB/s\n([run](bench/runs/a)).\n"), [0; 0]);
        assert_eq!(lines("In a [run](bench/runs/a):\n\n| dma | 50 GB/s |\n"), [0; 0]);
        assert_eq!(lines("Simulated: 50 GB/s.\n"), [0; 0]);
        assert_eq!(lines("By simulation games, 50 GB/s.\n"), [1]);
    }
}
