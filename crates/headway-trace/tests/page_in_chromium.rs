//! The page in a browser: what the script draws, and that names cannot run.
//!
//! Needs Chromium in the search path or in `$HEADWAY_CHROMIUM`; without it the tests print that they were skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Bend, log, plan};
use headway_core::files::guest_log::{
    Became, Call, Copy, DriverReason, GuestLogEnd, GuestLogLine, GuestLogStart, Host, KIND, LintFinding, Problem,
    SCHEMA, Towards,
};
use headway_core::log::{Incomplete, RunSource};
use headway_core::plan::Named;
use headway_core::units::{Bytes, Nanos, Rate};
use headway_trace::sharing::{self, Doing, GpuEngine, JobSpan, TaskHead, Unit};
use headway_trace::summary::summarize;
use headway_trace::unplanned::{BulkSummary, UrgentSummary};
use headway_trace::{RunLog, guest, page};

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

fn html(log: &RunLog) -> String {
    let mut html = Vec::new();
    page::write(log, &summarize(log), &mut html).unwrap();
    String::from_utf8(html).unwrap()
}

/// The document after its script has run; `None` where there is no browser.
fn rendered(log: &RunLog) -> Option<String> {
    opened(&html(log))
}

fn opened(html: &str) -> Option<String> {
    let chromium = chromium()?;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    std::fs::write(&file, html).unwrap();
    Some(dump(&chromium, folder.path(), &file))
}

/// The document after `script` has run too, which stands for what a user does: the page's policy would not let it.
fn used(html: &str, script: &str) -> Option<String> {
    let policy = html.find("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let end = policy + html[policy..].find('>').unwrap() + 1;
    let free = format!("{}{}", &html[..policy], &html[end..]);
    opened(&free.replace("</body>", &format!("<script>{script}</script></body>")))
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

/// Text between an element's tags; it has no elements inside.
fn text_of<'a>(document: &'a str, id: &str) -> &'a str {
    from_id(document, id).split_once('>').unwrap().1.split('<').next().unwrap()
}

/// Rows of a table without its head.
fn rows(document: &str, id: &str) -> usize {
    from_id(document, id).split("</table>").next().unwrap().matches("<tr").count() - 1
}

const EVIL: &str = "</script><img src=x onerror=\"document.documentElement.dataset.ready='owned'\">&lt;\u{2028}";

/// Two tasks on two GPUs, of which one is idle: `b` waits for `a`'s kernel, `a`'s second job for a token, and it is late.
fn tasks(names: [&str; 2]) -> sharing::TaskLog {
    const MS: u64 = 1_000_000;
    let named = |name: &str| Named { name: name.to_owned(), hash: "0".to_owned() };
    let task = |id: &str| TaskHead { id: id.to_owned(), period: Nanos(10 * MS), bound: None };
    let span = |doing, begin: u64, end: u64, unit: Option<Unit>| {
        let engines = [unit.map(|unit| GpuEngine { gpu: 0, unit }), None];
        JobSpan { doing, begin: Nanos(begin * MS), end: Nanos(end * MS), engines, bytes: Bytes(0) }
    };
    let job = |task: u32, job: u64, [from, held, given, done]: [u64; 4], spans: Vec<JobSpan>| sharing::CompletedJob {
        task,
        job,
        release: Nanos(from * MS),
        start: Nanos(from * MS),
        deadline: Nanos((from + 10) * MS),
        done: Nanos(done * MS),
        held: [Nanos(held * MS), Nanos(given * MS)],
        gpu: 0,
        from: None,
        blocked: [Nanos((held - from) * MS), Nanos(0)],
        spans,
    };
    let ee = Some(Unit::Ee);
    let waits = vec![span(Doing::EngineWait, 1, 4, ee), span(Doing::Execute, 4, 7, ee)];
    let late = vec![span(Doing::TokenWait, 5, 7, None), span(Doing::Execute, 7, 17, ee)];
    let header = sharing::TaskLogHeader {
        schema: sharing::SCHEMA,
        kind: sharing::KIND.to_owned(),
        source: RunSource::Sim,
        version: "1".into(),
        commit: "x".into(),
        seed: 1,
        workload: named(names[0]),
        machine: named(names[1]),
        gpus: vec!["gpu0".into(), names[1].into()],
        cpus: 2,
        tokens_per_gpu: 2,
        mode: names[0].into(),
        engine_locks: true,
        tasks: names.map(task).to_vec(),
        notes: vec![names[0].into()],
    };
    let jobs = [
        job(0, 0, [0, 0, 4, 4], vec![span(Doing::Execute, 0, 4, ee)]),
        job(1, 0, [1, 1, 7, 7], waits),
        job(0, 1, [5, 7, 17, 17], late),
    ];
    let mut text = serde_json::to_string(&header).unwrap();
    for job in &jobs {
        text.push_str(&format!("\n{}", serde_json::to_string(job).unwrap()));
    }
    text.push_str("\n{\"jobs\":3}\n");
    sharing::TaskLog::read(text.as_bytes(), "fixture").unwrap()
}

