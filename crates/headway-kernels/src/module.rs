//! Kernels that workloads bring in files of their own, as works and as a library; what is wrong with such a file.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use headway_core::files::workload::{KernelArgument, ModuleKernel, Workload, WorkloadModule};
use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_device::work::{
    Argument, CpuArgument, Demand, DeviceCode, LaunchGrid, Library, StepMemory, Work, WorkError,
};

/// The CPU form of a kernel: reads a packet and writes the result, or says what went wrong.
pub type CpuForm = Arc<dyn Fn(&[u8], &mut [u8]) -> Result<(), String> + Send + Sync>;

/// A kernel of a module for the packets of one stream, or the jobs of one task.
///
/// Without a CPU form its result on a CPU, and on an emulated GPU, is zeros.
pub struct ModuleWork {
    id: String,
    kernel: ModuleKernel,
    /// Size of the packet, and of what the kernel makes of it.
    packet: Bytes,
    result: Bytes,
    cpu: Option<CpuForm>,
}

impl ModuleWork {
    /// The work called `id` of `kernel`, whose packets have `packet` bytes.
    #[must_use]
    pub fn new(id: String, kernel: ModuleKernel, packet: Bytes, cpu: Option<CpuForm>) -> Self {
        let result = kernel.makes(packet);
        Self { id, kernel, packet, result, cpu }
    }
}

impl fmt::Debug for ModuleWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleWork").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Work for ModuleWork {
    fn id(&self) -> &str {
        &self.id
    }

    fn code(&self) -> DeviceCode {
        DeviceCode::File(self.kernel.code.clone().unwrap_or_default())
    }

    fn entry(&self) -> &str {
        &self.kernel.entry
    }

    fn grid(&self, _portions: u32) -> LaunchGrid {
        let shared_bytes = u32::try_from(self.kernel.shared.0).unwrap_or(u32::MAX);
        LaunchGrid { blocks: self.kernel.grid, threads: self.kernel.block, shared_bytes }
    }

    fn arguments(&self, memory: StepMemory, _portions: u32) -> Vec<Argument> {
        let StepMemory { input, output, state: _ } = memory;
        let (mut input, mut output) = (Some(input), Some(output));
        let memory = |span: &mut Option<_>| span.take().map_or(Argument::Null, Argument::Memory);
        let argument = |argument: &KernelArgument| match *argument {
            KernelArgument::In => memory(&mut input),
            KernelArgument::Out => memory(&mut output),
            KernelArgument::Bytes => Argument::Wide(self.packet.0),
            KernelArgument::U32(value) => Argument::Int(value.cast_signed()),
            KernelArgument::I32(value) => Argument::Int(value),
            KernelArgument::F32(value) => Argument::Int(value.bits().cast_signed()),
            KernelArgument::U64(value) => Argument::Wide(value),
            KernelArgument::I64(value) => Argument::Wide(value.cast_unsigned()),
            KernelArgument::F64(value) => Argument::Wide(value.bits()),
        };
        self.kernel.args.iter().map(argument).collect()
    }

    fn reads_blocks(&self) -> bool {
        false
    }

    fn is_comparable(&self) -> bool {
        self.cpu.is_some()
    }

    fn output_bytes(&self, _input: usize, _portions: u32) -> usize {
        self.result.0 as usize
    }

    fn launch(&self, _grid: LaunchGrid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError> {
        let (mut input, mut output) = (None, None);
        for argument in arguments {
            match argument {
                CpuArgument::Read(bytes) => input = Some(&**bytes),
                CpuArgument::Write(bytes) => output = Some(&mut **bytes),
                CpuArgument::Null | CpuArgument::Int(_) | CpuArgument::Wide(_) => {}
            }
        }
        match (input, output) {
            (Some(input), Some(output)) => Ok(self.run(input, output, &mut [])?),
            _ => Err(DeviceError::Invalid { what: "launch", reason: format!("`{}` takes other arguments", self.id) }),
        }
    }

    fn run(&self, input: &[u8], output: &mut [u8], _state: &mut [u8]) -> Result<(), WorkError> {
        let (found, wanted) = ((input.len() as u64, output.len() as u64), (self.packet.0, self.result.0));
        if found != wanted {
            let reason = format!(
                "it makes {} bytes of a packet of {}, and got {} with room for {}",
                wanted.1, wanted.0, found.0, found.1
            );
            return Err(WorkError::BadBlock { work: self.id.clone(), reason });
        }
        match &self.cpu {
            Some(form) => {
                return form(input, output).map_err(|reason| WorkError::BadBlock { work: self.id.clone(), reason });
            }
            None => output.fill(0),
        }
        Ok(())
    }

    fn demand(&self, _arguments: &[CpuArgument<'_>]) -> Option<Demand> {
        Some(Demand { bytes: self.packet, chain: self.packet, operations: None })
    }
}

/// The kernels of a workload's modules, and those of another library.
pub struct WithModules {
    own: BTreeMap<String, Arc<ModuleWork>>,
    others: Arc<dyn Library>,
}

impl WithModules {
    /// The kernels of the modules of `workload` before those of `others`. `cpu` finds the CPU form of a kernel.
    ///
    /// # Errors
    /// Those of `cpu`.
    pub fn new<E>(
        workload: &Workload,
        others: Arc<dyn Library>,
        mut cpu: impl FnMut(&WorkloadModule<'_>) -> Result<Option<CpuForm>, E>,
    ) -> Result<Self, E> {
        let mut own = BTreeMap::new();
        for module in workload.modules() {
            let cpu = cpu(&module)?;
            let work = ModuleWork::new(module.id.clone(), module.kernel.clone(), module.bytes, cpu);
            own.insert(module.id, Arc::new(work));
        }
        Ok(Self { own, others })
    }
}

impl Library for WithModules {
    fn find(&self, id: &str) -> Option<Arc<dyn Work>> {
        match self.own.get(id) {
            Some(own) => Some(Arc::clone(own) as Arc<dyn Work>),
            None => self.others.find(id),
        }
    }

    fn reference(&self, id: &str) -> Option<Arc<dyn Work>> {
        if self.own.contains_key(id) { None } else { self.others.reference(id) }
    }

    fn ids(&self) -> Vec<&'static str> {
        self.others.ids()
    }
}

/// What is wrong with a kernel of a module, and which of its keys says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleFault {
    pub key: &'static str,
    pub fact: String,
    pub help: String,
}

