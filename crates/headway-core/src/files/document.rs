//! A TOML document read key by key, every error with its place in the file.
//!
//! Serde's derived readers give the place of a value but not of a key, and cannot tell `10` from `"10 ms"` in words of
//! ours; walking the parsed document gives both.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use sha2::{Digest, Sha256};
use toml::de::{DeTable, DeValue};

use crate::files::error::{FileError, SourceText, WrittenSpan, short};
use crate::units::{Bytes, Nanos, PPM, RATE_MAX, Rate, SIZE_MAX, TIME_MAX, UnitError};

/// Longest name of anything, in characters.
pub(crate) const NAME_MAX: usize = 64;
/// How a name is written.
pub(crate) const NAME_EXAMPLE: &str = "\"a-name\"";
/// Most bytes of a name in UTF-8. Names become names of files, which may have 255 bytes: this leaves room for what is added.
const NAME_BYTES_MAX: usize = 192;
pub(crate) const TIME_LIMIT: &str = "366 days";
pub(crate) const SIZE_LIMIT: &str = "1048576 GiB";

/// The first 16 hexadecimal digits of the SHA-256 of `text`.
pub(crate) fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The whole document of `source`, which may hold the keys `known` at its top level.
pub(crate) fn root<'a>(source: &'a SourceText, known: &'static [&'static str]) -> Result<DocumentTable<'a>, FileError> {
    let parsed = DeTable::parse(&source.text).map_err(|error| {
        let help = toml_help(error.message()).map(str::to_owned);
        source.error(error.span().unwrap_or(0..0), error.message(), help)
    })?;
    let entries = parsed.into_inner();
    mistaken(source, &entries, known)?;
    DocumentTable::new(source, "the top level", 0..0, entries, known)
}

/// What to do about text that is not TOML, by the parser's `message`.
fn toml_help(message: &str) -> Option<&'static str> {
    let help = [
        ("string values must be quoted", "put the value in double quotes; a value with a unit is a text"),
        ("invalid basic string", "close the text with a double quote on the same line, as in `name = \"a\"`"),
        ("invalid literal string", "close the text with a single quote on the same line, as in `name = 'a'`"),
        ("invalid multi-line", "close the text with the three quotes that begin it"),
        ("invalid boolean", "write `true` or `false`; put a text in double quotes, on both sides"),
        ("unclosed array", "close the list with `]`"),
        ("unclosed inline table", "close the table with `}`"),
        ("unclosed table", "close the heading with `]`, or with `]]` where it began with `[[`"),
        ("duplicate key", "a key stands once in its table; remove one, or begin another table"),
    ];
    help.into_iter().find(|(begins, _)| message.starts_with(begins)).map(|(_, help)| help)
}

/// Keys at the top level that only machine files, or only workload files, have.
const MACHINE_ONLY: &[&str] = &["memory", "gpu", "link", "limit", "engine", "route", "calibration", "curve"];
const WORKLOAD_ONLY: &[&str] = &["run", "stream", "message", "demand", "flow", "task", "sharing", "bulk", "urgent"];

/// A file of the other kind: that is said rather than which key is unknown.
fn mistaken(source: &SourceText, entries: &DeTable<'_>, known: &[&str]) -> Result<(), FileError> {
    let is_one_of = |keys: &[&str], key: &str| keys.contains(&key);
    let (own, other, fact, help) = if known.contains(&WORKLOAD_ONLY[0]) {
        let help = "give the workload first, and this file with `--machine`";
        (WORKLOAD_ONLY, MACHINE_ONLY, "a machine file, not a workload file", help)
    } else if known.contains(&MACHINE_ONLY[0]) {
        let help = "give this file as the workload; `headway machines` lists what `--machine` takes by name";
        (MACHINE_ONLY, WORKLOAD_ONLY, "a workload file, not a machine file", help)
    } else {
        return Ok(());
    };
    if entries.keys().any(|key| is_one_of(own, key.get_ref())) {
        return Ok(());
    }
    match entries.keys().filter(|key| is_one_of(other, key.get_ref())).min_by_key(|key| key.span().start) {
        None => Ok(()),
        Some(key) => {
            Err(source.error(key.span(), format!("this is {fact}: it has `{}`", key.get_ref()), Some(help.to_owned())))
        }
    }
}

