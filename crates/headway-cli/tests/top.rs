//! `headway top` and `--metrics`: what is copied, beside counters of links that no GPU is needed for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{command, headway, root};

/// A program that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts `headway ARGS`, and waits until it says a line of its standard error that begins with `word`; what follows there.
    fn start(folder: &Path, args: &[&str], word: &str) -> (Self, String) {
        let mut child = command(folder).args(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.find_map(|line| line.strip_prefix(word).map(str::to_owned));
        // What it says later is read to the end, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        (Self(child), said.unwrap_or_else(|| panic!("`{word}` was not said")))
    }
}

/// A workload that copies for a minute.
fn long_run(folder: &Path) {
    let text = "name = \"long\"\n[run]\nduration = \"60 s\"\n[[message]]\nid = \"frame\"\nperiod = \"20 ms\"\n\
                blocks = [{ from = \"gpu0\", to = \"host\", bytes = \"64 KB\" }]\n";
    fs::write(folder.join("long.toml"), text).unwrap();
}

/// Asks for `path`: status line and body.
fn ask(mut stream: impl Read + Write, path: &str) -> (String, String) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let length = format!("\r\nContent-Length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}");
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// The samples of a page, by name with labels. Whatever breaks a rule of the format ends the test.
fn parse(page: &str) -> BTreeMap<String, f64> {
    let is_name = |name: &str| {
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit()) && name.bytes().next().is_some_and(letter)
    };
    let (mut samples, mut families, mut current) = (BTreeMap::new(), BTreeSet::new(), (String::new(), String::new()));
    assert!(page.ends_with('\n'));
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !text.is_empty() && families.insert(name.to_owned()), "{line}");
            current = (name.to_owned(), String::new());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(name == current.0 && matches!(kind, "counter" | "gauge"), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            kind.clone_into(&mut current.1);
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert!(name == current.0 && !current.1.is_empty(), "{line}");
            let value: f64 = value.parse().unwrap();
            assert!(value >= 0.0 && value.is_finite(), "{line}");
            let mut rest = &series[name.len()..];
            let mut labels = BTreeSet::new();
            while let Some(inside) = rest.strip_prefix(['{', ',']) {
                let (label, text) = inside.split_once("=\"").unwrap();
                assert!(is_name(label) && labels.insert(label.to_owned()), "{line}");
                let mut end = 0;
                while text.as_bytes()[end] != b'"' {
                    end += if text.as_bytes()[end] == b'\\' { 2 } else { 1 };
                }
                rest = &text[end + 1..];
            }
            assert!(rest.is_empty() == labels.is_empty() && (rest.is_empty() || rest == "}"), "{line}");
            assert!(samples.insert(series.to_owned(), value).is_none(), "{line} twice");
        }
    }
    samples
}

fn address(said: &str) -> SocketAddr {
    said.strip_prefix("http://").and_then(|at| at.strip_suffix("/metrics")).unwrap().parse().unwrap()
}

#[test]
fn the_copies_of_a_run_are_shown_beside_what_others_copy() {
    let place = tempfile::tempdir().unwrap();
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: there is no C compiler `cc`");
        return;
    }
    let nvml = root().join("crates/headway-cuda/tests/fake/nvml.c");
    let mut build = Command::new("cc");
    build.args(["-shared", "-fPIC", "-o", "libnvidia-ml.so.1"]).arg(nvml).current_dir(&place);
    assert!(build.status().unwrap().success());
    long_run(place.path());
    let args = ["run", "long.toml", "--backend", "emu", "--machine", "h200-x1", "--force", "--metrics", "127.0.0.1:0"];
    let (run, metrics) = Running::start(place.path(), &args, "note: metrics at ");
    let started = Instant::now();
    let look = || {
        let mut top = command(place.path());
        top.args(["top", "--once", "--interval", "500 ms", "--format", "json"]);
        top.env("LD_LIBRARY_PATH", place.path()).env("FAKE_NVML_SENT", "10940").env("FAKE_NVML_RECEIVED", "0");
        let output = top.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    // It prepares for a while.
    let (json, own) = loop {
        let json = look();
        let gpus = json["activity"]["gpus"].as_array().unwrap();
        let emulated = gpus.iter().find(|gpu| gpu["gpu"].as_str().unwrap().starts_with("emu:"));
        let copiers = emulated.map(|gpu| gpu["outward"]["copiers"].as_array().unwrap().clone()).unwrap_or_default();
        if let Some(own) = copiers.into_iter().find(|copier| copier["pid"] == run.0.id()) {
            break (json, own);
        }
        assert!(started.elapsed() < Duration::from_secs(100), "{json:#}");
    };
    assert_eq!((own["command"].as_str(), own["class"].as_str()), (Some("headway"), Some("guaranteed")));
    assert_eq!(own["bytes"].as_u64().unwrap(), own["copies"].as_u64().unwrap() * 64_000, "{own}");
    // The counter wraps in every interval: 10.94 GB/s, of which 10 GB/s are copies, all of them others'.
    let activity = &json["activity"];
    let link = &activity["gpus"].as_array().unwrap().iter().find(|gpu| gpu["gpu"] == "GPU-0").unwrap()["outward"];
    let rate = link["carried"].as_u64().unwrap() as f64 / activity["interval"].as_u64().unwrap() as f64;
    assert!((9.0..11.0).contains(&rate), "{rate} GB/s: {link}");
    assert_eq!((&link["others"], &link["told"]), (&link["carried"], &Value::from(0)));
    let text = headway(place.path(), &["top", "--once", "--interval", "200 ms"]).exits(0).out;
    assert!(text.contains("what links carry is not known") && text.contains("guaranteed"), "{text}");
    let (status, page) = ask(TcpStream::connect(address(&metrics)).unwrap(), "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let pid = format!("pid=\"{}\"", run.0.id());
    let told = |(series, value): &(&String, &f64)| {
        series.starts_with("headway_copied_bytes_total") && series.contains(&pid) && **value > 0.0
    };
    assert!(parse(&page).iter().any(|sample| told(&sample)), "{page}");
}

