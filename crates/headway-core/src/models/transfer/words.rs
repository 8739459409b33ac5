//! The words that files, tables and commands use.

use std::fmt;

use super::{BackgroundLoad, Direction, HostMemory, ResidentShape, Statistic, Stores, WindowMapping};

macro_rules! words {
    ($($name:ident: $($variant:ident = $word:literal),+;)+) => {$(
        impl $name {
            /// Every value with its word, in order.
            pub const WORDS: &[(&'static str, Self)] = &[$(($word, Self::$variant)),+];

            /// The word that files and tables use.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    )+};
}

words! {
    Direction: H2d = "h2d", D2h = "d2h", Peer = "peer";
    WindowMapping: Gdrdrv = "gdrdrv", Vulkan = "vulkan", DmaBuf = "dma-buf";
    ResidentShape: Hub = "hub", Gpc = "gpc", Gpc4 = "gpc4";
    HostMemory: Pinned = "pinned", Touched = "warm", Untouched = "fresh", File = "file";
    BackgroundLoad: Alone = "alone", BulkSame = "bulk-same", BulkOpposite = "bulk-opposite", BulkBoth = "bulk-both";
    Stores: Plain = "plain", NonTemporal = "non-temporal", Demoted = "demoted";
    Statistic: Median = "median", P99 = "p99", Max = "max";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_serialised_values() {
        for (word, mapping) in WindowMapping::WORDS {
            assert_eq!(serde_json::to_value(mapping).expect("plain data"), *word);
        }
        for (word, shape) in ResidentShape::WORDS {
            assert_eq!(serde_json::to_value(shape).expect("plain data"), *word);
        }
        for (word, memory) in HostMemory::WORDS {
            assert_eq!(serde_json::to_value(memory).expect("plain data"), *word);
        }
        for (word, load) in BackgroundLoad::WORDS {
            assert_eq!(serde_json::to_value(load).expect("plain data"), *word);
        }
        for (word, stores) in Stores::WORDS {
            assert_eq!(serde_json::to_value(stores).expect("plain data"), *word);
        }
    }
}
