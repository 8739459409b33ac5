//! The help of every command is the committed text, from which `cargo xtask tidy` learns the flags that pages may name.
//!
//! `SNAPSHOTS=overwrite cargo test -p headway-cli -p headway-lab --test it help::` writes the texts anew.

use std::path::Path;
use std::process::{Command, Stdio};

use snapbox::{Assert, Data};

fn help(arguments: &[&str]) -> String {
    let mut command = Command::new(crate::PROGRAM);
    // Without a terminal the width comes from here.
    command.args(arguments).arg("--help").env("COLUMNS", "100").stdin(Stdio::null());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", done.status);
    String::from_utf8(done.stdout).unwrap()
}

/// The first words of the lines between `Commands:` and the next blank line.
fn commands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Descriptions that continue on a second line are indented further.
    lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
fn every_help_text_is_the_committed_one() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let assert = Assert::new().action_env("SNAPSHOTS");
    let is_committed = |name: &str, text: String| {
        let path = golden.join(format!("help-{name}.txt"));
        assert.eq(text, Data::read_from(&path, None).raw());
    };
    let top = help(&[]);
    let commands = commands(&top);
    assert!(commands.len() > 3, "{commands:?}");
    for command in &commands {
        is_committed(command, help(&[command]));
    }
    let program = Path::new(crate::PROGRAM).file_name().unwrap().to_string_lossy();
    is_committed(&program, top.clone());

    let texts = golden
        .read_dir()
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("help-"));
    assert_eq!(texts.count(), commands.len() + 1, "a text is left of a command that is gone, or missing");
}
