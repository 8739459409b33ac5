//! The commands that the README and the pages it sends readers to show work as shown.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::common::{Answer, command, commands, page, place, random, words};

/// Pages whose commands are run, each in a place of its own.
const PAGES: [&str; 5] = ["README.md", FIRST_WORKLOAD.0, PLAN_TO_PROGRAM.0, FIVE_PROGRAMS.0, "docs/commands.md"];
/// Pages that show a file to save, and its name.
const FIRST_WORKLOAD: (&str, &str) = ("docs/first-workload.md", "cameras.toml");
const PLAN_TO_PROGRAM: (&str, &str) = ("docs/tutorials/from-plan-to-program.md", "camera.toml");
const FIVE_PROGRAMS: (&str, &str) = ("docs/tutorials/five-programs.md", "five.toml");
/// How commands for `headway` begin on pages.
const STARTS: [&str; 2] = ["cargo run --release -- ", "headway "];

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
    if args[0] == "measure" || args[0] == "bench" && args[1] == "transfers" {
        command.args(["--sizes", "64 B,16 KiB"]);
    }
    command.output().unwrap().into()
}

#[test]
fn the_main_job_runs_as_the_readme_says() {
    let Some(text) = page("README.md") else { return };
    let main = commands(&text, &STARTS).into_iter().next().expect("the README starts with the main job");
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
        let (place, commands) = (place(), commands(&text, &STARTS));
        assert!(!commands.is_empty(), "{name} has no commands");
        if let Some((_, file)) = [FIRST_WORKLOAD, PLAN_TO_PROGRAM, FIVE_PROGRAMS].iter().find(|(page, _)| *page == name)
        {
            fs::write(place.path().join(file), file_shown(&text).unwrap()).unwrap();
        }
        for args in commands {
            if let Some(at) = args.iter().position(|arg| arg == "--input") {
                fs::write(place.path().join(&args[at + 1]), random(100_000, 5)).unwrap();
            }
            let answer = run(place.path(), &args);
            // `plan` may answer no: that is what one of the examples is for.
            let refused = args[0] == "plan" && answer.status == Some(1) && answer.out.contains("NOT schedulable");
            assert!(answer.status == Some(0) || refused, "{name}: {args:?}: {answer:#?}");
        }
    }
}

#[test]
fn the_first_workload_is_answered_as_its_page_says() {
    let Some(text) = page(FIRST_WORKLOAD.0) else { return };
    let (place, shown) = (place(), file_shown(&text).unwrap());
    let lines = shown.lines().filter(|line| !line.is_empty());
    assert!(lines.count() <= 15);
    let plan = |bytes: &str| {
        fs::write(place.path().join(FIRST_WORKLOAD.1), shown.replace("48 MB", bytes)).unwrap();
        run(place.path(), &words("plan cameras.toml --machine h200-x1"))
    };
    assert!(plan("48 MB").exits(0).out.contains("\nverdict   schedulable\n"));
    let refused = plan("600 MB").exits(1).out;
    assert!(refused.contains("NOT schedulable") && refused.contains("118.1"), "{refused}");
    assert!(text.contains("118 %"));
}

#[test]
fn five_programs_share_two_gpus_as_their_page_says() {
    let Some(text) = page(FIVE_PROGRAMS.0) else { return };
    let programs = Path::new(crate::PROGRAM).parent().unwrap();
    let examples = programs.join("examples");
    if !examples.join("share_program").is_file() {
        println!("skipped: `cargo build -p headway-gpu --examples` makes the program of {}", FIVE_PROGRAMS.0);
        return;
    }
    let place = place();
    let script: String = text.split("```bash\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    let path = env::join_paths([programs, &examples, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    // Without a limit a broker that does not come up would keep the script waiting.
    let mut bash = Command::new("timeout");
    bash.args(["120", "bash", "-euc", &script]).current_dir(place.path()).env("PATH", path).stdin(Stdio::null());
    bash.env("HEADWAY_BROKER", place.path().join("broker"));
    let answer = Answer::from(bash.output().unwrap());
    // Whether a job was late depends on how fast things are.
    assert!(matches!(answer.status, Some(0 | 1)), "{answer:#?}");
    for name in ["lanes", "signs", "people", "depth", "map"] {
        let line = answer.out.lines().find_map(|line| line.strip_prefix(&format!("{name}: frames on each GPU [")));
        let counts = line.and_then(|line| line.split_once(']')).unwrap_or_else(|| panic!("{name}\n{answer:#?}")).0;
        let frames: u32 = counts.split(", ").map(|count| count.parse::<u32>().unwrap()).sum();
        assert_eq!(frames, 50, "{name}\n{answer:#?}");
        let is_row = |line: &str| line.split_whitespace().take(2).eq([name, "50"]);
        assert!(answer.out.lines().any(is_row), "the broker's log lacks {name}\n{answer:#?}");
    }
    assert!(answer.out.contains("token"), "the status is missing\n{answer:#?}");
    assert!(place.path().join("shared/page.html").is_file());
}

#[test]
fn commands_are_found_in_shell_blocks_only() {
    let text = "headway plan a\n```toml\nheadway = 1\n```\n```sh\n$ ls\ncargo run --release -- run x --duration \"1 s\"\n\
                headway plan y # why\n```\n";
    assert_eq!(commands(text, &STARTS), [vec!["run", "x", "--duration", "1 s"], vec!["plan", "y"]]);
}
