//! The manual pages have every command and every option that the help has.

use std::collections::BTreeSet;
use std::fs;

use crate::common::{headway, place};

/// Words of `text` that are long options.
fn options(text: &str) -> BTreeSet<String> {
    // Roff writes a hyphen that is no line break as `\-`, and changes fonts by `\fB`.
    let plain = ["\\fB", "\\fI", "\\fR"].iter().fold(text.replace("\\-", "-"), |text, font| text.replace(font, " "));
    let words = plain.split(|c: char| !(c.is_alphanumeric() || c == '-'));
    words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned).collect()
}

/// The options that `help` explains: those that begin a line.
fn explained(help: &str) -> BTreeSet<String> {
    let begins = |line: &&str| line.trim_start().starts_with('-');
    let heads = help.lines().filter(begins).map(|line| line.trim_start().split("  ").next().unwrap_or(""));
    heads.flat_map(options).collect()
}

/// The commands that `help` lists.
fn listed(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let first = list.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    first.map(str::to_owned).collect()
}

#[test]
fn a_page_that_is_asked_for_with_a_further_command_is_said_to_be_one_page() {
    let place = place();
    let error = headway(place.path(), &["man", "exec", "report"]).exits(2).err;
    assert!(error.contains("`headway exec` has no commands of its own; `headway man exec` prints its page"), "{error}");
}

#[test]
fn every_command_has_a_manual_page_with_every_option_of_its_help() {
    let place = place();
    headway(place.path(), &["man", "--out", "pages"]).exits(0);
    let mut pages = 0;
    let mut commands = vec![Vec::new()];
    while let Some(words) = commands.pop() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let help = headway(place.path(), &[&words[..], &["--help"]].concat()).exits(0).out;
        let page = headway(place.path(), &[&["man"][..], &words].concat()).exits(0).out;
        let name = [&["headway"][..], &words].concat().join("-");
        assert_eq!(fs::read_to_string(place.path().join(format!("pages/{name}.1"))).unwrap(), page);
        assert!(page.contains(&format!(".TH {name} 1")), "{page}");
        let missing: Vec<_> = explained(&help).difference(&options(&page)).cloned().collect();
        assert!(missing.is_empty(), "the page of {words:?} lacks {missing:?}");
        pages += 1;
        let below = |child: String| words.iter().map(|word| (*word).to_owned()).chain([child]).collect();
        commands.extend(listed(&help).into_iter().map(below));
    }
    assert_eq!(place.path().join("pages").read_dir().unwrap().count(), pages);
    assert!(pages > 15, "{pages}");
    let answer = headway(place.path(), &["man", "bench", "nothing"]).exits(2);
    assert!(answer.err.contains("`nothing`") && answer.err.contains("transfers"), "{answer:?}");
}

#[test]
fn help_may_be_asked_for_as_a_command() {
    let place = place();
    let help = headway(place.path(), &["bench", "transfers", "--help"]).exits(0).out;
    assert_eq!(headway(place.path(), &["help", "bench", "transfers"]).exits(0).out, help);
}
