//! Rules for doc comments: public items have one, and none says only what the name says.
//!
//! Fields, variants and methods that only tell something may go without: of most of them name and type say all.

use super::Finding;
use crate::source::{Source, sources};
use crate::tree::Tree;

/// Words that ask what the name answers, and those that say nothing.
const EMPTY: [&str; 12] = ["a", "how", "it", "its", "many", "of", "the", "what", "where", "which", "who", "why"];
/// A longer comment is a sentence.
const WORDS_MAX: usize = 3;
/// What a public item begins with.
const ITEMS: [&str; 9] =
    ["pub fn", "pub const", "pub async", "pub unsafe", "pub struct", "pub enum", "pub trait", "pub type", "pub static"];
/// Programs have no reader of their items from outside.
const PROGRAMS: [&str; 2] = ["crates/headway-cli/", "xtask/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    sources(tree).iter().filter(|source| source.path.contains("/src/")).flat_map(of).collect()
}

fn of(source: &Source) -> Vec<Finding> {
    let code: Vec<&str> = source.code.lines().collect();
    let comments: Vec<&str> = source.comments.lines().map(str::trim).collect();
    let mut findings = Vec::new();
    let mut at = 0;
    for (number, line) in code.iter().enumerate() {
        let is_test = source.is_test(at);
        at += line.len() + 1;
        if is_test {
            continue;
        }
        if repeats(&code, &comments, number) {
            let message =
                "the comment says what the name says, use none, or what the name does not say (unit, range, source)";
            findings.push(Finding::new(&source.path, number + 1, message));
        }
        if is_one_word(&comments, number) && !repeats(&code, &comments, number) {
            findings.push(Finding::new(&source.path, number + 1, "a comment of one word, use a sentence or none"));
        }
        let is_item = ITEMS.iter().any(|item| line.trim_start().starts_with(&format!("{item} ")));
        let is_program = PROGRAMS.iter().any(|program| source.path.starts_with(program));
        // Of a method that only tells something, the name says what. In macros the caller has the comment.
        let speaks_for_itself = line.contains("(&self)") || line.contains('$');
        if is_item && !is_program && !speaks_for_itself && !is_documented(&code, &comments, number) {
            findings.push(Finding::new(
                &source.path,
                number + 1,
                "a public item without a comment, use `/// What it is for.`",
            ));
        }
    }
    findings
}

/// Whether a doc comment, or an attribute in place of one, stands before the item in this line.
fn is_documented(code: &[&str], comments: &[&str], item: usize) -> bool {
    for line in (0..item).rev() {
        if comments[line].starts_with("///") || code[line].contains("doc(hidden)") {
            return true;
        }
        // Attributes may have several lines.
        let text = code[line].trim();
        let is_end = text.ends_with([';', '}', '{']) || code[line].is_empty();
        if is_end && !text.starts_with("#[") {
            return false;
        }
    }
    false
}

/// Whether this line is a whole doc comment of a single plain word. A name in backticks says what something is elsewhere.
fn is_one_word(comments: &[&str], line: usize) -> bool {
    let doc = |line: usize| comments.get(line).and_then(|comment| comment.strip_prefix("///"));
    let has_neighbour = doc(line + 1).is_some() || line.checked_sub(1).is_some_and(|before| doc(before).is_some());
    let is_word = |text: &str| {
        let word = text.trim().trim_end_matches('.');
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    doc(line).is_some_and(is_word) && !has_neighbour
}

/// Whether this line is a comment of few words, all of which are in the item behind it.
fn repeats(code: &[&str], comments: &[&str], line: usize) -> bool {
    let is_doc = |line: usize| comments.get(line).is_some_and(|comment| comment.starts_with("///"));
    if !is_doc(line) || is_doc(line + 1) || (line > 0 && is_doc(line - 1)) {
        return false;
    }
    let text = comments[line].trim_start_matches('/').trim();
    let count = text.split_whitespace().count();
    if count == 0
        || count > WORDS_MAX
        || text.contains(['`', '['])
        || text.contains(|letter: char| letter.is_ascii_digit())
    {
        return false;
    }
    let is_attribute = |line: &&&str| line.trim_start().starts_with("#[");
    let Some(item) = code.iter().skip(line + 1).find(|line| !is_attribute(line)) else { return false };
    let known = words(item);
    words(text).iter().all(|word| EMPTY.contains(&word.as_str()) || known.contains(word))
}

/// Words of a text or of names in code, small and without the ending of a plural.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    for letter in text.chars() {
        if letter.is_ascii_alphabetic() {
            let begins = !before.is_ascii_alphabetic() || (letter.is_ascii_uppercase() && before.is_ascii_lowercase());
            if begins {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.push(letter.to_ascii_lowercase());
            }
        }
        before = letter;
    }
    for word in words.iter_mut().filter(|word| word.len() > 3 && !EMPTY.contains(&word.as_str())) {
        if let Some(stem) = word.strip_suffix("ies") {
            *word = format!("{stem}y");
        } else if let Some(singular) = word.strip_suffix('s') {
            *word = singular.to_owned();
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let tree = Tree::of([("crates/headway-os/src/a.rs", text)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn comments_that_say_what_the_name_says_are_found() {
        for text in [
            "/// Which.\n    gpu: GpuId,\n",
            "/// The GPU.\n    #[serde(default)]\n    gpu: GpuId,\n",
            "/// The longest copies.\n    longest_copy: u64,\n",
            "/// Its rate.\n    pub rate: Rate,\n",
        ] {
            let found = found(text);
            assert!(found.len() == 1 && found[0].contains(":1: error: the comment says"), "{text}: {found:?}");
        }
        for text in [
            "/// In nanoseconds.\n    since: u64,\n",
            "/// `None` = none.\n    rate: Option<Rate>,\n",
            "/// The rate.\n    /// `None` = unknown.\n    rate: Option<Rate>,\n",
            "/// Longest of all.\n    copy: u64,\n",
            "/// At 1 GiB.\n    at: u64,\n",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn comments_of_one_word_are_found() {
        let found = found("/// Nanoseconds.\n    since: u64,\n");
        assert!(found.len() == 1 && found[0].contains(":1: error: a comment of one word"), "{found:?}");
        for text in ["/// `cuMemcpy`.\n    call: u64,\n", "/// Nanoseconds\n/// since the epoch.\n    since: u64,\n"] {
            assert_eq!(self::found(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn public_items_without_a_comment_are_found_and_fields_are_not() {
        assert_eq!(found("pub fn a() {}\n").len(), 1);
        assert_eq!(found("/// Whose method comes next.\nstruct B;\n\n#[must_use]\npub const fn a() {}\n").len(), 1);
        assert_eq!(found("impl A {\n    pub fn a() {}\n}\n").len(), 1);
        for text in [
            "/// Makes one of them.\n#[must_use]\npub fn a() {}\n",
            "#[doc(hidden)]\npub fn a() {}\n",
            "/// Many of them.\n#[derive(\n    Clone,\n)]\npub struct A {\n    pub b: u64,\n}\n",
            "pub(crate) fn a() {}\n",
            "impl A {\n    pub fn rate(&self) -> Rate {}\n}\n",
            "#[cfg(test)]\nmod tests {\n    pub fn a() {}\n}\n",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
        let program = Tree::of([("crates/headway-cli/src/a.rs", "pub fn a() {}\n")]);
        assert!(check(&program).is_empty());
    }
}
