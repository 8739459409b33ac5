//! `compute = { module = .., entry = .., .. }` of a step.

use super::module_kernel::{CpuFunction, KernelArgument, ModuleKernel, Number32, Number64};
use crate::files::document::Field;
use crate::files::error::FileError;
use crate::units::Bytes;

const MODULE: &[&str] = &["module", "entry", "grid", "block", "shared", "args", "out_bytes", "cost", "cpu"];
const CPU: &[&str] = &["library", "function"];
const ARGS: &str = "[\"in\", \"out\", \"bytes\"]";
const ARGUMENT_HELP: &str =
    "write \"in\", \"out\", \"bytes\", or a number with its type: `{ u32 = 640 }`, also i32, u64, i64, f32, f64";
const NUMBERS: &[&str] = &["u32", "i32", "u64", "i64", "f32", "f64"];

/// Reads a kernel of a module.
pub(super) fn module_kernel(field: Field<'_>) -> Result<ModuleKernel, FileError> {
    let mut table = field.table("a kernel of a module", MODULE)?;
    let module = table.require("module", "\"detect.ptx\"")?.text("\"detect.ptx\"")?.to_owned();
    let entry = table.require("entry", "\"detect\"")?.text("\"detect\"")?.to_owned();
    let grid = three(table.require("grid", "[64]")?)?;
    let block = three(table.require("block", "[256]")?)?;
    let shared = table.take("shared").map_or(Ok(Bytes(0)), |field| field.any_size("16 KiB"))?;
    let args = table.require("args", ARGS)?.some_elements(ARGS, "the kernel gets nothing")?;
    let args = args.into_iter().map(argument).collect::<Result<_, _>>()?;
    let out_bytes = table.take("out_bytes").map(|field| field.any_size("4 KiB")).transpose()?;
    let cost = table.take("cost").map(|field| field.any_time()).transpose()?;
    let cpu = table.take("cpu").map(cpu_function).transpose()?;
    Ok(ModuleKernel { module, entry, grid, block, shared, args, out_bytes, cost, cpu, code: None })
}

fn cpu_function(field: Field<'_>) -> Result<CpuFunction, FileError> {
    let mut table = field.table("a CPU form", CPU)?;
    let library = table.require("library", "\"libdetect.so\"")?.text("\"libdetect.so\"")?.to_owned();
    let function = table.require("function", "\"detect\"")?.text("\"detect\"")?.to_owned();
    Ok(CpuFunction { library, function, file: None })
}

/// One to three numbers; those that are left out are 1.
fn three(field: Field<'_>) -> Result<[u32; 3], FileError> {
    let (example, most) =
        if field.key() == "grid" { ("[64]", i32::MAX.unsigned_abs().into()) } else { ("[256]", 1024) };
    let help = format!("write x, y and z, or fewer: `{} = {example}`", field.key());
    let key = field.key().to_owned();
    let elements = field.some_elements(example, "the list is empty")?;
    if let Some(fourth) = elements.get(3) {
        return Err(
            fourth.error(format!("`{key}` has {} numbers, and a GPU has three directions", elements.len()), Some(help))
        );
    }
    let mut three = [1; 3];
    for (to, element) in three.iter_mut().zip(&elements) {
        *to = u32::try_from(element.any_integer(&(1..=most))?).unwrap_or(u32::MAX);
    }
    Ok(three)
}

fn argument(field: Field<'_>) -> Result<KernelArgument, FileError> {
    if let Ok(text) = field.text("") {
        return match text {
            "in" => Ok(KernelArgument::In),
            "out" => Ok(KernelArgument::Out),
            "bytes" => Ok(KernelArgument::Bytes),
            _ => Err(field.error(format!("`{text}` is no argument of a kernel"), Some(ARGUMENT_HELP.to_owned()))),
        };
    }
    if !field.is_table() {
        return Err(field.error("an argument says its type", Some(ARGUMENT_HELP.to_owned())));
    }
    let mut table = field.table("an argument", NUMBERS)?;
    let mut numbers = NUMBERS.iter().filter_map(|kind| Some((*kind, table.take(kind)?)));
    let (Some((kind, number)), None) = (numbers.next(), numbers.next()) else {
        drop(numbers);
        return Err(table.error("an argument is one number", ARGUMENT_HELP));
    };
    Ok(match kind {
        "u32" => KernelArgument::U32(number.number("640")?),
        "i32" => KernelArgument::I32(number.number("-1")?),
        "u64" => KernelArgument::U64(number.number("640")?),
        "i64" => KernelArgument::I64(number.number("-1")?),
        "f32" => KernelArgument::F32(finite(&number, Number32::new(number.rounded("0.5")?))?),
        _ => KernelArgument::F64(finite(&number, Number64::new(number.rounded("0.5")?))?),
    })
}

fn finite<T>(field: &Field<'_>, number: Option<T>) -> Result<T, FileError> {
    number.ok_or_else(|| field.error(format!("`{}` is not finite", field.excerpt()), Some("write a number".to_owned())))
}
