//! Events of the libraries as lines on the standard error, as far as the variable `HEADWAY_LOG` asks for them.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::time::Instant;

use anyhow::bail;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What says which events are written.
const VARIABLE: &str = "HEADWAY_LOG";
/// What the targets of all events begin with.
const PREFIX: &str = "headway::";
/// The parts of Headway that have events.
const PARTS: [&str; 6] = ["broker", "copy", "dispatch", "plan", "run", "staging"];

/// Has events written that `HEADWAY_LOG` asks for; nothing without it.
///
/// # Errors
/// A value that asks for nothing that there is.
pub fn begin() -> anyhow::Result<()> {
    let Some(rules) = Rules::parse(std::env::var_os(VARIABLE))? else { return Ok(()) };
    tracing::subscriber::set_global_default(Printer { rules, started: Instant::now() })?;
    Ok(())
}

/// The least urgent level that is written, of each part.
#[derive(Debug, PartialEq)]
struct Rules([LevelFilter; PARTS.len()]);

impl Rules {
    /// `None` = nothing is written.
    fn parse(value: Option<OsString>) -> anyhow::Result<Option<Self>> {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
        let Some(text) = value.to_str() else { bail!("{VARIABLE} is not UTF-8; {}", help()) };
        let mut rules = Self([LevelFilter::OFF; PARTS.len()]);
        for rule in text.split(',').map(str::trim) {
            let (part, level) =
                rule.split_once('=').map_or((None, rule), |(part, level)| (Some(part.trim()), level.trim()));
            // The crate takes an empty word for `error`.
            let Some(level) = level.parse::<LevelFilter>().ok().filter(|_| !level.is_empty()) else {
                bail!("{VARIABLE} has `{rule}`, and `{level}` is no level; {}", help());
            };
            let Some(part) = part else {
                rules.0 = [level; PARTS.len()];
                continue;
            };
            let Some(at) = position(part.strip_prefix(PREFIX).unwrap_or(part)) else {
                bail!("{VARIABLE} has `{rule}`, and no part of Headway is called `{part}`; {}", help());
            };
            rules.0[at] = level;
        }
        Ok(Some(rules).filter(|rules| rules.most() > LevelFilter::OFF))
    }

    fn of(&self, target: &str) -> LevelFilter {
        target.strip_prefix(PREFIX).and_then(position).map_or(LevelFilter::OFF, |at| self.0[at])
    }

    fn most(&self) -> LevelFilter {
        self.0.into_iter().max().unwrap_or(LevelFilter::OFF)
    }
}

fn position(part: &str) -> Option<usize> {
    PARTS.iter().position(|known| *known == part)
}

fn help() -> String {
    format!(
        "use `off`, `error`, `warn`, `info`, `debug` or `trace`, or PART=LEVEL with one of the parts {}",
        PARTS.join(", ")
    )
}

/// Writes each event as one line.
struct Printer {
    rules: Rules,
    started: Instant,
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.rules.of(metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.rules.most())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // The libraries have no spans.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = EventLine::default();
        event.record(&mut line);
        let (metadata, seconds) = (event.metadata(), self.started.elapsed().as_secs_f64());
        let part = metadata.target().strip_prefix(PREFIX).unwrap_or_else(|| metadata.target());
        let text = format!("{seconds:12.6} {:5} {part}: {}{}\n", metadata.level(), line.text, line.values);
        // Nowhere is left to report that stderr is closed. One call, so that lines of threads do not mix.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event as it is written: its text, then ` NAME=VALUE` for each value.
#[derive(Default)]
struct EventLine {
    text: String,
    values: String,
}

impl Visit for EventLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        if field.name() == "message" {
            self.text = value;
        } else if value.contains([' ', '"', '\n', '=']) {
            let _ = write!(self.values, " {}={value:?}", field.name());
        } else {
            let _ = write!(self.values, " {}={value}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Option<Rules>> {
        Rules::parse(Some(text.into()))
    }

    #[test]
    fn a_level_is_of_all_parts_and_later_rules_change_it_for_one() {
        let rules = parse("info, copy=trace,headway::broker=off").unwrap().unwrap();
        let of = |part| rules.of(&format!("headway::{part}"));
        assert_eq!([of("copy"), of("broker"), of("run")], [LevelFilter::TRACE, LevelFilter::OFF, LevelFilter::INFO]);
        assert_eq!(rules.of("other"), LevelFilter::OFF);
    }

    #[test]
    fn nothing_and_off_write_nothing() {
        assert_eq!(Rules::parse(None).unwrap(), None);
        assert_eq!([parse("").unwrap(), parse("off").unwrap(), parse("copy=off").unwrap()], [None, None, None]);
    }

    #[test]
    fn what_is_no_level_and_no_part_is_an_error_that_names_those_there_are() {
        for (text, wrong) in [("loud", "`loud` is no level"), ("copy=", "`` is no level"), ("cpy=info", "called `cpy`")]
        {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("debug") && error.contains("staging"), "{error}");
        }
    }
}
