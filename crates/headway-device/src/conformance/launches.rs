//! Launches of works by a queue.

use std::sync::Arc;

use super::copies::Ordinary;
use super::{HostCopy, Noise, claim, memory, perform, pinned, read, same, write};
use crate::DeviceError;
use crate::buffer::{Access, MemoryPlace};
use crate::gpu::{Gpu, Operation};
use crate::work::{Argument, CpuArgument, DeviceCode, LaunchGrid, Work};

/// The suite's work: adds an integer to every byte.
pub(super) struct Add;

impl Work for Add {
    fn id(&self) -> &'static str {
        "conformance-add"
    }

    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("add.ptx"))
    }

    fn entry(&self) -> &'static str {
        "headway_conformance_add"
    }

    fn launch(&self, _: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        let [CpuArgument::Read(from), CpuArgument::Write(to), CpuArgument::Int(count), CpuArgument::Int(add)] =
            arguments
        else {
            return Err(DeviceError::Invalid { what: "conformance-add", reason: "it takes other arguments".into() });
        };
        for (to, from) in to.iter_mut().zip(from.iter()).take(usize::try_from(*count).unwrap_or(0)) {
            *to = from.wrapping_add(*add as u8);
        }
        Ok(())
    }
}

/// Test of the suite: a program reads and writes device and pinned memory in any grid; integers arrive with their sign.
pub fn launches_compute_what_their_cpu_form_does(gpu: &Arc<dyn Gpu>) {
    const LEN: usize = 10_000;
    let gpu = gpu.as_ref();
    let mut queue = gpu.queue(true).expect("a queue");
    let (host, target) = (pinned(gpu, LEN), pinned(gpu, LEN));
    let (first, second) = (memory(gpu, LEN), memory(gpu, LEN));
    let (mut sent, mut expected, mut found) = (vec![0; LEN], vec![0; LEN], vec![0; LEN]);
    let mut noise = Noise::new(41);
    let cases =
        [(1, 1, 77, -3), (1, 1024, LEN - 5, 1), (7, 96, LEN - 5, i32::MIN + 9), (300, 256, LEN - 5, -1), (2, 64, 0, 5)];
    for (from, to) in [(&first, &second), (&host, &first), (&first, &target)] {
        for (blocks, threads, count, add) in cases {
            noise.fill(&mut sent);
            noise.fill(&mut expected);
            for (buffer, bytes) in [(from, &sent), (to, &expected)] {
                match buffer.place() {
                    MemoryPlace::Host { .. } => write(buffer, 0, bytes),
                    MemoryPlace::Device { .. } => Ordinary(gpu).put(bytes, 0, LEN, buffer, 0),
                }
            }
            let arguments = vec![
                Argument::Memory(claim(from, 5, LEN - 5, Access::Read)),
                Argument::Memory(claim(to, 1, LEN - 1, Access::Write)),
                Argument::Int(count as i32),
                Argument::Int(add),
            ];
            let grid = LaunchGrid::line(blocks, threads, 0);
            assert_eq!(perform(queue.as_mut(), Operation::Launch { work: Arc::new(Add), grid, arguments }), Ok(()));
            for at in 0..count {
                expected[1 + at] = sent[5 + at].wrapping_add(add as u8);
            }
            match to.place() {
                MemoryPlace::Host { .. } => read(to, 0, &mut found),
                MemoryPlace::Device { .. } => Ordinary(gpu).take(to, 0, &mut found, 0, LEN),
            }
            same(&format!("{blocks} blocks of {threads} threads, {count} bytes plus {add}"), &found, &expected);
        }
    }
}
