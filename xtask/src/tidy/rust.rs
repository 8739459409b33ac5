//! Rules for Rust sources.

use super::Finding;
use crate::source::{Source, sources, words};
use crate::tree::Tree;

/// Crates whose threads run inside programs that know nothing of them.
const CRATES_IN_PROGRAMS: [&str; 8] = [
    "headway-os",
    "headway-device",
    "headway-cuda",
    "headway-runtime",
    "headway-broker",
    "headway",
    "headway-capi",
    "headway-preload",
];
/// What starts their threads.
const STARTS_THREADS: &str = "crates/headway-os/src/threads.rs";
/// Words that mark unfinished work in comments.
const LEFTOVER_WORDS: [&str; 3] = ["FIXME", "TODO", "XXX"];
/// Words that point at a comment somewhere before or behind.
const POINTERS: [&str; 2] = ["as above", "as below"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &sources(tree) {
        module_doc(source, &mut findings);
        leftovers(source, &mut findings);
        pointers(source, &mut findings);
        unwraps(source, &mut findings);
        threads_with_signals(source, &mut findings);
    }
    findings
}

fn module_doc(source: &Source, findings: &mut Vec<Finding>) {
    let in_src = source.path.contains("/src/");
    if in_src && !source.comments.lines().any(|line| line.starts_with("//!")) {
        findings.push(Finding::new(&source.path, 1, "no module documentation, use `//! What this module owns.`"));
    }
}

fn leftovers(source: &Source, findings: &mut Vec<Finding>) {
    for word in LEFTOVER_WORDS {
        for at in words(&source.comments, word) {
            findings.push(Finding::new(&source.path, source.line(at), leftover_word(word)));
        }
    }
}

/// Comments that leave it to the reader to find which one they mean.
fn pointers(source: &Source, findings: &mut Vec<Finding>) {
    let comments = source.comments.to_ascii_lowercase();
    for at in POINTERS.iter().flat_map(|words| comments.match_indices(words)).map(|(at, _)| at) {
        let message = "a comment that points at another one, use what that one says";
        findings.push(Finding::new(&source.path, source.line(at), message));
    }
}

/// Words that mark unfinished work, in sources of other languages than Rust.
pub(crate) fn check_other_language(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let found = LEFTOVER_WORDS.iter().filter(|word| !words(line, word).is_empty());
        findings.extend(found.map(|word| Finding::new(path, number, leftover_word(word))));
    }
    findings
}

fn leftover_word(word: &str) -> String {
    format!("leftover {word}, use finished work or a sentence that says what is missing and why")
}

fn unwraps(source: &Source, findings: &mut Vec<Finding>) {
    for at in source.words("unwrap") {
        let is_call = source.code[..at].trim_end().ends_with('.') && source.code[at..].starts_with("unwrap()");
        if is_call && !source.is_test(at) {
            let message = "`.unwrap()` outside tests, use `?`, or `.expect` with the invariant that makes it safe";
            findings.push(Finding::new(&source.path, source.line(at), message));
        }
    }
}

/// Threads that would take signals of the program that they run in.
fn threads_with_signals(source: &Source, findings: &mut Vec<Finding>) {
    let in_program = |name: &str| source.path.starts_with(&format!("crates/{name}/src/"));
    let is_in_program =
        source.path.starts_with("python/src/") || CRATES_IN_PROGRAMS.iter().any(|name| in_program(name));
    if source.path == STARTS_THREADS || !is_in_program {
        return;
    }
    for at in ["spawn", "spawn_scoped"].iter().flat_map(|word| source.words(word)) {
        let before = source.code[..at].trim_end();
        // Without an argument it is a program that is started.
        let arguments = source.code[at..].trim_start_matches("spawn").trim_start_matches("_scoped");
        let is_start = before.ends_with(['.', ':']) && arguments.starts_with('(') && !arguments.starts_with("()");
        let statement = &source.code[statement_start(&source.code, at)..at];
        let is_masked = before.ends_with("threads::") || statement.contains("without_signals(");
        if is_start && !is_masked && !source.is_test(at) {
            let message = "a thread that takes signals of its program, use `headway_os::threads`";
            findings.push(Finding::new(&source.path, source.line(at), message));
        }
    }
}

