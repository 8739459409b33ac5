//! Executables that cargo builds, found in the messages that it prints.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

/// An executable that cargo built.
#[derive(Debug, PartialEq)]
pub(crate) struct Executable {
    /// Folder of its crate.
    pub(crate) folder: PathBuf,
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    pub(crate) is_test: bool,
}

impl Executable {
    /// Name of the crate: its folder has the same.
    pub(crate) fn package(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Runs a command of cargo that builds, and returns the executables.
pub(crate) fn build(command: &mut Command) -> anyhow::Result<Vec<Executable>> {
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let done = command.output().with_context(|| format!("start {command:?}"))?;
    ensure!(done.status.success(), "{command:?} failed: {}", done.status);
    executables(&String::from_utf8(done.stdout).context("cargo's messages are not text")?)
}

fn executables(messages: &str) -> anyhow::Result<Vec<Executable>> {
    let mut built = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("a message of cargo is not JSON")?;
        built.extend(executable(&message));
    }
    Ok(built)
}

fn executable(message: &Value) -> Option<Executable> {
    Some(Executable {
        folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        path: message["executable"].as_str()?.into(),
        is_test: message["profile"]["test"].as_bool()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_among_the_messages_of_cargo() {
        let message = |reason: &str, executable: &str, test: bool| {
            format!(
                r#"{{"reason":"{reason}","manifest_path":"/r/crates/headway-cuda/Cargo.toml","target":{{"name":"gpu"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            message("compiler-artifact", "null", false),
            message("compiler-artifact", "\"/t/gpu-1\"", true),
            message("compiler-artifact", "\"/t/example\"", false),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "   Compiling".to_owned(),
        ];
        let gpu = |path: &str, is_test: bool| Executable {
            folder: "/r/crates/headway-cuda".into(),
            target: "gpu".to_owned(),
            path: path.into(),
            is_test,
        };
        assert_eq!(executables(&messages.join("\n")).unwrap(), [gpu("/t/gpu-1", true), gpu("/t/example", false)]);
        assert_eq!(gpu("/t/gpu-1", true).package(), "headway-cuda");
    }
}
