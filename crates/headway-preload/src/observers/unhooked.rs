//! Which libraries of the guest look driver functions up by themselves: `--verify` says it at exit.
//!
//! A library that asked the driver for a function keeps its address in its own memory. Where such a word is the driver's
//! own function for copies, calls by it are not seen. Memory is read by a system call, which cannot fault.

use std::ffi::{CStr, c_int, c_void};
use std::fs;

use crate::base::print::print;
use crate::base::symbols;

/// What is read at a time.
const PART: usize = 1 << 20;
/// A library's writable memory is not looked at beyond this.
const BYTES_MAX: usize = 256 << 20;
/// Libraries that may hold such addresses: the driver's own, and this one.
const MAY: [&str; 2] = ["libcuda.so", "libheadway_preload.so"];

/// A loaded object and its writable memory.
struct Object {
    name: String,
    parts: Vec<(usize, usize)>,
}

/// Whether the driver's library is in the process, in whichever linker namespace.
pub(crate) fn driver_is_loaded() -> bool {
    loaded() > 0
}

fn loaded() -> usize {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| drivers(&maps))
}

/// Prints what was found of the functions that copy.
pub(crate) fn say(copies: &[&'static CStr]) {
    let loaded = loaded();
    if let Some(library) = symbols::library() {
        libraries(library, copies);
    } else if loaded > 0 {
        print("headway: the driver's library is in a linker namespace of its own: copies are not seen\n");
    }
    if loaded > 1 {
        print(&format!(
            "headway: the driver's library is loaded {loaded} times, in linker namespaces of their own: copies by one of them are seen\n"
        ));
    }
}

fn libraries(library: *mut c_void, copies: &[&'static CStr]) {
    let known: Vec<(&CStr, usize)> = copies
        .iter()
        .map(|symbol| (*symbol, symbols::find(library, symbol) as usize))
        .filter(|(_, address)| *address != 0)
        .collect();
    let mut objects: Vec<Object> = Vec::new();
    // SAFETY: the function has the signature that the call wants and runs only while `objects` lives.
    unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut objects).cast()) };
    for object in objects.iter().filter(|object| MAY.iter().all(|name| !object.name.starts_with(name))) {
        let mut held: Vec<&CStr> = object.holds(&known);
        held.sort_unstable();
        held.dedup();
        if let Some(first) = held.first() {
            let (name, first) = (&object.name, first.to_string_lossy());
            print(&format!(
                "headway: {name} looks {} of the driver's functions for copies up by itself ({first}, for one): copies \
                 that it makes by them are not seen\n",
                held.len()
            ));
        }
    }
}

/// How often the driver's library is mapped from its beginning.
fn drivers(maps: &str) -> usize {
    let begins = |line: &&str| {
        let mut words = line.split_ascii_whitespace();
        let first = words.nth(2) == Some("00000000");
        first
            && words.nth(2).and_then(|path| path.rsplit('/').next()).is_some_and(|name| name.starts_with("libcuda.so"))
    };
    maps.lines().filter(begins).count()
}

unsafe extern "C" fn object(about: *mut libc::dl_phdr_info, _size: usize, objects: *mut c_void) -> c_int {
    // SAFETY: the caller gives a live object, whose headers are as many as it says, and what `say` gave.
    let (about, objects) = unsafe { (&*about, &mut *objects.cast::<Vec<Object>>()) };
    // SAFETY: the caller gives a live object, whose headers are as many as it says, and what `say` gave.
    let headers = unsafe { std::slice::from_raw_parts(about.dlpi_phdr, usize::from(about.dlpi_phnum)) };
    let name = if about.dlpi_name.is_null() {
        String::new()
    } else {
        // SAFETY: the loader's names end in zero.
        unsafe { CStr::from_ptr(about.dlpi_name) }.to_string_lossy().into_owned()
    };
    let name = name.rsplit('/').next().unwrap_or_default();
    let name = if name.is_empty() { "the program itself".to_owned() } else { name.to_owned() };
    let writable = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0;
    let part =
        |header: &libc::Elf64_Phdr| (about.dlpi_addr as usize + header.p_vaddr as usize, header.p_memsz as usize);
    objects.push(Object { name, parts: headers.iter().filter(writable).map(part).collect() });
    0
}

impl Object {
    fn holds<'a>(&self, known: &[(&'a CStr, usize)]) -> Vec<&'a CStr> {
        const WORD: usize = size_of::<usize>();
        let (mut held, mut scratch) = (Vec::new(), vec![0usize; PART / WORD]);
        let (lowest, highest) =
            known.iter().fold((usize::MAX, 0), |(low, high), (_, address)| (low.min(*address), high.max(*address)));
        for (start, bytes) in &self.parts {
            let (mut at, end) = (start.next_multiple_of(WORD), start + (*bytes).min(BYTES_MAX));
            while at + WORD <= end {
                let local =
                    libc::iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: PART.min(end - at) / WORD * WORD };
                let remote = libc::iovec { iov_base: at as *mut c_void, iov_len: local.iov_len };
                // SAFETY: the call checks the addresses that it reads and writes no more than `scratch` holds.
                let read =
                    unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
                let Some(words) = usize::try_from(read).ok().map(|read| read / WORD).filter(|words| *words > 0) else {
                    break;
                };
                let near = scratch[..words].iter().filter(|word| (lowest..=highest).contains(*word));
                held.extend(
                    near.filter_map(|word| known.iter().find(|(_, address)| address == word).map(|(name, _)| *name)),
                );
                at += words * WORD;
            }
        }
        held
    }
}
