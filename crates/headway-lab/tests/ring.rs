//! Blocks from a ring through the wall-clock driver on the emulated device: what is compared, and that a wrong byte is found.

use std::sync::{Arc, PoisonError};

use headway_core::files::machine::{self, Machine};
use headway_core::files::workload::Workload;
use headway_core::plan::Plan;
use headway_core::plan::planner::{self, PlanOptions};
use headway_core::units::Nanos;
use headway_device::Engines;
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_kernels::{Cipher, Shipped};
use headway_lab::ring::{BlockRing, Checker, Sampling, VerifiedBlocks};
use headway_runtime::blocks::{Collect, DataError, Supply};
use headway_runtime::kernels::Kernels;
use headway_runtime::wall::{self, RunError, SuppliedRun, WallOptions};

const CYCLES: u64 = 12;

fn text(compute: &str, packets: &[u32]) -> String {
    let stream = |(at, packet): (usize, &u32)| {
        let key = format!("key = \"000102030405060708090a0b0c0d0e0{at}\"\niv = \"101112131415161718191a1b1c1d1e1f\"\n");
        format!(
            "[[stream]]\nid = \"s{at}\"\npacket = \"{packet} B\"\nperiod = \"10 ms\"\ndeadline = \"40 ms\"\n\
             steps = [{{ copy = \"host -> gpu\" }}, {compute}{{ copy = \"gpu -> host\" }}]\n{}",
            if compute.is_empty() { "" } else { &key }
        )
    };
    let streams: String = packets.iter().enumerate().map(stream).collect();
    format!("name = \"ring\"\n[run]\ncycle = \"paper\"\ngrouping = \"gpu\"\n{streams}")
}

const AES: &str = "{ compute = \"aes128-cbc\" }, ";

struct Bench {
    machine: Machine,
    workload: Workload,
    plan: Arc<Plan>,
}

impl Bench {
    fn new(text: &str) -> Self {
        let machine = machine::shipped("h200-x1").unwrap();
        let workload = headway_kernels::workload::parse("ring.toml", text).unwrap().value;
        let plan = planner::plan(&machine, &workload, PlanOptions::default()).unwrap();
        Self { machine, workload, plan: Arc::new(plan) }
    }

    /// Runs the plan, checking with the parameters of `believed`.
    fn run(&self, believed: &Workload, sampling: Sampling) -> (Result<Vec<u64>, RunError>, VerifiedBlocks) {
        let kernels = Kernels::of(&self.plan, &self.workload, &Shipped).unwrap();
        let believed = Kernels::of(&self.plan, believed, &Shipped).unwrap();
        let ring = BlockRing::new(&self.plan, 7).unwrap();
        let (checker, found) = Checker::new(&ring, &self.plan, &believed, sampling).unwrap();
        let work = SuppliedRun {
            plan: &self.plan,
            kernels: &kernels,
            cycles: vec![CYCLES; self.plan.pipelines.len()],
            packets: vec![CYCLES; self.plan.streams.len()],
            supply: Box::new(ring),
            collect: Box::new(checker),
            inputs: Vec::new(),
            requests: Default::default(),
        };
        let gpu = self.machine.gpus().next().unwrap();
        let gpu = Arc::new(EmuGpu::open(EmuSpec::of_machine(&self.machine, gpu)));
        let mut devices = vec![Engines::open(gpu).unwrap()];
        let outcome = wall::run_work(work, &mut devices, &WallOptions::default(), |_| {}, |_| {});
        let found = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (outcome.map(|outcome| outcome.written), found)
    }
}

#[test]
fn every_block_comes_back_and_every_stream_has_its_turn() {
    let bench = Bench::new(&text(AES, &[160, 48, 4096]));
    let (written, found) = bench.run(&bench.workload, Sampling { streams: 1, turns: 1, chains: None });
    assert_eq!(written.unwrap(), [160 * CYCLES, 48 * CYCLES, 4096 * CYCLES]);
    assert_eq!((found.blocks, found.bytes, found.streams), (CYCLES, 4304 * CYCLES, 1));
    // The first block only says with which chaining value the second one goes on.
    assert_eq!((found.turns, found.reached), (CYCLES - 1, 3));
}

