//! Views of a program's bytes as words.

/// Words that may hold any bits.
pub(crate) trait Word: Copy {}

impl Word for f32 {}
impl Word for i32 {}
impl Word for u32 {}
impl Word for u16 {}

/// All of `bytes` as words in the machine's order; `None` if they are not aligned, or end within a word.
pub(crate) fn words<T: Word>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: every bit pattern is a value of the types that are words.
    let (before, words, after) = unsafe { bytes.align_to() };
    (before.is_empty() && after.is_empty()).then_some(words)
}

/// Like [`words`], to be written.
pub(crate) fn words_mut<T: Word>(bytes: &mut [u8]) -> Option<&mut [T]> {
    // SAFETY: every bit pattern is a value of the types that are words, and of bytes.
    let (before, words, after) = unsafe { bytes.align_to_mut() };
    (before.is_empty() && after.is_empty()).then_some(words)
}

/// The bytes of `words`.
pub(crate) fn bytes<T: Word>(words: &[T]) -> &[u8] {
    // SAFETY: the types that are words have no padding, and every bit pattern is a value of bytes.
    let (before, bytes, after) = unsafe { words.align_to() };
    assert!(before.is_empty() && after.is_empty(), "bytes have no alignment");
    bytes
}

/// The bytes of `words`, to be written.
pub(crate) fn bytes_mut<T: Word>(words: &mut [T]) -> &mut [u8] {
    // SAFETY: the types that are words have no padding, and every bit pattern is a value of them and of bytes.
    let (before, bytes, after) = unsafe { words.align_to_mut() };
    assert!(before.is_empty() && after.is_empty(), "bytes have no alignment");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_whole_words_are_refused() {
        let mut numbers = [1u32, 2];
        assert_eq!(words::<u32>(bytes(&[1u32, 2])), Some(&[1, 2][..]));
        assert_eq!(words::<u32>(&bytes(&numbers)[..7]), None);
        assert_eq!(words::<u32>(&bytes(&numbers)[1..5]), None);
        words_mut::<u32>(bytes_mut(&mut numbers)).unwrap()[1] = 7;
        assert_eq!(numbers, [1, 7]);
    }
}
