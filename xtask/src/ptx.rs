//! `cargo xtask ptx`: PTX from `crates/*/kernels/*.cu`, committed as `crates/*/ptx/*.ptx`, and from `workloads/*/*.cu`, beside it.
//!
//! The compiler comes from the Python package index (`nvcc-requirements.txt`) into a virtual environment below `target`;
//! neither a CUDA toolkit nor a GPU is needed. Each file is also assembled for real architectures.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::venv;

/// What the PTX of one source is for.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    /// This and every later architecture.
    oldest: &'static str,
    /// Architectures the PTX is assembled for: the oldest, and the one the kernels are tuned on.
    assembled: &'static [&'static str],
}

/// Most sources.
const USUAL: Target = Target { oldest: "compute_75", assembled: &["sm_75", "sm_90"] };
/// Sources that use clusters, marked by their name.
const CLUSTERS: Target = Target { oldest: "compute_90", assembled: &["sm_90"] };
/// How the names of those end.
const CLUSTERS_MARK: &str = "_sm90.cu";

fn target(source: &Path) -> &'static Target {
    if file_name(source).ends_with(CLUSTERS_MARK) { &CLUSTERS } else { &USUAL }
}

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the committed files instead of writing them
    #[arg(long)]
    pub(crate) check: bool,
}

/// Installs the compiler, so that a failure to do that can be told from stale PTX; returns the folder of `cuda.h`.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    Tools::install(&crate::root()).map(|tools| tools.include)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    let tools = Tools::install(&root)?;
    let sources = sources(&root)?;
    ensure!(!sources.is_empty(), "no CUDA sources under crates/*/kernels");
    let mut stale = Vec::new();
    for source in &sources {
        let ptx = tools.compile(source).with_context(|| format!("compile {}", source.display()))?;
        let committed = committed_path(source)?;
        if !args.check {
            fs::create_dir_all(committed.parent().context("a file has a folder")?)?;
            fs::write(&committed, &ptx).with_context(|| format!("write {}", committed.display()))?;
        } else if fs::read_to_string(&committed).ok().as_ref() != Some(&ptx) {
            stale.push(committed.strip_prefix(&root).unwrap_or(&committed).display().to_string());
            continue;
        }
        for architecture in target(source).assembled {
            let report = tools.assemble(&committed, architecture)?;
            eprintln!("{} {architecture}: {report}", file_name(&committed));
        }
    }
    ensure!(stale.is_empty(), "{} differ from their sources; run `cargo xtask ptx`", stale.join(", "));
    Ok(())
}

/// Compiler and assembler in their virtual environment.
struct Tools {
    python: PathBuf,
    script: PathBuf,
    nvrtc: PathBuf,
    ptxas: PathBuf,
    include: PathBuf,
    scratch: PathBuf,
}

impl Tools {
    /// Installs what the requirements name, unless the last run installed the same.
    fn install(root: &Path) -> anyhow::Result<Self> {
        let venv = venv::install("nvcc-venv", "xtask/nvcc-requirements.txt", &["--no-deps"])?;
        let python = venv.join("bin/python");
        let packages =
            output(Command::new(&python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))?;
        let nvidia = Path::new(packages.trim()).join("nvidia");
        Ok(Self {
            python,
            script: root.join("xtask/nvrtc.py"),
            nvrtc: nvidia.join("cuda_nvrtc/lib/libnvrtc.so.12"),
            ptxas: nvidia.join("cuda_nvcc/bin/ptxas"),
            include: nvidia.join("cu13/include"),
            scratch: venv.join("assembled.cubin"),
        })
    }

    fn compile(&self, source: &Path) -> anyhow::Result<String> {
        let folder = source.parent().context("a file has a folder")?;
        let mut command = Command::new(&self.python);
        command.arg(&self.script).arg(&self.nvrtc).arg(source);
        let target = target(source).oldest;
        // Products are not fused with sums, so that results equal those of the CPU forms.
        command
            .arg("--fmad=false")
            .arg(format!("--gpu-architecture={target}"))
            .arg(format!("--include-path={}", folder.display()));
        let within = format!("{}/{}", file_name(folder), file_name(source));
        Ok(stripped(&output(&mut command)?, &within))
    }

