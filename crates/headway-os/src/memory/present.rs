//! Which pages of a process are there.

use super::page_bytes;

/// Whether more than half of `samples` pages of `memory`, evenly spread, are not there and will have to appear when they are
/// written; of memory without a whole page, the page of its middle. `false` where the kernel does not say.
///
/// Up to 0.9 us a sample. Pages that were swapped out, and untouched pages of a mapped file that are in no cache, count as
/// absent.
#[must_use]
pub fn mostly_absent(memory: &[u8], samples: usize) -> bool {
    let page = page_bytes();
    let start = memory.as_ptr().addr();
    let (first, last) = (start.div_ceil(page), (start + memory.len()) / page);
    let middle = (start + memory.len() / 2) / page;
    let (first, last) = if first < last { (first, last) } else { (middle, middle + 1) };
    let (pages, mut absent) = (last - first, 0);
    if memory.is_empty() || samples == 0 {
        return false;
    }
    let samples = samples.min(pages);
    for sample in 0..samples {
        // The middle of each share: the first page of an allocation is often there before the rest.
        let at = (first + pages * (2 * sample + 1) / (2 * samples)) * page;
        let mut present = 0u8;
        let address = memory.as_ptr().wrapping_add(at.wrapping_sub(start)).cast_mut().cast();
        // SAFETY: the page holds bytes of `memory`, which is mapped while it is borrowed; the kernel writes one byte a page.
        if unsafe { libc::mincore(address, page, &raw mut present) } != 0 {
            return false;
        }
        absent += usize::from(present & 1 == 0);
    }
    absent * 2 > samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;

    #[test]
    fn pages_are_absent_until_they_are_written() {
        let mut mapping = Mapping::anonymous(64 * page_bytes()).unwrap();
        assert!(mostly_absent(&mapping, 8));
        mapping.fill(1);
        assert!(!mostly_absent(&mapping, 8));
    }

    #[test]
    fn of_memory_without_a_whole_page_the_page_of_its_middle_is_looked_at() {
        let (page, mut mapping) = (page_bytes(), Mapping::anonymous(2 * page_bytes()).unwrap());
        mapping[0] = 1;
        assert!(!mostly_absent(&mapping[16..64], 1) && !mostly_absent(&mapping[page - 20..page + 10], 8));
        assert!(mostly_absent(&mapping[page + 16..page + 64], 1) && mostly_absent(&mapping[page - 10..page + 20], 8));
        assert!(!mostly_absent(&[0; 16], 8));
        assert!(!mostly_absent(&[], 8));
    }
}
