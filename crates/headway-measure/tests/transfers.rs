//! Comparing the methods, on the emulated backend with a few small sizes.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway::gpus::CopyBackend;
use headway_core::units::Bytes;
use headway_measure::bench;

#[test]
fn a_comparison_leaves_rows_plots_and_a_summary_with_every_target() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("results");
    let options = bench::TransferBenchOptions {
        backend: CopyBackend::Emu,
        model: Some("h200-x4".to_owned()),
        machine: None,
        gpus: Some(2),
        sizes: Some(vec![Bytes(64), Bytes(64 << 10)]),
        methods: Vec::new(),
        out: out.clone(),
        quick: true,
        interrupt: Arc::new(AtomicBool::new(false)),
    };
    let report = bench::transfers(&options, |_| ()).unwrap();
    let summary = fs::read_to_string(out.join("summary.md")).unwrap();
    for target in &report.targets {
        assert!(summary.contains(&target.target), "{}", target.target);
    }
    let rows = fs::read_to_string(out.join("rows.csv")).unwrap();
    assert_eq!(rows.lines().count(), report.rows.len() + 1);
    assert!(rows.lines().skip(1).all(|row| row.starts_with("emu,")), "{rows}");
    for part in ["methods", "auto", "window", "resident", "many", "together"] {
        assert!(report.rows.iter().any(|row| row.part == part), "{part}");
    }
    let plot = fs::read_to_string(out.join("time-d2h-fresh.svg")).unwrap();
    assert!(plot.contains("source emu") && plot.contains("auto"));
}
