//! Files of a crate that use each other in a circle.
//!
//! A file may use what its own parent module defines: it is a part of that module. Any other circle means that none of its files can be
//! read, tested or moved without the others.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::source::{Source, sources};
use crate::tree::Tree;

/// Names of each file that another file takes, by both files' paths.
type Uses = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = find(tree);
    findings.extend(find_folders(tree));
    findings
}

/// The modules of each crate that have files of their own.
fn crates(tree: &Tree) -> BTreeMap<String, Modules> {
    let mut crates: BTreeMap<String, Modules> = BTreeMap::new();
    for source in sources(tree) {
        if let Some((name, rest)) = source.path.split_once("/src/")
            && !source.is_test(0)
        {
            let module = module_of(rest);
            crates.entry(name.to_owned()).or_default().add(module, source);
        }
    }
    crates
}

/// Folders below `src`, each with the file of its name, that use each other in a circle. A crate whose files lie side by side has none.
fn find_folders(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, modules) in crates(tree) {
        let folders: BTreeSet<&str> =
            modules.files.keys().filter(|path| path.len() > 1).map(|path| path[0].as_str()).collect();
        let folder = |path: &str| {
            let module = module_of(path.split_once("/src/").map_or(path, |(_, rest)| rest));
            module.into_iter().next()
        };
        let mut uses = Uses::new();
        for (from, taken) in modules.uses() {
            let Some(from) = folder(&from) else { continue };
            let own = uses.entry(from.clone()).or_default();
            for (to, names) in taken {
                if let Some(to) = folder(&to).filter(|to| *to != from) {
                    own.entry(to).or_default().extend(names);
                }
            }
        }
        let every: Vec<String> = uses.values().flat_map(|taken| taken.keys().cloned()).collect();
        for to in every {
            uses.entry(to).or_default();
        }
        for circle in circles(&uses).into_iter().filter(|circle| circle.iter().any(|it| folders.contains(it.as_str())))
        {
            if !is_one_of_files(&modules, &circle) {
                findings.push(finding_in(&format!("{name}/src"), "folders", &circle, &uses));
            }
        }
    }
    findings
}

/// Whether the circle is one of files, which has a finding or a reason of its own.
fn is_one_of_files(modules: &Modules, folders: &BTreeSet<String>) -> bool {
    let of = |path: &str| module_of(path.split_once("/src/").map_or(path, |(_, rest)| rest)).into_iter().next();
    circles(&modules.uses()).iter().any(|circle| {
        let touched: BTreeSet<String> = circle.iter().filter_map(|path| of(path)).collect();
        folders.is_subset(&touched)
    })
}

fn find(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for modules in crates(tree).values() {
        let uses = modules.uses();
        findings.extend(circles(&uses).iter().map(|circle| finding(circle, &uses)));
    }
    findings
}

fn finding(circle: &BTreeSet<String>, uses: &Uses) -> Finding {
    finding_in(circle.first().expect("a circle has files"), "files", circle, uses)
}

fn finding_in(place: &str, what: &str, circle: &BTreeSet<String>, uses: &Uses) -> Finding {
    let mut ties = Vec::new();
    for from in circle {
        for (to, names) in uses[from].iter().filter(|(to, _)| circle.contains(*to)) {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            ties.push(format!("{} -> {} ({})", short(from), short(to), names.join(", ")));
        }
    }
    let message = format!(
        "{} {what} use each other in a circle, use a third one for what both need: {}",
        circle.len(),
        ties.join("; ")
    );
    Finding::new(place, 1, message)
}

fn short(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(_, rest)| rest)
}

