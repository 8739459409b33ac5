//! Kernels that a workload brings itself: an entry of a module in a file, and how it is launched.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::fault::{Part, WorkloadError};
use super::texts::{size, time};
use super::{Stream, StreamStep, Workload};
use crate::files::document::{NAME_MAX, ValueFault, is_name, quoted};
use crate::files::machine::{KernelCost, Machine};
use crate::units::{Bytes, Nanos};

/// The most thread blocks in x, y and z on any GPU.
const GRID_MAX: [u64; 3] = [i32::MAX as u64, 65_535, 65_535];
/// The most threads of a block in x, y and z on any GPU, and of all three together.
const BLOCK_MAX: [u64; 3] = [1024, 1024, 64];
const BLOCK_THREADS_MAX: u64 = 1024;
/// The most dynamic shared memory of a block on any GPU of today.
const SHARED_MAX: Bytes = Bytes(227 << 10);
/// The most arguments of a launch.
pub(super) const ARGUMENTS_MAX: usize = 16;

/// What a step runs that names a module: a kernel of the user's own.
///
/// It gets each packet by itself, as it came, and not the packed block of all streams of a pipeline.
#[derive(Clone, PartialEq, Eq)]
pub struct ModuleKernel {
    /// The file with PTX text, a cubin or a fatbin; relative to the workload file.
    pub module: String,
    /// The name of the kernel in the module.
    pub entry: String,
    /// Thread blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of each, in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of each block.
    pub shared: Bytes,
    /// What the kernel is launched with, in the order of its parameters.
    pub args: Vec<KernelArgument>,
    /// Size of what it makes of a packet; `None` = as large as what it gets.
    pub out_bytes: Option<Bytes>,
    /// The longest time of a launch; `None` = the machine file says it.
    pub cost: Option<Nanos>,
    /// The function that says what the results must be; `None` = they are not compared.
    pub cpu: Option<CpuFunction>,
    /// What is in the file; `None` = nobody has read it.
    pub code: Option<Arc<[u8]>>,
}

/// A function of a shared library: `void f(const void *in, void *out, uint64_t bytes)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuFunction {
    /// The library's file; relative to the workload file.
    pub library: String,
    /// The name of the function in it.
    pub function: String,
    /// Where the library is; `None` = nobody has looked for it.
    pub file: Option<PathBuf>,
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelArgument {
    /// The address of the packet.
    In,
    /// The address of the result.
    Out,
    /// Bytes of the packet, as 64 bits.
    Bytes,
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(Number32),
    F64(Number64),
}

/// A kernel of a module, wherever a workload has it.
#[derive(Clone, Debug)]
pub struct WorkloadModule<'a> {
    /// Its name for plans, machine files and libraries.
    pub id: String,
    pub kernel: &'a ModuleKernel,
    /// Size of what it gets.
    pub bytes: Bytes,
    /// The place of its `compute` in the file, for example `stream.camera.steps.1.compute`.
    pub place: String,
}

/// A finite number of 32 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Number32(u32);

/// A finite number of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Number64(u64);

impl Number32 {
    /// `None` = the number is not finite.
    #[must_use]
    pub fn new(number: f32) -> Option<Self> {
        number.is_finite().then(|| Self(number.to_bits()))
    }

    /// In the order of IEEE 754, as a launch passes them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl Number64 {
    /// `None` = the number is not finite.
    #[must_use]
    pub fn new(number: f64) -> Option<Self> {
        number.is_finite().then(|| Self(number.to_bits()))
    }

    /// In the order of IEEE 754, as a launch passes them.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Number32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", f32::from_bits(self.0))
    }
}

impl fmt::Debug for Number64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", f64::from_bits(self.0))
    }
}

impl KernelArgument {
    /// Bytes that the kernel's parameter has.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U32(_) | Self::I32(_) | Self::F32(_) => 4,
            Self::In | Self::Out | Self::Bytes | Self::U64(_) | Self::I64(_) | Self::F64(_) => 8,
        }
    }
}