/// What to write instead of a key that a table does not have although others have it.
fn instead(table: &str, key: &str) -> Option<&'static str> {
    match (table, key) {
        ("[[message]]", "deadline") => {
            Some("a message is due at the end of its `period`: shorten that, or make it a `[[stream]]`")
        }
        _ => None,
    }
}

/// "did you mean `x`?" for a near miss of one of `names`, else the names.
pub fn suggest<'a>(word: &str, names: impl Iterator<Item = &'a str> + Clone, kind: &str) -> String {
    const LISTED_MAX: usize = 16;
    if word.chars().count() <= NAME_MAX {
        let near = names.clone().map(|name| (distance(word, name), name)).min();
        if let Some((away, name)) = near
            && away <= 2
            && 3 * away <= word.chars().count()
        {
            return format!("did you mean `{name}`?");
        }
    }
    let listed: Vec<String> = names.clone().take(LISTED_MAX).map(|name| format!("`{name}`")).collect();
    let more = if names.count() > LISTED_MAX { ", ..." } else { "" };
    if listed.is_empty() { format!("there are no {kind}") } else { format!("{kind}: {}{more}", listed.join(", ")) }
}

/// Whether `text` can name something: 1 to 64 letters, digits and `_ - . : /`, in at most 192 bytes.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = (1..=NAME_MAX).contains(&text.chars().count()) && text.len() <= NAME_BYTES_MAX;
    fits && text.chars().all(|c| c.is_alphanumeric() || "_-.:/".contains(c))
}

/// Letters to insert, delete or replace to make `b` of `a` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// A table whose keys are all known.
pub struct DocumentTable<'a> {
    source: &'a SourceText,
    what: String,
    /// The table's header, or all of an inline table.
    pub(crate) span: Range<usize>,
    fields: BTreeMap<String, Field<'a>>,
}

impl<'a> DocumentTable<'a> {
    fn new(
        source: &'a SourceText,
        what: &str,
        span: Range<usize>,
        entries: DeTable<'a>,
        known: &[&'static str],
    ) -> Result<Self, FileError> {
        let table = Self::any(source, what, span, entries);
        let unknown = table.fields.values().filter(|field| !known.contains(&field.key.as_str()));
        match unknown.min_by_key(|field| field.whole.start) {
            None => Ok(table),
            Some(field) => {
                let help = instead(what, &field.key)
                    .map_or_else(|| suggest(&field.key, known.iter().copied(), "known keys"), str::to_owned);
                Err(source.error(field.key_span.clone(), format!("unknown key `{}` in {what}", field.key), Some(help)))
            }
        }
    }

    fn any(source: &'a SourceText, what: &str, span: Range<usize>, entries: DeTable<'a>) -> Self {
        let mut fields = BTreeMap::new();
        for (key, value) in entries {
            let (key_span, key) = (key.span(), key.into_inner().into_owned());
            let whole = key_span.start..value.span().end.max(key_span.end);
            let field =
                Field { source, key: key.clone(), key_span, whole, span: value.span(), value: value.into_inner() };
            fields.insert(key, field);
        }
        Self { source, what: what.to_owned(), span, fields }
    }

    /// The field called `key`, if it is written.
    pub fn take(&mut self, key: &str) -> Option<Field<'a>> {
        self.fields.remove(key)
    }

    /// The field called `key`; without it, an error at the table that shows how to write it, as in `example`.
    pub fn require(&mut self, key: &str, example: &str) -> Result<Field<'a>, FileError> {
        self.take(key).ok_or_else(|| {
            let help = format!("add `{key} = {example}`");
            self.source.error(self.span.clone(), format!("{} has no `{key}`", self.what), Some(help))
        })
    }

    /// The tables `[[key]]`, each of which may hold the keys `known`.
    pub(crate) fn tables(&mut self, key: &'static str, known: &[&'static str]) -> Result<Vec<Self>, FileError> {
        let Some(field) = self.take(key) else { return Ok(Vec::new()) };
        let what = format!("[[{key}]]");
        if matches!(field.value, DeValue::Table(_)) {
            return Err(field.error(format!("`{key}` is one table, not a list"), Some(format!("write `{what}`"))));
        }
        field.elements(&what)?.into_iter().map(|element| element.table(&what, known)).collect()
    }

    /// Notes where each field stands as `PLACE.KEY`, and everything in it.
    pub(crate) fn note(&self, place: &str, spans: &mut BTreeMap<String, WrittenSpan>) {
        self.fields.iter().for_each(|(key, field)| field.note(&format!("{place}.{key}"), spans));
    }

    /// All fields left, in the order of the file.
    pub(crate) fn rest(self) -> Vec<Field<'a>> {
        let mut fields: Vec<_> = self.fields.into_values().collect();
        fields.sort_by_key(|field| field.whole.start);
        fields
    }

    /// An error at the table.
    pub fn error(&self, message: impl AsRef<str>, help: impl Into<String>) -> FileError {
        self.source.error(self.span.clone(), message, Some(help.into()))
    }
}

