//! The file in the user's cache folder that has what was learnt of copies, as text: one JSON document for each node.

use serde::{Deserialize, Serialize};

use crate::models::transfer::learning::LearntClass;
use crate::units;

/// The form of the file.
const SCHEMA: u32 = 1;

/// What figures hold for: another GPU, driver or CPU has a file of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeKey {
    /// Name of the GPU, as its driver has it.
    pub gpu: String,
    pub uuid: Option<String>,
    pub driver: String,
    pub cpu: String,
    /// CPUs that the process may use.
    pub cpus: u32,
}

impl NodeKey {
    /// FNV-1a of all that is in it.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let Self { gpu, uuid, driver, cpu, cpus } = self;
        let text = format!("{gpu}\n{}\n{driver}\n{cpu}\n{cpus}", uuid.as_deref().unwrap_or(""));
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// What the file of a node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCopies {
    /// When it was written, in seconds since 1970.
    pub saved_unix: u64,
    pub classes: Vec<LearntClass>,
}

impl KeptCopies {
    /// The day on which it was written, such as 2026-11-28.
    #[must_use]
    pub fn day(&self) -> String {
        units::day(self.saved_unix)
    }
}

/// Why a file is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyCacheError {
    #[error("it is damaged or of another version")]
    Damaged,
    #[error("it is of another node or version")]
    OtherNode,
}

/// The whole of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: u32,
    node: NodeKey,
    saved_unix: u64,
    classes: Vec<LearntClass>,
}

/// What a file says of the node `key`.
///
/// # Errors
/// [`CopyCacheError`] if it says nothing of that node.
pub fn parse(text: &str, key: &NodeKey) -> Result<KeptCopies, CopyCacheError> {
    let Document { schema, node, saved_unix, classes } =
        serde_json::from_str(text).map_err(|_| CopyCacheError::Damaged)?;
    if schema != SCHEMA || node != *key {
        return Err(CopyCacheError::OtherNode);
    }
    Ok(KeptCopies { saved_unix, classes })
}

/// The text of the node's file.
#[must_use]
pub fn write(key: &NodeKey, kept: &KeptCopies) -> String {
    let KeptCopies { saved_unix, classes } = kept.clone();
    let document = Document { schema: SCHEMA, node: key.clone(), saved_unix, classes };
    serde_json::to_string(&document).expect("numbers and texts have a form in JSON")
}
