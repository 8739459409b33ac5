//! The machine files that come with Headway.

use super::{Machine, parse};

/// Name and text of every machine file that comes with Headway.
pub const SHIPPED: &[(&str, &str)] = &[
    ("fujii-gtx480", include_str!("../../../machines/fujii-gtx480.toml")),
    ("gpusync-8xgtx470", include_str!("../../../machines/gpusync-8xgtx470.toml")),
    ("h200-x1", include_str!("../../../machines/h200-x1.toml")),
    ("h200-x4", include_str!("../../../machines/h200-x4.toml")),
    ("tyan-ft72b7015", include_str!("../../../machines/tyan-ft72b7015.toml")),
    ("verner-r1", include_str!("../../../machines/verner-r1.toml")),
    ("verner-r2", include_str!("../../../machines/verner-r2.toml")),
    ("verner-two-way", include_str!("../../../machines/verner-two-way.toml")),
    ("verner-two-way-14", include_str!("../../../machines/verner-two-way-14.toml")),
    ("wafer-k20m", include_str!("../../../machines/wafer-k20m.toml")),
];

/// The shipped machine called `name`.
#[must_use]
pub fn shipped(name: &str) -> Option<Machine> {
    let (name, text) = SHIPPED.iter().find(|(known, _)| *known == name)?;
    Some(parse(&format!("{name}.toml"), text).expect("a test parses every shipped file"))
}
