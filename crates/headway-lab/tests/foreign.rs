//! Task sets of other tools, and pictures.

use std::fs;

use crate::STARTS;
use crate::common::{commands, headway, is_one_error, on_a_small_disk, page, place, root, tree};

#[test]
fn a_file_to_be_replaced_stays_when_the_new_one_cannot_be_written() {
    let place = place();
    let export = ["export", "workloads/np-edf-miss.toml", "--to", "jobs", "--out", "jobs.csv", "--force", "--quiet"];
    headway(place.path(), &export).exits(0);
    let written = fs::read(place.path().join("jobs.csv")).unwrap();
    fs::write(place.path().join("jobs.csv"), "precious").unwrap();
    let before = tree(place.path());
    is_one_error(&on_a_small_disk(place.path(), 0, &export), 2, &["cannot write", "File too large"]);
    assert_eq!(tree(place.path()), before);
    assert_eq!(fs::read(place.path().join("jobs.csv")).unwrap(), b"precious");
    std::os::unix::fs::symlink("jobs.csv", place.path().join("link")).unwrap();
    let through = ["export", "workloads/np-edf-miss.toml", "--to", "jobs", "--out", "link", "--force"];
    headway(place.path(), &through).exits(0);
    assert!(place.path().join("link").is_symlink());
    assert_eq!(fs::read(place.path().join("jobs.csv")).unwrap(), written);
}

#[test]
fn a_set_of_jobs_becomes_the_committed_workload() {
    let place = tempfile::tempdir().unwrap();
    let jobs = "Task ID, Job ID, Arrival min, Arrival max, Cost min, Cost max, Deadline, Priority\n\
                1, 1, 0, 0, 1, 2, 10, 10\n1, 2, 10, 10, 1, 2, 20, 20\n2, 3, 0, 0, 3, 8, 30, 30\n";
    fs::write(place.path().join("jobs.csv"), jobs).unwrap();
    let units = ["--from", "jobs", "--unit", "1 us", "--window", "30 us", "--out", "set.toml"];
    headway(place.path(), &[&["import", "jobs.csv"], &units[..]].concat()).exits(0);
    let committed = fs::read_to_string(root().join("crates/headway-cli/tests/golden/imported.toml")).unwrap();
    assert_eq!(fs::read_to_string(place.path().join("set.toml")).unwrap(), committed);
}

#[test]
fn pictures_are_what_their_commands_draw() {
    let Some(text) = page("docs/pictures/README.md") else { return };
    let place = place();
    let drawn = commands(&text, &STARTS);
    assert_eq!(drawn.len(), 5);
    for mut args in drawn {
        let at = 1 + args.iter().position(|arg| arg == "--out").expect("a picture has a file");
        let committed = fs::read_to_string(root().join(&args[at])).unwrap();
        args[at] = place.path().join("drawn.svg").display().to_string();
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        headway(&root(), &words).exits(0);
        let again = fs::read_to_string(&args[at]).unwrap();
        assert!(again == committed, "draw it again: headway-lab {}", args.join(" "));
    }
}