/// What is wrong with a value, as a sentence that `KEY = VALUE` begins, and the remedy.
pub(crate) struct ValueFault {
    pub(crate) fact: String,
    pub(crate) help: String,
}

impl ValueFault {
    pub(crate) fn not_a_name(text: &str) -> Option<Self> {
        let mut help = format!("names have 1 to {NAME_MAX} letters, digits and `_`, `-`, `.`, `:`, `/`");
        if text.len() > NAME_BYTES_MAX {
            help = format!("{help}, and at most {NAME_BYTES_MAX} bytes; this one has {}", text.len());
        }
        (!is_name(text)).then(|| Self { fact: "is not a name".to_owned(), help })
    }

    pub(crate) fn above<T: PartialOrd>(value: &T, max: &T, limit: &str) -> Option<Self> {
        (value > max).then(|| Self { fact: format!("is above {limit}"), help: format!("write at most {limit}") })
    }

    pub(crate) fn zero<T: Default + PartialEq>(value: &T, key: &str, example: &str) -> Option<Self> {
        let help = || format!("write for example `{key} = \"{example}\"`");
        (*value == T::default()).then(|| Self { fact: "is zero".to_owned(), help: help() })
    }

    pub(crate) fn outside(value: u64, range: &RangeInclusive<u64>) -> Option<Self> {
        (!range.contains(&value)).then(|| Self::not_in(range))
    }

    fn not_in(range: &RangeInclusive<u64>) -> Self {
        let (min, max) = (range.start(), range.end());
        Self { fact: format!("is outside {min} to {max}"), help: format!("write an integer from {min} to {max}") }
    }
}

/// Notes where a value stands, and everything in it: elements as `PLACE.N`, keys as `PLACE.KEY`.
fn note(
    place: String,
    key: Range<usize>,
    at: Range<usize>,
    value: &DeValue<'_>,
    spans: &mut BTreeMap<String, WrittenSpan>,
) {
    match value {
        DeValue::Array(elements) => {
            for (number, element) in elements.iter().enumerate() {
                note(format!("{place}.{number}"), element.span(), element.span(), element.get_ref(), spans);
            }
        }
        DeValue::Table(entries) => {
            for (key, value) in entries {
                note(format!("{place}.{}", key.get_ref()), key.span(), value.span(), value.get_ref(), spans);
            }
        }
        _ => {}
    }
    spans.entry(place).or_insert(WrittenSpan { key, value: at });
}

/// A key with its value, or an element of a list.
pub struct Field<'a> {
    source: &'a SourceText,
    /// The key; of a list's element, the list's.
    pub(crate) key: String,
    key_span: Range<usize>,
    /// From the key to the end of the value.
    whole: Range<usize>,
    /// The value.
    pub(crate) span: Range<usize>,
    value: DeValue<'a>,
}

impl<'a> Field<'a> {
    /// The line of byte `at` of the same file, counted from 1. Reads the text up to there.
    pub(crate) fn line_of(&self, at: usize) -> usize {
        self.source.error(at..at, "", None).line
    }

    /// The key; of a list's element, the list's.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// An error at the value.
    pub fn error(&self, message: impl AsRef<str>, help: Option<String>) -> FileError {
        self.source.error(self.span.clone(), message, help)
    }

    /// An error at the key.
    pub fn key_error(&self, message: impl AsRef<str>, help: Option<String>) -> FileError {
        self.source.error(self.key_span.clone(), message, help)
    }

    /// `key = value` as the user wrote it, or only the key where that is long.
    pub fn excerpt(&self) -> &str {
        short(&self.key, self.source.text.get(self.whole.clone()).unwrap_or(&self.key))
    }

