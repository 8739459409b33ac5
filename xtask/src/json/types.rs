//! Reads, from the sources, the types that are written as JSON: their fields, comments and `serde` attributes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Fields, Item, Lit, Meta, Token, UseTree};

/// Every type of the workspace.
#[derive(Default)]
pub(super) struct Types {
    /// By their own names.
    named: BTreeMap<String, Vec<Rc<Type>>>,
    /// What `use` makes of a path: the module and the name there, and the path that it stands for.
    uses: BTreeMap<Vec<String>, Vec<String>>,
}

/// A structure, an enumeration, or another name for a type.
pub(super) struct Type {
    /// Crate, modules and name.
    pub(super) path: Vec<String>,
    pub(super) comment: String,
    pub(super) serde: Serde,
    /// Whether `Serialize` is derived, so that the source says what is written.
    pub(super) is_derived: bool,
    pub(super) shape: Shape,
    /// What `use` brings into the type's file: the name there, and the path.
    imports: Rc<BTreeMap<String, Vec<String>>>,
}

pub(super) enum Shape {
    Fields(Vec<Field>),
    /// A structure without names for its fields.
    Tuple(Vec<syn::Type>),
    Variants(Vec<Variant>),
    Alias(syn::Type),
    /// What a macro makes of a comment and a name: one number.
    Number,
}

/// The comment and the name that such a macro gets.
struct Number {
    attributes: Vec<Attribute>,
    name: syn::Ident,
}

impl Parse for Number {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let number = Self { attributes: input.call(Attribute::parse_outer)?, name: input.parse()? };
        // The macro may be given the integer type in parentheses.
        if input.peek(syn::token::Paren) {
            let integer;
            syn::parenthesized!(integer in input);
            integer.parse::<syn::Ident>()?;
        }
        Ok(number)
    }
}

pub(super) struct Field {
    pub(super) name: String,
    pub(super) comment: String,
    pub(super) serde: Serde,
    pub(super) is: syn::Type,
}

pub(super) struct Variant {
    pub(super) name: String,
    pub(super) comment: String,
    pub(super) serde: Serde,
    pub(super) shape: Shape,
}

/// What `#[serde(...)]` says, by key; a key without a value has an empty one.
#[derive(Default)]
pub(super) struct Serde(BTreeMap<String, String>);

impl Serde {
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn of(attributes: &[Attribute]) -> anyhow::Result<Self> {
        let mut found = BTreeMap::new();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            for meta in attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)? {
                let value = match &meta {
                    Meta::NameValue(pair) => text_of(&pair.value).unwrap_or_default(),
                    Meta::Path(_) | Meta::List(_) => String::new(),
                };
                let key = meta.path().get_ident().map(ToString::to_string).unwrap_or_default();
                found.insert(key, value);
            }
        }
        Ok(Self(found))
    }
}

