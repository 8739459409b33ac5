//! Temporary sweep.
use headway::copy::*;
use headway::core::machine::Method;
use headway::core::transfer::*;
use headway::core::units::*;
use headway::device::port::*;
use headway::os::memory::Mapping;
use std::time::Instant;

fn main() {
    let opts = Options {
        backend: headway::ports::Backend::Cuda,
        machine: None,
        model: None,
        gpus: None,
        copies: CopyOptions {
            limits: CopyLimits { pinned_max: Bytes(512 << 20), ..CopyLimits::default() },
            ..CopyOptions::default()
        },
    };
    let copier = open(&opts).unwrap();
    let max = 1usize << 30;
    let dev = copier.ports()[0].device_buffer(max, Reach::Device).unwrap();
    let at = At { buffer: &dev, offset: 0 };
    let pin = copier.ports()[0].pinned_buffer(max, Caching::Cached).unwrap();
    let which: Vec<String> = std::env::args().collect();
    let has = |s: &str| which.iter().any(|w| w == s);
    for huge in [false] {
        let mut host = Mapping::anonymous(max).unwrap();
        if huge {
            let _ = host.advise_huge();
        }
        for (i, b) in host.iter_mut().enumerate() {
            *b = (i >> 12) as u8 ^ i as u8;
        }
        if has("cpu") {
            for stores in [Stores::Plain, Stores::NonTemporal] {
                for n in [1usize, 2, 4, 6, 8, 12] {
                    let mut best = f64::MAX;
                    for _ in 0..3 {
                        let part = max / n / 4096 * 4096;
                        let spans: Vec<_> = (0..n)
                            .map(|i| {
                                pin.claim(i * part..(i + 1) * part, headway::device::buffer::Access::Write).unwrap()
                            })
                            .collect();
                        let t = Instant::now();
                        std::thread::scope(|s| {
                            for (i, mut span) in spans.into_iter().enumerate() {
                                let src = &host[i * part..(i + 1) * part];
                                s.spawn(move || {
                                    let to = span.bytes_mut().unwrap();
                                    for (a, b) in to.chunks_mut(4 << 20).zip(src.chunks(4 << 20)) {
                                        headway::os::copy::copy(a, b, stores);
                                    }
                                });
                            }
                        });
                        best = best.min(t.elapsed().as_secs_f64());
                    }
                    println!("cpu huge {huge} {stores} n {n}: {:.1} GB/s", max as f64 / best / 1e9);
                }
            }
        }
        for dir in [Direction::H2d, Direction::D2h] {
            for bytes in [256usize << 20, 1 << 30] {
                for (n, buf, stores, fl) in [
                    (3u32, 2u64, Stores::NonTemporal, 2u32),
                    (3u32, 2u64, Stores::NonTemporal, 3u32),
                    (3u32, 4u64, Stores::NonTemporal, 2u32),
                    (3u32, 4u64, Stores::NonTemporal, 3u32),
                    (3u32, 8u64, Stores::NonTemporal, 2u32),
                    (3u32, 8u64, Stores::NonTemporal, 3u32),
                    (3u32, 16u64, Stores::NonTemporal, 2u32),
                    (3u32, 16u64, Stores::NonTemporal, 3u32),
                    (4u32, 2u64, Stores::Plain, 2u32),
                    (4u32, 2u64, Stores::Plain, 3u32),
                    (4u32, 2u64, Stores::NonTemporal, 2u32),
                    (4u32, 2u64, Stores::NonTemporal, 3u32),
                    (4u32, 4u64, Stores::Plain, 2u32),
                    (4u32, 4u64, Stores::Plain, 3u32),
                    (4u32, 4u64, Stores::NonTemporal, 2u32),
                    (4u32, 4u64, Stores::NonTemporal, 3u32),
                    (4u32, 8u64, Stores::Plain, 2u32),
                    (4u32, 8u64, Stores::Plain, 3u32),
                    (4u32, 8u64, Stores::NonTemporal, 2u32),
                    (4u32, 8u64, Stores::NonTemporal, 3u32),
                    (4u32, 16u64, Stores::Plain, 2u32),
                    (4u32, 16u64, Stores::Plain, 3u32),
                    (4u32, 16u64, Stores::NonTemporal, 2u32),
                    (4u32, 16u64, Stores::NonTemporal, 3u32),
                    (5u32, 2u64, Stores::Plain, 2u32),
                    (5u32, 2u64, Stores::Plain, 3u32),
                    (5u32, 2u64, Stores::NonTemporal, 2u32),
                    (5u32, 2u64, Stores::NonTemporal, 3u32),
                    (5u32, 4u64, Stores::Plain, 2u32),
                    (5u32, 4u64, Stores::Plain, 3u32),
                    (5u32, 4u64, Stores::NonTemporal, 2u32),
                    (5u32, 4u64, Stores::NonTemporal, 3u32),
                    (5u32, 8u64, Stores::Plain, 2u32),
                    (5u32, 8u64, Stores::Plain, 3u32),
                    (5u32, 8u64, Stores::NonTemporal, 2u32),
                    (5u32, 8u64, Stores::NonTemporal, 3u32),
                    (5u32, 16u64, Stores::Plain, 2u32),
                    (5u32, 16u64, Stores::Plain, 3u32),
                    (5u32, 16u64, Stores::NonTemporal, 2u32),
                    (5u32, 16u64, Stores::NonTemporal, 3u32),
                    (6u32, 2u64, Stores::Plain, 2u32),
                    (6u32, 2u64, Stores::Plain, 3u32),
                    (6u32, 2u64, Stores::NonTemporal, 2u32),
                    (6u32, 2u64, Stores::NonTemporal, 3u32),
                    (6u32, 4u64, Stores::Plain, 2u32),
                    (6u32, 4u64, Stores::Plain, 3u32),
                    (6u32, 4u64, Stores::NonTemporal, 2u32),
                    (6u32, 4u64, Stores::NonTemporal, 3u32),
                    (6u32, 8u64, Stores::Plain, 2u32),
                    (6u32, 8u64, Stores::Plain, 3u32),
                    (6u32, 8u64, Stores::NonTemporal, 2u32),
                    (6u32, 8u64, Stores::NonTemporal, 3u32),
                    (6u32, 16u64, Stores::Plain, 2u32),
                    (6u32, 16u64, Stores::Plain, 3u32),
                    (6u32, 16u64, Stores::NonTemporal, 2u32),
                    (6u32, 16u64, Stores::NonTemporal, 3u32),
                    (8u32, 2u64, Stores::Plain, 2u32),
                    (8u32, 2u64, Stores::Plain, 3u32),
                    (8u32, 2u64, Stores::NonTemporal, 2u32),
                    (8u32, 2u64, Stores::NonTemporal, 3u32),
                    (8u32, 4u64, Stores::Plain, 2u32),
                    (8u32, 4u64, Stores::Plain, 3u32),
                    (8u32, 4u64, Stores::NonTemporal, 2u32),
                    (8u32, 4u64, Stores::NonTemporal, 3u32),
                    (8u32, 8u64, Stores::Plain, 2u32),
                    (8u32, 8u64, Stores::Plain, 3u32),
                    (8u32, 8u64, Stores::NonTemporal, 2u32),
                    (8u32, 8u64, Stores::NonTemporal, 3u32),
                    (10u32, 2u64, Stores::Plain, 2u32),
                    (10u32, 2u64, Stores::Plain, 3u32),
                    (10u32, 2u64, Stores::NonTemporal, 2u32),
                    (10u32, 2u64, Stores::NonTemporal, 3u32),
                    (10u32, 4u64, Stores::Plain, 2u32),
                    (10u32, 4u64, Stores::Plain, 3u32),
                    (10u32, 4u64, Stores::NonTemporal, 2u32),
                    (10u32, 4u64, Stores::NonTemporal, 3u32),
                    (10u32, 8u64, Stores::Plain, 2u32),
                    (10u32, 8u64, Stores::Plain, 3u32),
                    (10u32, 8u64, Stores::NonTemporal, 2u32),
                    (10u32, 8u64, Stores::NonTemporal, 3u32),
                ] {
                    let how = How::Tuned(
                        Way::of(Method::Staged),
                        Tuning { threads: n, buffer: Bytes(buf << 20), stores, in_flight: fl },
                    );
                    let mut times: Vec<f64> = Vec::new();
                    for _ in 0..7 {
                        let t = Instant::now();
                        match dir {
                            Direction::H2d => copier.copy_in(at, &host[..bytes], how).unwrap(),
                            _ => copier.copy_out(&mut host[..bytes], at, how).unwrap(),
                        };
                        times.push(t.elapsed().as_secs_f64());
                    }
                    times.sort_by(f64::total_cmp);
                    println!(
                        "{dir} huge {huge} {:4} MiB n {n:2} buf {buf} {stores} fl {fl}: median {:.1} best {:.1} GB/s",
                        bytes >> 20,
                        bytes as f64 / times[3] / 1e9,
                        bytes as f64 / times[0] / 1e9
                    );
                }
            }
        }
    }
    for dir in [Direction::H2d, Direction::D2h] {
        for bytes in [256usize << 20, 1 << 30] {
            let mut times: Vec<f64> = Vec::new();
            for _ in 0..5 {
                let t = Instant::now();
                copier
                    .copy_pinned(dir, at, At { buffer: &pin, offset: 0 }, bytes, How::By(Way::of(Method::Dma)))
                    .unwrap();
                times.push(t.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            println!("dma {dir} {} MiB {:.1} GB/s", bytes >> 20, bytes as f64 / times[2] / 1e9);
        }
    }
}
