//! What `headway exec` tells the library that it puts in front of an unmodified program (a *guest*).
//!
//! The command line writes [`GuestOptions`] into one environment variable, [`VARIABLE`]; the preloaded library reads it.

use std::fmt;
use std::str::FromStr;

use crate::units::Bytes;

/// The environment variable that carries the options. Without it the preloaded library passes every call on.
pub const VARIABLE: &str = "HEADWAY_GUEST";

/// The environment variable with the number of the process that was started as a guest, other than those that it starts.
pub const FIRST_VARIABLE: &str = "HEADWAY_GUEST_FIRST";

/// When small copies out of a GPU are made by a kernel in their own stream, instead of queueing at the copy engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsideMode {
    #[default]
    Never,
    /// While a bulk copy of this program, or of another guest of the same user, is on the copy engine.
    Auto,
    /// Always, for every size that a kernel copies.
    Always,
}

/// The class of a guest's copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestClass {
    /// Each copy is as its CUDA stream is: bulk while more than a chunk is under way there.
    #[default]
    ByStream,
    /// Whatever their sizes: they are queued in chunks, none goes aside, and other guests hear of each.
    Bulk,
    /// Whatever their sizes: they are queued whole, and no other guest makes way for them.
    Normal,
}

/// What the preloaded library does with a guest's copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestOptions {
    /// Whether large copies from and to ordinary memory go through pinned buffers and several threads.
    pub fast: bool,
    /// Whether that is done whatever the figures say; without `fast` it means nothing.
    pub always_fast: bool,
    /// Small copies out of a GPU.
    pub aside: AsideMode,
    /// The chunk in which bulk copies out of a GPU are queued, so that other streams get in between; `None` = whole.
    pub chunk: Option<Bytes>,
    /// Copies out of a GPU.
    pub class: GuestClass,
    /// Whether copies are counted, and the counts printed when the guest ends.
    pub stats: bool,
    /// Whether places in the program whose copies lose time are printed when the guest ends.
    pub lint: bool,
    /// Whether accelerated copies are made again by the driver and compared.
    pub verify: bool,
    /// Whether the guest neither tells other guests of its bulk copies nor asks for theirs.
    pub alone: bool,
    /// How many bytes of the program's own memory may be kept pinned, so that copies of it need no thread; 0 = none.
    pub pin_once: Bytes,
    /// How many launches of kernels a context may have under way; `None` = as many as the driver takes.
    pub depth: Option<u32>,
    /// Whether nothing that was learnt of copies is read from the user's cache folder, or kept there.
    pub no_cache: bool,
}

/// The smallest chunk that is accepted: below it a copy engine spends most of its time on set-up.
pub const CHUNK_MIN: Bytes = Bytes(64 << 10);

/// The largest depth that is accepted: about as many launches the driver queues itself.
pub const DEPTH_MAX: u32 = 1024;

/// A text that is not what [`GuestOptions`] writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` in ${VARIABLE} is not an option of this version of Headway; start the program with `headway exec`")]
pub struct GuestOptionError {
    pub word: String,
}

impl fmt::Display for GuestOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.aside {
            AsideMode::Never => "aside=never",
            AsideMode::Auto => "aside=auto",
            AsideMode::Always => "aside=always",
        })?;
        if let Some(chunk) = self.chunk {
            write!(f, ",chunk={}", chunk.0)?;
        }
        f.write_str(match self.class {
            GuestClass::ByStream => "",
            GuestClass::Bulk => ",flow=bulk",
            GuestClass::Normal => ",flow=normal",
        })?;
        f.write_str(match (self.fast, self.always_fast) {
            (false, _) => "",
            (true, false) => ",fast",
            (true, true) => ",fast=always",
        })?;
        if self.pin_once != Bytes(0) {
            write!(f, ",pin-once={}", self.pin_once.0)?;
        }
        if let Some(depth) = self.depth {
            write!(f, ",depth={depth}")?;
        }
        f.write_str(if self.stats { ",stats" } else { "" })?;
        f.write_str(if self.lint { ",lint" } else { "" })?;
        f.write_str(if self.verify { ",verify" } else { "" })?;
        f.write_str(if self.alone { ",alone" } else { "" })?;
        f.write_str(if self.no_cache { ",no-cache" } else { "" })
    }
}

impl FromStr for GuestOptions {
    type Err = GuestOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut options = Self::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let unknown = || GuestOptionError { word: word.to_owned() };
            match word.split_once('=').unwrap_or((word, "")) {
                ("aside", "never") => options.aside = AsideMode::Never,
                ("aside", "auto") => options.aside = AsideMode::Auto,
                ("aside", "always") => options.aside = AsideMode::Always,
                ("chunk", bytes) => {
                    let chunk = bytes.parse().ok().filter(|bytes| *bytes >= CHUNK_MIN.0).ok_or_else(unknown)?;
                    options.chunk = Some(Bytes(chunk));
                }
                ("flow", "bulk") => options.class = GuestClass::Bulk,
                ("flow", "normal") => options.class = GuestClass::Normal,
                ("fast", "") => options.fast = true,
                ("fast", "always") => (options.fast, options.always_fast) = (true, true),
                ("pin-once", bytes) => options.pin_once = Bytes(bytes.parse().map_err(|_| unknown())?),
                ("depth", number) => {
                    let depth = number.parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
                    options.depth = Some(depth.ok_or_else(unknown)?);
                }
                ("stats", "") => options.stats = true,
                ("lint", "") => options.lint = true,
                ("verify", "") => options.verify = true,
                ("alone", "") => options.alone = true,
                ("no-cache", "") => options.no_cache = true,
                _ => return Err(unknown()),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_environment() {
        for aside in [AsideMode::Never, AsideMode::Auto, AsideMode::Always] {
            for chunk in [None, Some(CHUNK_MIN), Some(Bytes(4 << 20))] {
                for (bits, class) in
                    (0..128).zip([GuestClass::ByStream, GuestClass::Bulk, GuestClass::Normal].into_iter().cycle())
                {
                    let [fast, stats, alone, lint, verify, no_cache, always] =
                        [1, 2, 4, 8, 16, 32, 64].map(|bit| bits & bit != 0);
                    let always_fast = fast && always;
                    let pin_once = Bytes(if stats { 5 << 30 } else { 0 });
                    let depth = lint.then_some(1 + bits);
                    let options = GuestOptions {
                        fast,
                        always_fast,
                        aside,
                        chunk,
                        class,
                        pin_once,
                        stats,
                        lint,
                        verify,
                        alone,
                        depth,
                        no_cache,
                    };
                    assert_eq!(options.to_string().parse(), Ok(options));
                }
            }
        }
    }

    #[test]
    fn unknown_words_tiny_chunks_and_impossible_depths_are_refused() {
        for text in [
            "depth",
            "depth=0",
            "depth=1025",
            "depth=-1",
            "aside=sometimes",
            "chunk=1",
            "chunk=",
            "faster",
            "fast=never",
            "flow=urgent",
            "stats=1",
            "pin-once",
        ] {
            assert_eq!(text.parse::<GuestOptions>(), Err(GuestOptionError { word: text.to_owned() }));
        }
    }
}