    /// Returns the resources of the kernels, and fails if they do not fit into registers.
    fn assemble(&self, ptx: &Path, architecture: &str) -> anyhow::Result<String> {
        let mut command = Command::new(&self.ptxas);
        command.arg("-v").arg(format!("-arch={architecture}")).arg(ptx).arg("-o").arg(&self.scratch);
        let done = command.output().with_context(|| format!("start {}", self.ptxas.display()))?;
        let log = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "ptxas refuses {} for {architecture}:\n{log}", ptx.display());
        resources(&log).with_context(|| format!("{} on {architecture}", ptx.display()))
    }
}

/// Every CUDA source, sorted.
fn sources(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for (parent, below) in [("crates", "kernels"), (WORKLOADS, "")] {
        for folder in fs::read_dir(root.join(parent))? {
            let Ok(files) = fs::read_dir(folder?.path().join(below)) else { continue };
            for file in files {
                let path = file?.path();
                if path.extension() == Some(OsStr::new("cu")) {
                    sources.push(path);
                }
            }
        }
    }
    sources.sort();
    Ok(sources)
}

/// Where kernels of users' workloads lie, in a folder for each.
const WORKLOADS: &str = "workloads";

/// `crates/x/kernels/y.cu` becomes `crates/x/ptx/y.ptx`; `workloads/x/y.cu` becomes `workloads/x/y.ptx`.
fn committed_path(source: &Path) -> anyhow::Result<PathBuf> {
    if source.iter().nth_back(2) == Some(OsStr::new(WORKLOADS)) {
        return Ok(source.with_extension("ptx"));
    }
    let package = source.parent().and_then(Path::parent).context("sources lie in crates/*/kernels")?;
    Ok(package.join("ptx").join(file_name(source)).with_extension("ptx"))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Replaces the compiler's comment by ours, and leaves out the constants of a header that NVRTC always includes, whose
/// names hold a hash.
fn stripped(ptx: &str, source: &str) -> String {
    let body = ptx.find(".version").map_or(ptx, |at| &ptx[at..]);
    let mut text = format!("// Generated by `cargo xtask ptx` from {source}; do not edit.\n\n");
    for line in body.lines().filter(|line| !line.contains("2nv6target")) {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The line of ptxas's report that counts registers; an error if values had to move to memory.
fn resources(log: &str) -> anyhow::Result<String> {
    for line in log.lines().filter(|line| line.contains("bytes stack frame")) {
        let spilled = line.split(',').any(|part| !part.trim().starts_with("0 bytes"));
        ensure!(!spilled, "it spills registers to memory ({}); simplify the kernel", line.trim());
    }
    let used: Vec<_> = log.lines().filter_map(|line| line.split_once("Used ")).map(|(_, used)| used).collect();
    ensure!(!used.is_empty(), "ptxas reports no kernel");
    Ok(used.join("; "))
}

/// Standard output of a command that must succeed; its errors go to ours.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let done = command.stderr(Stdio::inherit()).output().with_context(|| format!("start {command:?}"))?;
    if !done.status.success() {
        bail!("{command:?} failed: {}", done.status);
    }
    String::from_utf8(done.stdout).context("its output is not text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_is_left_out_of_the_ptx() {
        let ptx = "//\n// Compiler Build ID: CL-1\n//\n\n.version 8.0\n.target sm_75\n\
                   .global .align 8 .u64 _ZN44_INTERNAL_00_2nv6target6detail9all_hostsE = 1;\n.entry x()  \n\n\n";
        assert_eq!(
            stripped(ptx, "kernels/x.cu"),
            "// Generated by `cargo xtask ptx` from kernels/x.cu; do not edit.\n\n.version 8.0\n.target sm_75\n.entry x()\n"
        );
    }

    #[test]
    fn sources_with_clusters_are_for_the_architecture_that_has_them() {
        assert_eq!(target(Path::new("kernels/x_sm90.cu")), &CLUSTERS);
        assert_eq!(target(Path::new("kernels/x.cu")), &USUAL);
    }

    #[test]
    fn a_spill_is_an_error() {
        let good = "info : Function properties for x\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                    info : Used 80 registers";
        assert_eq!(resources(good).unwrap(), "80 registers");
        assert!(resources(&good.replace("0 bytes spill stores", "8 bytes spill stores")).is_err());
        assert!(resources("").is_err());
    }

    #[test]
    fn ptx_lies_beside_its_source() {
        let path = committed_path(Path::new("crates/x/kernels/y.cu")).unwrap();
        assert_eq!(path, Path::new("crates/x/ptx/y.ptx"));
        let beside = committed_path(Path::new("/somewhere/workloads/x/y.cu")).unwrap();
        assert_eq!(beside, Path::new("/somewhere/workloads/x/y.ptx"));
    }
}
