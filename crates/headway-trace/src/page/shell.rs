//! The file around the figures, the same for every kind of run: head, policy, body, style, script and data.

use std::io::{self, BufWriter, Write};

use headway_core::log::{Incomplete, PAGE_MARK};
use headway_core::units::Nanos;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// Version of the JSON form of the data block `headway-data`.
pub(crate) const SCHEMA: u32 = 2;

const STYLE: &str = include_str!("page.css");
const BODY: &str = include_str!("body.html");
const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("base.js"),
    include_str!("timeline.js"),
    include_str!("streams.js"),
    include_str!("sharing.js"),
    include_str!("guest.js"),
    include_str!("main.js"),
    "})();\n"
);

/// What a page shows without its script.
pub(crate) struct Shell<'a> {
    /// Title of the window.
    pub(crate) title: &'a str,
    /// Why the run is not whole.
    pub(crate) incomplete: Option<&'a str>,
    /// What the files of the run lack, a sentence each.
    pub(crate) left_out: &'a [String],
    /// Which results nothing is compared with, as a sentence.
    pub(crate) not_compared: Option<&'a str>,
    /// The figures as text.
    pub(crate) plain: &'a str,
}

impl Shell<'_> {
    /// Writes the file. Everything that a workload can name is text in the data block or escaped text; a content security
    /// policy admits only the page's own script and style, by their hashes, so that nothing in a name can run.
    pub(crate) fn write(&self, data: &impl Serialize, out: impl Write) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 16, out);
        writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
        writeln!(out, "{PAGE_MARK}")?;
        writeln!(
            out,
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src '{}'; script-src '{}'; \
             base-uri 'none'; form-action 'none'\">",
            hash(STYLE),
            hash(SCRIPT),
        )?;
        writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
        writeln!(out, "<meta name=\"color-scheme\" content=\"light dark\">")?;
        writeln!(out, "<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>", escape(self.title))?;
        if let Some(why) = self.incomplete {
            writeln!(out, "<p id=\"incomplete\" class=\"banner\" role=\"note\">{}</p>", escape(why))?;
        }
        for what in self.left_out {
            writeln!(out, "<p class=\"remark\" role=\"note\">Left out: {}.</p>", escape(what))?;
        }
        if let Some(what) = self.not_compared {
            writeln!(out, "<p class=\"remark\" role=\"note\">{}.</p>", escape(what))?;
        }
        out.write_all(BODY.as_bytes())?;
        writeln!(
            out,
            "<noscript><div class=\"plain\"><p>Scripts are off; these are the figures as text.</p>\n<pre>{}</pre></div></noscript>",
            escape(self.plain)
        )?;
        write!(out, "<script type=\"application/json\" id=\"headway-data\">")?;
        serde_json::to_writer(InScript(&mut out), data)?;
        writeln!(out, "</script>\n<script>{SCRIPT}</script>\n</body>\n</html>")?;
        out.flush()
    }
}

/// What the page of a run says that ended early.
pub(crate) fn banner(why: &Incomplete, span: Nanos) -> String {
    format!("Incomplete: the run was {why} after {span}. All figures are of what ran until then.")
}

/// Text as HTML, for elements and attribute values in quotes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Passes JSON on in a form that cannot end the script element it stands in: outside strings JSON has no `<`, `>` or `&`.
struct InScript<W>(W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| matches!(byte, b'<' | b'>' | b'&')) {
            let (last, before) = part.split_last().expect("a part that was split off has a byte");
            match last {
                b'<' | b'>' | b'&' => {
                    self.0.write_all(before)?;
                    write!(self.0, "\\u{last:04x}")?;
                }
                _ => self.0.write_all(part)?,
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A source expression of a content security policy.
fn hash(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = "sha256-".to_owned();
    for group in Sha256::digest(text.as_bytes()).chunks(3) {
        let word = group.iter().enumerate().fold(0u32, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at) & 63) as usize];
            encoded.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_a_script_cannot_end_it_and_stays_the_same_json() {
        let mut text = Vec::new();
        let name = "</script><img src=x onerror=alert(1)>&amp;<!--";
        serde_json::to_writer(InScript(&mut text), name).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains(['<', '>', '&']), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), name);
    }

    #[test]
    fn hashes_are_those_of_the_content_security_policy() {
        // `printf 'alert(1);' | openssl dgst -sha256 -binary | base64`
        assert_eq!(hash("alert(1);"), "sha256-5jFwrAK0UV47oFbVg/iCCBbxD8X1w+QvoOUepu4C2YA=");
    }

    #[test]
    fn style_and_script_name_nothing_outside_the_file() {
        for text in [STYLE, SCRIPT, BODY] {
            let outside: Vec<_> =
                text.match_indices("://").map(|(at, _)| &text[at.saturating_sub(8)..at + 20]).collect();
            assert!(outside.iter().all(|place| place.contains("http://www.w3.org")), "{outside:?}");
            assert!(!text.contains("@import") && !text.contains("url("));
        }
    }

    /// Values of the variables of the first block of the style whose selector line contains `selector`.
    fn colors(selector: &str) -> Vec<(String, [f64; 3])> {
        let block = STYLE.split(selector).nth(1).unwrap().split('{').nth(1).unwrap().split('}').next().unwrap();
        let pairs = block.split(';').filter_map(|part| part.trim().split_once(": #"));
        let channel = |hex: &str, at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
        pairs
            .filter(|(name, _)| name.starts_with("--"))
            .map(|(name, hex)| (name[2..].to_owned(), [channel(hex, 0), channel(hex, 2), channel(hex, 4)]))
            .collect()
    }

    /// Relative luminance of WCAG 2.
    fn luminance(color: [f64; 3]) -> f64 {
        let linear = color.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    }

    #[test]
    fn text_has_the_contrast_that_wcag_asks_for_in_both_schemes() {
        for scheme in ["/* light */", "/* dark */"] {
            let colors = colors(scheme);
            let of = |name: &str| {
                let found = colors.iter().find(|(known, _)| known == name);
                luminance(found.unwrap_or_else(|| panic!("no colour {name} in {scheme}")).1)
            };
            let contrast = |a: f64, b: f64| (a.max(b) + 0.05) / (a.min(b) + 0.05);
            for ground in ["ground", "card", "faint"] {
                for text in ["text", "muted", "accent", "good", "bad"] {
                    let found = contrast(of(text), of(ground));
                    assert!(found >= 4.5, "{scheme}: {text} on {ground} has {found:.2}");
                }
                for graphic in ["busy", "edge"] {
                    let found = contrast(of(graphic), of(ground));
                    assert!(found >= 2.9, "{scheme}: {graphic} on {ground} has {found:.2}");
                }
            }
        }
    }
}