fn text_of(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

fn is_derived(attributes: &[Attribute]) -> syn::Result<bool> {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        let derived = attribute.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated)?;
        if derived.iter().any(|path| path.segments.last().is_some_and(|last| last.ident == "Serialize")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first paragraph of a documentation comment, as one line.
fn comment(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else { return None };
        text_of(&pair.value).map(|line| line.trim().to_owned())
    });
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

impl Types {
    /// Those of every crate below `root`.
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut types = Self::default();
        let crates = root.join("crates");
        for entry in fs::read_dir(&crates).with_context(|| format!("cannot read {}", crates.display()))? {
            let folder = entry?.path();
            let name = folder.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
            let source = folder.join("src");
            if source.is_dir() {
                types.folder(&source, &[name])?;
            }
        }
        Ok(types)
    }

    fn folder(&mut self, folder: &Path, path: &[String]) -> anyhow::Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let found = entry?.path();
            let stem = found.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let below = [path, std::slice::from_ref(&stem)].concat();
            if found.is_dir() {
                self.folder(&found, &below)?;
            } else if found.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&found)?;
                let file = syn::parse_file(&text).with_context(|| format!("cannot parse {}", found.display()))?;
                let path = if matches!(stem.as_str(), "lib" | "main" | "mod") { path } else { &below };
                self.items(&file.items, path).with_context(|| found.display().to_string())?;
            }
        }
        Ok(())
    }

    fn items(&mut self, items: &[Item], path: &[String]) -> anyhow::Result<()> {
        let mut imports = BTreeMap::new();
        for item in items {
            if let Item::Use(item) = item {
                import(&item.tree, &[], path, &mut imports);
            }
        }
        let below = |name: &String| [path, std::slice::from_ref(name)].concat();
        self.uses.extend(imports.iter().map(|(name, target)| (below(name), target.clone())));
        let imports = Rc::new(imports);
        for item in items {
            let (name, attributes, shape) = match item {
                Item::Mod(module) => {
                    if let Some((_, items)) = &module.content {
                        self.items(items, &[path, &[module.ident.to_string()]].concat())?;
                    }
                    continue;
                }
                Item::Struct(item) => (&item.ident, &item.attrs, shape(&item.fields)?),
                Item::Enum(item) => {
                    let variants = item.variants.iter().map(|variant| {
                        Ok(Variant {
                            name: variant.ident.to_string(),
                            comment: comment(&variant.attrs),
                            serde: Serde::of(&variant.attrs)?,
                            shape: shape(&variant.fields)?,
                        })
                    });
                    (&item.ident, &item.attrs, Shape::Variants(variants.collect::<anyhow::Result<_>>()?))
                }
                Item::Macro(item) => {
                    if let Ok(Number { attributes, name }) = item.mac.parse_body() {
                        self.add(path, &name.to_string(), &attributes, Shape::Number, &imports)?;
                    }
                    continue;
                }
                Item::Type(item) => (&item.ident, &item.attrs, Shape::Alias((*item.ty).clone())),
                _ => continue,
            };
            self.add(path, &name.to_string(), attributes, shape, &imports)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: &[String],
        name: &str,
        attributes: &[Attribute],
        shape: Shape,
        imports: &Rc<BTreeMap<String, Vec<String>>>,
    ) -> anyhow::Result<()> {
        let found = Type {
            path: [path, &[name.to_owned()]].concat(),
            comment: comment(attributes),
            serde: Serde::of(attributes)?,
            is_derived: is_derived(attributes)?,
            shape,
            imports: Rc::clone(imports),
        };
        self.named.entry(name.to_owned()).or_default().push(Rc::new(found));
        Ok(())
    }

    /// The type at `path`, crate first.
    pub(super) fn at(&self, path: &str) -> anyhow::Result<Rc<Type>> {
        let path: Vec<String> = path.split("::").map(str::to_owned).collect();
        let name = path.last().context("a path has a name")?;
        let found = self.named.get(name).and_then(|types| types.iter().find(|found| found.path == path));
        found.cloned().with_context(|| format!("there is no type `{}`", path.join("::")))
    }

    /// The type that `written` means in the file of `user`.
    pub(super) fn resolve(&self, written: &syn::Path, user: &Type) -> anyhow::Result<Rc<Type>> {
        let written: Vec<String> = written.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let module = &user.path[..user.path.len() - 1];
        let mut path = match user.imports.get(&written[0]) {
            Some(imported) => [imported, &written[1..]].concat(),
            None => absolute(&written, module),
        };
        while let Some(target) = self.uses.get(&path).filter(|target| **target != path) {
            path.clone_from(target);
        }
        let name = path.last().context("a path has a name")?;
        let named = self.named.get(name).map_or(&[][..], Vec::as_slice);
        let of =
            |fits: &dyn Fn(&Type) -> bool| -> Vec<&Rc<Type>> { named.iter().filter(|found| fits(found)).collect() };
        // The path itself, or one that leads there by `pub use`: a module below it, its crate, or anywhere.
        let parent = &path[..path.len() - 1];
        let attempts = [
            of(&|found| found.path == path),
            of(&|found| found.path.starts_with(parent)),
            of(&|found| found.path[0] == path[0] && module.starts_with(&found.path[..found.path.len() - 1])),
            of(&|found| found.path[0] == path[0]),
            of(&|_| true),
        ];
        let found = attempts.iter().find(|found| !found.is_empty());
        let Some(found) = found else {
            bail!("`{}` of {} is no type of ours", written.join("::"), user.path.join("::"))
        };
        ensure!(
            found.len() == 1,
            "`{}` of {} may be any of {}",
            written.join("::"),
            user.path.join("::"),
            found.iter().map(|found| found.path.join("::")).collect::<Vec<_>>().join(", ")
        );
        Ok(Rc::clone(found[0]))
    }
}

/// A path with `crate`, `self` and `super` replaced; one that begins with none of these nor with one of our crates is in `module`.
fn absolute(path: &[String], module: &[String]) -> Vec<String> {
    let supers = path.iter().take_while(|segment| *segment == "super").count();
    match path[0].as_str() {
        "crate" => [&module[..1], &path[1..]].concat(),
        "self" => [module, &path[1..]].concat(),
        "super" => [&module[..module.len().saturating_sub(supers).max(1)], &path[supers..]].concat(),
        first if path.len() > 1 && (first == "headway" || first.starts_with("headway_")) => path.to_vec(),
        _ => [module, path].concat(),
    }
}

fn import(tree: &UseTree, before: &[String], module: &[String], imports: &mut BTreeMap<String, Vec<String>>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => import(&path.tree, &with(&path.ident), module, imports),
        UseTree::Group(group) => group.items.iter().for_each(|tree| import(tree, before, module, imports)),
        UseTree::Name(name) if name.ident == "self" => {
            imports.extend(before.last().map(|last| (last.clone(), absolute(before, module))));
        }
        UseTree::Name(name) => drop(imports.insert(name.ident.to_string(), absolute(&with(&name.ident), module))),
        UseTree::Rename(rename) => {
            imports.insert(rename.rename.to_string(), absolute(&with(&rename.ident), module));
        }
        UseTree::Glob(_) => {}
    }
}

fn shape(fields: &Fields) -> anyhow::Result<Shape> {
    match fields {
        Fields::Named(fields) => {
            let field = |field: &syn::Field| {
                Ok(Field {
                    name: field
                        .ident
                        .as_ref()
                        .map(ToString::to_string)
                        .unwrap_or_default()
                        .trim_start_matches("r#")
                        .to_owned(),
                    comment: comment(&field.attrs),
                    serde: Serde::of(&field.attrs)?,
                    is: field.ty.clone(),
                })
            };
            Ok(Shape::Fields(fields.named.iter().map(field).collect::<anyhow::Result<_>>()?))
        }
        Fields::Unnamed(fields) => Ok(Shape::Tuple(fields.unnamed.iter().map(|field| field.ty.clone()).collect())),
        Fields::Unit => Ok(Shape::Tuple(Vec::new())),
    }
}