impl fmt::Display for KernelArgument {
    /// As workload files write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In => f.write_str("\"in\""),
            Self::Out => f.write_str("\"out\""),
            Self::Bytes => f.write_str("\"bytes\""),
            Self::U32(value) => write!(f, "{{ u32 = {value} }}"),
            Self::I32(value) => write!(f, "{{ i32 = {value} }}"),
            Self::U64(value) => write!(f, "{{ u64 = {value} }}"),
            Self::I64(value) => write!(f, "{{ i64 = {value} }}"),
            Self::F32(value) => write!(f, "{{ f32 = {value:?} }}"),
            Self::F64(value) => write!(f, "{{ f64 = {value:?} }}"),
        }
    }
}

impl fmt::Debug for ModuleKernel {
    /// Without the bytes of the module.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl ModuleKernel {
    /// A kernel that gets address and size of a packet and the address of the result, in `grid` blocks of `block` threads.
    #[must_use]
    pub fn new(module: &str, entry: &str, grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            module: module.to_owned(),
            entry: entry.to_owned(),
            grid,
            block,
            shared: Bytes(0),
            args: vec![KernelArgument::In, KernelArgument::Out, KernelArgument::Bytes],
            out_bytes: None,
            cost: None,
            cpu: None,
            code: None,
        }
    }

    /// Size of what it makes of `bytes` bytes.
    #[must_use]
    pub fn makes(&self, bytes: Bytes) -> Bytes {
        self.out_bytes.unwrap_or(bytes)
    }

    /// As workload files write it.
    pub(super) fn text(&self) -> String {
        let three = |numbers: &[u32; 3]| format!("[{}, {}, {}]", numbers[0], numbers[1], numbers[2]);
        let args: Vec<String> = self.args.iter().map(KernelArgument::to_string).collect();
        let mut text = format!(
            "{{ module = {}, entry = {}, grid = {}, block = {}, args = [{}]",
            quoted(&self.module),
            quoted(&self.entry),
            three(&self.grid),
            three(&self.block),
            args.join(", ")
        );
        if self.shared > Bytes(0) {
            text += &format!(", shared = {}", size(self.shared));
        }
        if let Some(bytes) = self.out_bytes {
            text += &format!(", out_bytes = {}", size(bytes));
        }
        if let Some(cost) = self.cost {
            text += &format!(", cost = {}", time(cost));
        }
        if let Some(CpuFunction { library, function, .. }) = &self.cpu {
            text += &format!(", cpu = {{ library = {}, function = {} }}", quoted(library), quoted(function));
        }
        text + " }"
    }

    /// Says what no GPU can launch. `step` is the path of the kernel below its stream.
    pub(super) fn check(&self, part: Part<'_>, step: &str) -> Result<(), WorkloadError> {
        let path = |key: &str| format!("{step}.{key}");
        for (key, text) in [("module", &self.module), ("entry", &self.entry)] {
            not_empty(part, &path(key), text)?;
        }
        // No colon and no digit in front: then no two kernels have one name in plans and machine files.
        let begins = self.entry.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || !self.entry.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let fact = "is no name of a kernel in C".to_owned();
            let help =
                "kernels have letters, digits and `_` in their names; `extern \"C\"` keeps the one of the source"
                    .to_owned();
            return Err(part.value_error(&path("entry"), &quoted(&self.entry), ValueFault { fact, help }));
        }
        if let Some(CpuFunction { library, function, .. }) = &self.cpu {
            not_empty(part, &path("cpu.library"), library)?;
            not_empty(part, &path("cpu.function"), function)?;
        }
        for (key, numbers, most) in [("grid", &self.grid, &GRID_MAX), ("block", &self.block, &BLOCK_MAX)] {
            for (at, (number, most)) in numbers.iter().zip(most).enumerate() {
                part.integer(&path(&format!("{key}.{at}")), u64::from(*number), &(1..=*most))?;
            }
        }
        let threads: u64 = self.block.iter().map(|threads| u64::from(*threads)).product();
        if threads > BLOCK_THREADS_MAX {
            let fact = format!("a thread block has {threads} threads, and a GPU takes {BLOCK_THREADS_MAX}");
            return Err(part.error(&path("block"), fact, "make blocks smaller, and the grid larger"));
        }
        if self.shared > SHARED_MAX {
            let fact = format!("is more shared memory than a GPU has for a block, {SHARED_MAX}");
            let help = format!("write at most `shared = \"{} B\"`", SHARED_MAX.0);
            return Err(part.value_error(&path("shared"), &size(self.shared), ValueFault { fact, help }));
        }
        for wanted in [KernelArgument::In, KernelArgument::Out] {
            let count = self.args.iter().filter(|argument| **argument == wanted).count();
            if count != 1 {
                let fact = format!("the kernel gets {wanted} {count} times, and must get it once");
                let help =
                    "write for example `args = [\"in\", \"out\", \"bytes\"]`, in the order of the kernel's parameters";
                return Err(part.error(&path("args"), fact, help));
            }
        }
        if self.args.len() > ARGUMENTS_MAX {
            let fact = format!("the kernel gets {} arguments, and a launch takes {ARGUMENTS_MAX}", self.args.len());
            return Err(part.error(&path("args"), fact, "put what is constant into the module"));
        }
        self.out_bytes.map_or(Ok(()), |bytes| part.size_above_zero(&path("out_bytes"), bytes, "4 KiB"))?;
        self.cost.map_or(Ok(()), |cost| part.time_above_zero(&path("cost"), cost, "1.2 ms"))
    }
}

