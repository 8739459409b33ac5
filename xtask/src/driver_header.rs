//! Compares what the crates say of the CUDA driver with NVIDIA's own header: the C++ compiler reads both.
//!
//! The prototypes, structures and numbers of the Rust sources become declarations in C++; `xtask/driver.cpp` says which belongs to which
//! in `cuda.h`, and asserts that they agree.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// A namespace in C++, and the sources whose declarations it gets.
const PARTS: [(&str, &[&str]); 2] = [
    ("cuda", &["crates/headway-cuda/src/driver/structures.rs", "crates/headway-cuda/src/driver/table.rs"]),
    (
        "preload",
        &[
            "crates/headway-preload/src/base/driver.rs",
            "crates/headway-preload/src/calls/shapes.rs",
            "crates/headway-preload/src/methods/batch.rs",
            "crates/headway-preload/src/calls/table.rs",
        ],
    ),
];

/// # Errors
/// What the compiler says where the two differ.
pub(crate) fn check(include: &Path) -> anyhow::Result<()> {
    let root = crate::root();
    let mut declared = String::new();
    for (namespace, paths) in PARTS {
        let read = |path: &&str| fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"));
        let sources = paths.iter().map(read).collect::<anyhow::Result<String>>()?;
        declared += &declarations(namespace, &sources).with_context(|| format!("read the sources of `{namespace}`"))?;
    }
    let text = fs::read_to_string(root.join("xtask/driver.cpp")).context("read xtask/driver.cpp")?;
    let text = text.replace("#include \"declared.h\"\n", &declared);
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-fsyntax-only", "-x", "c++", "-", "-I"]).arg(include).stdin(Stdio::piped());
    let mut compiler = compiler.stderr(Stdio::piped()).spawn().context("start c++")?;
    compiler.stdin.take().context("it has an input")?.write_all(text.as_bytes())?;
    let done = compiler.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "the sources of the crates and cuda.h differ:\n{said}");
    Ok(())
}

/// What `sources` declare, as C++.
fn declarations(namespace: &str, sources: &str) -> anyhow::Result<String> {
    let code: Vec<&str> = sources.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
    let mut text = format!("namespace {namespace} {{\n");
    let structures = structures(&code);
    for structure in &structures {
        writeln!(text, "struct {};", structure.name)?;
    }
    for line in &code {
        let line = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        if let Some((name, kind)) = declaration(line, "type ", " = ") {
            writeln!(text, "using {name} = {};", cpp(kind))?;
        } else if let Some((name, rest)) = declaration(line, "const ", ": ")
            && let Some((kind, value)) = rest.split_once(" = ")
            && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
        {
            let constant = format!("constexpr {} {name} = {};\n", cpp(kind), value.replace('_', ""));
            // Two sources may have a name for one number.
            if !text.contains(&constant) {
                text += &constant;
            }
        }
    }
    let mut waiting: Vec<&Structure<'_>> = structures.iter().collect();
    while !waiting.is_empty() {
        let needs =
            |one: &Structure<'_>| waiting.iter().any(|other| one.fields.iter().any(|(_, kind)| *kind == other.name));
        let (later, now): (Vec<_>, Vec<_>) = waiting.iter().copied().partition(|one| needs(one));
        ensure!(!now.is_empty(), "structures hold each other");
        for Structure { name, alignment, fields } in now {
            write!(text, "struct {alignment}{name} {{")?;
            for (field, kind) in fields {
                write!(text, " {} {field};", cpp(kind))?;
            }
            writeln!(text, " }};")?;
        }
        waiting = later;
    }
    let code = code.join("\n");
    let prototypes = prototypes(&code);
    ensure!(!prototypes.is_empty(), "they have no prototypes");
    for (symbol, arguments) in prototypes {
        let arguments: Vec<_> =
            parts(arguments).into_iter().map(|one| cpp(one.split_once(": ").map_or(one, |(_, kind)| kind))).collect();
        writeln!(text, "static_assert(same_arguments<list<{}>>(::{symbol}), \"{symbol}\");", arguments.join(", "))?;
    }
    Ok(text + "}\n")
}

/// Name and rest of a declaration in one line.
fn declaration<'a>(line: &'a str, keyword: &str, separator: &str) -> Option<(&'a str, &'a str)> {
    line.strip_prefix(keyword)?.strip_suffix(';')?.split_once(separator)
}

struct Structure<'a> {
    name: &'a str,
    alignment: &'static str,
    fields: Vec<(&'a str, &'a str)>,
}

