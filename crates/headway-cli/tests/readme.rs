//! The commands that the README and the pages it sends readers to show work as shown.

use std::fs;
use std::path::Path;

use crate::common::{Answer, command, place, random, root};

/// Arguments of every command line for `headway` in the fenced `sh` blocks of `text`.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut shell = false;
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            shell = kind == "sh";
            continue;
        }
        let line = line.split(" # ").next().unwrap().trim();
        let arguments = ["cargo run --release -- ", "headway "].iter().find_map(|start| line.strip_prefix(start));
        if let Some(arguments) = arguments.filter(|_| shell) {
            found.push(words(arguments));
        }
    }
    found
}

/// The words of a line, where a quoted part is one word.
fn words(line: &str) -> Vec<String> {
    let parts = line.split(['"', '\'']).enumerate();
    let words = parts.flat_map(|(number, part)| match number % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

/// Pages whose commands are run, each in a place of its own.
const PAGES: [&str; 4] = ["README.md", "docs/first-workload.md", "docs/commands.md", "docs/reproduce.md"];

fn page(name: &str) -> Option<String> {
    let text = fs::read_to_string(root().join(name));
    if text.is_err() {
        eprintln!("skipped: the sources have no {name}");
    }
    text.ok()
}

/// The first file that `text` shows in TOML, for the reader to save.
fn file_shown(text: &str) -> Option<&str> {
    Some(text.split_once("```toml\n")?.1.split_once("```")?.0)
}

/// Runs a command of a page; runs last as short as can be, and few sizes are measured.
fn run(folder: &Path, args: &[String]) -> Answer {
    let mut command = command(folder);
    command.args(args);
    if args[0] == "run" && !args.iter().any(|arg| arg == "--input" || arg == "--duration") {
        command.args(["--duration", "100 ms"]);
    }
    if ["measure", "bench"].contains(&args[0].as_str()) {
        command.args(["--sizes", "64 B,16 KiB"]);
    }
    command.output().unwrap().into()
}

#[test]
fn the_main_job_runs_as_the_readme_says() {
    let Some(text) = page("README.md") else { return };
    let main = commands(&text).into_iter().next().expect("the README starts with the main job");
    assert_eq!(main[0], "run");
    let place = place();
    let answer = run(place.path(), &main).exits(0);
    assert!(answer.out.starts_with("all ") && answer.out.contains("deadlines held [sim]"), "{}", answer.out);
    for line in ["verified", "page", "trace", "again"] {
        assert!(answer.out.lines().any(|said| said.starts_with(line)), "`{line}` is missing\n{}", answer.out);
    }
    let page = answer.out.lines().find_map(|line| line.strip_prefix("page      ")).unwrap();
    assert!(place.path().join(page).is_file(), "{page}");
}

#[test]
fn every_command_of_the_pages_works_in_the_order_shown() {
    for name in PAGES {
        let Some(text) = page(name) else { return };
        let (place, commands) = (place(), commands(&text));
        assert!(!commands.is_empty(), "{name} has no commands");
        if name == "docs/first-workload.md" {
            fs::write(place.path().join("cameras.toml"), file_shown(&text).unwrap()).unwrap();
        }
        for args in commands {
            if let Some(at) = args.iter().position(|arg| arg == "--input") {
                fs::write(place.path().join(&args[at + 1]), random(100_000, 5)).unwrap();
            }
            let answer = run(place.path(), &args);
            // `plan` may answer no: that is what one of the examples is for.
            let refused = args[0] == "plan" && answer.status == Some(1) && answer.out.contains("NOT schedulable");
            // What an emulated experiment measures depends on this machine: its verdict is a result, whichever it is.
            let emulated = args[0] == "reproduce" && args.contains(&"emu".to_owned());
            let judged = emulated && answer.status == Some(1) && answer.out.contains("not reproduced");
            assert!(answer.status == Some(0) || refused || judged, "{name}: {args:?}: {answer:#?}");
        }
    }
}

#[test]
fn pictures_are_what_their_commands_draw() {
    let Some(text) = page("docs/pictures/README.md") else { return };
    let place = place();
    let drawn = commands(&text);
    assert_eq!(drawn.len(), 5);
    for mut args in drawn {
        let at = 1 + args.iter().position(|arg| arg == "--out").expect("a picture has a file");
        let committed = fs::read_to_string(root().join(&args[at])).unwrap();
        args[at] = place.path().join("drawn.svg").display().to_string();
        run(&root(), &args).exits(0);
        let again = fs::read_to_string(&args[at]).unwrap();
        assert!(again == committed, "draw it again: headway {}", args.join(" "));
    }
}

#[test]
fn the_first_workload_is_answered_as_its_page_says() {
    let Some(text) = page("docs/first-workload.md") else { return };
    let (place, shown) = (place(), file_shown(&text).unwrap());
    let lines = shown.lines().filter(|line| !line.is_empty());
    assert!(lines.count() <= 15);
    let plan = |bytes: &str| {
        fs::write(place.path().join("cameras.toml"), shown.replace("48 MB", bytes)).unwrap();
        run(place.path(), &words("plan cameras.toml --machine h200-x1"))
    };
    assert!(plan("48 MB").exits(0).out.contains("\nverdict   schedulable\n"));
    let refused = plan("600 MB").exits(1).out;
    assert!(refused.contains("NOT schedulable") && refused.contains("118.1"), "{refused}");
    assert!(text.contains("118 %"));
}

#[test]
fn commands_are_found_in_shell_blocks_only() {
    let text = "headway plan a\n```toml\nheadway = 1\n```\n```sh\n$ ls\ncargo run --release -- run x --duration \"1 s\"\n\
                headway plan y # why\n```\n";
    assert_eq!(commands(text), [vec!["run", "x", "--duration", "1 s"], vec!["plan", "y"]]);
}
