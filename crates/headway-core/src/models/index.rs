//! Positions in the lists of a [`Machine`](crate::files::machine::Machine), each list's a type of its own.

use serde::{Deserialize, Serialize};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);
        impl $name {
            /// The position in the vector that this indexes.
            #[must_use]
            pub const fn at(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index!(/// A position in the machine's endpoints.
    EndpointId);
index!(/// A position in the machine's capacities.
    CapacityId);
index!(/// A position in the machine's engines.
    EngineId);
index!(/// A position in the machine's routes.
    RouteId);
