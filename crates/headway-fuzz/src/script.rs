//! An input as what somebody does, byte by byte.

pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl Script<'_> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Numbers that are missing are 0.
    pub(crate) fn long(&mut self) -> u64 {
        let mut bytes = [0; 8];
        bytes.fill_with(|| self.byte().unwrap_or(0));
        u64::from_le_bytes(bytes)
    }

    pub(crate) fn small(&mut self, below: u32) -> u32 {
        u32::from(self.byte().unwrap_or(0)) % below
    }

    /// As many bytes as the next one says.
    pub(crate) fn text(&mut self) -> Vec<u8> {
        let count = usize::from(self.byte().unwrap_or(0));
        (0..count).map_while(|_| self.byte()).collect()
    }
}
