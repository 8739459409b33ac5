//! Streams whose packets have parts on several processors, from outside: what a run writes, in simulation and with threads and real
//! memory, is what comes of each part by itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{headway, place};

/// Bytes of a packet of `frames`, and of its first part.
const PACKET: usize = 528 << 10;
const HEADER: usize = 16 << 10;

/// What `openssl` makes of `bytes`; `None` where there is no `openssl`.
fn encrypted(place: &Path, bytes: &[u8], key: &str, iv: &str) -> Option<Vec<u8>> {
    fs::write(place.join("clear"), bytes).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["enc", "-aes-128-cbc", "-nopad", "-K", key, "-iv", iv, "-in"]).arg(place.join("clear"));
    let Ok(made) = openssl.output() else {
        eprintln!("skipped: there is no `openssl` to compare with");
        return None;
    };
    assert!(made.status.success(), "{made:?}");
    Some(made.stdout)
}

/// Writes an input of both streams of the workload and returns their bytes.
fn input(place: &Path, packets: [usize; 2]) -> [Vec<u8>; 2] {
    let bytes = |seed: u64, len: usize| -> Vec<u8> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        (0..len).map(next).collect()
    };
    let streams = [bytes(1, packets[0] * (16 << 10)), bytes(2, packets[1] * PACKET - 5 * 16)];
    fs::create_dir(place.join("in")).unwrap();
    // The files of a folder go to the streams in turn.
    for (name, bytes) in ["0", "1"].iter().zip(&streams) {
        fs::write(place.join("in").join(name), bytes).unwrap();
    }
    streams
}

#[test]
fn both_ways_of_running_write_what_comes_of_each_part_by_itself() {
    let place = place();
    let [chain, frames] = input(place.path(), [7, 5]);
    for backend in ["sim", "emu"] {
        let run = ["run", "workloads/two-gpus.toml", "--machine", "h200-x4", "--backend", backend, "--input", "in"];
        let run = headway(place.path(), &[&run[..], &["--quiet", "--out", backend]].concat());
        // Whether deadlines hold on emulated GPUs is a matter of this computer.
        assert!(run.status == Some(0) || (backend == "emu" && run.status == Some(1)), "{run:?}");
        assert!(run.out.contains("verified  2 streams equal what the CPU makes of the same input"), "{run:?}");
        let written = |name: &str| fs::read(place.path().join(format!("{backend}/streams/{name}.bin"))).unwrap();
        let (key, iv) = ("000102030405060708090a0b0c0d0e0f", "0f0e0d0c0b0a09080706050403020100");
        if let Some(expected) = encrypted(place.path(), &chain, key, iv) {
            assert!(written("chain") == expected, "{backend}: the chain differs from what openssl makes");
        }
        let made = written("frames");
        assert_eq!(made.len(), frames.len());
        let parts = |bytes: &[u8]| -> (Vec<u8>, Vec<u8>) {
            let header = |packet: &[u8]| packet[..HEADER.min(packet.len())].to_vec();
            let picture = |packet: &[u8]| packet[HEADER.min(packet.len())..].to_vec();
            (bytes.chunks(PACKET).flat_map(header).collect(), bytes.chunks(PACKET).flat_map(picture).collect())
        };
        let ((headers, pictures), (sent, seen)) = (parts(&made), parts(&frames));
        assert!(pictures == seen, "{backend}: pictures that are only waited for come back as they were");
        let (key, iv) = ("101112131415161718191a1b1c1d1e1f", "1f1e1d1c1b1a19181716151413121110");
        if let Some(expected) = encrypted(place.path(), &sent, key, iv) {
            assert!(headers == expected, "{backend}: the headers differ from what openssl makes");
        }
        let replay = headway(place.path(), &["replay", &format!("{backend}/run.jsonl")]).exits(0);
        assert!(replay.out.contains("byte for byte"), "{replay:?}");
    }
}

#[test]
fn a_part_that_stays_on_a_gpu_is_simulated_and_refused_on_devices() {
    let place = place();
    let text = fs::read_to_string(place.path().join("workloads/two-gpus.toml")).unwrap();
    let text = text.replace("  { copy = \"gpu1 -> host\" },         # both parts\n", "");
    fs::write(place.path().join("stays.toml"), text).unwrap();
    let run = ["run", "stays.toml", "--machine", "h200-x4", "--duration", "50 ms", "--quiet", "--backend"];
    headway(place.path(), &[&run[..], &["sim", "--out", "sim"]].concat()).exits(0);
    let refused = headway(place.path(), &[&run[..], &["emu", "--out", "emu"]].concat()).exits(2);
    assert!(refused.err.contains("it ends on a GPU, where nothing takes it; add a copy to `host`"), "{refused:?}");
}

/// A stream that leaves out what is late, beside one that takes too much. Cycles are given up while earlier ones are under way.
fn skipping(steps: &str) -> String {
    format!(
        r#"name = "skipping"
[run]
duration = "20 ms"
[[stream]]
id = "f"
packet = "400 kB"
period = "200 us"
deadline = "300 us"
on_miss = "skip"
{steps}
[[stream]]
id = "g"
packet = "700 kB"
period = "200 us"
deadline = "900 us"
steps = [{{ copy = "cpu0 -> gpu0" }}, {{ copy = "gpu0 -> cpu0" }}]
"#
    )
}

#[test]
fn packets_that_are_given_up_are_counted_and_zeros_take_their_places() {
    let place = place();
    let there_and_back = r#"steps = [{ copy = "cpu0 -> gpu0" }, { copy = "gpu0 -> cpu0" }, { copy = "cpu0 -> gpu1" }, { copy = "gpu1 -> cpu0" }]"#;
    let in_parts = r#"parts = [{ id = "a", bytes = "300 kB" }, { id = "b", bytes = "100 kB" }]
steps = [
  { copy = [{ part = "a", from = "cpu0", to = "gpu0" }, { part = "b", from = "cpu0", to = "gpu1" }] },
  { copy = [{ part = "a", from = "gpu0", to = "cpu0" }, { part = "b", from = "gpu1", to = "cpu0" }] },
]"#;
    for (name, steps) in [("chain", there_and_back), ("parts", in_parts)] {
        let file = format!("{name}.toml");
        fs::write(place.path().join(&file), skipping(steps)).unwrap();
        let run = ["run", &file, "--machine", "tyan-ft72b7015", "--backend", "sim", "--strategy", "serial", "--force"];
        let whole = ["--sample-max", "1 GB", "--quiet", "--out", name];
        let run = headway(place.path(), &[&run[..], &whole].concat()).exits(1);
        assert!(run.out.contains("never delivered [sim]"), "{run:?}");
        let summary = fs::read_to_string(place.path().join(name).join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        let lost = summary["streams"][0]["lost"].as_u64().unwrap();
        let written = fs::read(place.path().join(name).join("streams/f.bin")).unwrap();
        assert_eq!(written.len(), 100 * 400_000, "{name}");
        let zeros = written.chunks(400_000).filter(|packet| packet.iter().all(|byte| *byte == 0)).count();
        assert!(lost > 0 && zeros as u64 == lost, "{name}: {lost} lost, {zeros} packets of zeros");
        headway(place.path(), &["replay", &format!("{name}/run.jsonl")]).exits(0);
    }
}