fn tasks_html(log: &sharing::TaskLog) -> String {
    let mut html = Vec::new();
    sharing::write_page(log, &sharing::summarize(log), &mut html).unwrap();
    String::from_utf8(html).unwrap()
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
    assert!(document.contains("<html lang=\"en\" data-kind=\"streams\" data-ready=\"yes\">"), "{}", &document[..400]);
    assert!(from_id(&document, "error").starts_with("id=\"error\" class=\"error\" role=\"alert\" hidden"));
    let verdict = from_id(&document, "verdict").split('<').next().unwrap().to_owned();
    assert!(verdict.ends_with("deadlines held") && verdict.contains("class=\"good\""), "{verdict}");
    assert_eq!(rows(&document, "streams"), 9);
    assert_eq!(rows(&document, "steps"), 27);
    assert_eq!(rows(&document, "engines"), 6);
    assert_eq!(rows(&document, "capacities"), 5);
    assert!(from_id(&document, "waits").split("</ol>").next().unwrap().matches("<li").count() > 0);
    assert!(from_id(&document, "source").starts_with("id=\"source\" class=\"badge\">sim<"));
}

#[test]
fn misses_show_in_the_verdict_and_in_the_table() {
    let log = log(&plan(3), 10, Bend { slow: Some((9, Nanos(12_000_000))), ..Bend::default() });
    let Some(document) = rendered(&log) else { return };
    assert!(document.contains("data-ready=\"yes\""));
    assert!(from_id(&document, "verdict").starts_with("id=\"verdict\" class=\"bad\">"));
    let table = from_id(&document, "streams").split("</table>").next().unwrap();
    assert!(table.contains("class=\"wrong\""));
}

#[test]
fn bulk_and_urgent_have_tables_and_what_the_files_lack_is_no_alarm() {
    let log = log(&plan(3), 6, Bend::default());
    let mut summary = summarize(&log);
    summary.left_out = vec!["the log keeps half".to_owned()];
    summary.bulk = vec![BulkSummary {
        id: "model".to_owned(),
        bytes: Bytes(8_000_000_000),
        of: None,
        chunks: 2_000,
        time: Nanos(1_000_000_000),
        rate: Rate(8_000_000_000),
    }];
    summary.urgent = vec![UrgentSummary {
        id: "alarm".to_owned(),
        requests: 9,
        guaranteed: 5,
        best_effort: 3,
        refused: 1,
        misses: 0,
        response: None,
        response_behind: None,
    }];
    let mut html = Vec::new();
    page::write(&log, &summary, &mut html).unwrap();
    let html = String::from_utf8(html).unwrap();
    assert!(html.contains("<p class=\"remark\" role=\"note\">Left out: the log keeps half.</p>"));
    assert!(!html.contains("class=\"banner\""));
    let Some(document) = opened(&html) else { return };
    assert_eq!((rows(&document, "bulk"), rows(&document, "urgent")), (1, 1));
    let bulk = from_id(&document, "bulk").split("</table>").next().unwrap();
    assert!(bulk.contains("endless") && bulk.contains("8.00&nbsp;GB/s"), "{bulk}");
}

#[test]
fn names_that_look_like_markup_are_text_and_never_run() {
    let evil = EVIL;
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
    let html = html(&log);
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
    plan.pipelines[0].source = headway_core::plan::PipelineSource::Message;
    let log = log(&plan, 4, Bend::default());
    assert_eq!(summarize(&log).verdict.text, "all 4 deadlines held");
    let Some(document) = rendered(&log) else { return };
    assert!(document.contains("data-ready=\"yes\""), "{}", &document[..400]);
}

