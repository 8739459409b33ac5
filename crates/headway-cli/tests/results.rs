//! What a run leaves behind: a file of its own for every stream, inside the folder of the results.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::{headway, place, tree};
use serde_json::Value;

/// Two streams of the same bytes under different keys; only `/` and `_` tell their ids apart.
fn alike() -> String {
    let stream = |id: &str, key: &str| {
        format!(
            "[[stream]]\nid = \"{id}\"\npacket = \"4 KiB\"\nperiod = \"2 ms\"\ndeadline = \"20 ms\"\n\
             steps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"aes128-cbc\" }}, {{ copy = \"gpu -> host\" }}]\n\
             key = \"{key}\"\niv = \"101112131415161718191a1b1c1d1e1f\"\n"
        )
    };
    let streams =
        stream("a/b", "000102030405060708090a0b0c0d0e0f") + &stream("a_b", "000102030405060708090a0b0c0d0e0a");
    format!("name = \"alike\"\n[run]\nduration = \"20 ms\"\n{streams}")
}

#[test]
fn streams_whose_ids_look_alike_have_a_file_each() {
    let place = place();
    fs::write(place.path().join("alike.toml"), alike()).unwrap();
    for verify in [&["--no-verify"][..], &[]] {
        let run = [&["run", "alike.toml", "--backend", "sim", "--out", "results"], verify].concat();
        headway(place.path(), &run).exits(0);
        let results = place.path().join("results");
        let manifest: Value = serde_json::from_slice(&fs::read(results.join("manifest.json")).unwrap()).unwrap();
        let output = |at: usize| manifest[at]["output"].as_str().unwrap().to_owned();
        assert_eq!([output(0), output(1)], ["streams/a%2Fb.bin", "streams/a_b.bin"]);
        let bytes: BTreeSet<Vec<u8>> = [0, 1].map(|at| fs::read(results.join(output(at))).unwrap()).into();
        assert!(bytes.len() == 2 && bytes.iter().all(|bytes| bytes.len() == 10 * 4096));
    }
}

#[test]
fn no_name_leads_out_of_the_folder_of_results() {
    let place = place();
    let text = fs::read_to_string(place.path().join("workloads/encrypt.toml")).unwrap();
    let evil = text.replacen("name = \"encrypt\"", "name = \"../../evil\"", 1);
    assert_ne!(evil, text);
    fs::create_dir_all(place.path().join("deep/below")).unwrap();
    fs::write(place.path().join("deep/below/evil.toml"), evil).unwrap();
    let before = tree(place.path());
    let answer = headway(&place.path().join("deep/below"), &["run", "evil.toml", "--backend", "sim"]).exits(2);
    assert!(answer.err.contains("cannot name the folder of the results"), "{}", answer.err);
    assert_eq!(tree(place.path()), before);
}
