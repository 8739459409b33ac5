//! A Rust source, split into what the compiler reads and what only people read.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::tree::Tree;

/// One Rust file. `code` and `comments` have the lines and columns of the file; everything else in them is blank.
pub(crate) struct Source {
    pub(crate) path: String,
    /// Without comments and without what stands in string and character literals.
    pub(crate) code: String,
    /// Comments only, with their slashes.
    pub(crate) comments: String,
    /// Byte ranges that only tests compile.
    tests: Vec<Range<usize>>,
    /// Byte offset of each line.
    starts: Vec<usize>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let (code, comments) = split(text);
        let tests = test_ranges(path, &code);
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { path: path.to_owned(), code, comments, tests, starts }
    }

    /// Line of a byte offset, counted from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    pub(crate) fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }

    /// Offsets of `word` in the code, where it is not part of a longer one.
    pub(crate) fn words(&self, word: &str) -> Vec<usize> {
        words(&self.code, word)
    }
}

/// Every Rust file of the repository. Files of `#[cfg(test)] mod x;` count as tests.
pub(crate) fn sources(tree: &Tree) -> Vec<Source> {
    let mut sources: Vec<_> =
        tree.texts().filter(|(path, _)| path.ends_with(".rs")).map(|(path, text)| Source::new(path, text)).collect();
    let modules: BTreeSet<String> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        let in_test_module = modules.iter().any(|module| {
            source.path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
        if in_test_module {
            source.tests.insert(0, 0..usize::MAX);
        }
    }
    sources
}

/// Offsets of `word` in `text`, where it is not part of a longer one.
pub(crate) fn words(text: &str, word: &str) -> Vec<usize> {
    let part_of_word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = text.as_bytes();
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| !part_of_word(at.checked_sub(1).and_then(|before| bytes.get(before))))
        .filter(|at| !part_of_word(bytes.get(at + word.len())))
        .collect()
}

