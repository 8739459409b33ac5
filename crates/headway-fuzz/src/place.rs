//! Errors of files point into the file.

use headway_core::files::error::FileError;

/// The error stands at a place of `text`, shows that line, and prints as text that no terminal obeys.
pub(crate) fn check(error: &FileError, text: &str) {
    let lines: Vec<&str> = text.split('\n').collect();
    assert!((1..=lines.len()).contains(&error.line), "line {} of {}: {error}", error.line, lines.len());
    let letters = lines[error.line - 1].trim_end_matches('\r').chars().count();
    assert_eq!(error.source_line.chars().count(), letters, "{error}");
    // Behind the last letter, where something is missing.
    assert!((1..=letters + 1).contains(&error.column), "column {} of {letters}: {error}", error.column);
    assert!((1..=(letters + 1 - (error.column - 1)).max(1)).contains(&error.width), "width {}: {error}", error.width);
    assert!(!error.message.is_empty());
    let printed = error.to_string();
    assert!(!printed.chars().any(|letter| letter.is_control() && !['\n', '\t'].contains(&letter)), "{printed:?}");
}
