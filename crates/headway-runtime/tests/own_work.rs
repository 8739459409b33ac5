//! A work that nobody below knows: its key in the workload file, its kernel, and streams that it divides among GPUs, through the
//! simulator's payload and the wall-clock driver; and what is said of libraries that cannot run a plan.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway_core::files::error::FileError;
use headway_core::files::machine::{self, KernelCost, Machine};
use headway_core::files::workload::{
    Application, Keys, Own, Parameters, Sharding, Stream, Workload, WorkloadError, parse_with, write_with,
};
use headway_core::plan::Plan;
use headway_core::plan::block::BlockHeader;
use headway_core::plan::payload::{Payload as _, PayloadChunk};
use headway_core::plan::planner::{self, PlanOptions};
use headway_core::units::{Bytes, Nanos, Rate};
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::work::{DeviceCode, Items, LaunchGrid, Library, Portion, WorkError};
use headway_device::{Engines, Work};
use headway_runtime::blocks::{Gatherer, Scatterer, output_name};
use headway_runtime::host::HostPayload;
use headway_runtime::kernels::Kernels;
use headway_runtime::outlet::Outlet;
use headway_runtime::wall::{self, WallOptions};

use super::plain_run::plain_run;

/// Bytes of a band, and of its sum with the number of its packet.
const BAND: u64 = 4800;
const SUM: usize = 256;
const PACKETS: u64 = 7;

const WORKLOAD: &str = r#"
name = "bands"
[[stream]]
id = "s"
period = "20 ms"
deadline = "400 ms"
bands = 5
steps = [{ copy = "host -> gpu" }, { compute = "sum" }, { exchange = "gpus" }, { compute = "total" }, { copy = "gpu -> host" }]
"#;

/// `bands = N` divides packets of so many bands.
struct Bands;

impl Application for Bands {
    fn keys(&self) -> &'static [&'static str] {
        &["bands"]
    }

    fn read(&self, keys: &mut Keys<'_, '_>) -> Result<Own, FileError> {
        let Some(field) = keys.take("bands") else { return Ok(Own::default()) };
        let items = field.integer_in(&(1..=100))?;
        let parameters = Parameters::default().with_number("bands", items);
        let (item, summary) = (Bytes(BAND), Bytes(SUM as u64));
        let sharding = Sharding { items: items as u32, item, summary, operations: None, ring: 3 };
        Ok(Own { parameters, sharding: Some(sharding) })
    }

    fn check(&self, _stream: &Stream, _twin: Option<&str>) -> Result<(), WorkloadError> {
        Ok(())
    }

    fn write(&self, stream: &Stream) -> Vec<(&'static str, String)> {
        stream.parameters.number("bands").map(|bands| ("bands", bands.to_string())).into_iter().collect()
    }
}

/// The byte of which item `item` at place `row` consists.
fn content(item: u32, row: u32) -> u8 {
    (item * 31 + row * 7 + 1) as u8
}

fn sum_of(items: u32, row: u32) -> u64 {
    (0..items).map(|item| BAND * u64::from(content(item, row))).sum()
}

#[derive(Debug)]
struct Synthetic(u32);

impl Items for Synthetic {
    fn fill(&self, item: u32, row: u32, bytes: &mut [u8]) {
        bytes.fill(content(item, row));
    }

    fn check(&self, result: &[u8], cycle: u64) -> Result<(), String> {
        if result[8..16] == cycle.to_le_bytes() { Ok(()) } else { Err(format!("it is not of cycle {cycle}")) }
    }

    fn is_right(&self, result: &[u8], row: u32) -> bool {
        result[..8] == sum_of(self.0, row).to_le_bytes()
    }
}

/// What is wrong with a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    NoTotal,
    LargeSums,
    SmallTotal,
    StateOfTotal,
    NoItems,
    NoThreads,
}

/// The sum of each portion, or of all sums.
struct Sum {
    total: bool,
    fault: Fault,
}

