//! The environment of an unmodified program that gets Headway's library in front of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use headway::guest::{AsideMode, ChunkChoice, GuestClass, GuestOptions, PinnedBudget, environment};
use headway::units::Bytes;
use pyo3::prelude::*;

use crate::errors::{Subject, options_error, raised};

/// The variables that `headway exec` sets; `None` = the variable must not be there.
///
/// `folder` has the library, and `before` is what `LD_PRELOAD` says already.
#[pyfunction]
#[pyo3(signature = (folder, before, *, fast, pin_once, aside, flow, chunk, machine, stats, lint, verify, log, alone, depth, no_cache))]
#[expect(clippy::too_many_arguments, reason = "each is an option by name")]
pub(crate) fn guest_environment(
    py: Python<'_>,
    folder: PathBuf,
    before: OsString,
    fast: &str,
    pin_once: Option<&str>,
    aside: &str,
    flow: &str,
    chunk: &str,
    machine: Option<&str>,
    stats: bool,
    lint: bool,
    verify: bool,
    log: Option<PathBuf>,
    alone: bool,
    depth: Option<u32>,
    no_cache: bool,
) -> PyResult<BTreeMap<&'static str, Option<OsString>>> {
    let (fast, always_fast) = match fast {
        "on" => (true, false),
        "always" => (true, true),
        "off" => (false, false),
        other => return Err(options_error(py, &format!("`fast` is \"on\", \"always\" or \"off\", not \"{other}\""))),
    };
    let aside = match aside {
        "never" => AsideMode::Never,
        "auto" => AsideMode::Auto,
        "always" => AsideMode::Always,
        other => {
            return Err(options_error(py, &format!("`aside` is \"auto\", \"always\" or \"never\", not \"{other}\"")));
        }
    };
    let class = match flow {
        "auto" => GuestClass::ByStream,
        "bulk" => GuestClass::Bulk,
        "normal" => GuestClass::Normal,
        other => {
            return Err(options_error(py, &format!("`flow` is \"auto\", \"bulk\" or \"normal\", not \"{other}\"")));
        }
    };
    let choice: ChunkChoice = chunk.parse().map_err(|error: String| options_error(py, &error))?;
    let (chunk, _) = choice.chunk(aside, class, machine).map_err(|error| raised(py, Subject::Other, &error))?;
    let budget = pin_once.map(str::parse::<PinnedBudget>).transpose().map_err(|error| options_error(py, &error))?;
    let pin_once = budget.map_or(Bytes(0), PinnedBudget::bytes);
    let options =
        GuestOptions { fast, always_fast, pin_once, no_cache, aside, chunk, class, stats, lint, verify, alone, depth };
    let variables =
        environment(options, log.as_deref(), &folder, &before).map_err(|error| raised(py, Subject::Other, &error))?;
    Ok(variables.into_iter().map(|variable| (variable.name, variable.value)).collect())
}
