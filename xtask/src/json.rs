//! `cargo xtask json`: the page of all JSON outputs, from the types that are written.
//!
//! Names, types and units are those of the source, as `serde` writes them; meanings are the comments that document the fields. Nothing
//! on the page is written by hand but the titles and introductions of [`DOCUMENTS`].

mod documents;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use syn::{GenericArgument, PathArguments};

use documents::{DOCUMENTS, Document, INTRODUCTION};
use types::{Field, Serde, Shape, Type, Types, Variant};

/// Where the page lies in the repository.
const PAGE: &str = "docs/json.md";
/// Types that implement `Serialize` themselves, and what they write.
const HANDWRITTEN: &[(&str, &str)] =
    &[("headway_core::files::workload::parameters::Parameters", "object by name: number")];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the committed page instead of writing it
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    if args.check {
        if let Some(message) = stale(&root)? {
            bail!("{PAGE}: {message}");
        }
        println!("{PAGE} is what the types give");
        return Ok(());
    }
    fs::write(root.join(PAGE), page(&root)?).with_context(|| format!("cannot write {PAGE}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

/// Why the committed page is not what the types give; `None` if it is.
pub(crate) fn stale(root: &Path) -> anyhow::Result<Option<String>> {
    let committed = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    Ok((page(root)? != committed).then(|| "not what the types give, use `cargo xtask json`".to_owned()))
}

/// Path of the page, for findings.
pub(crate) const fn path() -> &'static str {
    PAGE
}

fn page(root: &Path) -> anyhow::Result<String> {
    Ok(INTRODUCTION.to_owned() + &tables(root, DOCUMENTS)?)
}

fn tables(root: &Path, documents: &[Document]) -> anyhow::Result<String> {
    let types = Types::read(root)?;
    // The first time says which types there are, the second one calls those by longer names whose short ones are not enough.
    let mut reached = Writer::new(&types, BTreeMap::new());
    reached.write(documents)?;
    let mut writer = Writer::new(&types, reached.titles());
    writer.write(documents)?;
    let anchors: BTreeSet<String> = writer.sections.iter().map(|section| anchor(&section.title)).collect();
    ensure!(anchors.len() == writer.sections.len(), "two sections of {PAGE} have one anchor");
    Ok(writer.sections.iter().map(Section::text).collect())
}

/// What the table of a field says.
struct Row {
    name: String,
    kind: Kind,
    meaning: String,
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    text: String,
    unit: String,
    /// What there may be instead: `null`, or nothing.
    or: &'static str,
}

impl Kind {
    fn of(text: impl Into<String>, unit: &str) -> Self {
        Self { text: text.into(), unit: unit.to_owned(), or: "" }
    }
}

struct Section {
    title: String,
    introduction: String,
    rows: Vec<Row>,
}

impl Section {
    fn text(&self) -> String {
        let mut text = format!("\n### {}\n\n", self.title);
        if !self.introduction.is_empty() {
            text += &format!("{}\n\n", self.introduction);
        }
        text += "| field | type | unit | meaning |\n|---|---|---|---|\n";
        for Row { name, kind, meaning } in &self.rows {
            let Kind { text: kind, unit, or } = kind;
            text += &format!("| `{name}` | {kind}{or} | {unit} | {} |\n", meaning.replace('|', "\\|"));
        }
        text
    }
}

/// A table that is still to be written.
enum Pending {
    Type(Rc<Type>),
    /// A variant with fields of its own.
    Variant(Rc<Type>, usize),
}

struct Writer<'t> {
    types: &'t Types,
    /// Titles of types whose own names are not enough.
    named: BTreeMap<Vec<String>, String>,
    sections: Vec<Section>,
    /// Tables that a type links to.
    known: BTreeSet<(Vec<String>, Option<usize>)>,
    pending: VecDeque<Pending>,
}

impl<'t> Writer<'t> {
    fn new(types: &'t Types, named: BTreeMap<Vec<String>, String>) -> Self {
        Self { types, named, sections: Vec::new(), known: BTreeSet::new(), pending: VecDeque::new() }
    }

