//! Files for other tools: task sets by `import` and `export`, pictures by `plot`.

use std::path::Path;

use anyhow::Result;
use headway_cli::terminal::{CommandAnswer, Out};
use headway_lab::formats::{self, Export, Import};
use headway_lab::rows::{RowsPlot, of_rows};
use serde::Serialize;

use super::args::{ExportArgs, ImportArgs, PlotArgs};

pub(crate) fn import(out: &Out, args: &ImportArgs) -> Result<CommandAnswer> {
    let name = args.out.as_ref().unwrap_or(&args.file).file_stem().map(|name| name.to_string_lossy().into_owned());
    let options = Import {
        unit: args.unit,
        window: args.window,
        cost: args.cost,
        server: args.server.clone(),
        name: args.name.clone().or(name),
    };
    let imported = formats::import_file(&args.file, args.from, &options)?;
    finish(out, args.out.as_deref(), args.force, &imported, &imported.workload, &imported.notes)
}

pub(crate) fn export(out: &Out, args: &ExportArgs) -> Result<CommandAnswer> {
    let options = Export { unit: args.unit, server: args.server.clone() };
    let exported = formats::export_file(&args.file, args.to, &options)?;
    finish(out, args.out.as_deref(), args.force, &exported, &exported.text, &exported.notes)
}

pub(crate) fn plot(out: &Out, args: &PlotArgs) -> Result<CommandAnswer> {
    let PlotArgs { rows, x, y, by, only, .. } = args;
    let wanted = RowsPlot { rows: rows.clone(), x: x.clone(), y: y.clone(), by: by.clone(), only: only.clone() };
    let figure = of_rows(&wanted)?;
    formats::save(&args.out, &figure.svg().map_err(headway_measure::Error::from)?, args.force)?;
    let json = serde_json::json!({ "schema": 1, "file": args.out, "lines": figure.lines.len() });
    out.print(&json, || format!("wrote {}\n", args.out.display()))?;
    Ok(CommandAnswer::Yes)
}

/// Writes the text where it belongs and says what there is to know on stderr.
fn finish(
    out: &Out,
    path: Option<&Path>,
    force: bool,
    json: &impl Serialize,
    text: &str,
    notes: &[String],
) -> Result<CommandAnswer> {
    for note in notes {
        out.note(note);
    }
    if let Some(path) = path {
        formats::save(path, text, force)?;
        out.print(json, || format!("wrote {}\n", path.display()))?;
    } else {
        out.print(json, || text.to_owned())?;
    }
    Ok(CommandAnswer::Yes)
}
