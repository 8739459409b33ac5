//! `key` and `iv` of a stream: what steps that encrypt need, and the rules for them in workload files.

use std::fmt;

use headway_core::files::error::FileError;
use headway_core::files::workload::{
    Application, Field, Keys, OnMiss, Own, Parameters, Stream, StreamStep, WorkloadError,
};

const KEY: &str = "key";
const IV: &str = "iv";

/// The kernel that encrypts.
pub(crate) const ID: &str = "aes128-cbc";
/// Bytes of a cipher block, a round key and a chaining value.
pub(crate) const BLOCK: usize = 16;

/// Key and initialisation vector of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cipher {
    /// AES-128 key.
    pub key: [u8; BLOCK],
    /// CBC initialisation vector of the first packet; afterwards the last ciphertext block takes its place.
    pub iv: [u8; BLOCK],
}

impl fmt::Debug for Cipher {
    /// Keys do not belong in logs and panics.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher { .. }")
    }
}

impl Cipher {
    /// The cipher that `parameters` hold.
    #[must_use]
    pub fn of(parameters: &Parameters) -> Option<Self> {
        let bytes = |name| parameters.secret(name)?.try_into().ok();
        Some(Self { key: bytes(KEY)?, iv: bytes(IV)? })
    }

    /// Parameters that the `Work` of each step of a stream with this cipher is made with.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        Parameters::default().with_secret(KEY, &self.key).with_secret(IV, &self.iv)
    }
}

/// Streams that encrypt.
pub(crate) struct Encryption;

impl Application for Encryption {
    fn keys(&self) -> &'static [&'static str] {
        &[KEY, IV]
    }

    fn read(&self, keys: &mut Keys<'_, '_>) -> Result<Own, FileError> {
        let (key, iv) = match (keys.take(KEY), keys.take(IV)) {
            (None, None) => return Ok(Own::default()),
            (Some(key), Some(iv)) => (key, iv),
            (Some(one), None) | (None, Some(one)) => {
                let missing = if one.key() == KEY { IV } else { KEY };
                let message = format!("stream `{}` has `{}` but no `{missing}`", keys.stream(), one.key());
                return Err(one.key_error(message, Some(format!("add `{missing}`, 32 hexadecimal digits"))));
            }
        };
        let cipher = Cipher { key: digits(&key)?, iv: digits(&iv)? };
        Ok(Own { parameters: cipher.parameters(), sharding: None })
    }

    fn identity(&self, stream: &Stream) -> Option<Vec<u8>> {
        Cipher::of(&stream.parameters).map(|cipher| [cipher.key, cipher.iv].concat())
    }

    fn check(&self, stream: &Stream, twin: Option<&str>) -> Result<(), WorkloadError> {
        let id = &stream.id;
        let cipher = Cipher::of(&stream.parameters);
        if let Some(other) = twin {
            let help = "draw a new random `iv`, and a `key` of its own, for each stream: with the same pair, packets that begin \
                        alike encrypt alike, and whoever sees the ciphertexts can tell";
            let message = format!("stream `{id}` has the same key and iv as stream `{other}`");
            return Err(stream.error(KEY, message, help));
        }
        let encrypted = |step: &StreamStep| match step {
            StreamStep::Compute { kernel } if kernel == ID => vec![0],
            StreamStep::Parts(set) => {
                set.iter().filter(|part| part.kernel() == Some(ID)).map(|part| part.part).collect()
            }
            _ => Vec::new(),
        };
        let Some(step) = stream.steps.iter().position(|step| !encrypted(step).is_empty()) else { return Ok(()) };
        let mut parts: Vec<u32> = stream.steps.iter().flat_map(encrypted).collect();
        parts.sort_unstable();
        parts.dedup();
        if parts.len() > 1 {
            let message = format!("stream `{id}` encrypts {} parts of a packet with one key and iv", parts.len());
            let help = "make each part a stream of its own, with its own `key` and `iv`: with the same pair, parts that begin \
                        alike encrypt alike";
            return Err(stream.error(&format!("steps.{step}.compute"), message, help));
        }
        let mut odd = parts.iter().filter_map(|&part| stream.parts.get(part as usize));
        if let Some(odd) = odd.find(|part| !part.bytes.0.is_multiple_of(BLOCK as u64)) {
            let message =
                format!("part `{}` has {} bytes, no multiple of {BLOCK} as `{ID}` needs", odd.id, odd.bytes.0);
            let help = format!("write for example `bytes = \"{} B\"`", odd.bytes.0.next_multiple_of(BLOCK as u64));
            return Err(stream.error("parts", message, help));
        }
        if stream.on_miss == OnMiss::Skip {
            let message = format!("stream `{id}` encrypts in a chain, in which no packet can be left out");
            let help = "write `on_miss = \"finish\"` or `on_miss = \"stop\"`";
            return Err(stream.error("on_miss", message, help));
        }
        if !stream.packet.0.is_multiple_of(BLOCK as u64) {
            let value = format!("\"{} B\"", stream.packet.0);
            let fact = format!("is not a multiple of {BLOCK} bytes as `{ID}` needs");
            let help = format!("write for example `packet = \"{} B\"`", stream.packet.0.next_multiple_of(BLOCK as u64));
            return Err(stream.value_error("packet", &value, fact, help));
        }
        let before = |part: &u32| stream.parts.iter().take(*part as usize).map(|part| part.bytes.0).sum::<u64>();
        if let Some(offset) = parts.iter().map(before).find(|offset| !offset.is_multiple_of(BLOCK as u64)) {
            let message = format!(
                "the part that is encrypted begins at byte {offset} of the packet, no multiple of {BLOCK} as `{ID}` needs"
            );
            let help = "put it first, or make the parts before it multiples of 16 bytes: an input can end inside it";
            return Err(stream.error("parts", message, help));
        }
        if cipher.is_none() {
            let help = "add `key` and `iv`, 32 hexadecimal digits each, to the stream";
            let message = format!("stream `{id}` encrypts but has no key");
            return Err(stream.error(&format!("steps.{step}.compute"), message, help));
        }
        Ok(())
    }

    fn write(&self, stream: &Stream) -> Vec<(&'static str, String)> {
        let text = |bytes: [u8; BLOCK]| {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("\"{digits}\"")
        };
        Cipher::of(&stream.parameters).map_or_else(Vec::new, |it| vec![(KEY, text(it.key)), (IV, text(it.iv))])
    }
}

fn digits(field: &Field<'_>) -> Result<[u8; BLOCK], FileError> {
    let text = field.text("\"000102030405060708090a0b0c0d0e0f\"")?;
    let digits: Vec<u8> = text.chars().map_while(|c| c.to_digit(16)).filter_map(|d| u8::try_from(d).ok()).collect();
    if digits.len() != 2 * BLOCK || text.len() != 2 * BLOCK {
        let help = "write 16 bytes as hexadecimal digits, for example from `openssl rand -hex 16`".to_owned();
        return Err(field.error(format!("`{}` is not 32 hexadecimal digits", field.key()), Some(help)));
    }
    let mut bytes = [0; BLOCK];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(bytes)
}