    fn write(&mut self, documents: &[Document]) -> anyhow::Result<()> {
        for document in documents {
            let root = self.types.at(document.root)?;
            let rows = self.rows(&root).with_context(|| format!("{} ({})", document.title, document.root))?;
            let introduction = document.introduction.to_owned();
            self.sections.push(Section { title: document.title.to_owned(), introduction, rows });
            while let Some(pending) = self.pending.pop_front() {
                let section = self.section(&pending)?;
                self.sections.push(section);
            }
        }
        Ok(())
    }

    fn section(&mut self, pending: &Pending) -> anyhow::Result<Section> {
        let (title, introduction, rows) = match pending {
            Pending::Type(of) => (self.title(of), prose(&of.comment), self.rows(of)?),
            Pending::Variant(of, at) => {
                let Shape::Variants(variants) = &of.shape else { bail!("{} has no variants", of.path.join("::")) };
                let variant = &variants[*at];
                let Shape::Fields(fields) = &variant.shape else { bail!("`{}` has no fields", variant.name) };
                let title = format!("{}, {}", self.title(of), variant_name(of, variant)?);
                let case = variant.serde.get("rename_all").or_else(|| of.serde.get("rename_all_fields"));
                let case = case.map(str::to_owned);
                (title, prose(&variant.comment), self.fields(fields, case.as_deref(), of)?)
            }
        };
        Ok(Section { title, introduction, rows })
    }

    /// Titles of the types that share their short title with another one.
    fn titles(&self) -> BTreeMap<Vec<String>, String> {
        let mut shared: BTreeMap<String, Vec<&Vec<String>>> = BTreeMap::new();
        for path in self.known.iter().filter(|known| known.1.is_none()).map(|known| &known.0) {
            shared.entry(words(path.last().map_or("", String::as_str))).or_default().push(path);
        }
        let several = shared.into_iter().filter(|(_, paths)| paths.len() > 1);
        several
            .flat_map(|(title, paths)| {
                paths.into_iter().map(move |path| {
                    let modules: Vec<String> = path[..path.len() - 1]
                        .iter()
                        .map(|module| module.trim_start_matches("headway_").to_owned())
                        .collect();
                    (path.clone(), format!("Object {title} of {}", modules.join("::")))
                })
            })
            .collect()
    }

    fn title(&self, of: &Type) -> String {
        let short = || format!("Object {}", words(of.path.last().map_or("", String::as_str)));
        self.named.get(&of.path).cloned().unwrap_or_else(short)
    }

    /// A link to the table of a type, or of one of its variants.
    fn link(&mut self, of: &Rc<Type>, variant: Option<usize>) -> anyhow::Result<Kind> {
        let mut title = self.title(of);
        if let (Some(at), Shape::Variants(variants)) = (variant, &of.shape) {
            title = format!("{title}, {}", variant_name(of, &variants[at])?);
        }
        if self.known.insert((of.path.clone(), variant)) {
            self.pending.push_back(
                variant.map_or_else(|| Pending::Type(Rc::clone(of)), |at| Pending::Variant(Rc::clone(of), at)),
            );
        }
        let text = title.strip_prefix("Object ").unwrap_or(&title);
        Ok(Kind::of(format!("[{text}](#{})", anchor(&title)), ""))
    }

    fn rows(&mut self, of: &Rc<Type>) -> anyhow::Result<Vec<Row>> {
        match &of.shape {
            Shape::Fields(fields) => self.fields(fields, of.serde.get("rename_all"), of),
            Shape::Variants(variants) => match of.serde.get("tag") {
                Some(tag) => self.tagged(tag, variants, of),
                None => self.variants(variants, of),
            },
            Shape::Tuple(_) | Shape::Alias(_) | Shape::Number => bail!("{} is no object", of.path.join("::")),
        }
    }