/// Offset of the first byte of the statement, match arm or item that holds `at`.
fn statement_start(code: &str, at: usize) -> usize {
    let mut depth = 0u32;
    let mut nearest = None;
    for (offset, byte) in code.bytes().enumerate().take(at).collect::<Vec<_>>().into_iter().rev() {
        match byte {
            b';' | b',' if depth == 0 => _ = nearest.get_or_insert(offset),
            b'}' if depth == 0 => {
                nearest.get_or_insert(offset);
                depth += 1;
            }
            b')' | b']' | b'}' => depth += 1,
            // The statement is around these parentheses.
            b'(' | b'[' if depth == 0 => nearest = None,
            b'{' if depth == 0 => {
                nearest.get_or_insert(offset);
                break;
            }
            b'(' | b'[' | b'{' => depth -= 1,
            _ => {}
        }
    }
    let after = nearest.map_or(0, |offset| offset + 1);
    at - code[after..at].trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "crates/headway-os/src/lib.rs";

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn finds(text: &str, line: usize, what: &str) {
        let found = found(LIB, text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{LIB}:{line}: error: ")) && found[0].contains(what), "{found:?}");
    }

    #[track_caller]
    fn accepts(text: &str) {
        assert_eq!(found(LIB, text), [""; 0]);
    }

    #[test]
    fn a_source_without_module_documentation_is_found() {
        finds("/// A.\nfn a() {}\n", 1, "module documentation");
        assert!(found("crates/headway-os/tests/a.rs", "fn a() {}\n").is_empty());
    }

    #[test]
    fn leftovers_are_found_in_comments_only() {
        finds("//! A.\n// FIXME: b\n", 2, "FIXME");
        accepts("//! A.\nconst A: &str = \"todo!() TODO\"; // XXXX\n");
        assert_eq!(check_other_language("a.py", "a\n# TODO b\n").len(), 1);
    }

    #[test]
    fn comments_that_point_at_others_are_found() {
        finds("//! A.\n// SAFETY: as above.\nfn a() {}\n", 2, "points at another one");
        finds("//! A.\n/// The same as above, twice.\nfn a() {}\n", 2, "points at another one");
        accepts("//! A.\nconst A: &str = \"as above\"; // The bound above holds.\n");
    }

    #[test]
    fn unwrap_is_found_outside_tests() {
        finds("//! A.\nfn a() { b()\n    .unwrap(); }\n", 3, "unwrap");
        accepts("//! A.\nfn a() { b().unwrap_or(1); }\n#[test]\nfn c() { d().unwrap(); }\n");
    }

    #[test]
    fn threads_that_take_signals_of_their_program_are_found() {
        finds("//! A.\nfn a() {\n    std::thread::spawn(b);\n}\n", 3, "takes signals");
        finds("//! A.\nfn a() {\n    scope(|scope| {\n        scope.spawn(b);\n    });\n}\n", 4, "takes signals");
        finds("//! A.\nfn a() { Builder::new().name(b).spawn_scoped(scope, c); }\n", 2, "takes signals");
        accepts("//! A.\nfn a() {\n    threads::spawn(b, c);\n    threads::without_signals(|| scope.spawn(b));\n}\n");
        accepts("//! A.\nfn a() { Command::new(b).spawn(); }\n#[test]\nfn c() { std::thread::spawn(d); }\n");
        assert!(!found("python/src/wait.rs", "//! A.\nfn a() { std::thread::spawn(b); }\n").is_empty());
        assert!(found("crates/headway-lab/src/lib.rs", "//! A.\nfn a() { std::thread::spawn(b); }\n").is_empty());
    }
}