impl Work for Sum {
    fn id(&self) -> &'static str {
        if self.total { "total" } else { "sum" }
    }

    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry sum() { ret; }\n")
    }

    fn entry(&self) -> &'static str {
        "sum"
    }

    fn grid(&self, _portions: u32) -> LaunchGrid {
        let threads = if self.fault == Fault::NoThreads { 0 } else { 32 };
        LaunchGrid::line(1, threads, 0)
    }

    fn output_bytes(&self, _input: usize, portions: u32) -> usize {
        match (self.total, self.fault) {
            (true, Fault::SmallTotal) => 16,
            (true, _) => SUM,
            (false, Fault::LargeSums) => SUM * portions as usize + 1,
            (false, _) => SUM * portions as usize,
        }
    }

    fn state_bytes(&self, _portions: usize) -> usize {
        if self.total && self.fault == Fault::StateOfTotal { 8 } else { 0 }
    }

    fn items(&self, parameters: &Parameters) -> Option<Arc<dyn Items>> {
        let bands = parameters.number("bands").filter(|_| self.fault != Fault::NoItems)?;
        Some(Arc::new(Synthetic(bands as u32)))
    }

    fn run(&self, input: &[u8], output: &mut [u8], _state: &mut [u8]) -> Result<(), WorkError> {
        let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap());
        let mut put = |at: usize, words: [u64; 2]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            output[at * SUM..][..16].copy_from_slice(&bytes);
        };
        if self.total {
            let cycles: Vec<u64> = input.chunks_exact(SUM).map(|sum| word(sum, 1)).collect();
            assert!(cycles.iter().all(|cycle| *cycle == cycles[0]), "sums of different packets: {cycles:?}");
            put(0, [input.chunks_exact(SUM).map(|sum| word(sum, 0)).sum(), cycles[0]]);
            return Ok(());
        }
        let header = BlockHeader::read(input)
            .map_err(|error| WorkError::BadBlock { work: "sum".to_owned(), reason: error.to_string() })?;
        for (at, portion) in header.portions.into_iter().enumerate() {
            put(at, [input[portion].iter().map(|byte| u64::from(*byte)).sum(), header.cycle]);
        }
        Ok(())
    }

    fn init_state(&self, _portions: &[Portion], _state: &mut [u8]) -> Result<(), WorkError> {
        Ok(())
    }
}

struct Sums(Fault);

impl Library for Sums {
    fn find(&self, id: &str) -> Option<Arc<dyn Work>> {
        let fault = self.0;
        self.ids().contains(&id).then(|| Arc::new(Sum { total: id == "total", fault }) as Arc<dyn Work>)
    }

    fn ids(&self) -> Vec<&'static str> {
        if self.0 == Fault::NoTotal { vec!["sum"] } else { vec!["sum", "total"] }
    }
}

struct Bench {
    folder: tempfile::TempDir,
    machine: Machine,
    workload: Workload,
    plan: Arc<Plan>,
}

fn bench() -> Bench {
    bench_of(WORKLOAD)
}

fn bench_of(text: &str) -> Bench {
    let mut machine = machine::shipped("h200-x4").unwrap();
    for id in ["sum", "total"] {
        let (setup, rate) = (Nanos(10_000), Rate(1_000_000_000));
        let cost =
            KernelCost { id: id.to_owned(), gpus: Vec::new(), setup, rate, chain_rate: None, operation_rate: None };
        machine.kernels.push(cost);
    }
    let workload = parse_with("bands.toml", text, &[&Bands]).unwrap_or_else(|error| panic!("{error}")).value;
    let plan = planner::plan(&machine, &workload, PlanOptions::default()).unwrap();
    Bench { folder: tempfile::tempdir().unwrap(), machine, workload, plan: Arc::new(plan) }
}

impl Bench {
    fn kernels(&self) -> Kernels {
        Kernels::of(&self.plan, &self.workload, &Sums(Fault::None)).unwrap()
    }

    /// What is said of a library with `fault`.
    fn refused(&self, fault: Fault) -> String {
        Kernels::of(&self.plan, &self.workload, &Sums(fault)).err().expect("it cannot run the plan").to_string()
    }

    fn ends(&self, kernels: &Kernels) -> (Outlet, Gatherer, Scatterer) {
        let outlet = Outlet::create(&self.folder.path().join("result")).unwrap();
        let gatherer = Gatherer::of_sizes(Arc::clone(&self.plan), &[PACKETS]);
        let scatterer = Scatterer::new(gatherer.clone(), &outlet).unwrap().checking(kernels);
        (outlet, gatherer, scatterer)
    }

    fn devices(&self) -> Vec<Engines> {
        let open = |gpu| Engines::open(Arc::new(EmuGpu::open(EmuSpec::of_machine(&self.machine, gpu)))).unwrap();
        self.machine.gpus().map(open).collect()
    }

    /// Compares what came out with the sums of what went in.
    fn assert_sums(&self) {
        let found = fs::read(self.folder.path().join("result").join(output_name("s"))).unwrap();
        let results: Vec<&[u8]> = found.chunks_exact(SUM).collect();
        assert_eq!(results.len() as u64, PACKETS);
        for (cycle, result) in (0..).zip(results) {
            assert_eq!(result[..8], sum_of(5, cycle as u32 % 3).to_le_bytes(), "cycle {cycle}");
            assert_eq!(result[8..16], u64::to_le_bytes(cycle), "cycle {cycle}");
        }
    }
}

#[test]
fn a_workload_with_its_own_key_is_read_written_and_planned() {
    let bench = bench();
    let again = parse_with("again.toml", &write_with(&bench.workload, &[&Bands]), &[&Bands]).unwrap().value;
    assert_eq!(again.streams, bench.workload.streams);
    let steps = &bench.plan.pipelines[0].steps;
    let operations: Vec<usize> = steps.iter().map(|step| step.operations.len()).collect();
    assert_eq!(operations, [4, 4, 12, 4, 4]);
}

