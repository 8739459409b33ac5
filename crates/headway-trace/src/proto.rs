//! The few forms of protocol buffers that a trace needs (protobuf.dev, "Encoding").

/// A message under construction.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// The encoded message.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// An unsigned field of any varint type.
    pub(crate) fn number(&mut self, field: u32, value: u64) -> &mut Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    /// A field of type `int64`: negative numbers take ten bytes.
    pub(crate) fn signed(&mut self, field: u32, value: i64) -> &mut Self {
        self.number(field, value.cast_unsigned())
    }

    /// A field of type `fixed64`.
    pub(crate) fn fixed64(&mut self, field: u32, value: u64) -> &mut Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A field of type `string` or `bytes`, or an encoded message.
    pub(crate) fn text(&mut self, field: u32, value: impl AsRef<[u8]>) -> &mut Self {
        let value = value.as_ref();
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// A message inside this one.
    pub(crate) fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self(Vec::with_capacity(64));
        write(&mut inner);
        self.text(field, inner.0)
    }

    /// The fields of another message, behind those already here.
    pub(crate) fn append(&mut self, other: &Self) -> &mut Self {
        self.0.extend(&other.0);
        self
    }

    fn key(&mut self, field: u32, wire: u64) {
        self.varint(u64::from(field) << 3 | wire);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_bytes_of_the_encoding_guide() {
        let mut message = Message::default();
        message.number(1, 150).text(2, "testing").message(3, |inner| {
            inner.number(1, 150);
        });
        let expected = [&[0x08, 0x96, 0x01, 0x12, 0x07][..], b"testing", &[0x1a, 0x03, 0x08, 0x96, 0x01]].concat();
        assert_eq!(message.bytes(), expected);
        let mut negative = Message::default();
        negative.signed(1, -2).fixed64(2, 1);
        let expected = [0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x11, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(negative.bytes(), expected);
    }
}
