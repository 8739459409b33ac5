//! Values of options that more than one file of commands reads.

use headway::units::Bytes;

/// A size above zero, with a unit.
pub(crate) fn some_bytes(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>() {
        Ok(Bytes(0)) => Err("give a size above zero".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}