    fn fields(&mut self, fields: &[Field], case: Option<&str>, of: &Rc<Type>) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for field in fields.iter().filter(|field| !left_out(&field.serde)) {
            if field.serde.has("flatten") {
                let inner = self.plain(&field.is, of)?;
                rows.extend(self.rows(&inner)?);
                continue;
            }
            let name = match (field.serde.get("rename"), case) {
                (Some(name), _) => name.to_owned(),
                (None, Some(case)) => cased(&field.name, case)?,
                (None, None) => field.name.clone(),
            };
            let mut kind = self.field(field, of).with_context(|| format!("`{name}` of {}", of.path.join("::")))?;
            if field.serde.has("skip_serializing_if") {
                kind.or = ", or absent";
            }
            if kind.unit.is_empty() && name.ends_with("_ppm") {
                kind.unit = "parts per million".to_owned();
            }
            let mut meaning = prose(&field.comment);
            if name == "schema" {
                meaning = "Version of the JSON form.".to_owned();
            }
            if meaning.is_empty() {
                meaning = self.plain(&field.is, of).map(|of| prose(&of.comment)).unwrap_or_default();
            }
            rows.push(Row { name, kind, meaning });
        }
        Ok(rows)
    }

    fn field(&mut self, field: &Field, of: &Rc<Type>) -> anyhow::Result<Kind> {
        match field.serde.get("with") {
            None => self.kind(&field.is, of),
            // Keys that are no text: a map as a list of pairs.
            Some("crate::decisions::pairs") => {
                let (_, inner) = arguments(&field.is).context("a map has keys and values")?;
                let pair = inner.into_iter().map(|part| self.kind(part, of)).collect::<anyhow::Result<Vec<_>>>()?;
                Ok(listed(&pair, "list of list: "))
            }
            Some(other) => bail!("nobody has said what `{other}` writes"),
        }
    }

    /// Fields of all variants in one object, which one of them names.
    fn tagged(&mut self, tag: &str, variants: &[Variant], of: &Rc<Type>) -> anyhow::Result<Vec<Row>> {
        let mut names = Vec::new();
        let mut meanings = Vec::new();
        let mut rows: Vec<Row> = Vec::new();
        for variant in variants.iter().filter(|variant| !left_out(&variant.serde)) {
            let name = variant_name(of, variant)?;
            if !variant.comment.is_empty() {
                meanings.push(format!("`{name}`: {}", prose(&variant.comment)));
            }
            names.push(name);
            let of_variant = match &variant.shape {
                Shape::Fields(fields) => self.fields(fields, variant.serde.get("rename_all"), of)?,
                Shape::Tuple(types) if types.is_empty() => Vec::new(),
                Shape::Tuple(types) if types.len() == 1 => {
                    let inner = self.plain(&types[0], of)?;
                    self.rows(&inner)?
                }
                _ => bail!("`{}` cannot have a tag", variant.name),
            };
            for mut row in of_variant {
                row.kind.or = ", or absent";
                if !rows.iter().any(|known| known.name == row.name) {
                    rows.push(row);
                }
            }
        }
        let kind = Kind::of(format!("text: {}", quoted(&names)), "");
        rows.insert(0, Row { name: tag.to_owned(), kind, meaning: meanings.join(" ") });
        Ok(rows)
    }

    /// One field for each variant; those without anything inside are texts.
    fn variants(&mut self, variants: &[Variant], of: &Rc<Type>) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        let (mut texts, mut meanings) = (Vec::new(), Vec::new());
        for (at, variant) in variants.iter().enumerate().filter(|(_, variant)| !left_out(&variant.serde)) {
            let (name, meaning) = (variant_name(of, variant)?, prose(&variant.comment));
            let kind = match &variant.shape {
                Shape::Tuple(types) if types.is_empty() => {
                    if !meaning.is_empty() {
                        meanings.push(format!("`{name}`: {meaning}"));
                    }
                    texts.push(name);
                    continue;
                }
                Shape::Tuple(types) => self.tuple(types, of)?,
                Shape::Fields(_) => self.link(of, Some(at))?,
                _ => bail!("`{}` is no variant", variant.name),
            };
            rows.push(Row { name, kind, meaning });
        }
        if !texts.is_empty() {
            let kind = Kind::of(format!("text: {}", quoted(&texts)), "");
            rows.push(Row { name: "(text)".to_owned(), kind, meaning: meanings.join(" ") });
        }
        Ok(rows)
    }

    fn tuple(&mut self, types: &[syn::Type], of: &Rc<Type>) -> anyhow::Result<Kind> {
        let kinds = types.iter().map(|part| self.kind(part, of)).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(if let [one] = &kinds[..] { one.clone() } else { listed(&kinds, &format!("list of {}: ", kinds.len())) })
    }

    /// What is written for a value of the type `is`, which the file of `of` names.
    fn kind(&mut self, is: &syn::Type, of: &Rc<Type>) -> anyhow::Result<Kind> {
        match is {
            syn::Type::Reference(reference) => return self.kind(&reference.elem, of),
            syn::Type::Slice(slice) => return Ok(list(&self.kind(&slice.elem, of)?)),
            syn::Type::Array(array) => {
                let mut kind = list(&self.kind(&array.elem, of)?);
                if let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(length), .. }) = &array.len {
                    kind.text = kind.text.replacen("list of", &format!("list of {length}:"), 1);
                }
                return Ok(kind);
            }
            syn::Type::Tuple(tuple) => {
                return self.tuple(&tuple.elems.iter().cloned().collect::<Vec<_>>(), of);
            }
            _ => {}
        }
        let (name, inner) = arguments(is).context("is of no type that can be written")?;
        Ok(match (name.as_str(), &inner[..]) {
            ("String" | "str" | "char" | "PathBuf" | "Path", _) => Kind::of("text", ""),
            ("bool", _) => Kind::of("true or false", ""),
            ("u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i8" | "i16" | "i32" | "i64" | "i128" | "f64", _) => {
                Kind::of("number", "")
            }
            ("Nanos", _) => Kind::of("number", "ns"),
            ("Bytes", _) => Kind::of("number", "bytes"),
            ("Rate", _) => Kind::of("number", "bytes per second"),
            ("Value", _) => Kind::of("anything", ""),
            ("Option", [inner]) => Kind { or: " or null", ..self.kind(inner, of)? },
            ("Box" | "Arc" | "Rc" | "Cow", [inner]) => self.kind(inner, of)?,
            ("Vec" | "VecDeque" | "BTreeSet", [inner]) => list(&self.kind(inner, of)?),
            ("BTreeMap", [_, value]) => {
                let value = self.kind(value, of)?;
                Kind { text: format!("object by name: {}{}", value.text, value.or), or: "", ..value }
            }
            _ => {
                let found = self.named_type(is, of)?;
                self.named_kind(&found)?
            }
        })
    }

    fn named_kind(&mut self, found: &Rc<Type>) -> anyhow::Result<Kind> {
        if let Some((_, kind)) = HANDWRITTEN.iter().find(|(path, _)| found.path.join("::") == *path) {
            return Ok(Kind::of(*kind, ""));
        }
        ensure!(
            found.is_derived || matches!(found.shape, Shape::Alias(_) | Shape::Number),
            "`Serialize` is not derived for {}: say in `HANDWRITTEN` what is written",
            found.path.join("::")
        );
        match found.serde.get("into") {
            Some("String") => return Ok(Kind::of("text", "")),
            Some(other) => {
                let other: syn::Type = syn::parse_str(other)?;
                return self.kind(&other, found);
            }
            None => {}
        }
        match &found.shape {
            Shape::Alias(is) => self.kind(is, found),
            Shape::Number => Ok(Kind::of("number", "")),
            Shape::Tuple(types) => self.tuple(types, found),
            Shape::Fields(fields) if found.serde.has("transparent") => {
                let field = fields.first().context("nothing is in it")?;
                self.kind(&field.is, found)
            }
            Shape::Fields(_) => self.link(found, None),
            Shape::Variants(variants) => {
                let plain = |variant: &Variant| matches!(&variant.shape, Shape::Tuple(types) if types.is_empty());
                if found.serde.has("tag") || !variants.iter().all(plain) {
                    return self.link(found, None);
                }
                let shown = variants.iter().filter(|variant| !left_out(&variant.serde));
                let names = shown.map(|variant| variant_name(found, variant)).collect::<anyhow::Result<Vec<_>>>()?;
                Ok(Kind::of(format!("text: {}", quoted(&names)), ""))
            }
        }
    }

    fn named_type(&self, is: &syn::Type, of: &Rc<Type>) -> anyhow::Result<Rc<Type>> {
        match is {
            syn::Type::Path(path) if path.path.is_ident("Self") => Ok(Rc::clone(of)),
            syn::Type::Path(path) => self.types.resolve(&path.path, of),
            _ => bail!("a type without a name"),
        }
    }

    /// The type inside boxes and options.
    fn plain(&self, is: &syn::Type, of: &Rc<Type>) -> anyhow::Result<Rc<Type>> {
        if let syn::Type::Reference(reference) = is {
            return self.plain(&reference.elem, of);
        }
        let (name, inner) = arguments(is).context("a type without a name")?;
        match (name.as_str(), &inner[..]) {
            ("Option" | "Box" | "Arc", [inner]) => self.plain(inner, of),
            _ => self.named_type(is, of),
        }
    }
}

