//! Rules for Rust sources.

use super::source::{Source, sources, words};
use super::{Finding, Tree};

/// Crates that may hold `unsafe`.
const UNSAFE_CRATES: [&str; 6] =
    ["headway-os", "headway-device", "headway-cuda", "headway-kernels", "headway-capi", "headway-preload"];
/// The crate that may hold `unsafe` in one file: its copy loop.
const UNSAFE_IN_ONE_FILE: &str = "headway-runtime";
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
/// Macros that mark unfinished code.
const LEFTOVER_MACROS: [&str; 3] = ["dbg!", "todo!", "unimplemented!"];
/// Words that mark unfinished work in comments.
const LEFTOVER_WORDS: [&str; 3] = ["FIXME", "TODO", "XXX"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let sources = sources(tree);
    let mut findings = Vec::new();
    for source in &sources {
        module_doc(source, &mut findings);
        leftovers(source, &mut findings);
        unwraps(source, &mut findings);
        safety_comments(source, &mut findings);
        threads_with_signals(source, &mut findings);
    }
    unsafe_places(&sources, &mut findings);
    findings
}

fn module_doc(source: &Source, findings: &mut Vec<Finding>) {
    let in_src = source.path.contains("/src/");
    if in_src && !source.comments.lines().any(|line| line.starts_with("//!")) {
        findings.push(Finding::new(&source.path, 1, "no module documentation, use `//! What this module owns.`"));
    }
}

