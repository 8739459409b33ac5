//! Functions of shared libraries that a user names.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `void f(const void *in, void *out, uint64_t bytes)`.
type Function = unsafe extern "C" fn(*const c_void, *mut c_void, u64);

/// A function of a shared library that reads bytes and writes others. Its library stays loaded until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct BytesFunction(Function);

impl BytesFunction {
    /// Loads `library`, which runs what it does when it is loaded, and finds `function` in it.
    ///
    /// Whoever names the library promises that the function is `void f(const void *in, void *out, uint64_t bytes)`, which any
    /// thread may call, and that it stays within the bytes that it is given.
    ///
    /// # Errors
    /// What the loader says.
    pub fn open(library: &Path, function: &str) -> Result<Self, String> {
        let zero = |_| "its name holds a zero".to_owned();
        let path = CString::new(library.as_os_str().as_bytes()).map_err(zero)?;
        let name = CString::new(function).map_err(zero)?;
        // SAFETY: the path ends in zero; that what the library does when it is loaded is sound is the promise of whoever names it.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(loader_text());
        }
        // SAFETY: the handle is that of a library, and the name ends in zero.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if found.is_null() {
            return Err(loader_text());
        }
        // SAFETY: that the symbol is a function of this type is the promise of whoever names it. The library is never unloaded.
        Ok(Self(unsafe { std::mem::transmute::<*mut c_void, Function>(found) }))
    }

    /// Lets it read `input` and write `output`.
    pub fn call(&self, input: &[u8], output: &mut [u8]) {
        // SAFETY: both are valid for their lengths during the call, of which the function was promised to know.
        unsafe { (self.0)(input.as_ptr().cast(), output.as_mut_ptr().cast(), input.len() as u64) };
    }
}

/// What the loader says of its last failure on this thread.
fn loader_text() -> String {
    // SAFETY: `dlerror` gives a text that ends in zero, valid until this thread's next call of the loader, or nothing.
    let text: *const c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: it is not null, and ends in zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_and_a_function_that_it_lacks_are_told() {
        let missing = BytesFunction::open(Path::new("/nowhere/libnone.so"), "f").unwrap_err();
        assert!(missing.contains("libnone.so"), "{missing}");
        let lacking = BytesFunction::open(Path::new("libc.so.6"), "no_such_function_of_c").unwrap_err();
        assert!(lacking.contains("no_such_function_of_c"), "{lacking}");
        assert!(BytesFunction::open(Path::new("a\0b"), "f").is_err());
    }

    #[test]
    fn a_function_reads_the_input_and_writes_the_output() {
        // `swab(from, to, bytes)` has the same shape but for the order of its arguments' constness.
        let swab = BytesFunction::open(Path::new("libc.so.6"), "swab").unwrap();
        let mut output = [0; 4];
        swab.call(&[1, 2, 3, 4], &mut output);
        assert_eq!(output, [2, 1, 4, 3]);
    }
}
