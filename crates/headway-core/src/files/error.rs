//! Errors that point into a file: line, column, the line itself and a caret under the place.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// A file cannot be used, and why; prints as
///
/// ```text
/// robot.toml:14:10: `period = 10` has no unit
///    |
/// 14 | period = 10
///    |          ^^
/// help: write `period = "10 ms"`
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileError {
    /// Name of the file as the user gave it.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1; a tab is one character.
    pub column: usize,
    /// Characters under which the caret stands, at least 1.
    pub width: usize,
    /// The line, with control characters other than tabs replaced.
    pub source_line: String,
    /// The object and the fact; one line.
    pub message: String,
    /// The remedy, where one is known; one line.
    pub help: Option<String>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.to_string();
        let gutter = " ".repeat(line.len());
        // A tab before the caret is repeated, so that the caret stands right whatever the width of a tab.
        let before = self.source_line.chars().chain(std::iter::repeat(' ')).take(self.column - 1);
        let before: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        writeln!(f, "{gutter} |")?;
        writeln!(f, "{}", format!("{line} | {}", self.source_line).trim_end())?;
        write!(f, "{gutter} | {before}{}", "^".repeat(self.width))?;
        match &self.help {
            Some(help) => write!(f, "\nhelp: {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for FileError {}

/// A file's name and text, kept to say where an error is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceText {
    /// Name as the user gave it.
    pub name: String,
    /// The whole text.
    pub text: String,
}

impl SourceText {
    /// A source of this name and text.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.to_owned() }
    }

    /// An error at the bytes `span` of the text. A span outside the text or inside a character moves to the nearest place
    /// before; one over several lines is cut at the end of its first line.
    #[must_use]
    pub fn error(&self, span: Range<usize>, message: impl AsRef<str>, help: Option<String>) -> FileError {
        let text = self.text.as_str();
        let start = floor_boundary(text, span.start);
        let end = floor_boundary(text, span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        // A caret past a trailing carriage return would stand past the line that is shown.
        let shown = text[line_start..line_end].trim_end_matches('\r');
        let start = start.min(line_start + shown.len());
        let end = end.clamp(start, line_start + shown.len());
        FileError {
            file: self.name.clone(),
            line: text[..line_start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            width: text[start..end].chars().count().max(1),
            source_line: printable(shown),
            message: printable(message.as_ref()),
            help: help.as_deref().map(printable),
        }
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at)
}

/// `text` without control characters other than tabs, so that a file cannot steer the terminal that shows its error.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// `written`, or only the `key` where that is long.
pub(crate) fn short<'a>(key: &'a str, written: &'a str) -> &'a str {
    if written.len() <= 60 && !written.contains('\n') { written } else { key }
}

/// Where a key and its value stand in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenSpan {
    /// The key, or the header of a table, or an element of a list.
    pub key: Range<usize>,
    /// The value; of a table with an id, the id.
    pub value: Range<usize>,
}

/// What a file says, with the place of each of its parts, so that a later stage can point at the part it refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<T> {
    /// What the file says.
    pub value: T,
    /// The file itself; of what code made, the file that would say it.
    pub source: SourceText,
    /// Where each named part stands, for example `stream.cam-00.period`; none if code made it.
    pub spans: BTreeMap<String, WrittenSpan>,
}

impl<T> Loaded<T> {
    /// An error at the part called `key`, at the nearest part around it if that one is not written in the file, or else
    /// at the start of the file.
    #[must_use]
    pub fn error_at(&self, key: &str, message: impl AsRef<str>, help: Option<String>) -> FileError {
        self.source.error(self.span_of(key), message, help)
    }

    pub(crate) fn span_of(&self, key: &str) -> Range<usize> {
        let mut part = key;
        loop {
            if let Some(span) = self.spans.get(part) {
                return span.value.clone();
            }
            match part.rfind('.') {
                Some(dot) => part = &part[..dot],
                None => return 0..0,
            }
        }
    }

    /// `KEY = VALUE` as the user wrote it, or only the key where that is long; `None` if the file does not say it.
    pub(crate) fn excerpt<'a>(&'a self, place: &'a str) -> Option<&'a str> {
        let WrittenSpan { key, value } = self.spans.get(place)?;
        let name = place.rsplit('.').find(|name| !name.starts_with(|c: char| c.is_ascii_digit()))?;
        Some(short(name, self.source.text.get(key.start..value.end.max(key.end))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_line_and_a_caret_under_the_place() {
        let text = format!("{}period = 10\n", "\n".repeat(13));
        let source = SourceText::new("robot.toml", &text);
        let error = source.error(22..24, "`period = 10` has no unit", Some("write `period = \"10 ms\"`".to_owned()));
        let expected = "robot.toml:14:10: `period = 10` has no unit
   |
14 | period = 10
   |          ^^
help: write `period = \"10 ms\"`";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn columns_count_characters_and_tabs_are_repeated_before_the_caret() {
        let error = SourceText::new("t", "\tµ = ä\r\n").error(6..8, "m", None);
        assert_eq!((error.line, error.column, error.width), (1, 6, 1));
        assert_eq!(error.to_string(), "t:1:6: m\n  |\n1 | \tµ = ä\n  | \t    ^");
    }

    #[test]
    fn spans_outside_the_text_inside_a_character_or_over_lines_still_give_a_place() {
        let source = SourceText::new("t", "aä\nb");
        let at = |span| {
            let e = source.error(span, "m", None);
            (e.line, e.column, e.width)
        };
        assert_eq!(at(2..3), (1, 2, 1));
        assert_eq!(at(0..5), (1, 1, 2));
        assert_eq!(at(99..120), (2, 2, 1));
        assert_eq!(at(Range { start: 4, end: 1 }), (2, 1, 1));
        assert_eq!(SourceText::new("t", "").error(0..0, "m", None).to_string(), "t:1:1: m\n  |\n1 |\n  | ^");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let error = SourceText::new("t", "a\u{1b}[2Jb\n").error(0..1, "key `\u{7}`", Some("\u{8}".to_owned()));
        assert_eq!(error.source_line, "a\u{fffd}[2Jb");
        assert_eq!(error.message, "key `\u{fffd}`");
        assert_eq!(error.help.as_deref(), Some("\u{fffd}"));
    }

    #[test]
    fn an_unknown_part_falls_back_to_the_nearest_one_around_it() {
        let at = |value: Range<usize>| WrittenSpan { key: value.clone(), value };
        let spans = BTreeMap::from([("stream.a.b".to_owned(), at(2..3)), ("stream.a.b.gpu".to_owned(), at(4..5))]);
        let loaded = Loaded { value: (), source: SourceText::new("t", "0\n2\n4\n"), spans };
        assert_eq!(loaded.error_at("stream.a.b.gpu", "m", None).line, 3);
        assert_eq!(loaded.error_at("stream.a.b.steps.7", "m", None).line, 2);
        assert_eq!(loaded.error_at("flow.x", "m", None).line, 1);
    }
}