/// How cubins and fatbins begin.
const ELF: &[u8] = b"\x7fELF";
const FATBIN: &[u8] = b"\x50\xed\x55\xba";

/// Refuses code that no driver can load, that has no such entry, or whose entry has other parameters, as far as the file tells:
/// a fatbin may be compressed, and a cubin tells the entries but not what they take.
///
/// # Errors
/// [`ModuleFault`].
pub fn check(kernel: &ModuleKernel, code: &[u8]) -> Result<(), ModuleFault> {
    let ModuleKernel { module, entry, .. } = kernel;
    if code.starts_with(FATBIN) {
        return Ok(());
    }
    if code.starts_with(ELF) {
        let section = format!(".text.{entry}\0").into_bytes();
        let is_there = code.windows(section.len()).any(|window| window == section);
        let help =
            "write the name that `cuobjdump --list-text FILE` shows; a kernel of C++ keeps its name as `extern \"C\"`";
        return if is_there { Ok(()) } else { Err(no_entry(module, entry, help.to_owned())) };
    }
    // Comments may be in any encoding.
    let text = String::from_utf8_lossy(code);
    if !text.contains(".version") || text.contains('\0') {
        return Err(ModuleFault {
            key: "module",
            fact: format!("`{module}` holds neither PTX text nor a cubin nor a fatbin"),
            help: "compile the kernel: `nvcc -ptx KERNEL.cu`, also `-cubin` or `-fatbin`".to_owned(),
        });
    }
    let entries = entries(&text);
    let Some(found) = entries.iter().find(|found| found.name == *entry) else {
        let known: Vec<String> = entries.iter().map(|found| format!("`{}`", found.name)).collect();
        let help = match known.len() {
            0 => "it has no `.entry` at all: mark the kernel `__global__`, and compile it again".to_owned(),
            _ => format!("it has {}; a kernel of C++ keeps its name as `extern \"C\"`", known.join(", ")),
        };
        return Err(no_entry(module, entry, help));
    };
    let given: Vec<u64> = kernel.args.iter().map(|argument| argument.bytes()).collect();
    if given == found.parameters {
        return Ok(());
    }
    let help = "write an argument for each parameter: addresses, `bytes` and numbers of 64 bits have 8 bytes, others 4";
    Err(ModuleFault {
        key: "args",
        fact: format!(
            "`{entry}` takes parameters of {} bytes, and `args` are of {}",
            listed(&found.parameters),
            listed(&given)
        ),
        help: help.to_owned(),
    })
}

