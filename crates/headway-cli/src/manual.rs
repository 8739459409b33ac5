//! Manual pages, made from the same definition as parsing, help and completions.

use headway_cli::terminal::{CommandAnswer, Out, write_out};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use clap_mangen::Man;
use serde::Serialize;

use crate::args::Cli;

#[derive(Serialize)]
struct Pages<'a> {
    /// One page for each command.
    files: &'a [PathBuf],
    /// Version of the JSON form.
    schema: u32,
}

/// Prints the page of the subcommand `of`, or writes all pages into `folder`.
pub(crate) fn man(out: &Out, of: &[String], folder: Option<&Path>) -> Result<CommandAnswer> {
    let Some(folder) = folder else {
        write_out(&page(of)?)?;
        return Ok(CommandAnswer::Yes);
    };
    let mut files = Vec::new();
    fs::create_dir_all(folder).with_context(|| format!("cannot create folder `{}`", folder.display()))?;
    for words in subcommands(&built(), &[]) {
        let name = format!("{}.1", [&["headway".to_owned()][..], &words].concat().join("-"));
        let path = folder.join(name);
        fs::write(&path, page(&words)?).with_context(|| format!("cannot write `{}`", path.display()))?;
        files.push(path);
    }
    let json = Pages { files: &files, schema: 1 };
    out.print(&json, || files.iter().map(|path| format!("{}\n", path.display())).collect())?;
    Ok(CommandAnswer::Yes)
}

/// The command with the names and the global options of every subcommand filled in.
fn built() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// The words of `command`, then of all its subcommands.
fn subcommands(command: &clap::Command, words: &[String]) -> Vec<Vec<String>> {
    let mut all = vec![words.to_vec()];
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        all.extend(subcommands(child, &[words, &[child.get_name().to_owned()]].concat()));
    }
    all
}

/// The page of one subcommand in the form that `man` reads.
fn page(words: &[String]) -> Result<Vec<u8>> {
    let mut command = built();
    for word in words {
        let Some(child) = command.find_subcommand(word) else {
            let shown = command.get_subcommands().filter(|child| !child.is_hide_set());
            let known: Vec<&str> = shown.map(clap::Command::get_name).collect();
            if known.is_empty() {
                let name = words.iter().take_while(|it| *it != word).cloned().collect::<Vec<_>>().join(" ");
                bail!(
                    "`headway {name}` has no commands of its own; `headway man {name}` prints its page, and one command has one page"
                );
            }
            bail!("there is no command `{word}` below `{}`; use one of: {}", command.get_name(), known.join(", "));
        };
        command = child.clone();
    }
    let name = [&["headway".to_owned()][..], words].concat().join("-");
    let mut text = Vec::new();
    Man::new(command)
        .title(name)
        .source(format!("headway {}", headway::VERSION))
        .manual("Headway")
        .render(&mut text)?;
    Ok(text)
}
