//! The labels of the shipped workload `lidar`, made another way than by its kernel and the kernel's CPU form.

pub(crate) const LIDAR: &str = include_str!("../../../../workloads/lidar.toml");
pub(crate) const PTX: &str = include_str!("../../../../workloads/lidar/ground.ptx");
pub(crate) const RINGS_H: &str = include_str!("../../../../workloads/lidar/rings.h");

const RINGS: usize = 64;
/// Bytes of half a turn.
pub(crate) const HALF: usize = 1024 * RINGS * 2;
const SENSOR_HEIGHT: i64 = 865;

/// Half turns over a plain with walls, poles, holes, and directions without an echo.
pub(crate) fn half_turns(count: usize) -> Vec<u8> {
    let [sines, _] = tables();
    let range = |at: usize| -> u16 {
        let (ring, direction) = (at % RINGS, at / RINGS);
        let noise = (at as u32).wrapping_mul(2_654_435_761) >> 28;
        let plain = if sines[ring] < 0 { SENSOR_HEIGHT * 16384 / -sines[ring] } else { i64::from(u16::MAX) };
        let wall = [9_000, 3_000, 70_000, 20_000][direction / 50 % 4];
        match direction % 97 {
            13 => 0,
            14..20 => noise as u16 * 4096,
            _ => u16::try_from(plain.min(wall) + i64::from(noise)).unwrap_or(0),
        }
    };
    (0..count * HALF / 2).flat_map(|at| range(at).to_le_bytes()).collect()
}

/// Sines and cosines of the rings, from the header that the kernel includes.
fn tables() -> [Vec<i64>; 2] {
    ["SINES[RINGS]", "COSINES[RINGS]"].map(|name| {
        let (_, from) = RINGS_H.split_once(&format!(" {name} = {{")).unwrap();
        let (numbers, _) = from.split_once('}').unwrap();
        numbers.split(',').map(|number| number.trim().parse().unwrap()).collect()
    })
}

/// The label of each point.
pub(crate) fn labels(ranges: &[u8]) -> Vec<u8> {
    let [sines, cosines] = tables();
    let points: Vec<i64> = ranges.chunks_exact(2).map(|of| i64::from(u16::from_le_bytes([of[0], of[1]]))).collect();
    let direction = |of: &[i64]| {
        let mut last = (0, 0);
        let label = |(ring, range): (usize, &i64)| {
            let here = (range * cosines[ring] / 16384, SENSOR_HEIGHT + range * sines[ring] / 16384);
            let (away, up) = ((here.0 - last.0).abs(), (here.1 - last.1).abs());
            if *range == 0 {
                0
            } else if up <= 50 + away / 8 {
                last = here;
                1
            } else {
                2
            }
        };
        of.iter().enumerate().map(label).collect::<Vec<u8>>()
    };
    points.chunks_exact(RINGS).flat_map(direction).collect()
}