fn not_empty(part: Part<'_>, path: &str, text: &str) -> Result<(), WorkloadError> {
    if text.is_empty() || text.contains('\0') {
        let (fact, help) = ("names nothing".to_owned(), "write a name".to_owned());
        return Err(part.value_error(path, &quoted(text), ValueFault { fact, help }));
    }
    Ok(())
}

/// Says what is wrong with the kernel called `id` at `place` of `part`.
pub(super) fn check_module(part: Part<'_>, place: &str, id: &str, kernel: &ModuleKernel) -> Result<(), WorkloadError> {
    kernel.check(part, place)?;
    if is_name(id) {
        return Ok(());
    }
    let fact = format!("the kernel is called `{id}` in plans and machine files, which is too long there");
    let help = format!("{NAME_MAX} letters are allowed: give {} or kernel a shorter name", part.table);
    Err(part.error(&format!("{place}.entry"), fact, help))
}

/// `OF:ENTRY`, with the number behind it where one of `before` has the same entry.
pub(super) fn module_kernel_id<'a>(
    of: &str,
    number: usize,
    entry: &str,
    mut before: impl Iterator<Item = &'a ModuleKernel>,
) -> String {
    let name = format!("{of}:{entry}");
    if before.any(|other| other.entry == entry) { format!("{name}:{number}") } else { name }
}