fn no_entry(module: &str, entry: &str, help: String) -> ModuleFault {
    ModuleFault { key: "entry", fact: format!("`{module}` has no kernel `{entry}`"), help }
}

fn listed(sizes: &[u64]) -> String {
    match sizes {
        [] => "no".to_owned(),
        sizes => sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// A kernel of a PTX text.
#[derive(Debug, PartialEq, Eq)]
struct PtxEntry {
    name: String,
    /// Size of each parameter.
    parameters: Vec<u64>,
}

/// The kernels of a PTX text: `.entry NAME ( .param TYPE NAME, ... )`.
fn entries(text: &str) -> Vec<PtxEntry> {
    let text = without_comments(text);
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_$%".contains(c);
    let mut entries = Vec::new();
    for behind in text.split(".entry").skip(1).filter(|behind| behind.starts_with(char::is_whitespace)) {
        let behind = behind.trim_start();
        let (name, behind) = behind.split_at(behind.find(|c| !is_of_name(c)).unwrap_or(behind.len()));
        let list = behind.trim_start().strip_prefix('(').and_then(|list| list.split_once(')'));
        let parameters = list.map_or_else(Vec::new, |(list, _)| list.split(',').filter_map(parameter_bytes).collect());
        entries.push(PtxEntry { name: name.to_owned(), parameters });
    }
    entries
}

/// Bytes of a parameter such as `.param .u64 name` or `.param .align 8 .b8 name[16]`; `None` = there is none.
fn parameter_bytes(parameter: &str) -> Option<u64> {
    let mut words = parameter.split_whitespace();
    let bits =
        words.find_map(|word| word.strip_prefix(['.'])?.strip_prefix(['u', 's', 'b', 'f'])?.parse::<u64>().ok())?;
    let array = parameter.trim_end().strip_suffix(']').and_then(|array| Some(array.rsplit_once('[')?.1.trim()));
    // A count that is no number makes a parameter that no argument has.
    let count = array.map_or(1, |count| match count.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap_or(u64::MAX),
        None => count.parse().unwrap_or(u64::MAX),
    });
    Some((bits / 8).saturating_mul(count))
}

/// A PTX text with a space instead of each comment.
fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        kept.push_str(&rest[..at]);
        kept.push(' ');
        let (end, width) = if rest[at..].starts_with("//") { ("\n", 0) } else { ("*/", 2) };
        rest = rest[at + 2..]
            .split_at_checked(rest[at + 2..].find(end).map_or(rest.len(), |end| end + width))
            .map_or("", |(_, rest)| rest);
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "// .entry commented(.param .u64 a)\n.version 7.0\n.target sm_75\n.address_size 64\n\
        /* .entry also(\n*/ .visible .entry detect(\n\t.param .u64 detect_param_0, // in\n\t.param .u64 .ptr .global .align 1 out,\n\
        \t.param .u32 width,\n\t.param .align 8 .b8 all[16]\n)\n.maxntid 256, 1, 1\n{ ret; }\n.entry bare\n{ ret; }\n";

    fn kernel(entry: &str, args: &[KernelArgument]) -> ModuleKernel {
        ModuleKernel { args: args.to_vec(), ..ModuleKernel::new("detect.ptx", entry, [1; 3], [32, 1, 1]) }
    }

    #[test]
    fn entries_of_a_ptx_text_are_found_with_the_sizes_of_their_parameters() {
        let found = entries(PTX);
        let entry =
            |name: &str, parameters: &[u64]| PtxEntry { name: name.to_owned(), parameters: parameters.to_vec() };
        assert_eq!(found, [entry("detect", &[8, 8, 4, 16]), entry("bare", &[])]);
        assert_eq!(entries("/* .entry never closed("), []);
        assert_eq!(entries(".entry"), []);
        let sized = |count: &str| entries(&format!(".entry e(.param .align 8 .u64 a[{count}])"))[0].parameters[0];
        assert_eq!((sized("0x8"), sized("2305843009213693952"), sized("-1")), (64, u64::MAX, u64::MAX));
    }

    #[test]
    fn the_kernels_that_ship_take_three_addresses_and_a_number() {
        for id in crate::ids() {
            let work = crate::find(id).unwrap();
            let code = work.code();
            let found = entries(str::from_utf8(code.bytes()).unwrap());
            let own = found.iter().find(|entry| entry.name == work.entry()).unwrap();
            assert_eq!(own.parameters, [8, 8, 8, 4], "{id}");
        }
    }

    #[test]
    fn code_without_the_entry_or_with_other_parameters_is_refused_with_fact_and_remedy() {
        use KernelArgument::{Bytes as Size, In, Out, U32};
        let fault = |kernel: &ModuleKernel, code: &[u8]| check(kernel, code).unwrap_err();
        let missing = fault(&kernel("detekt", &[In, Out]), PTX.as_bytes());
        assert_eq!((missing.key, missing.fact.as_str()), ("entry", "`detect.ptx` has no kernel `detekt`"));
        assert!(missing.help.contains("it has `detect`, `bare`"), "{}", missing.help);
        let other = fault(&kernel("detect", &[In, Out, Size]), PTX.as_bytes());
        assert_eq!(other.key, "args");
        assert_eq!(other.fact, "`detect` takes parameters of 8, 8, 4, 16 bytes, and `args` are of 8, 8, 8");
        let none = fault(&kernel("x", &[In, Out]), b".version 7.0\n");
        assert!(none.help.contains("no `.entry` at all"), "{}", none.help);
        for code in [&b"hello"[..], b"", b"\xff\xfe.\0v\0e\0r\0"] {
            assert_eq!(fault(&kernel("detect", &[In, Out]), code).key, "module");
        }
        let text = ".version 7.0\n.entry k(.param .u64 a, .param .u64 b, .param .u32 c)\n{ ret; }";
        assert_eq!(check(&kernel("k", &[In, Out, U32(1)]), text.as_bytes()), Ok(()));
        let cubin = b"\x7fELF....\0.text.detect\0.text.other\0";
        assert_eq!(check(&kernel("detect", &[In, Out]), cubin), Ok(()));
        assert_eq!(fault(&kernel("det", &[In, Out]), cubin).key, "entry");
        assert_eq!(check(&kernel("anything", &[In, Out]), b"\x50\xed\x55\xba..."), Ok(()));
    }

    #[test]
    fn without_a_cpu_form_the_result_is_zeros_and_with_one_what_it_writes() {
        let kernel =
            ModuleKernel { out_bytes: Some(Bytes(2)), ..kernel("k", &[KernelArgument::In, KernelArgument::Out]) };
        let zeros = ModuleWork::new("s:k".to_owned(), kernel.clone(), Bytes(4), None);
        let mut output = [7; 2];
        zeros.run(&[1, 2, 3, 4], &mut output, &mut []).unwrap();
        assert_eq!(output, [0; 2]);
        let refused = zeros.run(&[1, 2, 3], &mut output, &mut []).unwrap_err().to_string();
        assert!(refused.contains("`s:k`") && refused.contains("2 bytes of a packet of 4, and got 3"), "{refused}");
        let form: CpuForm = Arc::new(|input, output| {
            output.copy_from_slice(&input[2..]);
            Ok(())
        });
        let work = ModuleWork::new("s:k".to_owned(), kernel, Bytes(4), Some(form));
        let mut arguments = [CpuArgument::Read(&[1, 2, 3, 4]), CpuArgument::Write(&mut output), CpuArgument::Wide(4)];
        work.launch(work.grid(1), &mut arguments).unwrap();
        assert_eq!(output, [3, 4]);
    }
}