fn body(code: &str, at: usize) -> Option<Range<usize>> {
    let mut inside = 0u32; // parentheses and brackets, where a `;` may be part of a type
    let mut braces = 0u32;
    let mut open = None;
    for (offset, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => inside += 1,
            b')' | b']' => inside = inside.saturating_sub(1),
            b';' if open.is_none() && inside == 0 => return None,
            b'{' => {
                open.get_or_insert(offset);
                braces += 1;
            }
            b'}' => {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    return open.map(|open| open..offset + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn test_ranges(path: &str, code: &str) -> Vec<Range<usize>> {
    let parts: Vec<_> = path.split('/').collect();
    if parts.iter().any(|part| ["tests", "benches", "examples", "fuzz"].contains(part))
        || code.contains("#![cfg(test)]")
    {
        return vec![Range { start: 0, end: usize::MAX }];
    }
    let attributes = ["#[cfg(test)]", "#[cfg(all(test,", "#[test]"];
    let starts = attributes.iter().flat_map(|attribute| code.match_indices(attribute)).map(|(at, _)| at);
    starts.filter_map(|at| Some(at..body(code, at)?.end)).collect()
}

/// Paths, without `.rs`, of the modules that only tests compile.
fn test_modules(source: &Source) -> Vec<String> {
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = file.trim_end_matches(".rs");
    let inner = if ["lib", "main", "mod"].contains(&stem) { folder.to_owned() } else { format!("{folder}/{stem}") };
    let declared = source.code.match_indices("#[cfg(test)]").filter_map(|(at, attribute)| {
        let item = source.code[at + attribute.len()..].trim_start().trim_start_matches("pub(crate) ");
        let (name, _) = item.strip_prefix("mod ")?.split_once(';')?;
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then(|| format!("{inner}/{name}"))
    });
    declared.collect()
}

/// The text's code and its comments, each blank where the other stands.
fn split(text: &str) -> (String, String) {
    let mut code = text.as_bytes().to_vec();
    let mut comments: Vec<u8> = code.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect();
    let mut at = 0;
    while at < text.len() {
        let (kind, end) = token(text.as_bytes(), at);
        let range = at..end.min(text.len());
        if kind == Token::Comment {
            comments[range.clone()].copy_from_slice(&text.as_bytes()[range.clone()]);
        }
        if kind != Token::Code {
            for byte in code[range.clone()].iter_mut().filter(|byte| **byte != b'\n') {
                *byte = b' ';
            }
        }
        at = range.end;
    }
    let valid = "tokens begin and end at ASCII bytes, and only whole tokens are blanked";
    (String::from_utf8(code).expect(valid), String::from_utf8(comments).expect(valid))
}

#[derive(PartialEq)]
enum Token {
    Code,
    Comment,
    Literal,
}

/// Kind and end of the token at `at`; code is taken a byte or a word at a time.
fn token(text: &[u8], at: usize) -> (Token, usize) {
    let rest = &text[at..];
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if rest.starts_with(b"//") {
        let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        return (Token::Comment, at + length);
    }
    if rest.starts_with(b"/*") {
        return (Token::Comment, at + block_comment(rest));
    }
    match rest[0] {
        b'"' => (Token::Literal, at + quoted(rest)),
        b'\'' => character(rest).map_or((Token::Code, at + 1), |length| (Token::Literal, at + length)),
        byte if is_word(byte) => {
            let word = rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len());
            let raw = [b"r".as_slice(), b"br", b"cr"].contains(&&rest[..word]);
            match raw.then(|| raw_string(&rest[word..])).flatten() {
                Some(length) => (Token::Literal, at + word + length),
                None => (Token::Code, at + word),
            }
        }
        _ => (Token::Code, at + 1),
    }
}

/// Length of a block comment, which may hold others.
fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (2, 1);
    while at < rest.len() && depth > 0 {
        if rest[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
        } else {
            at += 1;
        }
    }
    at
}

/// Length of a string in quotes, with escapes.
fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Length of a character literal, or `None` for a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    let content = match *rest.get(1)? {
        b'\\' => 2 + rest.get(3..)?.iter().position(|byte| *byte == b'\'')?,
        0x00..0x80 => 1,
        first => first.leading_ones() as usize, // bytes of a UTF-8 character
    };
    (rest.get(content + 1) == Some(&b'\'')).then_some(content + 2)
}

/// Length of `#"..."#` after the `r`, or `None` for a raw identifier.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().position(|byte| *byte != b'#')?;
    if rest[hashes] != b'"' {
        return None;
    }
    let end: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let length = rest[hashes + 1..].windows(end.len()).position(|window| window == end)?;
    Some(hashes + 1 + length + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn code_is(text: &str, code: &str) {
        assert_eq!(Source::new("crates/x/src/lib.rs", text).code.replace(' ', ""), code.replace(' ', ""));
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        code_is("a // b\nc /* d /* e */ f */ g", "a \nc  g");
        code_is(r#"a("b \" c", d)"#, "a(, d)");
        code_is(r##"a(r#"b " c"#, br"\", d)"##, "a(, , d)");
        code_is("a('b', '\\'', '\\u{1F600}', 'é', b'\"', c)", "a(,,,, b, c)");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        code_is("fn f<'a>(r#fn: &'a str, x: &'static u8) {}", "fn f<'a>(r#fn: &'a str, x: &'static u8) {}");
    }

    #[test]
    fn unclosed_literals_end_with_the_file() {
        code_is("a \"b", "a ");
        code_is("a /* b", "a ");
        code_is("a \"\\", "a ");
    }

    #[test]
    fn comments_keep_their_lines() {
        let source = Source::new("crates/x/src/lib.rs", "a\n// b \"c\"\nd");
        assert_eq!(source.comments, " \n// b \"c\"\n ");
        assert_eq!((source.line(0), source.line(1), source.line(2), source.line(11)), (1, 1, 2, 3));
    }

    #[test]
    fn test_items_are_found() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[test]\nfn d() { e }\n";
        let source = Source::new("crates/x/src/lib.rs", text);
        let is_test = |word: &str| source.is_test(source.words(word)[0]);
        assert!(!is_test("a") && is_test("b") && !is_test("c") && is_test("e"));
        assert!(Source::new("crates/x/tests/it.rs", "fn a() {}").is_test(0));
    }

    #[test]
    fn files_of_test_modules_are_tests() {
        let tree = Tree::of([
            ("crates/x/src/a.rs", "mod c;\n#[cfg(test)]\nmod tests;\n"),
            ("crates/x/src/a/c.rs", "fn f() {}"),
            ("crates/x/src/a/tests.rs", "fn f() {}"),
            ("crates/x/src/lib.rs", "mod a;\n#[cfg(test)]\nmod fake;\n"),
            ("crates/x/src/fake.rs", "fn f() {}"),
        ]);
        let tests: Vec<_> = sources(&tree).into_iter().filter(|source| source.is_test(0)).map(|it| it.path).collect();
        assert_eq!(tests, ["crates/x/src/a/tests.rs", "crates/x/src/fake.rs"]);
    }

    #[test]
    fn a_semicolon_in_an_array_type_does_not_end_a_function() {
        let code = "fn f() -> [u8; 2] { { } }\nfn g();";
        assert_eq!(body(code, 0), Some(18..25));
        assert_eq!(body(code, 26), None);
    }
}