#[test]
fn the_page_of_tasks_draws_tasks_engines_waits_and_what_was_late() {
    let Some(document) = opened(&tasks_html(&tasks(["a", "b"]))) else { return };
    assert!(document.contains("<html lang=\"en\" data-kind=\"sharing\" data-ready=\"yes\">"), "{}", &document[..400]);
    assert!(text_of(&document, "verdict").starts_with("1 of 3 jobs were late"));
    assert_eq!((rows(&document, "streams"), rows(&document, "engines"), rows(&document, "pairs")), (2, 1, 2));
    assert!(text_of(&document, "timeline-range").starts_with("0&nbsp;ns to 17.000&nbsp;ms"));
    assert!(from_id(&document, "late").contains("job 1 of a: late by 2 ms; it waited 2 ms for a token behind b"));
    assert_eq!(text_of(&document, "idle-text"), "Hide what was idle: 3 engines", "gpu0 copies nothing, b does nothing");
}

#[test]
fn names_of_tasks_and_gpus_that_look_like_markup_are_text_and_never_run() {
    let html = tasks_html(&tasks([EVIL, EVIL]));
    assert!(!html.contains("<img"));
    assert_eq!(html.matches("</script>").count(), 2);
    let click = "for (const id of ['zoom-worst', 'zoom-wait', 'idle']) document.getElementById(id).click();";
    for document in [opened(&html), used(&html, click)].into_iter().flatten() {
        assert!(document.contains("data-ready=\"yes\"") && !document.contains("<img"), "{}", &document[..400]);
        let table = from_id(&document, "streams").split("</table>").next().unwrap();
        assert!(table.contains("&lt;/script&gt;&lt;img src=x onerror="));
    }
}

/// A guest's log: twenty token reads alone, a bulk copy, three reads beside it of which one is long, one that a kernel made, and one copy
/// into the GPU that failed.
fn guest(site: &str, ended: bool) -> guest::GuestLog {
    const US: u64 = 1_000;
    let small = Copy {
        at: Nanos(0),
        took: Nanos(10 * US),
        thread: 11,
        call: Call::Out,
        direction: Towards::Out,
        bytes: Bytes(4),
        stream: 0x20,
        host: Host::PageLocked,
        became: Became::PassedOn,
        why: Some(DriverReason::EngineFree),
        status: 0,
        of: 1,
    };
    let mut copies: Vec<Copy> = (0..20).map(|at| Copy { at: Nanos(at * 100 * US), ..small }).collect();
    let bulk =
        Copy { call: Call::OutAsync, bytes: Bytes(1 << 30), stream: 0x10, why: Some(DriverReason::Whole), ..small };
    copies.push(Copy { at: Nanos(3_000 * US), took: Nanos(5 * US), ..bulk });
    copies.push(Copy { at: Nanos(3_100 * US), took: Nanos(19_000 * US), ..small });
    copies.push(Copy { at: Nanos(22_200 * US), took: Nanos(11 * US), ..small });
    copies.push(Copy { at: Nanos(22_300 * US), took: Nanos(12 * US), became: Became::Aside, why: None, ..small });
    copies.push(Copy {
        at: Nanos(90_000 * US),
        call: Call::In,
        direction: Towards::In,
        thread: 12,
        status: 700,
        ..small
    });
    let start = GuestLogStart {
        schema: SCHEMA,
        kind: KIND.to_owned(),
        version: "1".into(),
        pid: 5,
        command: vec!["python3".into(), site.to_owned()],
        options: "aside=auto".into(),
        began_unix: Nanos(1),
    };
    let finding = LintFinding {
        problem: Problem::Blocking,
        site: site.to_owned(),
        call: Call::Out,
        copies: 23,
        bytes: Bytes(92),
        took: Nanos(19_000 * US),
        gain: None,
    };
    let mut lines = vec![serde_json::to_string(&start).unwrap()];
    lines.extend(copies.into_iter().map(|copy| serde_json::to_string(&GuestLogLine::Copy(copy)).unwrap()));
    lines.push(serde_json::to_string(&GuestLogLine::Finding(finding)).unwrap());
    if ended {
        let end = GuestLogEnd { at: Nanos(100_000 * US), lost: 0, full: false };
        lines.push(serde_json::to_string(&GuestLogLine::End(end)).unwrap());
    }
    guest::GuestLog::read((lines.join("\n") + "\n").as_bytes(), "fixture").unwrap()
}

fn guest_html(log: &guest::GuestLog) -> String {
    let mut html = Vec::new();
    guest::write_page(log, &mut html).unwrap();
    String::from_utf8(html).unwrap()
}

