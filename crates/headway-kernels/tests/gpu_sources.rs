//! The CUDA sources, built for the host and run with a thread for each GPU thread, against the CPU forms.
//!
//! This checks the algorithm, the synchronisation points and, by the address sanitizer, every access to memory. What it
//! cannot check is the PTX itself; that needs a GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{below, bytes, cipher, pack, portion, random, run, state};
use crate::host::host_program;
use headway_device::work::{Portion, Work};
use headway_kernels::find;
use tempfile::TempDir;

/// A kernel's source built for the host.
struct HostForm {
    folder: TempDir,
    program: PathBuf,
}

impl HostForm {
    /// Builds it without any warning, or says why there is no compiler.
    fn build(kernel: &dyn Work) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(format!("{}.cu", kernel.entry()));
        let defines = [format!("-DSOURCE=\"{}\"", source.display()), format!("-DENTRY={}", kernel.entry())];
        let program = host_program("run.cpp", &defines, folder.path())?;
        Some(Self { folder, program })
    }

    /// Output and state after a launch of `blocks` thread blocks.
    fn run(&self, kernel: &dyn Work, portions: u32, blocks: u32, input: &[u8], state: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let file = |name: &str| self.folder.path().join(name);
        fs::write(file("input"), input).unwrap();
        fs::write(file("output"), vec![0x5A; input.len()]).unwrap();
        fs::write(file("state"), state).unwrap();
        let done = Command::new(&self.program)
            .arg(self.folder.path())
            .args([blocks, kernel.grid(portions).threads[0], portions].map(|number| number.to_string()))
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        (fs::read(file("output")).unwrap(), fs::read(file("state")).unwrap())
    }
}

/// Streams of `lens(random, portion)` bytes each cycle give the same bytes and states in both forms.
fn both_forms_agree(id: &str, seed: u64, unit: usize) {
    let kernel = find(id).unwrap();
    let Some(host) = HostForm::build(&*kernel) else { return };
    let mut random = random(seed);
    for portion_count in [1, 2, 3, 8] {
        let portions: Vec<Portion> = (0..portion_count).map(|_| portion(cipher(&mut random))).collect();
        let mut cpu_state = state(&*kernel, &portions);
        let mut gpu_state = cpu_state.clone();
        for cycle in 0..4 {
            // Up to 1056 bytes, so that portions take one to three rounds of 512 bytes.
            let data: Vec<_> = (0..portion_count)
                .map(|portion| {
                    let units = if (portion + cycle) % 4 == 3 { 0 } else { below(&mut random, 1056 / unit as u32 + 1) };
                    bytes(&mut random, unit * units)
                })
                .collect();
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let input = pack(cycle as u64, &data);
            let expected = run(&*kernel, &input, &mut cpu_state);
            // One block per portion, as launched, and fewer, where a block serves several portions.
            let blocks = if cycle % 2 == 0 { kernel.grid(portion_count as u32).blocks[0] } else { 2 };
            let output;
            (output, gpu_state) = host.run(&*kernel, portion_count as u32, blocks, &input, &gpu_state);
            assert!(output == expected, "{id}: {portion_count} portions, cycle {cycle}: outputs differ");
            assert!(gpu_state == cpu_state, "{id}: {portion_count} portions, cycle {cycle}: states differ");
        }
    }
}

#[test]
fn aes128_cbc_writes_the_same_bytes_as_the_cpu_form() {
    both_forms_agree("aes128-cbc", 21, 16);
}

#[test]
fn spin_writes_the_same_bytes_as_the_cpu_form() {
    both_forms_agree("spin", 22, 1);
}

#[test]
fn lengths_around_a_round_of_512_bytes_agree() {
    let kernel = find("aes128-cbc").unwrap();
    let Some(host) = HostForm::build(&*kernel) else { return };
    let mut random = random(23);
    let portions = vec![portion(cipher(&mut random)); 6];
    let data = [0, 16, 496, 512, 528, 1040].map(|len| bytes(&mut random, len));
    let input = pack(3, &data.each_ref().map(Vec::as_slice));
    let mut cpu_state = state(&*kernel, &portions);
    let (output, gpu_state) = host.run(&*kernel, 6, 6, &input, &cpu_state);
    assert!(output == run(&*kernel, &input, &mut cpu_state));
    assert!(gpu_state == cpu_state);
}

#[test]
fn blocks_that_are_not_for_this_launch_leave_portions_and_state_alone() {
    for id in headway_kernels::ids() {
        let kernel = find(id).unwrap();
        let Some(host) = HostForm::build(&*kernel) else { return };
        let portions = vec![portion(cipher(&mut random(24))); 2];
        let fresh = state(&*kernel, &portions);
        let good = pack(1, &[&[7; 48], &[8; 16]]);
        // The magic number, the number of portions, and an offset that would make loads misaligned.
        for (at, flip) in [(0, 1), (4, 1), (16, 4)] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            let (output, after) = host.run(&*kernel, 2, 2, &bad, &fresh);
            assert!(output[32..80].iter().all(|&byte| byte == 0x5A), "{id}: byte {at}");
            let chain = if at == 16 { fresh.len() / 2 } else { fresh.len() };
            assert!(after[..chain] == fresh[..chain], "{id}: byte {at}");
        }
    }
}
