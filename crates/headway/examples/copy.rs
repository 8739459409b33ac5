//! Copies memory to a GPU and back, each way by what is best for it.
//!
//! Emulated GPUs stand in for real ones here; `copy::gpus()` opens those of this computer.

use headway::copy::{self, At, CpuReach, How};

fn main() -> Result<(), headway::Error> {
    let copier = copy::emulated(1)?;
    let on_gpu = copier.gpus()[0].device_buffer(1 << 20, CpuReach::Device)?;
    let at = At { buffer: &on_gpu, offset: 0 };

    let sent: Vec<u8> = (0..1 << 20).map(|byte| (byte % 251) as u8).collect();
    let there = copier.copy_in(at, &sent, How::Auto)?;
    let mut back = vec![0; sent.len()];
    let here = copier.copy_out(&mut back, at, How::Auto)?;

    println!("to the GPU by {}, back by {}", there.method, here.method);
    println!("{}", if back == sent { "every byte is back" } else { "some bytes are wrong" });
    Ok(())
}