#[test]
fn the_page_of_a_guest_draws_who_copied_and_what_waited_beside_what() {
    let html = guest_html(&guest("loop.py", true));
    let Some(document) = opened(&html) else { return };
    assert!(document.contains("<html lang=\"en\" data-kind=\"guest\" data-ready=\"yes\">"), "{}", &document[..400]);
    assert!(text_of(&document, "verdict").starts_with("25 copies in 19."), "{}", text_of(&document, "verdict"));
    assert!(text_of(&document, "timeline-range").starts_with("0&nbsp;ns to 100.000&nbsp;ms"));
    // Calls: out small passed on and aside, the bulk copy, the one into the GPU.
    assert_eq!((rows(&document, "streams"), rows(&document, "steps"), rows(&document, "pairs")), (4, 10, 1));
    let calls = from_id(&document, "streams").split("</table>").next().unwrap();
    let slower = "<span class=\"wrong\" title=\"slower than the driver\">12.0&nbsp;µs (driver 10.0&nbsp;µs)";
    // One of two classes of sizes has all but a few bytes.
    assert!(calls.matches(slower).count() == 1 && calls.contains("100.0&nbsp;%"), "{calls}");
    let pairs = from_id(&document, "pairs").split("</table>").next().unwrap();
    assert!(pairs.contains("0x20") && pairs.contains("0x10") && pairs.contains("19.0&nbsp;ms"), "{pairs}");
    assert!(text_of(&document, "blame-lead").contains("2 copies, median"), "{}", text_of(&document, "blame-lead"));
    assert!(from_id(&document, "late").contains("small results waited for again and again: cuMemcpyDtoH at loop.py"));
    let click = "document.getElementById('zoom-wait').click();";
    let Some(document) = used(&html, click) else { return };
    let selected = from_id(&document, "timeline-selected").split("</p>").next().unwrap();
    for part in [
        "cuMemcpyDtoH of 4&nbsp;B",
        "stream 0x20",
        "1.07&nbsp;GB of stream 0x10 were taken to be under way",
        "twice the median",
    ] {
        assert!(selected.contains(part), "{part}: {selected}");
    }
}

#[test]
fn a_guests_command_that_looks_like_markup_is_text_and_its_page_says_that_it_was_killed() {
    let html = guest_html(&guest(EVIL, false));
    assert!(!html.contains("<img"));
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(text_of(&html, "incomplete").starts_with("The log has no last line"));
    let plain = html.split("<noscript>").nth(1).unwrap().split("</noscript>").next().unwrap();
    assert!(plain.contains("<pre>"), "{plain}");
    let click = "for (const id of ['zoom-worst', 'zoom-wait', 'idle']) document.getElementById(id).click();";
    let Some(document) = used(&html, click) else { return };
    assert!(document.contains("data-ready=\"yes\"") && !document.contains("<img"), "{}", &document[..400]);
}

#[test]
fn the_page_of_a_long_guests_log_stays_small() {
    let mut log = guest("loop.py", true);
    let copies: Vec<Copy> = log.copies.clone();
    let size = |log: &guest::GuestLog| guest_html(log).len();
    let mut of = |times: u64| {
        let again =
            |round: u64| copies.iter().map(move |copy| Copy { at: Nanos(copy.at.0 + round * 100_000_000), ..*copy });
        log.copies = (0..times).flat_map(again).collect();
        size(&log)
    };
    let (short, long) = (of(4_000), of(16_000));
    assert!(long < short * 3 / 2, "{short} and {long} bytes");
}

#[test]
fn the_search_leaves_what_is_called_so_and_says_how_much_that_is() {
    let search = "const field = document.getElementById('search'); field.value = 'VOICE 3'; field.dispatchEvent(new Event('input'));";
    let Some(document) = used(&html(&log(&plan(9), 6, Bend::default())), search) else { return };
    assert_eq!((rows(&document, "streams"), rows(&document, "steps")), (1, 3));
    let found = text_of(&document, "search-found");
    // Its three engines have rows in which only its operations are bright.
    for part in ["3 of 6 rows", "1 of 9 streams", "3 of 27 steps", "0 of 6 engines"] {
        assert!(found.contains(part), "{found}");
    }
    assert!(from_id(&document, "engines").split("</table>").next().unwrap().contains("No engines to show."));
}

#[test]
fn keys_zoom_pan_and_select_on_both_pages() {
    let press = "const chart = document.getElementById('timeline');
        for (const key of ['+', '+', 'ArrowRight', 'n', 'ArrowDown']) chart.dispatchEvent(new KeyboardEvent('keydown', { key }));";
    let streams = html(&log(&plan(3), 6, Bend::default()));
    for html in [streams, tasks_html(&tasks(["a", "b"])), guest_html(&guest("loop.py", true))] {
        let (Some(before), Some(after)) = (opened(&html), used(&html, press)) else { return };
        assert_ne!(text_of(&before, "timeline-range"), text_of(&after, "timeline-range"));
        assert!(text_of(&before, "timeline-selected").is_empty());
        let selected = from_id(&after, "timeline-selected").split("</p>").next().unwrap();
        assert!(selected.contains("<strong>") && selected.contains(" from "), "{selected}");
    }
}

