//! Files that a workload names for kernels of its own: modules, and libraries with their CPU forms.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use headway_core::files::error::Loaded;
use headway_core::files::workload::{CpuFunction, Workload, WorkloadModule};
use headway_core::units::Bytes;
use headway_device::work::Library;
use headway_kernels::module::{CpuForm, WithModules, check};
use headway_os::function::BytesFunction;
use headway_os::input::open_again;

use crate::Error;
use crate::error::error_at;

/// Bytes of a module that is read.
const MODULE_MAX: Bytes = Bytes(256 << 20);

/// Reads the modules that `workload` names, relative to `folder`, and finds its libraries.
///
/// # Errors
/// `ErrorKind::File` at the name of a file that is not there, and at what a module does not hold.
pub(crate) fn read(workload: &mut Loaded<Workload>, folder: &Path) -> Result<(), Error> {
    let mut known: BTreeMap<PathBuf, Arc<[u8]>> = BTreeMap::new();
    let mut found = Vec::new();
    for module in workload.value.modules() {
        let kernel = module.kernel;
        let error = |key: &str, fact: String, help: String| {
            error_at(workload, &format!("{}.{key}", module.place), &fact, Some(help))
        };
        let path = folder.join(&kernel.module);
        let code = match known.get(&path) {
            Some(code) => Arc::clone(code),
            None => {
                let code = bytes(&path).map_err(|why| {
                    let help = "name a file with PTX text, a cubin or a fatbin, relative to the workload file";
                    error("module", format!("module `{}` cannot be read: {why}", path.display()), help.to_owned())
                })?;
                known.entry(path).or_insert(code).clone()
            }
        };
        check(kernel, &code).map_err(|fault| error(fault.key, fault.fact, fault.help))?;
        let library = match &kernel.cpu {
            None => None,
            // A name without a folder would be looked for where the system has its libraries.
            Some(cpu) => {
                let path = folder.join(&cpu.library);
                let help = "build it, for example `cc -shared -fPIC -O2 -o libKERNEL.so KERNEL.c`, or leave `cpu` out";
                let found = path.canonicalize().map_err(|why| {
                    let fact = format!("library `{}` is not there: {why}", path.display());
                    error("cpu.library", fact, help.to_owned())
                })?;
                // The loader would wait at a pipe for ever.
                if !found.is_file() {
                    let fact = format!("library `{}` is no file", path.display());
                    return Err(error("cpu.library", fact, help.to_owned()));
                }
                Some(found)
            }
        };
        found.push(FoundFiles { code, library });
    }
    for (kernel, FoundFiles { code, library }) in workload.value.modules_mut().zip(found) {
        kernel.code = Some(code);
        if let (Some(cpu), Some(library)) = (&mut kernel.cpu, library) {
            cpu.file = Some(library);
        }
    }
    Ok(())
}

/// The files of one kernel.
struct FoundFiles {
    code: Arc<[u8]>,
    library: Option<PathBuf>,
}

fn bytes(path: &Path) -> Result<Arc<[u8]>, String> {
    let mut bytes = Vec::new();
    let file = open_again(path).map_err(|error| error.to_string())?;
    file.take(MODULE_MAX.0 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MODULE_MAX.0 {
        return Err(format!("it has more than {MODULE_MAX}"));
    }
    Ok(bytes.into())
}

/// `others` with the kernels of the modules of `workload`.
///
/// # Errors
/// `ErrorKind::File` for modules that nobody has read, and for CPU forms that cannot be loaded.
pub(crate) fn library(workload: &Loaded<Workload>, others: &Arc<dyn Library>) -> Result<Arc<dyn Library>, Error> {
    let all = workload.value.modules();
    if all.is_empty() {
        return Ok(Arc::clone(others));
    }
    for WorkloadModule { kernel, place, .. } in all {
        let is_found = kernel.cpu.as_ref().is_none_or(|cpu| cpu.file.is_some());
        if kernel.code.is_none() || !is_found {
            let fact = format!("the files of kernel `{}` were not read", kernel.entry);
            let help = "open the workload by the name of its file, which these names are relative to";
            return Err(error_at(workload, &format!("{place}.module"), &fact, Some(help.to_owned())));
        }
    }
    let mut rooms: BTreeMap<PathBuf, Arc<Mutex<CallRoom>>> = BTreeMap::new();
    let modules = WithModules::new(&workload.value, Arc::clone(others), |module| {
        let Some(cpu) = &module.kernel.cpu else { return Ok(None) };
        let file = cpu.file.clone().unwrap_or_else(|| PathBuf::from(&cpu.library));
        let room = rooms.entry(file.clone()).or_default();
        cpu_form(cpu, &file, Arc::clone(room)).map(Some).map_err(|why| {
            let help = "the function is `void f(const void *in, void *out, uint64_t bytes)`, in C++ `extern \"C\"`";
            error_at(workload, &format!("{}.cpu", module.place), &why, Some(help.to_owned()))
        })
    })?;
    Ok(Arc::new(modules))
}

/// The CPU form of a kernel.
fn cpu_form(cpu: &CpuFunction, file: &Path, room: Arc<Mutex<CallRoom>>) -> Result<CpuForm, String> {
    let function = BytesFunction::open(file, &cpu.function)
        .map_err(|why| format!("function `{}` of `{}` cannot be loaded: {why}", cpu.function, cpu.library))?;
    let name = cpu.function.clone();
    Ok(Arc::new(move |input, output| {
        let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
        room.call(function, input, output).map_err(|fact| format!("its CPU form `{name}` {fact}"))
    }))
}

/// Where packets and results begin for a CPU form, as in a GPU's memory.
const ALIGN: usize = 256;
/// Bytes behind a result that show a function that writes too far.
const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0xa5;

/// Memory for the calls into one library, one at a time: its functions need not be safe for threads.
#[derive(Default)]
struct CallRoom(Vec<u8>);

impl CallRoom {
    /// Calls `function` with a copy of `input` and a result of zeros, both aligned.
    fn call(&mut self, function: BytesFunction, input: &[u8], output: &mut [u8]) -> Result<(), String> {
        let result_at = input.len().next_multiple_of(ALIGN);
        self.0.clear();
        self.0.resize(ALIGN + result_at + output.len() + GUARD, GUARD_BYTE);
        let start = self.0.as_ptr().align_offset(ALIGN);
        let (packet, rest) = self.0[start..].split_at_mut(result_at);
        let (result, behind) = rest.split_at_mut(output.len());
        packet[..input.len()].copy_from_slice(input);
        result.fill(0);
        function.call(&packet[..input.len()], result);
        if behind[..GUARD].iter().any(|byte| *byte != GUARD_BYTE) {
            return Err(format!("wrote behind the {} bytes of its result", output.len()));
        }
        output.copy_from_slice(result);
        Ok(())
    }
}