fn left_out(serde: &Serde) -> bool {
    serde.has("skip") || serde.has("skip_serializing")
}

/// The last name of a type, and the types between its brackets.
fn arguments(is: &syn::Type) -> Option<(String, Vec<&syn::Type>)> {
    let syn::Type::Path(path) = is else { return None };
    let last = path.path.segments.last()?;
    let inner = match &last.arguments {
        PathArguments::AngleBracketed(arguments) => arguments
            .args
            .iter()
            .filter_map(|argument| match argument {
                GenericArgument::Type(is) => Some(is),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    Some((last.ident.to_string(), inner))
}

fn list(inner: &Kind) -> Kind {
    Kind { text: format!("list of {}{}", inner.text, inner.or), unit: inner.unit.clone(), or: "" }
}

fn listed(kinds: &[Kind], beginning: &str) -> Kind {
    let texts: Vec<String> = kinds.iter().map(|kind| format!("{}{}", kind.text, kind.or)).collect();
    let units: Vec<&str> =
        kinds.iter().map(|kind| if kind.unit.is_empty() { "-" } else { kind.unit.as_str() }).collect();
    let unit = if units.iter().all(|unit| *unit == "-") { String::new() } else { units.join(", ") };
    Kind { text: format!("{beginning}{}", texts.join(", ")), unit, or: "" }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(", ")
}

fn variant_name(of: &Type, variant: &Variant) -> anyhow::Result<String> {
    match (variant.serde.get("rename"), of.serde.get("rename_all")) {
        (Some(name), _) => Ok(name.to_owned()),
        (None, Some(case)) => cased(&variant.name, case),
        (None, None) => Ok(variant.name.clone()),
    }
}

/// `name` as `serde` writes it in the case that is asked for.
fn cased(name: &str, case: &str) -> anyhow::Result<String> {
    let parts = words(name);
    Ok(match case {
        "kebab-case" => parts.replace(' ', "-"),
        "snake_case" => parts.replace(' ', "_"),
        "lowercase" => name.to_lowercase(),
        other => bail!("the case `{other}` is not known here"),
    })
}

/// `PlannedStep` or `planned_step` as `planned step`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter == '_' {
            words.push(' ');
            continue;
        }
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// A comment of the source as a sentence of the page: links to types are their names, and no value is null.
fn prose(comment: &str) -> String {
    let mut text = String::new();
    let mut rest = comment;
    while let Some((before, link)) = rest.split_once('[') {
        text += before;
        // Ranges and indices in code are no links.
        let in_code = text.matches('`').count() % 2 == 1;
        let Some((name, after)) = link.split_once(']').filter(|_| !in_code) else {
            text.push('[');
            rest = link;
            continue;
        };
        let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        match target {
            Some((target, _)) if target.starts_with("http") => text += &format!("[{name}]"),
            Some((_, after)) => {
                text += name;
                rest = after;
                continue;
            }
            None if name.starts_with('`') => text += name,
            None => text += &format!("[{name}]"),
        }
        rest = after;
    }
    text += rest;
    text.replace("`None`", "null")
}

/// The anchor of a heading, as pages on the web make it.
fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect::<String>().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = r#"
mod other;
use other::{Inner as Renamed, Inner};
use crate::other::deep::Twin;
macro_rules! id { ($name:ident($of:ty)) => {}; }
id!(/// A number.
    Id(u32));
/// The whole.
#[derive(Serialize)]
pub struct Whole<'a> {
    /// [`SCHEMA`].
    schema: u32,
    /// How long; `None` = it never ended. See [`Whole::schema`] and [the page](https://a.b).
    ///
    /// Not this.
    took: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_ppm: Option<u64>,
    #[serde(skip)]
    secret: String,
    #[serde(flatten)]
    inner: &'a Renamed,
    #[serde(rename = "is")]
    kind: Kind,
    #[serde(with = "crate::decisions::pairs")]
    pairs: BTreeMap<Id, Bytes>,
    both: [Rate; 2],
    rows: Vec<(String, Nanos)>,
    by_name: BTreeMap<String, Vec<Action>>,
    twins: (Twin, other::Twin),
}
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind { VeryShort, Long }
/// What is done.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    /// Nothing any more.
    StopNow,
    /// It goes on.
    GoOn {
        /// How far.
        bytes: Bytes,
    },
    Wrapped(Box<Tagged>),
}
#[derive(Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
enum Tagged { One { a: u8 }, Two { b: bool } }
struct Silent;
#[derive(Serialize)]
struct Wrong { silent: Silent }
"#;
    const OTHER: &str = "