/// Every structure with the layout of C.
fn structures<'a>(code: &[&'a str]) -> Vec<Structure<'a>> {
    let mut found = Vec::new();
    for (at, line) in code.iter().enumerate().filter(|(_, line)| line.starts_with("#[repr(C")) {
        let mut rest = code[at..].iter().map(|line| line.trim_start_matches("pub(crate) ").trim_start_matches("pub "));
        let Some(head) = rest.find_map(|line| line.strip_prefix("struct ")) else { continue };
        let fields =
            rest.take_while(|line| *line != "}").filter_map(|line| line.trim_end_matches(',').split_once(": "));
        let alignment = if line.contains("align(8)") { "alignas(8) " } else { "" };
        found.push(Structure { name: head.trim_end_matches(" {"), alignment, fields: fields.collect() });
    }
    found
}

/// Symbols with their arguments: rows `cuX(...);`, `field: c"cuX", fn(...);` and `cuX: c"cuY" from 1 until 2, or cuX_ptsz from 2; fn(...) by...`,
/// which has two.
fn prototypes(code: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in code.lines() {
        let rest = &code[at..];
        at += line.len() + 1;
        let (symbols, arguments) = match line.split_once(": c\"") {
            Some((name, row)) if row.contains("\" from ") => {
                let second = row.split_once(", or ").and_then(|(_, row)| row.split(' ').next());
                (vec![Some(name), second], rest.split_once("fn("))
            }
            Some((_, row)) => (vec![row.split('"').next()], rest.split_once("fn(")),
            None => (vec![rest.split('(').next()], rest.split_once('(')),
        };
        let symbols = symbols.into_iter().flatten().filter(|name| name.starts_with("cu") && !name.contains('\n'));
        if let Some((_, arguments)) = arguments {
            found.extend(symbols.map(|symbol| (symbol, closed(arguments))));
        }
    }
    found
}

/// `text` up to the parenthesis that closes it.
fn closed(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0
    });
    &text[..end.unwrap_or(text.len())]
}

/// What commas separate, but for those inside of tuples.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let separates = move |letter: char| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    };
    text.split(separates).map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// A Rust type in C++.
fn cpp(kind: &str) -> String {
    let inside = |open, close| kind.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
    if let Some(to) = kind.strip_prefix("*mut ") {
        format!("mut_ptr<{}>", cpp(to))
    } else if let Some(to) = kind.strip_prefix("*const ") {
        format!("const_ptr<{}>", cpp(to))
    } else if let Some((of, count)) = inside("[", "]").and_then(|inside| inside.rsplit_once("; ")) {
        format!("std::array<{}, {count}>", cpp(of))
    } else if let Some(tuple) = inside("(", ")") {
        format!("tuple<{}>", parts(tuple).into_iter().map(cpp).collect::<Vec<_>>().join(", "))
    } else {
        kind.rsplit("::").next().unwrap_or(kind).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_become_those_of_the_other_language() {
        assert_eq!(cpp("*mut *const std::ffi::c_char"), "mut_ptr<const_ptr<c_char>>");
        assert_eq!(cpp("[(c_uint, c_int); 2]"), "std::array<tuple<c_uint, c_int>, 2>");
    }

    #[test]
    fn each_form_of_a_row_is_a_prototype() {
        let code = "cuInit(c_uint);\nquery: c\"cuA\", fn(usize, (u8, u8));\n\
                    cuB: c\"cuC\" from 1 until 2, or cuB_ptsz from 2;\nfn(a: *mut u8) by(real) {\nfn cu() {}\n\
                    cuD: c\"cuD\" from 1 until UNKNOWN;\nfn(b: u8) by(real)\n";
        let found =
            [("cuInit", "c_uint"), ("cuA", "usize, (u8, u8)"), ("cuB", "a: *mut u8"), ("cuB_ptsz", "a: *mut u8")];
        assert_eq!(prototypes(code), [&found[..], &[("cuD", "b: u8")]].concat());
    }

    #[test]
    fn a_structure_comes_after_those_that_it_holds() {
        let text = declarations(
            "a",
            "type X = u64;\nconst N: c_int = 1_0;\n#[repr(C)]\nstruct A {\n    b: B,\n}\n#[repr(C, align(8))]\npub(crate) struct B {\n\
             // Its address.\n    pub(crate) c: X,\n}\ncuInit(*const A);\n",
        );
        assert_eq!(
            text.unwrap(),
            "namespace a {\nstruct A;\nstruct B;\nusing X = u64;\nconstexpr c_int N = 10;\nstruct alignas(8) B { X c; };\n\
             struct A { B b; };\nstatic_assert(same_arguments<list<const_ptr<A>>>(::cuInit), \"cuInit\");\n}\n"
        );
    }
}
