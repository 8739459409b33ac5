//! The help of every command is the committed text, from which `cargo xtask tidy` learns the flags that pages may name.
//!
//! `SNAPSHOTS=overwrite cargo test -p headway-cli --test it help::` writes the texts anew.

use std::path::Path;
use std::process::{Command, Stdio};

use snapbox::{Assert, Data};

fn help(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headway"));
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
fn help_may_be_asked_for_as_a_command() {
    let mut asked = Command::new(env!("CARGO_BIN_EXE_headway"));
    let asked = asked.args(["help", "bench", "combine"]).env("COLUMNS", "100").output().unwrap();
    assert!(asked.status.success());
    assert_eq!(String::from_utf8(asked.stdout).unwrap(), help(&["bench", "combine"]));
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
    assert!(commands.contains(&"run") && commands.contains(&"completions"), "{commands:?}");
    for command in &commands {
        is_committed(command, help(&[command]));
    }
    is_committed("headway", top.clone());

    let texts = golden
        .read_dir()
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("help-"));
    assert_eq!(texts.count(), commands.len() + 1, "a text is left of a command that is gone, or missing");
}