#[test]
fn another_key_than_the_cpu_s_is_found_in_whole_streams_and_in_turns() {
    let bench = Bench::new(&text(AES, &[160, 48, 4096]));
    let mut other = bench.workload.clone();
    let mut cipher = Cipher::of(&other.streams[1].parameters).unwrap();
    cipher.key[0] ^= 1;
    other.streams[1].parameters = cipher.parameters();
    for (streams, turns) in [(3, 0), (0, 3)] {
        let sampling = Sampling { streams, turns, chains: None };
        let (outcome, found) = bench.run(&other, sampling);
        let Err(RunError::Data(DataError::Sequence { what, .. })) = outcome else { panic!("{outcome:?}") };
        assert!(what.contains("`s1`"), "{what}");
        assert_eq!(found.blocks, 0);
    }
}

#[test]
fn the_chains_of_all_streams_are_those_of_the_whole_run() {
    let bench = Bench::new(&text(AES, &[160, 48, 4096]));
    let sampling = Sampling { streams: 0, turns: 0, chains: Some(vec![CYCLES]) };
    let (written, found) = bench.run(&bench.workload, sampling);
    written.unwrap();
    assert_eq!((found.chains, found.chain_bytes), (3, 4304 * CYCLES));
    assert_eq!((found.stream_bytes, found.turn_bytes), (0, 0));
}

/// Blocks that the CPU form makes of a ring with three buffers; in cycle `wrong` it sees another byte of the second stream.
fn run_ring(wrong: Option<u64>) -> Result<VerifiedBlocks, DataError> {
    let bench = Bench::new(&text(AES, &[160, 48, 4096]));
    let kernels = Kernels::of(&bench.plan, &bench.workload, &Shipped).unwrap();
    let kernel = &kernels.of_pipeline(0)[0].work;
    let mut ring = BlockRing::new(&bench.plan, 7).unwrap();
    let sampling = Sampling { streams: 0, turns: 0, chains: Some(vec![CYCLES]) };
    let (mut checker, found) = Checker::new(&ring, &bench.plan, &kernels, sampling).unwrap();
    let mut state = vec![0; kernel.state_bytes(3)];
    kernel.init_state(kernels.portions(0), &mut state).unwrap();
    let size = headway_core::plan::block::block_bytes([160, 48, 4096]).0 as usize;
    let mut slots = vec![vec![0; size]; 3];
    for (slot, buffer) in slots.iter_mut().enumerate() {
        ring.prepare(0, slot, &mut [buffer]).unwrap();
    }
    for cycle in 0..CYCLES {
        let slot = (cycle * 2 % 3) as usize;
        let filled = ring.supply(0, cycle, slot, &mut [&mut slots[slot]]).unwrap().block.0 as usize;
        let mut sent = slots[slot][..filled].to_vec();
        let second = headway_core::plan::block::BlockHeader::read(&sent).unwrap().portions[1].start;
        sent[second] ^= u8::from(wrong == Some(cycle));
        let mut block = vec![0; filled];
        kernel.run(&sent, &mut block, &mut state).unwrap();
        checker.collect(Nanos::ZERO, 0, cycle, slot, &[&block])?;
    }
    Box::new(checker).finish().unwrap();
    Ok(found.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

#[test]
fn one_wrong_byte_anywhere_in_a_run_is_found_at_the_end_of_its_chain() {
    assert_eq!(run_ring(None).unwrap().chains, 3);
    for wrong in [0, 5, CYCLES - 1] {
        let Err(DataError::Sequence { what, .. }) = run_ring(Some(wrong)) else { panic!("cycle {wrong} passed") };
        assert!(what.contains("chain of stream `s1`"), "{what}");
    }
}

#[test]
fn blocks_without_a_kernel_come_back_as_they_were_sent() {
    // Two steps and the gathering in cycles of one period.
    let text = text("", &[65_536 + 4_096]).replace("40 ms", "30 ms");
    let bench = Bench::new(&text);
    let (written, found) = bench.run(&bench.workload, Sampling { streams: 1, turns: 1, chains: None });
    assert_eq!(written.unwrap(), [69_632 * CYCLES]);
    assert_eq!(found.turn_bytes, (65_536 + 4_096) * CYCLES / 2, "one of two pieces of each block");
}

#[test]
fn a_plan_whose_blocks_differ_in_layout_is_refused() {
    let other = text(AES, &[160, 48, 64]).replacen("period = \"10 ms\"", "period = \"4 ms\"", 1);
    let bench = Bench::new(&other);
    assert_eq!(BlockRing::new(&bench.plan, 1).unwrap_err().stream, "s0");
}
