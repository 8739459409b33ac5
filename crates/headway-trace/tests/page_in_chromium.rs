//! The page in a browser: what the script draws, and that names cannot run.
//!
//! Needs Chromium in the search path or in `$HEADWAY_CHROMIUM`; without it the tests print that they were skipped.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Bend, log, plan};
use headway_trace::summary::summarize;
use headway_trace::{Log, page};

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("HEADWAY_CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = || std::env::split_paths(&path).map(|folder| folder.join("chromium")).find(|file| file.is_file());
    let chromium = named.or_else(found);
    if chromium.is_none() {
        eprintln!("skipped: no chromium in the search path and no $HEADWAY_CHROMIUM");
    }
    chromium
}

/// The document after its script has run; `None` where there is no browser.
fn rendered(log: &Log) -> Option<String> {
    let chromium = chromium()?;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let mut html = Vec::new();
    page::write(log, &summarize(log), &mut html).unwrap();
    std::fs::write(&file, html).unwrap();
    Some(dump(&chromium, folder.path(), &file))
}

fn dump(chromium: &Path, folder: &Path, file: &Path) -> String {
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", "--virtual-time-budget=20000", "--window-size=1280,1600"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The part of the document from the element with this id on.
fn from_id<'a>(document: &'a str, id: &str) -> &'a str {
    let at = document.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no element {id}"));
    &document[at..]
}

#[test]
fn the_script_draws_every_stream_step_and_the_verdict() {
    let plan = plan(9);
    let log = log(&plan, 6, Bend::default());
    let Some(document) = rendered(&log) else { return };
    assert!(document.contains("<html lang=\"en\" data-ready=\"yes\">"), "{}", &document[..400]);
    assert!(from_id(&document, "error").starts_with("id=\"error\" class=\"error\" role=\"alert\" hidden"));
    let verdict = from_id(&document, "verdict").split('<').next().unwrap().to_owned();
    assert!(verdict.ends_with("deadlines held") && verdict.contains("class=\"good\""), "{verdict}");
    let rows = |id: &str| from_id(&document, id).split("</table>").next().unwrap().matches("<tr").count() - 1;
    assert_eq!(rows("streams"), 9);
    assert_eq!(rows("steps"), 27);
    assert_eq!(rows("engines"), 6);
    assert_eq!(rows("capacities"), 5);
    assert!(from_id(&document, "waits").split("</ol>").next().unwrap().matches("<li").count() > 0);
    assert!(from_id(&document, "source").starts_with("id=\"source\" class=\"badge\">sim<"));
}

#[test]
fn misses_show_in_the_verdict_and_in_the_table() {
    let log = log(&plan(3), 10, Bend { slow: Some((9, headway_core::units::Nanos(12_000_000))), ..Bend::default() });
    let Some(document) = rendered(&log) else { return };
    assert!(document.contains("data-ready=\"yes\""));
    assert!(from_id(&document, "verdict").starts_with("id=\"verdict\" class=\"bad\">"));
    let table = from_id(&document, "streams").split("</table>").next().unwrap();
    assert!(table.contains("class=\"wrong\""));
}

#[test]
fn names_that_look_like_markup_are_text_and_never_run() {
    let evil = "</script><img src=x onerror=\"document.documentElement.dataset.ready='owned'\">&lt;\u{2028}";
    let mut plan = plan(3);
    plan.workload.name = evil.to_owned();
    plan.machine.name = evil.to_owned();
    for (stream, pipeline) in plan.streams.iter_mut().zip(&mut plan.pipelines) {
        stream.id = format!("{evil}{}", stream.id);
        pipeline.name = stream.id.clone();
        pipeline.steps[0].name = evil.to_owned();
    }
    plan.engines[0].name = evil.to_owned();
    plan.servers[0].name = evil.to_owned();
    plan.capacities[0].name = evil.to_owned();
    let log = log(&plan, 4, Bend::default());
    let mut html = Vec::new();
    page::write(&log, &summarize(&log), &mut html).unwrap();
    let html = String::from_utf8(html).unwrap();
    assert!(!html.contains("<img"));
    assert_eq!(html.matches("</script>").count(), 2);
    let Some(document) = rendered(&log) else { return };
    assert!(document.contains("data-ready=\"yes\""), "{}", &document[..400]);
    assert!(!document.contains("<img"));
    let table = from_id(&document, "streams").split("</table>").next().unwrap();
    assert!(table.contains("&lt;/script&gt;&lt;img src=x onerror="));
}

#[test]
fn a_run_without_streams_is_drawn_too() {
    let mut plan = plan(1);
    plan.streams.clear();
    plan.pipelines[0].source = headway_core::plan::Source::Message;
    let log = log(&plan, 4, Bend::default());
    assert_eq!(summarize(&log).verdict.text, "all 4 deadlines held");
    let Some(document) = rendered(&log) else { return };
    assert!(document.contains("data-ready=\"yes\""), "{}", &document[..400]);
}
