//! The scenarios of the paper's evaluation and their codes, such as `AEdG,2MB` (`elliott-2013`, 5, "Results").

use std::fmt;
use std::str::FromStr;

use headway_core::units::Bytes;

/// What decides which operation an engine serves next, and how many tokens a GPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArbitrationScheme {
    /// `E`: two tokens per GPU and a lock per engine.
    EngineLocks,
    /// `e`: one token per GPU, which owns it.
    TokenOnly,
    /// `T`: no tokens and no locks; the driver serves operations in the order in which they come.
    Driver,
}

/// How a peer copy takes the locks of two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// `D`: a dynamic group lock.
    Group,
    /// `d`: one after the other in a fixed order.
    Nested,
    /// `B`, which the paper does not have: a group lock whose lock held idle serves single chunks that end before the other frees.
    Backfill,
}

/// How state gets to another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// `G`: copied from GPU to GPU.
    Peer,
    /// `g`: copied out to system memory after every job, and in again when the GPU changes.
    System,
}

/// One configuration of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// `A` or `a`: whether a FIFO is chosen by the estimated completion, migration included.
    pub affinity: bool,
    /// `E`, `e` or `T`.
    pub arbitration: ArbitrationScheme,
    /// `D` or `d`.
    pub taking: Taking,
    /// `G` or `g`.
    pub migration: Migration,
    /// Largest piece of a copy; `None` (`X`) copies whole.
    pub chunk: Option<Bytes>,
}

/// The chunk sizes of the paper, with how the codes write them. `MB` is 2^20 bytes here; the paper does not say.
const CHUNKS: [(&str, Option<Bytes>); 3] = [("2MB", Some(Bytes(2 << 20))), ("4MB", Some(Bytes(4 << 20))), ("X", None)];

/// A text that is no scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{code}` is no scenario; write for example `AEdG,2MB`, `aedg,X` or `TG,4MB`")]
pub struct NoScenario {
    /// What was written.
    pub code: String,
}

impl Scenario {
    /// All 48 codes of the paper, then the six of the driver.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for arbitration in [ArbitrationScheme::EngineLocks, ArbitrationScheme::TokenOnly] {
            for affinity in [true, false] {
                for taking in [Taking::Group, Taking::Nested] {
                    for migration in [Migration::Peer, Migration::System] {
                        for (_, chunk) in CHUNKS {
                            all.push(Self { affinity, arbitration, taking, migration, chunk });
                        }
                    }
                }
            }
        }
        for migration in [Migration::Peer, Migration::System] {
            let (affinity, arbitration, taking) = (false, ArbitrationScheme::Driver, Taking::Nested);
            all.extend(CHUNKS.map(|(_, chunk)| Self { affinity, arbitration, taking, migration, chunk }));
        }
        all
    }

    /// The scenarios that differ in what they do: 30 of the 48 codes, and the six of the driver.
    #[must_use]
    pub fn distinct() -> Vec<Self> {
        Self::all().into_iter().filter(|scenario| scenario.canonical() == *scenario).collect()
    }

    /// The scenario that does the same and stands for it: without engine locks or without peer copies there is nothing
    /// that `D` could do differently from `d`.
    #[must_use]
    pub fn canonical(self) -> Self {
        let differs = self.arbitration == ArbitrationScheme::EngineLocks && self.migration == Migration::Peer;
        Self { taking: if differs { self.taking } else { Taking::Nested }, ..self }
    }

    /// Tokens per GPU; `None` where the driver arbitrates.
    #[must_use]
    pub const fn tokens_per_gpu(self) -> Option<u32> {
        match self.arbitration {
            ArbitrationScheme::EngineLocks => Some(2),
            ArbitrationScheme::TokenOnly => Some(1),
            ArbitrationScheme::Driver => None,
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let migration = if self.migration == Migration::Peer { 'G' } else { 'g' };
        if self.arbitration == ArbitrationScheme::Driver {
            write!(f, "T{migration},")?;
        } else {
            let affinity = if self.affinity { 'A' } else { 'a' };
            let locks = if self.arbitration == ArbitrationScheme::EngineLocks { 'E' } else { 'e' };
            let taking = match self.taking {
                Taking::Group => 'D',
                Taking::Nested => 'd',
                Taking::Backfill => 'B',
            };
            write!(f, "{affinity}{locks}{taking}{migration},")?;
        }
        match CHUNKS.iter().find(|(_, chunk)| *chunk == self.chunk) {
            Some((text, _)) => f.write_str(text),
            None => match self.chunk.unwrap_or_default().0 {
                bytes if bytes.is_multiple_of(1 << 20) => write!(f, "{}MB", bytes >> 20),
                bytes => write!(f, "{bytes}B"),
            },
        }
    }
}

impl FromStr for Scenario {
    type Err = NoScenario;

    /// Reads what [`fmt::Display`] writes for the paper's chunk sizes; `XMB` is read as `X`.
    fn from_str(code: &str) -> Result<Self, NoScenario> {
        let no = || NoScenario { code: code.to_owned() };
        let (letters, size) = code.split_once(',').ok_or_else(no)?;
        let size = if size == "XMB" { "X" } else { size };
        let (_, chunk) = *CHUNKS.iter().find(|(text, _)| *text == size).ok_or_else(no)?;
        let migration = |letter| match letter {
            'G' => Ok(Migration::Peer),
            'g' => Ok(Migration::System),
            _ => Err(no()),
        };
        let pick = |letter, is: char, is_not: char| match letter {
            _ if letter == is => Ok(true),
            _ if letter == is_not => Ok(false),
            _ => Err(no()),
        };
        match *letters.chars().collect::<Vec<_>>() {
            ['T', last] => Ok(Self {
                affinity: false,
                arbitration: ArbitrationScheme::Driver,
                taking: Taking::Nested,
                migration: migration(last)?,
                chunk,
            }),
            [a, e, d, g] => Ok(Self {
                affinity: pick(a, 'A', 'a')?,
                arbitration: if pick(e, 'E', 'e')? {
                    ArbitrationScheme::EngineLocks
                } else {
                    ArbitrationScheme::TokenOnly
                },
                taking: match d {
                    'D' => Taking::Group,
                    'd' => Taking::Nested,
                    'B' => Taking::Backfill,
                    _ => return Err(no()),
                },
                migration: migration(g)?,
                chunk,
            }),
            _ => Err(no()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_48_codes_and_6_of_the_driver_of_which_36_differ() {
        let all = Scenario::all();
        assert_eq!((all.len(), Scenario::distinct().len()), (54, 36));
        let mut codes: Vec<_> = all.iter().map(ToString::to_string).collect();
        codes.sort();
        codes.dedup();
        assert_eq!(codes.len(), 54);
        let locked = |s: &&Scenario| s.arbitration == ArbitrationScheme::EngineLocks;
        assert_eq!(Scenario::distinct().iter().filter(locked).count(), 18);
    }

    #[test]
    fn a_code_names_its_scenario_and_back() {
        for scenario in Scenario::all() {
            assert_eq!(scenario.to_string().parse(), Ok(scenario));
        }
        assert_eq!("aedg,XMB".parse::<Scenario>().unwrap().to_string(), "aedg,X");
        for wrong in ["", "AEdG", "AEdG,3MB", "AExG,2MB", "T,2MB", "AEdG2,2MB", "XEdG,2MB"] {
            assert!(wrong.parse::<Scenario>().is_err(), "{wrong}");
        }
    }
}