/// Path of the module that a file below `src` holds.
fn module_of(file: &str) -> Vec<String> {
    let mut parts: Vec<_> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// The modules of one crate that have files of their own.
#[derive(Default)]
struct Modules {
    files: BTreeMap<Vec<String>, File>,
}

struct File {
    source: Source,
    /// Paths that the file imports, with the name that each is known by.
    imports: Vec<Import>,
}

struct Import {
    path: Vec<String>,
    /// `*` for all names.
    name: String,
    at: usize,
}

impl Modules {
    fn add(&mut self, module: Vec<String>, source: Source) {
        let imports = imports(&source);
        self.files.insert(module, File { source, imports });
    }

    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (module, file) in &self.files {
            let mut taken: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            let imported = file.imports.iter().map(|import| (import.path.clone(), import.at));
            for (path, at) in imported.chain(inline_paths(&file.source)) {
                if file.source.is_test(at) {
                    continue;
                }
                let Some(target) = self.resolve(module, &path, 0) else { continue };
                // A file is a part of the modules that it lies in.
                if !module.starts_with(target) {
                    let names = taken.entry(self.files[target].source.path.clone()).or_default();
                    names.insert(path.last().cloned().unwrap_or_default());
                }
            }
            uses.insert(file.source.path.clone(), taken);
        }
        uses
    }

    /// The module with a file that defines what `path` names, as seen from `module`; `None` for what is not of this crate.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<&[String]> {
        /// Re-exports of re-exports; a circle of them does not compile.
        const DEPTH_MAX: usize = 8;
        if depth > DEPTH_MAX {
            return None;
        }
        let mut at = module.to_vec();
        let mut rest = path;
        let first = path.first()?;
        match first.as_str() {
            "crate" => (at, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            name if self.child(&at, name).is_none() => return None,
            _ => {}
        }
        while let Some(name) = rest.first() {
            if let Some(child) = self.child(&at, name) {
                (at, rest) = (child, &rest[1..]);
                continue;
            }
            let (file_module, file) = self.files.get_key_value(&at)?;
            let is_named = |import: &&Import| import.name == *name || import.name == "*";
            for import in file.imports.iter().filter(is_named) {
                let is_glob = import.name == "*";
                let mut path = import.path.clone();
                if is_glob {
                    path.pop();
                    path.push(name.clone());
                }
                if let Some(found) = self.resolve(&at, &path, depth + 1)
                    && (!is_glob || self.files[found].defines(name))
                {
                    return Some(found);
                }
            }
            return Some(file_module);
        }
        self.files.get_key_value(&at).map(|(module, _)| module.as_slice())
    }

    fn child(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let mut child = module.to_vec();
        child.push(name.to_owned());
        self.files.contains_key(&child).then_some(child)
    }
}

impl File {
    fn defines(&self, name: &str) -> bool {
        self.source.words(name).into_iter().any(|at| {
            let before = self.source.code[..at].trim_end();
            ["struct", "enum", "fn", "trait", "const", "type", "static", "union", "mod"]
                .iter()
                .any(|word| before.ends_with(word))
        })
    }
}

/// Paths written in code outside `use`, that begin with `crate`, `super` or a module's name.
fn inline_paths(source: &Source) -> Vec<(Vec<String>, usize)> {
    let code = &source.code;
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let uses: Vec<_> = source.words("use").into_iter().filter_map(|at| Some(at..at + code[at..].find(';')?)).collect();
    let mut paths = Vec::new();
    let mut at = 0;
    while let Some(found) = code[at..].find("::") {
        let middle = at + found;
        let start = code[..middle].rfind(|letter: char| !is_part(letter)).map_or(0, |before| before + 1);
        let end = code[middle..].find(|letter: char| !is_part(letter)).map_or(code.len(), |length| middle + length);
        let parts: Vec<_> = code[start..end].split("::").map(str::to_owned).collect();
        let is_use = uses.iter().any(|range| range.contains(&start));
        if !is_use && !parts[0].is_empty() && !code[..start].trim_end().ends_with("::") {
            paths.push((parts.into_iter().filter(|part| !part.is_empty()).collect(), start));
        }
        at = end.max(middle + 2);
    }
    paths
}

/// Every `use` of a file, also those within functions.
fn imports(source: &Source) -> Vec<Import> {
    let mut imports = Vec::new();
    for at in source.words("use") {
        let Some(length) = source.code[at..].find(';') else { continue };
        let text: String = source.code[at + "use".len()..at + length].split_whitespace().collect::<Vec<_>>().join(" ");
        expand(&mut Vec::new(), &text, at, &mut imports);
    }
    imports
}

