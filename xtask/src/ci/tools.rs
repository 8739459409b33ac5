//! Programs beside Rust that some tests call.

use std::process::{Command, Stdio};
use std::{env, fs};

/// One program that tests call.
struct Tool {
    name: &'static str,
    /// What else must succeed for it to count, as arguments of it.
    probe: &'static [&'static str],
    /// Debian's packages.
    packages: &'static [&'static str],
    /// What is not checked without it.
    without: &'static str,
}

const TOOLS: [Tool; 5] = [
    Tool {
        name: "openssl",
        probe: &[],
        packages: &["openssl"],
        without: "encrypted packets are not compared with openssl",
    },
    Tool { name: "chromium", probe: &[], packages: &["chromium"], without: "report pages are not opened in a browser" },
    Tool { name: "cc", probe: &[], packages: &["gcc", "libc6-dev"], without: "C programs are not compiled" },
    Tool { name: "c++", probe: &[], packages: &["g++"], without: "CUDA sources are not run as C++ on the CPU" },
    Tool {
        name: "python3",
        probe: &["-c", "import ensurepip, venv"],
        packages: &["python3", "python3-venv"],
        without: "PTX is not compared with its sources",
    },
];

/// Installs what is missing where that is possible without asking (root on Debian), and prints what stays missing.
pub(super) fn prepare() {
    let missing: Vec<_> = TOOLS.iter().filter(|tool| !tool.is_there()).collect();
    if missing.is_empty() {
        println!("found {}", TOOLS.map(|tool| tool.name).join(", "));
        return;
    }
    if may_install() && apt_get(&["update"]) {
        for tool in &missing {
            println!("installing {}", tool.packages.join(" "));
            apt_get(&[&["install", "--yes", "--no-install-recommends"], tool.packages].concat());
        }
    }
    for tool in missing.into_iter().filter(|tool| !tool.is_there()) {
        let (name, packages) = (tool.name, tool.packages.join(" "));
        println!("skipped: {}: there is no usable `{name}`; install {packages}", tool.without);
    }
}

impl Tool {
    fn is_there(&self) -> bool {
        is_in_path(self.name) && (self.probe.is_empty() || succeeds(self.name, self.probe))
    }
}

fn is_in_path(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}

fn succeeds(name: &str, arguments: &[&str]) -> bool {
    let status = Command::new(name).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn may_install() -> bool {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let user = Command::new("id").arg("-u").output().map(|done| done.stdout).unwrap_or_default();
    is_debian(&system) && user == b"0\n" && is_in_path("apt-get")
}

/// Ubuntu is not enough: its `chromium` package is a stub for another installer.
fn is_debian(os_release: &str) -> bool {
    os_release.lines().any(|line| line == "ID=debian")
}

/// Whether apt-get succeeded; what it complains about goes to standard error.
fn apt_get(arguments: &[&str]) -> bool {
    let quiet = ["-qq", "-o=Dpkg::Use-Pty=0"];
    let status = Command::new("apt-get").args(quiet).args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debian_itself_is_debian() {
        assert!(is_debian("PRETTY_NAME=\"Debian\"\nID=debian\n"));
        assert!(!is_debian("ID=ubuntu\nID_LIKE=debian\n"));
    }

    #[test]
    fn a_tool_counts_only_if_its_probe_succeeds() {
        let tool = |name, probe| Tool { name, probe, packages: &[], without: "" };
        assert!(tool("sh", &["-c", "exit 0"]).is_there());
        assert!(!tool("sh", &["-c", "exit 1"]).is_there());
        assert!(!tool("no-such-program", &[]).is_there());
    }
}