#[test]
fn its_kernels_run_on_ordinary_memory() {
    let bench = bench();
    let kernels = bench.kernels();
    let (outlet, gatherer, scatterer) = bench.ends(&kernels);
    let interrupt = Arc::new(AtomicBool::new(false));
    let mut payload = HostPayload::new(Arc::clone(&bench.plan), &kernels, gatherer, scatterer, interrupt).unwrap();
    for cycle in 0..PACKETS {
        payload.gather(0, cycle).unwrap();
        for (step, planned) in (0..).zip(&bench.plan.pipelines[0].steps) {
            for index in 0..planned.operations.len() as u32 {
                let pipeline = &bench.plan.pipelines[0];
                let bytes = pipeline.source.region(&pipeline.steps, step as usize, index).unwrap();
                let offset = Bytes(0);
                payload.execute(&PayloadChunk { pipeline: 0, cycle, step, index, offset, bytes }).unwrap();
            }
        }
        payload.deliver(0, cycle).unwrap();
    }
    payload.finish().unwrap();
    outlet.publish().unwrap();
    bench.assert_sums();
}

#[test]
fn its_kernels_run_on_emulated_gpus() {
    let bench = bench();
    let kernels = bench.kernels();
    let (outlet, gatherer, scatterer) = bench.ends(&kernels);
    let mut devices = bench.devices();
    let job = plain_run(&bench.plan, &kernels, &gatherer, scatterer);
    wall::run_work(job, &mut devices, &WallOptions::default(), |_| {}, |_| {}).unwrap();
    outlet.publish().unwrap();
    bench.assert_sums();
}

#[test]
fn a_library_that_cannot_run_the_plan_is_refused_with_kernel_fact_and_remedy() {
    let bench = bench();
    let cases = [
        (
            Fault::NoTotal,
            ["pipeline `s` runs kernel `total`, which the library does not give", "name one that it gives (sum)"],
        ),
        (
            Fault::LargeSums,
            [
                "kernel `sum` cannot serve pipeline `s`: it makes 513 bytes of 2 items",
                "have 512; correct its `output_bytes`",
            ],
        ),
        (
            Fault::SmallTotal,
            [
                "kernel `total` cannot serve pipeline `s`: it makes 16 bytes",
                "the result has 256; correct its `output_bytes`",
            ],
        ),
        (Fault::StateOfTotal, ["kernel `total` cannot serve pipeline `s`: it has a state", "leave it without one"]),
        (
            Fault::NoItems,
            [
                "kernel `sum` cannot serve pipeline `s`: it has no items for the stream's keys",
                "give them in its `items`",
            ],
        ),
    ];
    for (fault, parts) in cases {
        let said = bench.refused(fault);
        assert!(parts.iter().all(|part| said.contains(part)), "{fault:?}: {said}");
    }
}

#[test]
fn a_kernel_that_leaves_no_block_serves_no_ordinary_stream() {
    let steps = r#"[{ copy = "host -> gpu" }, { compute = "sum" }, { copy = "gpu -> host" }]"#;
    let stream = format!("id = \"a\"\npacket = \"4 KiB\"\nperiod = \"20 ms\"\ndeadline = \"400 ms\"\nsteps = {steps}");
    let bench = bench_of(&format!("name = \"blocks\"\n[[stream]]\n{stream}\n"));
    let said = bench.refused(Fault::None);
    assert!(said.starts_with("kernel `sum` cannot serve pipeline `"), "{said}");
    assert!(
        said.contains("it makes 256 bytes of a block of ") && said.contains("correct its `output_bytes`"),
        "{said}"
    );
}

#[test]
fn a_plan_with_another_number_of_kernels_for_divided_packets_is_refused() {
    let mut bench = bench();
    Arc::make_mut(&mut bench.plan).pipelines[0].steps.remove(3);
    assert_eq!(
        bench.refused(Fault::None),
        "pipeline `s` is divided among GPUs, which takes two kernels, and its plan has 1; plan the workload again"
    );
}

#[test]
fn a_launch_that_no_gpu_can_make_ends_the_run_and_names_the_kernel() {
    let bench = bench();
    let kernels = Kernels::of(&bench.plan, &bench.workload, &Sums(Fault::NoThreads)).unwrap();
    let (_outlet, gatherer, scatterer) = bench.ends(&kernels);
    let job = plain_run(&bench.plan, &kernels, &gatherer, scatterer);
    let error = wall::run_work(job, &mut bench.devices(), &WallOptions::default(), |_| {}, |_| {}).err().unwrap();
    let cause = error.source().expect("the device said why").to_string();
    assert!(
        cause.contains("the grid of kernel `sum` has 1 blocks of 0 threads; give it blocks of 1 to 1024"),
        "{cause}"
    );
}