fn leftovers(source: &Source, findings: &mut Vec<Finding>) {
    for name in LEFTOVER_MACROS {
        for at in source.words(name.trim_end_matches('!')).into_iter().filter(|at| source.code[*at..].starts_with(name))
        {
            let message = format!("leftover `{name}`, use finished code or an error value");
            findings.push(Finding::new(&source.path, source.line(at), message));
        }
    }
    for word in LEFTOVER_WORDS {
        for at in words(&source.comments, word) {
            findings.push(Finding::new(&source.path, source.line(at), leftover_word(word)));
        }
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

fn unsafe_places(sources: &[Source], findings: &mut Vec<Finding>) {
    let mut copy_loops = Vec::new();
    for source in sources {
        let Some(&at) = source.words("unsafe").first() else { continue };
        let crate_name = source.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("xtask");
        let line = source.line(at);
        if crate_name == UNSAFE_IN_ONE_FILE && source.path.contains("/src/") {
            copy_loops.push((source, line));
        } else if !UNSAFE_CRATES.contains(&crate_name) && !source.path.starts_with("python/") {
            let message = format!("`unsafe` in {crate_name}, use a safe function of {}", UNSAFE_CRATES.join(", "));
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    if copy_loops.len() > 1 {
        for (source, line) in copy_loops {
            let message =
                format!("`unsafe` in more than one file of {UNSAFE_IN_ONE_FILE}, use only its copy loop for it");
            findings.push(Finding::new(&source.path, line, message));
        }
    }
}

fn safety_comments(source: &Source, findings: &mut Vec<Finding>) {
    for at in source.words("unsafe") {
        let rest = source.code[at..].trim_start_matches("unsafe").trim_start();
        let needs_reason = rest.starts_with('{') || rest.starts_with("impl");
        if needs_reason && !has_reason(source, at) {
            let message = "no reason for `unsafe`, use a comment `// SAFETY: ...` directly above it";
            findings.push(Finding::new(&source.path, source.line(at), message));
        }
    }
}

/// Threads that would take signals of the program that they run in.
fn threads_with_signals(source: &Source, findings: &mut Vec<Finding>) {
    let in_program = |name: &str| source.path.starts_with(&format!("crates/{name}/src/"));
    if source.path == STARTS_THREADS || !CRATES_IN_PROGRAMS.iter().any(|name| in_program(name)) {
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

/// Whether a `// SAFETY:` comment stands within the statement of the `unsafe` at `at`, or directly above the statement.
fn has_reason(source: &Source, at: usize) -> bool {
    let comments: Vec<_> = source.comments.lines().collect();
    let code: Vec<_> = source.code.lines().collect();
    let first = source.line(statement_start(&source.code, at)) - 1;
    let last = source.line(at) - 1;
    let is_reason = |line: usize| comments.get(line).is_some_and(|comment| comment.contains("SAFETY:"));
    let above = (0..first).rev().take_while(|line| {
        let code = code[*line].trim();
        let is_comment = code.is_empty() && !comments[*line].trim().is_empty();
        is_comment || code.starts_with("#[")
    });
    (first..=last).chain(above).any(is_reason)
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
    fn leftovers_are_found_in_code_and_in_comments_only() {
        finds("//! A.\nfn a() { dbg!(1); }\n", 2, "`dbg!`");
        finds("//! A.\nfn a() { todo!() }\n", 2, "`todo!`");
        finds("//! A.\n// FIXME: b\n", 2, "FIXME");
        accepts("//! A.\nconst A: &str = \"todo!() TODO\"; // XXXX\n");
        assert_eq!(check_other_language("a.py", "a\n# TODO b\n").len(), 1);
    }

    #[test]
    fn unwrap_is_found_outside_tests() {
        finds("//! A.\nfn a() { b()\n    .unwrap(); }\n", 3, "unwrap");
        accepts("//! A.\nfn a() { b().unwrap_or(1); }\n#[test]\nfn c() { d().unwrap(); }\n");
    }

    #[test]
    fn unsafe_is_found_outside_its_crates() {
        let text = "//! A.\n// SAFETY: b\nfn a() { unsafe { b() } }\n";
        assert!(found("crates/headway-sim/src/lib.rs", text)[0].contains("`unsafe` in headway-sim"));
        assert!(found("xtask/src/main.rs", text)[0].contains("`unsafe` in xtask"));
        assert!(found("crates/headway-core/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n").is_empty());
        accepts(text);
    }

    #[test]
    fn the_runtime_has_unsafe_in_one_file() {
        let text = "//! A.\n// SAFETY: b\nunsafe impl Send for A {}\n";
        let (one, two) = ("crates/headway-runtime/src/copy.rs", "crates/headway-runtime/src/pool.rs");
        assert!(found(one, text).is_empty());
        assert_eq!(check(&Tree::of([(one, text), (two, text)])).len(), 2);
    }

    #[test]
    fn unsafe_without_a_reason_is_found() {
        finds("//! A.\nfn a() {\n    unsafe { b() }\n}\n", 3, "SAFETY");
        finds("//! A.\nunsafe impl Send for A {}\n", 2, "SAFETY");
        // The reason of one statement does not cover the next, nor that of one match arm another.
        finds("//! A.\nfn a() {\n    // SAFETY: b\n    unsafe { b() };\n    unsafe { c() };\n}\n", 5, "SAFETY");
        finds(
            "//! A.\nfn a() {\n    match b {\n        // SAFETY: c\n        1 => unsafe { c() },\n        _ => unsafe { d() },\n    }\n}\n",
            6,
            "SAFETY",
        );
    }

    #[test]
    fn threads_that_take_signals_of_their_program_are_found() {
        finds("//! A.\nfn a() {\n    std::thread::spawn(b);\n}\n", 3, "takes signals");
        finds("//! A.\nfn a() {\n    scope(|scope| {\n        scope.spawn(b);\n    });\n}\n", 4, "takes signals");
        finds("//! A.\nfn a() { Builder::new().name(b).spawn_scoped(scope, c); }\n", 2, "takes signals");
        accepts("//! A.\nfn a() {\n    threads::spawn(b, c);\n    threads::without_signals(|| scope.spawn(b));\n}\n");
        accepts("//! A.\nfn a() { Command::new(b).spawn(); }\n#[test]\nfn c() { std::thread::spawn(d); }\n");
        assert!(found("crates/headway-lab/src/lib.rs", "//! A.\nfn a() { std::thread::spawn(b); }\n").is_empty());
    }

    #[test]
    fn a_reason_above_the_statement_counts() {
        accepts(
            "//! A.\nfn a() {\n    // SAFETY: b\n    // more\n    #[allow(c)]\n    let d = e(f, g(1, 2),\n        unsafe { h() });\n}\n",
        );
        accepts("//! A.\nfn a() {\n    let b = // SAFETY: c\n        unsafe { c() };\n}\n");
        accepts("//! A.\nunsafe fn a() {}\nunsafe trait B {}\n");
    }
}
