//! Texts from other processes, made safe before they are shown.

/// Longest name that a client may give itself, a task or a kernel, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;
/// Letters that are kept of a name, and bytes of them as they are shown: an escaped letter has up to ten.
const LETTERS_MAX: usize = 64;
const SHOWN_MAX: usize = 128;

/// A name, made safe for terminals, logs and sentences. Characters that are invisible, or that change how the following ones are read, are
/// escaped. Back-ticks, in which we quote names, and double quotes become apostrophes, and backslashes slashes: what is escaped again in each
/// file that holds them would take several times its length there.
pub(crate) fn shown(name: &str) -> String {
    let mut text = String::with_capacity(name.len().min(LETTERS_MAX));
    for letter in name.chars().take(LETTERS_MAX) {
        let before = text.len();
        match letter {
            '`' | '"' | '\'' => text.push('\''),
            '\\' => text.push('/'),
            _ => text.extend(escaped(letter)),
        }
        if text.len() > SHOWN_MAX {
            text.truncate(before);
            break;
        }
    }
    text
}

/// A sentence of the other side as terminals may show it.
pub(crate) fn readable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\'' | '\\' => shown.push(letter),
            _ => shown.extend(escaped(letter)),
        }
    }
    shown
}

/// Letters that fonts draw as nothing although Unicode counts them as printed: fillers of Hangul and the empty pattern of Braille.
const BLANK: [char; 5] = ['\u{115f}', '\u{1160}', '\u{2800}', '\u{3164}', '\u{ffa0}'];

fn escaped(letter: char) -> impl Iterator<Item = char> {
    let is_blank = BLANK.contains(&letter);
    let unicode = is_blank.then(|| letter.escape_unicode());
    let usual = (!is_blank).then(|| letter.escape_debug());
    unicode.into_iter().flatten().chain(usual.into_iter().flatten())
}

/// Refuses texts that are not valid names.
pub(crate) fn check(what: &str, name: &str) -> Result<(), String> {
    let length = name.len();
    if length <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(format!("the name of {what} has {length} bytes, and {NAME_BYTES_MAX} are the most; choose a shorter one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_escaped_and_nothing_ends_a_quotation() {
        assert_eq!(shown("Kalman \u{fc}ber \"a\\b\""), "Kalman \u{fc}ber 'a/b'");
        for (raw, text) in [
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{2028}b", "a\\u{2028}b"),
            ("a\u{2066}\u{200b}\u{feff}", "a\\u{2066}\\u{200b}\\u{feff}"),
            ("a\u{9b}31m\u{1b}[2J\u{7f}\n", "a\\u{9b}31m\\u{1b}[2J\\u{7f}\\n"),
            ("`rm`", "'rm'"),
            ("a\u{3164}\u{115f}\u{1160}\u{ffa0}\u{2800}", "a\\u{3164}\\u{115f}\\u{1160}\\u{ffa0}\\u{2800}"),
        ] {
            assert_eq!(shown(raw), text);
        }
        assert_eq!(shown(&"x".repeat(1_000)).len(), LETTERS_MAX);
        let escaped = shown(&"\u{e0001}".repeat(64));
        assert!(escaped.len() <= SHOWN_MAX && escaped.ends_with("\\u{e0001}"), "{escaped}");
        assert_eq!(readable("`a` is \"b\"\u{1b}[2J\u{202e}"), "`a` is \"b\"\\u{1b}[2J\\u{202e}");
        assert!(check("a task", &"x".repeat(NAME_BYTES_MAX)).is_ok());
        assert!(check("a task", &"x".repeat(100_000)).unwrap_err().contains("100000 bytes"));
    }
}