#[test]
fn nothing_is_wider_than_a_phone_with_long_names_and_many_streams() {
    let long = "a-name/that_goes.on".repeat(9);
    let mut plan = plan(60);
    plan.workload.name = long.clone();
    for (stream, pipeline) in plan.streams.iter_mut().zip(&mut plan.pipelines) {
        stream.id = format!("{long}{}", stream.id);
        pipeline.name = stream.id.clone();
    }
    plan.engines[0].name = long.clone();
    let streams = html(&log(&plan, 4, Bend::default()));
    // A window cannot be as narrow as a phone; a frame in it can.
    let tell = "addEventListener('load', () => setTimeout(() => parent.postMessage(
        [innerWidth, document.documentElement.scrollWidth, document.documentElement.dataset.ready].join(' '), '*'), 500));";
    for html in [streams, tasks_html(&tasks([&long, &long])), guest_html(&guest(&long, true))] {
        let policy = html.find("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
        let end = policy + html[policy..].find('>').unwrap() + 1;
        let free = format!("{}{}", &html[..policy], &html[end..])
            .replace("</body>", &format!("<script>{tell}</script></body>"));
        let framed = format!(
            "<!doctype html><html><body><p id=\"told\"></p><script>addEventListener('message', \
             (event) => {{ document.getElementById('told').textContent = event.data; }});</script>\
             <iframe width=\"390\" height=\"800\" srcdoc=\"{}\"></iframe></body></html>",
            free.replace('&', "&amp;").replace('"', "&quot;")
        );
        let Some(document) = opened(&framed) else { return };
        let told = text_of(&document, "told");
        let (widths, ready) = told.rsplit_once(' ').unwrap();
        let (room, wide) = widths.split_once(' ').unwrap();
        assert_eq!((room, ready), ("390", "yes"));
        assert!(wide.parse::<u32>().unwrap() <= 390, "{told}");
    }
}

#[test]
fn the_page_of_a_long_run_is_as_small_as_that_of_a_shorter_one_and_says_what_it_keeps() {
    let plan = plan(9);
    let [short, long] = [600, 2_400].map(|cycles| html(&log(&plan, cycles, Bend::default())));
    assert!(long.len() < short.len() * 3 / 2, "{} and {} bytes", short.len(), long.len());
    let Some(document) = opened(&long) else { return };
    assert!(document.contains("data-ready=\"yes\""), "{}", &document[..400]);
    let kept = text_of(&document, "timeline-kept");
    assert!(kept.contains(" operations one by one: the first ") && kept.contains("merged into blocks of"), "{kept}");
}

#[test]
fn without_scripts_both_pages_show_the_figures() {
    for html in [html(&log(&plan(3), 6, Bend::default())), tasks_html(&tasks(["a", "b"]))] {
        let plain = html.split("<noscript>").nth(1).unwrap().split("</noscript>").next().unwrap();
        assert!(plain.contains("<pre>"), "{plain}");
        assert!(!plain.contains("style="), "the policy forbids it");
    }
}

#[test]
fn both_pages_of_a_run_that_ended_early_say_so_first_with_or_without_scripts() {
    let stopped = Incomplete::Stopped { stream: EVIL.to_owned(), packet: 3, by: Nanos(1_000) };
    let whole = log(&plan(3), 6, Bend::default());
    let streams = whole.clone().ended(Some(stopped));
    let mut tasks = tasks(["a", "b"]);
    assert!(!html(&whole).contains("id=\"incomplete\"") && !tasks_html(&tasks).contains("id=\"incomplete\""));
    tasks.incomplete = Some(Incomplete::Interrupted);
    for (html, why) in
        [(html(&streams), "stopped by stream `&lt;/script&gt;"), (tasks_html(&tasks), "interrupted after 17 ms")]
    {
        let body = html.split("<body>").nth(1).unwrap().trim_start();
        assert!(body.starts_with("<p id=\"incomplete\"") && !html.contains("<img"), "{}", &body[..200]);
        assert!(text_of(&html, "incomplete").starts_with(&format!("Incomplete: the run was {why}")));
    }
}
