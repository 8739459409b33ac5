//! Finding Vulkan at run time: the system's loader, else the NVIDIA driver's own library.
//!
//! The driver's library speaks Vulkan without the loader, through the interface that the loader itself uses ("Vulkan Loader,
//! Driver Interface"); so a machine without the loader's package still has windows.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ash::vk;
use libloading::Library;

use crate::driver::table::loader_text;

/// Where Vulkan may come from, in the order of trying.
pub(super) const SOURCES: [LibrarySource; 3] = [
    LibrarySource { library: "libvulkan.so.1", driver: false },
    LibrarySource { library: "libGLX_nvidia.so.0", driver: true },
    LibrarySource { library: "libEGL_nvidia.so.0", driver: true },
];

/// The version of the interface between loader and driver: the first that knows Vulkan 1.1.
const DRIVER_INTERFACE: u32 = 5;

/// Folders where the loader looks for drivers' manifests.
const MANIFEST_FOLDERS: [&str; 3] = ["/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d"];
/// Variables that name manifests instead.
const MANIFEST_VARIABLES: [&str; 3] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"];

/// One library.
#[derive(Clone, Copy, Debug)]
pub(super) struct LibrarySource {
    pub(super) library: &'static str,
    /// Whether it is the driver's own, not the loader.
    driver: bool,
}

impl LibrarySource {
    /// Loads it for the rest of the process, or says why not.
    pub(super) fn open(self) -> Result<ash::Entry, String> {
        // SAFETY: loading runs the library's initialisers; it is the system's Vulkan loader or the NVIDIA driver, trusted like
        // the program itself.
        let library = unsafe { Library::new(self.library) }.map_err(|error| loader_text(&error))?;
        let name: &[u8] = if self.driver { b"vk_icdGetInstanceProcAddr\0" } else { b"vkGetInstanceProcAddr\0" };
        if self.driver {
            negotiate(&library)?;
        }
        // SAFETY: both functions have this signature.
        let found = unsafe { library.get::<vk::PFN_vkGetInstanceProcAddr>(name) };
        let get_instance_proc_addr = *found.map_err(|error| loader_text(&error))?;
        // Drivers have threads and exit handlers of their own: never unloaded.
        std::mem::forget(library);
        // SAFETY: the function is Vulkan's, and stays loaded.
        Ok(unsafe { ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr }) })
    }
}

/// Agrees with the driver's library on the interface, as the loader does first of all.
fn negotiate(library: &Library) -> Result<(), String> {
    const NAME: &str = "vk_icdNegotiateLoaderICDInterfaceVersion";
    type Negotiate = unsafe extern "system" fn(*mut u32) -> vk::Result;
    let mut version = DRIVER_INTERFACE;
    // SAFETY: the function of this name has this signature; `version` is valid for it to read and write.
    let result = unsafe {
        let negotiate =
            library.get::<Negotiate>(format!("{NAME}\0").as_bytes()).map_err(|error| loader_text(&error))?;
        negotiate(&raw mut version)
    };
    if result != vk::Result::SUCCESS { Err(format!("{NAME} failed with {result:?}")) } else { Ok(()) }
}

/// What the loader's search for drivers must have met, as far as it can be seen from outside: manifests, and what happens when
/// the libraries that they name are loaded.
pub(super) fn manifests() -> String {
    let named = MANIFEST_VARIABLES.iter().filter_map(|name| Some((name, std::env::var(name).ok()?)));
    let mut text: String = named.map(|(name, value)| format!("${name} = {value}; ")).collect();
    let found: Vec<PathBuf> = MANIFEST_FOLDERS.iter().flat_map(|folder| manifests_in(Path::new(folder))).collect();
    if found.is_empty() {
        let _ = write!(text, "no manifest in {}", MANIFEST_FOLDERS.join(", "));
    }
    for path in found {
        let library = std::fs::read_to_string(&path).ok().and_then(|json| library_path(&json));
        let Some(library) = library else {
            let _ = write!(text, "{} names no library; ", path.display());
            continue;
        };
        // SAFETY: as in `LibrarySource::open`: what the loader loads as well.
        match unsafe { Library::new(&library) } {
            Ok(library_loaded) => {
                std::mem::forget(library_loaded);
                let _ = write!(text, "{} names {library}, which loads; ", path.display());
            }
            Err(error) => {
                let _ = write!(text, "{} names {library}: {}; ", path.display(), loader_text(&error));
            }
        }
    }
    text.trim_end_matches("; ").to_owned()
}

fn manifests_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
    found.sort();
    found
}

/// The text behind `"library_path":` of a manifest.
fn library_path(json: &str) -> Option<String> {
    let rest = json.split_once("\"library_path\"")?.1;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    Some(rest.split_once('"')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_names_its_library() {
        let json = r#"{ "file_format_version" : "1.0.1", "ICD": { "library_path" : "libGLX_nvidia.so.0", "api_version" : "1.4.312" } }"#;
        assert_eq!(library_path(json).as_deref(), Some("libGLX_nvidia.so.0"));
        assert_eq!(library_path(r#"{ "ICD": {} }"#), None);
        assert_eq!(library_path(r#"{ "library_path": 5 }"#), None);
    }

    #[test]
    fn a_library_that_is_not_there_is_a_text() {
        let error = LibrarySource { library: "libno-such-vulkan.so.1", driver: false }.open().err().unwrap();
        assert!(error.contains("libno-such-vulkan.so.1"), "{error}");
    }

    #[test]
    fn a_folder_without_manifests_gives_none() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("b.json"), "").unwrap();
        std::fs::write(folder.path().join("a.json"), "").unwrap();
        std::fs::write(folder.path().join("c.txt"), "").unwrap();
        let found = manifests_in(folder.path());
        assert_eq!(found, [folder.path().join("a.json"), folder.path().join("b.json")]);
        assert!(manifests_in(Path::new("/no/such/folder")).is_empty());
    }
}