#[test]
fn nothing_is_drawn_where_there_is_no_terminal() {
    let answer = headway(&std::env::temp_dir(), &["top"]).exits(2);
    assert!(answer.out.is_empty() && answer.err.contains("--once"), "{answer:?}");
    let answer = headway(&std::env::temp_dir(), &["top", "--once", "--socket", "/no/such/broker"]).exits(2);
    assert!(answer.out.is_empty(), "{answer:?}");
}

#[test]
fn who_ends_it_before_it_has_looked_gets_no_empty_answer_as_if_all_were_well() {
    let place = tempfile::tempdir().unwrap();
    let mut top = command(place.path());
    let mut top = top.args(["top", "--once", "--interval", "600 s"]).stdout(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    // It listens to signals once SIGTERM, the bit 14, is caught.
    let is_ready = |text: String| {
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        u64::from_str_radix(caught.trim(), 16).unwrap() >> 14 & 1 == 1
    };
    while !is_ready(fs::read_to_string(format!("/proc/{}/status", top.id())).unwrap()) {
        assert!(started.elapsed() < Duration::from_secs(100));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").arg(top.id().to_string()).status().unwrap().success());
    assert_eq!(top.wait().unwrap().code(), Some(130));
}

#[test]
fn a_broker_does_not_serve_metrics_at_its_own_socket() {
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(".", place.path().join("here")).unwrap();
    for metrics in ["unix:broker", "unix:here/broker", "unix:./broker"] {
        let args = ["broker", "--socket", "broker", "--machine", "h200-x1", "--metrics", metrics];
        let answer = headway(place.path(), &args).exits(2);
        assert!(answer.err.contains("the broker's own socket"), "{answer:?}");
    }
}

#[test]
fn metrics_are_served_on_this_machine_only() {
    for (address, why) in [
        ("0.0.0.0:9400", "other machines"),
        ("192.0.2.1:9400", "other machines"),
        ("127.0.0.1", "127.0.0.1:9400"),
        ("unix:", "needs a path"),
    ] {
        let answer = headway(&std::env::temp_dir(), &["broker", "--metrics", address]).exits(2);
        assert!(answer.err.contains(why), "{address}: {answer:?}");
    }
}

#[test]
fn a_broker_serves_metrics_that_its_dashboard_and_its_page_name_whatever_clients_do() {
    let place = tempfile::tempdir().unwrap();
    let args = ["broker", "--socket", "broker", "--machine", "h200-x1", "--metrics", "127.0.0.1:0"];
    let (broker, metrics) = Running::start(place.path(), &args, "note: metrics at ");
    let started = Instant::now();
    let address = address(&metrics);
    let connect = || TcpStream::connect(address).unwrap();
    while ask(connect(), "/healthz").0 != "HTTP/1.1 200 OK" {
        assert!(started.elapsed() < Duration::from_secs(100), "{:?}", ask(connect(), "/healthz"));
        std::thread::sleep(Duration::from_millis(20));
    }
    // A client that says nothing, one that never stops, and one that goes away.
    let silent = connect();
    headway(place.path(), &["status", "--socket", "broker"]).exits(0);
    let mut endless = connect();
    endless.write_all(&[b'a'; 5000]).unwrap();
    let mut answer = String::new();
    endless.read_to_string(&mut answer).unwrap_or_default();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    drop(connect());
    assert_eq!(ask(connect(), "/other").0, "HTTP/1.1 404 Not Found");
    let (_, page) = ask(connect(), "/metrics");
    drop(silent);
    let samples = parse(&page);
    assert_eq!((samples["headway_broker_up"], samples["headway_broker_tokens{gpu_index=\"0\"}"]), (1.0, 2.0));
    let names: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let docs = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let run = "headway_run_progress_ratio";
    let known: BTreeSet<&str> = names.iter().copied().chain([run]).collect();
    let described: BTreeSet<&str> = docs
        .lines()
        .filter_map(|line| line.strip_prefix("| `headway_").map(|_| line.split('`').nth(1).unwrap()))
        .collect();
    let described: BTreeSet<&str> = described.into_iter().map(|name| name.split('{').next().unwrap()).collect();
    assert_eq!(described, known, "docs/metrics.md");
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(root().join("docs/grafana.json")).unwrap()).unwrap();
    let queries: Vec<&str> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(queries.len() >= 6, "{queries:?}");
    for query in queries {
        let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let asked: Vec<&str> = words.filter(|word| word.starts_with("headway_")).collect();
        assert!(!asked.is_empty() && asked.iter().all(|name| known.contains(name)), "{query}");
    }
    drop(broker);
    assert!(TcpStream::connect(address).is_err(), "it ends with the broker");
}

#[test]
fn a_socket_that_a_broker_left_behind_is_used_again() {
    let place = tempfile::tempdir().unwrap();
    let args = ["broker", "--socket", "broker", "--machine", "h200-x1", "--metrics", "unix:metrics"];
    for _ in 0..2 {
        let (broker, said) = Running::start(place.path(), &args, "note: metrics at ");
        assert_eq!(said, "unix:metrics");
        assert_eq!(ask(UnixStream::connect(place.path().join("metrics")).unwrap(), "/metrics").0, "HTTP/1.1 200 OK");
        // Killed: the socket stays.
        drop(broker);
        assert!(place.path().join("metrics").exists());
    }
}
