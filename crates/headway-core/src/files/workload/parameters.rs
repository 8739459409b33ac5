//! What the keys of an application say to the works of a stream's steps.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Named values of a stream for the works of its steps, in the order in which they were set. Nothing but those works knows what
/// they mean.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Parameters(Vec<(String, Value)>);

#[derive(Clone, PartialEq, Eq)]
enum Value {
    Number(u64),
    Secret(Vec<u8>),
}

impl Parameters {
    /// These parameters and a number.
    #[must_use]
    pub fn with_number(self, name: &str, number: u64) -> Self {
        self.with(name, Value::Number(number))
    }

    /// These parameters and bytes that no log and no message may hold.
    #[must_use]
    pub fn with_secret(self, name: &str, bytes: &[u8]) -> Self {
        self.with(name, Value::Secret(bytes.to_vec()))
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
        self
    }

    /// These parameters and all of `others`.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        others.0.into_iter().fold(self, |all, (name, value)| all.with(&name, value))
    }

    /// The number called `name`.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.0.iter().find_map(|(known, value)| match value {
            Value::Number(number) if known == name => Some(*number),
            _ => None,
        })
    }

    /// The secret bytes called `name`.
    #[must_use]
    pub fn secret(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find_map(|(known, value)| match value {
            Value::Secret(bytes) if known == name => Some(bytes.as_slice()),
            _ => None,
        })
    }

    fn numbers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().filter_map(|(name, value)| match value {
            Value::Number(number) => Some((name.as_str(), *number)),
            Value::Secret(_) => None,
        })
    }
}

impl fmt::Debug for Parameters {
    /// Secrets do not belong in logs and panics.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.numbers()).finish_non_exhaustive()
    }
}

impl Serialize for Parameters {
    /// A map of the numbers. Secrets are left out.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.numbers())
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Numbers)
    }
}

struct Numbers;

impl<'de> Visitor<'de> for Numbers {
    type Value = Parameters;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of names and numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
        let mut parameters = Parameters::default();
        while let Some((name, number)) = map.next_entry::<String, u64>()? {
            parameters = parameters.with_number(&name, number);
        }
        Ok(parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_order_and_the_last_value_holds() {
        let parameters =
            Parameters::default().with_number("width", 200).with_number("cameras", 3).with_number("width", 7);
        let text = serde_json::to_string(&parameters).unwrap();
        assert_eq!(text, r#"{"width":7,"cameras":3}"#);
        assert_eq!(serde_json::from_str::<Parameters>(&text).unwrap(), parameters);
        assert_eq!((parameters.number("width"), parameters.number("height")), (Some(7), None));
    }

    #[test]
    fn secrets_are_neither_logged_nor_shown() {
        let parameters = Parameters::default().with_secret("key", b"0123456789abcdef").with_number("a", 1);
        assert_eq!(parameters.secret("key"), Some(&b"0123456789abcdef"[..]));
        assert_eq!(parameters.number("key"), None);
        assert_eq!(serde_json::to_string(&parameters).unwrap(), r#"{"a":1}"#);
        let shown = format!("{parameters:?}");
        assert!(!shown.contains("key") && !shown.contains("48"), "{shown}");
    }
}