pub mod deep { #[derive(Serialize)] pub struct Twin { x: f64 } }
#[derive(Serialize)] pub struct Inner { /// A | B.
    flat: Value }
#[derive(Serialize)] pub struct Twin { y: Id }
";

    fn written(root: &'static str) -> anyhow::Result<String> {
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("crates/headway-one/src");
        fs::create_dir_all(&source)?;
        fs::write(source.join("lib.rs"), LIB)?;
        fs::write(source.join("other.rs"), OTHER)?;
        tables(folder.path(), &[Document { title: "A document", root, introduction: "Of one line." }])
    }

    #[test]
    fn every_field_has_the_name_type_and_unit_that_are_written() {
        let text = written("headway_one::Whole").unwrap();
        for line in [
            "### A document\n\nOf one line.\n\n| field | type | unit | meaning |\n",
            "| `schema` | number |  | Version of the JSON form. |\n",
            "| `took` | number or null | ns | How long; null = it never ended. See `Whole::schema` and [the page](https://a.b). |\n",
            "| `share_ppm` | number, or absent | parts per million |  |\n",
            "| `flat` | anything |  | A \\| B. |\n",
            "| `is` | text: `\"very-short\"`, `\"long\"` |  |  |\n",
            "| `pairs` | list of list: number, number | -, bytes |  |\n",
            "| `both` | list of 2: number | bytes per second |  |\n",
            "| `rows` | list of list of 2: text, number | -, ns |  |\n",
            "| `by_name` | object by name: list of [action](#object-action) |  |  |\n",
            "### Object action\n\nWhat is done.\n",
            "| `go_on` | [action, go_on](#object-action-go_on) |  | It goes on. |\n",
            "| `(text)` | text: `\"stop_now\"` |  | `stop_now`: Nothing any more. |\n",
            "### Object action, go_on\n\nIt goes on.\n",
            "| `bytes` | number | bytes | How far. |\n",
            "| `what` | text: `\"one\"`, `\"two\"` |  |  |\n| `a` | number, or absent |  |  |\n| `b` | true or false, or absent |  |  |\n",
            "### Object twin of one::other\n",
            "### Object twin of one::other::deep\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("secret") && !text.contains("Not this"), "{text}");
    }

    #[test]
    fn what_the_source_does_not_say_is_an_error() {
        let error = format!("{:#}", written("headway_one::Wrong").unwrap_err());
        assert!(error.contains("`Serialize` is not derived for headway_one::Silent"), "{error}");
        assert!(written("headway_one::Absent").unwrap_err().to_string().contains("no type `headway_one::Absent`"));
    }
}