/// Adds what the tree of a `use` names.
fn expand(prefix: &mut Vec<String>, text: &str, at: usize, imports: &mut Vec<Import>) {
    let depth = prefix.len();
    let text = text.trim();
    if let Some(inner) = text.strip_prefix('{') {
        for part in split_tree(inner.strip_suffix('}').unwrap_or(inner)) {
            expand(prefix, part, at, imports);
        }
    } else if let Some((first, rest)) = text.split_once("::") {
        prefix.push(first.trim().to_owned());
        expand(prefix, rest, at, imports);
    } else if !text.is_empty() {
        let (part, alias) = text.split_once(" as ").map_or((text, None), |(part, alias)| (part, Some(alias)));
        if part != "self" {
            prefix.push(part.to_owned());
        }
        let name = alias.map_or_else(|| prefix.last().cloned().unwrap_or_default(), |alias| alias.trim().to_owned());
        imports.push(Import { path: prefix.clone(), name, at });
    }
    prefix.truncate(depth);
}

/// Parts of a list that commas outside braces divide.
fn split_tree(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Sets of files each of which reaches all others of its set.
fn circles(uses: &Uses) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = uses.keys().map(|path| (path, reachable(uses, path))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (path, files) in &reached {
        if files.contains(*path) && !circles.iter().any(|circle| circle.contains(*path)) {
            circles.push(files.iter().filter(|other| reached[*other].contains(*path)).cloned().collect());
        }
    }
    circles
}

fn reachable(uses: &Uses, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(path) = open.pop() {
        for next in uses[&path].keys() {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "crates/x/src/a.rs";
    const B: &str = "crates/x/src/b.rs";
    const LIB: (&str, &str) = ("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::One;\n");

    #[track_caller]
    fn finds(a: &str, b: &str, message: &str) {
        let found = find(&Tree::of([LIB, (A, a), (B, b)]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.ends_with(message), "{found:?}");
    }

    #[track_caller]
    fn accepts(a: &str, b: &str) {
        assert_eq!(find(&Tree::of([LIB, (A, a), (B, b)])), []);
    }

    #[test]
    fn two_files_that_import_each_other_are_found() {
        finds(
            "use crate::b::{Three, Two};\npub struct One;\n",
            "use super::a::One;\n",
            ": a.rs -> b.rs (Three, Two); b.rs -> a.rs (One)",
        );
        finds("fn f() { crate::b::g(); }\n", "fn g() { super::a::f(); }\n", ": a.rs -> b.rs (g); b.rs -> a.rs (f)");
    }

    #[test]
    fn a_name_that_the_root_hands_on_is_of_the_file_that_defines_it() {
        finds("use crate::b::Two;\npub struct One;\n", "use crate::One;\n", ": a.rs -> b.rs (Two); b.rs -> a.rs (One)");
        let glob = ("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::*;\npub use b::*;\n");
        let files = [glob, (A, "use crate::Two;\npub struct One;\n"), (B, "use crate::One;\npub struct Two;\n")];
        assert_eq!(find(&Tree::of(files)).len(), 1);
    }

    #[test]
    fn one_direction_is_no_circle() {
        accepts("use crate::b::Two;\n", "pub struct Two;\n");
        accepts("use crate::b::Two;\n", "use other::a::One;\n// use crate::a::One;\n");
    }

    #[test]
    fn tests_may_use_anything() {
        accepts("use crate::b::Two;\n", "#[cfg(test)]\nmod tests {\n    use crate::a::One;\n}\n");
    }

    #[test]
    fn a_part_may_use_the_module_that_it_lies_in() {
        let files = [LIB, (A, "mod c;\nuse c::Four;\n"), ("crates/x/src/a/c.rs", "use super::One;\n"), (B, "")];
        assert_eq!(find(&Tree::of(files)), []);
        // But not a file that uses this module.
        let files = [
            LIB,
            (A, "mod c;\nuse c::Four;\n"),
            ("crates/x/src/a/c.rs", "use crate::b::Two;\n"),
            (B, "use crate::a::One;\n"),
        ];
        assert_eq!(find(&Tree::of(files)).len(), 1);
    }

    #[test]
    fn folders_that_use_each_other_through_different_files_are_found() {
        let files = [
            ("crates/x/src/lib.rs", "mod a;\nmod b;\n"),
            (A, "pub mod one;\npub mod two;\n"),
            ("crates/x/src/a/one.rs", "use crate::b::Four;\n"),
            ("crates/x/src/a/two.rs", "pub struct Two;\n"),
            (B, "pub mod three;\npub struct Four;\n"),
            ("crates/x/src/b/three.rs", "use crate::a::two::Two;\n"),
        ];
        assert_eq!(find(&Tree::of(files)), []);
        let found = find_folders(&Tree::of(files));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("2 folders use each other"), "{found:?}");
    }
}