    /// Whether the value is a list.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.value, DeValue::Array(_))
    }

    /// Whether the value is a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    /// Notes where the value stands as `place`, and everything in it.
    pub(crate) fn note(&self, place: &str, spans: &mut BTreeMap<String, WrittenSpan>) {
        note(place.to_owned(), self.key_span.clone(), self.span.clone(), &self.value, spans);
    }

    fn mistyped(&self, wanted: &str, example: &str) -> FileError {
        let is = match &self.value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a number with a point",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let message = format!("`{}` is {is}, not {wanted}", self.excerpt());
        self.error(message, Some(format!("write for example `{} = {example}`", self.key)))
    }

    /// The value as a text.
    pub fn text(&self, example: &str) -> Result<&str, FileError> {
        match &self.value {
            DeValue::String(text) => Ok(text),
            _ => Err(self.mistyped("a text", example)),
        }
    }

    /// The value as true or false.
    pub(crate) fn boolean(&self) -> Result<bool, FileError> {
        match &self.value {
            DeValue::Boolean(value) => Ok(*value),
            _ => Err(self.mistyped("true or false", "true")),
        }
    }

    /// The value as a name: 1 to 64 letters, digits and `_ - . : /`.
    pub(crate) fn name(&self) -> Result<String, FileError> {
        let text = self.text(NAME_EXAMPLE)?;
        self.refuse(ValueFault::not_a_name(text))?;
        Ok(text.to_owned())
    }

    /// Refuses the value for a fault.
    fn refuse(&self, fault: Option<ValueFault>) -> Result<(), FileError> {
        fault.map_or(Ok(()), |fault| Err(self.fault(fault)))
    }

    fn fault(&self, ValueFault { fact, help }: ValueFault) -> FileError {
        self.error(format!("`{}` {fact}", self.excerpt()), Some(help))
    }

    /// The value as a text with a unit.
    fn quantity<T: FromStr<Err = UnitError>>(&self, example: &str) -> Result<T, FileError> {
        let text = match &self.value {
            DeValue::String(text) => text.as_ref(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            _ => return Err(self.mistyped("a text with a unit", &format!("\"{example}\""))),
        };
        text.parse().map_err(|error| self.unit_error(&error))
    }

    /// The value as a time of any length.
    pub(crate) fn any_time(&self) -> Result<Nanos, FileError> {
        self.quantity("10 ms")
    }

    /// The value as a size of any number of bytes.
    pub(crate) fn any_size(&self, example: &str) -> Result<Bytes, FileError> {
        self.quantity(example)
    }

    fn above_zero<T>(&self, max: T, limit: &str, example: &str) -> Result<T, FileError>
    where
        T: FromStr<Err = UnitError> + Default + PartialOrd,
    {
        let value = self.quantity(example)?;
        self.refuse(ValueFault::above(&value, &max, limit))?;
        self.refuse(ValueFault::zero(&value, &self.key, example))?;
        Ok(value)
    }

    /// The value as a time.
    pub(crate) fn time(&self) -> Result<Nanos, FileError> {
        let time = self.any_time()?;
        self.refuse(ValueFault::above(&time, &TIME_MAX, TIME_LIMIT))?;
        Ok(time)
    }

    /// The value as a size above zero.
    pub(crate) fn size_above_zero(&self, example: &str) -> Result<Bytes, FileError> {
        self.above_zero(SIZE_MAX, SIZE_LIMIT, example)
    }

    /// The value as a rate above zero.
    pub(crate) fn rate_above_zero(&self, example: &str) -> Result<Rate, FileError> {
        self.above_zero(RATE_MAX, "1000000 GB/s", example)
    }

    fn unit_error(&self, error: &UnitError) -> FileError {
        let (key, excerpt) = (&self.key, self.excerpt());
        match error {
            UnitError::NoUnit { text, unit } => {
                self.error(format!("`{excerpt}` has no unit"), Some(format!("write `{key} = \"{text} {unit}\"`")))
            }
            UnitError::Negative { example, .. } | UnitError::NoNumber { example, .. } => {
                let is_negative = matches!(error, UnitError::Negative { .. });
                let fact = if is_negative { "is negative" } else { "does not start with a number" };
                let help = format!("write for example `{key} = \"{example}\"`");
                self.error(format!("`{excerpt}` {fact}"), Some(help))
            }
            UnitError::UnknownUnit { unit, expected } => self
                .error(format!("`{excerpt}` has the unknown unit `{unit}`"), Some(format!("units here: {expected}"))),
            UnitError::Frequency { time, .. } => {
                self.error(format!("`{excerpt}` is a frequency"), Some(format!("as a time it is `{key} = \"{time}\"`")))
            }
            UnitError::NotWhole { smallest, nearest, .. } => {
                let help = format!("the nearest is `{key} = \"{nearest}\"`");
                self.error(format!("`{excerpt}` is not a whole number of {smallest}"), Some(help))
            }
            UnitError::TooLarge { .. } => {
                self.error(format!("`{excerpt}` is too large"), Some("values must fit 64 bits".to_owned()))
            }
        }
    }

    /// The value as an integer from `min` to `max`.
    pub(crate) fn integer(&self, min: u64, max: u64) -> Result<u64, FileError> {
        self.integer_in(&(min..=max))
    }

    /// The value as an integer in `range`.
    pub fn integer_in(&self, range: &RangeInclusive<u64>) -> Result<u64, FileError> {
        let value = self.any_integer(range)?;
        self.refuse(ValueFault::outside(value, range))?;
        Ok(value)
    }

    /// The value as an integer of 64 bits, which may be outside `range`.
    pub(crate) fn any_integer(&self, range: &RangeInclusive<u64>) -> Result<u64, FileError> {
        let DeValue::Integer(number) = &self.value else {
            return Err(self.mistyped("an integer", &range.start().to_string()));
        };
        let value = u64::from_str_radix(number.as_str(), number.radix()).ok();
        value.ok_or_else(|| self.fault(ValueFault::not_in(range)))
    }

    /// The value as an integer of the type `T`.
    pub(crate) fn number<T: TryFrom<i128>>(&self, example: &str) -> Result<T, FileError> {
        let DeValue::Integer(number) = &self.value else { return Err(self.mistyped("an integer", example)) };
        let value =
            i128::from_str_radix(number.as_str(), number.radix()).ok().and_then(|value| T::try_from(value).ok());
        value.ok_or_else(|| {
            let help = format!("write for example `{} = {example}`", self.key);
            self.error(format!("`{}` does not fit its type", self.excerpt()), Some(help))
        })
    }

    /// The value as a number with or without a point, rounded to the type `T`.
    pub(crate) fn rounded<T: FromStr>(&self, example: &str) -> Result<T, FileError> {
        let text = match &self.value {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            _ => return Err(self.mistyped("a number", example)),
        };
        text.parse().map_err(|_| self.mistyped("a number", example))
    }

    /// The value as a decimal number with at most six digits behind the point, in parts per million, from `min` to `max`.
    pub(crate) fn decimal_ppm(&self, min: u64, max: u64) -> Result<u64, FileError> {
        let text = match &self.value {
            DeValue::String(text) => text.as_ref(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            _ => return Err(self.mistyped("a decimal number", "\"1.057\"")),
        };
        let Some(value) = ppm(text) else {
            let help = "write a decimal number with at most 6 digits behind the point, for example \"1.057\"";
            let message = format!("`{}` is not such a number", self.excerpt());
            return Err(self.error(message, Some(help.to_owned())));
        };
        if (min..=max).contains(&value) {
            return Ok(value);
        }
        let help = format!("write a number from {} to {}", decimal(min), decimal(max));
        Err(self.error(format!("`{}` is outside {} to {}", self.excerpt(), decimal(min), decimal(max)), Some(help)))
    }

    /// One of a few words.
    pub(crate) fn word<T: Copy>(&self, words: &[(&'static str, T)]) -> Result<T, FileError> {
        let text = self.text(&format!("\"{}\"", words[0].0))?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(*value),
            None => {
                let help = suggest(text, words.iter().map(|(word, _)| *word), "known values");
                Err(self.error(format!("`{}` is not a known value", self.excerpt()), Some(help)))
            }
        }
    }

    /// The elements of a list.
    pub(crate) fn elements(mut self, example: &str) -> Result<Vec<Self>, FileError> {
        self.take_elements(example)
    }

    /// The elements of a list, of which only the place stays.
    pub(crate) fn take_elements(&mut self, example: &str) -> Result<Vec<Self>, FileError> {
        if !self.is_list() {
            return Err(self.mistyped("a list", example));
        }
        let DeValue::Array(elements) = std::mem::replace(&mut self.value, DeValue::Boolean(false)) else {
            return Ok(Vec::new());
        };
        let of = |(span, value): (Range<usize>, DeValue<'a>)| Self {
            source: self.source,
            key: self.key.clone(),
            key_span: span.clone(),
            whole: span.clone(),
            span,
            value,
        };
        Ok(elements.into_iter().map(|element| of((element.span(), element.into_inner()))).collect())
    }

    /// The elements of a list that has some; `empty` says what is wrong with one that has none.
    pub(crate) fn some_elements(self, example: &str, empty: &str) -> Result<Vec<Self>, FileError> {
        if matches!(&self.value, DeValue::Array(elements) if elements.is_empty()) {
            return Err(self.error(empty, Some(format!("write for example `{} = {example}`", self.key))));
        }
        self.elements(example)
    }

    /// The value as a table that may hold the keys `known`.
    pub fn table(self, what: &str, known: &[&'static str]) -> Result<DocumentTable<'a>, FileError> {
        match self.value {
            DeValue::Table(entries) => DocumentTable::new(self.source, what, self.span, entries, known),
            _ => Err(self.mistyped("a table", "{ ... }")),
        }
    }

    /// The value as a table with any keys.
    pub(crate) fn map(self) -> Result<DocumentTable<'a>, FileError> {
        match self.value {
            DeValue::Table(entries) => Ok(DocumentTable::any(self.source, &self.key, self.span, entries)),
            _ => Err(self.mistyped("a table", "{ ... }")),
        }
    }
}

/// `text` as parts per million, if it is digits with an optional point and at most six digits behind it.
fn ppm(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.chars().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(PPM)?.checked_add(fraction)
}

/// A count or a checked value in the 32 bits that the model has for it.
pub(crate) fn narrow<T: TryInto<u32, Error: std::fmt::Debug>>(value: T) -> u32 {
    value.try_into().expect("a file holds fewer than 2^32 tables, and values were checked to fit")
}

/// Parts per million as a decimal text.
pub(crate) fn decimal(ppm: u64) -> String {
    let text = format!("{}.{:06}", ppm / PPM, ppm % PPM);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `text` as a basic string of TOML.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_texts_become_parts_per_million_and_back() {
        assert_eq!(ppm("1.057"), Some(1_057_000));
        assert_eq!(ppm("2"), Some(2_000_000));
        assert_eq!(ppm("0.000001"), Some(1));
        for bad in ["", ".5", "1.0000001", "-1", "1e3", "1.2.3", "99999999999999999999", "18446744073709.7"] {
            assert_eq!(ppm(bad), None, "{bad}");
        }
        assert_eq!([decimal(1_057_000), decimal(2_000_000), decimal(1)], ["1.057", "2", "0.000001"]);
    }

    #[test]
    fn near_misses_are_suggested_and_others_listed() {
        let names = ["period", "packet"];
        assert_eq!(suggest("perod", names.into_iter(), "known keys"), "did you mean `period`?");
        assert_eq!(suggest("colour", names.into_iter(), "known keys"), "known keys: `period`, `packet`");
        assert_eq!(suggest("calixxxtion", ["calibration"].into_iter(), "known keys"), "known keys: `calibration`");
        assert_eq!(suggest("x", [].into_iter(), "links"), "there are no links");
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn text_that_is_not_toml_is_told_with_its_remedy() {
        let help = |text: &str| {
            let source = SourceText::new("t.toml", text);
            let error = root(&source, &["name"]).err().unwrap();
            (error.line, error.help.unwrap_or_default())
        };
        for (text, line, part) in [
            ("name = \"x\n", 1, "close the text with a double quote"),
            ("\nname = 'x\n", 2, "close the text with a single quote"),
            ("name = \"\"\"x\n", 1, "three quotes"),
            ("name = foo\"\n", 1, "put a text in double quotes, on both sides"),
            ("name = 10 ms\n", 1, ""),
            ("name = [1, 2\n", 1, "close the list"),
            ("[name\n", 1, "close the heading"),
            ("name = 1\nname = 2\n", 2, "a key stands once"),
        ] {
            let (at, said) = help(text);
            assert!(said.contains(part), "{text}: {said}");
            assert!(part.is_empty() || at >= line, "{text}: {at}");
        }
    }

    #[test]
    fn the_hash_is_the_start_of_sha_256() {
        assert_eq!(hash("abc"), "ba7816bf8f01cfea");
    }
}