impl Workload {
    /// All kernels that come from modules: those of streams, then those of tasks.
    #[must_use]
    pub fn modules(&self) -> Vec<WorkloadModule<'_>> {
        let mut modules = Vec::new();
        for stream in self.streams.iter().filter(|stream| stream.has_modules()) {
            let sizes = stream.sizes();
            modules.extend(stream.module_kernels().map(|(step, id, kernel)| {
                let place = format!("stream.{}.steps.{step}.compute", stream.id);
                WorkloadModule { id, kernel, bytes: sizes[step], place }
            }));
        }
        for task in &self.tasks {
            modules.extend(task.modules.iter().map(|(segment, kernel)| WorkloadModule {
                id: task.module_id(*segment, &kernel.entry),
                kernel,
                bytes: task.read_by(*segment),
                place: format!("task.{}.segments.{segment}.compute", task.id),
            }));
        }
        modules
    }

    /// The same kernels in the same order, to be changed.
    pub fn modules_mut(&mut self) -> impl Iterator<Item = &mut ModuleKernel> {
        let of_steps = self.streams.iter_mut().flat_map(|stream| &mut stream.steps).filter_map(|step| match step {
            StreamStep::Module(kernel) => Some(&mut **kernel),
            _ => None,
        });
        of_steps.chain(self.tasks.iter_mut().flat_map(|task| task.modules.values_mut()))
    }

    /// `machine` with the costs that the workload says of its own kernels. They go before those that the machine has.
    #[must_use]
    pub fn with_costs_on<'m>(&self, machine: &'m Machine) -> Cow<'m, Machine> {
        let cost = |of: WorkloadModule<'_>| Some(KernelCost::of_launch(of.id, of.bytes, of.kernel.cost?));
        let costs: Vec<KernelCost> = self.modules().into_iter().filter_map(cost).collect();
        if costs.is_empty() {
            return Cow::Borrowed(machine);
        }
        let mut machine = machine.clone();
        machine.kernels.retain(|known| costs.iter().all(|cost| cost.id != known.id));
        machine.kernels.extend(costs);
        Cow::Owned(machine)
    }
}

impl Stream {
    /// The kernels of its steps that come from modules: step, name for plans and machine files, and kernel.
    pub fn module_kernels(&self) -> impl Iterator<Item = (usize, String, &ModuleKernel)> {
        self.steps.iter().enumerate().filter_map(|(number, step)| match step {
            StreamStep::Module(kernel) => Some((number, self.module_kernel_id(number, kernel), &**kernel)),
            _ => None,
        })
    }

    /// `STREAM:ENTRY`, with the step behind it where an earlier step has the same entry.
    fn module_kernel_id(&self, number: usize, kernel: &ModuleKernel) -> String {
        let before = self.steps[..number].iter().filter_map(|step| match step {
            StreamStep::Module(other) => Some(&**other),
            _ => None,
        });
        module_kernel_id(&self.id, number, &kernel.entry, before)
    }

    /// Whether a kernel of a module works on its packets, which then have a pipeline of their own.
    #[must_use]
    pub fn has_modules(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, StreamStep::Module(_)))
    }

    /// Size of what each step gets of a packet, and of what the last one leaves.
    #[must_use]
    pub fn sizes(&self) -> Vec<Bytes> {
        let mut sizes = vec![self.packet];
        for step in &self.steps {
            let before = *sizes.last().expect("it begins with the packet");
            sizes.push(if let StreamStep::Module(kernel) = step { kernel.makes(before) } else { before });
        }
        sizes
    }

    /// Refuses modules in streams that cannot have a pipeline of whole packets on one GPU.
    pub(super) fn check_modules(&self) -> Result<(), WorkloadError> {
        let Some((number, ..)) = self.module_kernels().next() else { return Ok(()) };
        let part = self.part();
        let place = format!("steps.{number}.compute");
        let other = self.steps.iter().position(|step| matches!(step, StreamStep::Compute { .. }));
        if let Some(other) = other {
            let fact = "a kernel of a module gets packets as they came, and this one packed blocks: one stream cannot have both";
            let help = "give each a stream of its own, or bring this kernel in a module, too";
            return Err(part.error(&format!("steps.{other}.compute"), fact, help));
        }
        if !self.parts.is_empty() || self.sharding.is_some() {
            let help = "leave the parts out, and write a stream for each";
            return Err(part.error(&place, "a kernel of a module works on whole packets", help));
        }
        for (number, id, kernel) in self.module_kernels() {
            check_module(part, &format!("steps.{number}.compute"), &id, kernel)?;
        }
        Ok(())
    }
}
