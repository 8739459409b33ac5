//! `cargo xtask capi`: builds libheadway.so and installs it with its header, a pkg-config file, a CMake package, licences and its list of parts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::ci::cargo_command;
use crate::{dependencies, must_succeed};

/// By which programs look for the library; `crates/headway-capi/build.rs` has the same.
const SONAME: &str = "libheadway.so.0";

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder to install in, as `/usr/local`
    #[arg(long, value_name = "FOLDER", default_value = "target/capi")]
    prefix: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    let mut command = cargo_command();
    command.args(["build", "--release", "-p", "headway-capi"]);
    must_succeed(&mut command)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let prefix = if args.prefix.is_absolute() { args.prefix.clone() } else { root.join(&args.prefix) };
    install(&root.join("crates/headway-capi/include/headway.h"), &target.join("release/libheadway_capi.so"), &prefix)?;
    install_licences(&root, &prefix.join("share/doc/headway"))?;
    println!("installed {SONAME}, headway.h, headway.pc and headwayConfig.cmake below {}", prefix.display());
    Ok(())
}

/// What must go with the library: its licences, those of the crates in it, and the list of its parts.
fn install_licences(root: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    for path in ["LICENSE-MIT", "LICENSE-APACHE", dependencies::NOTICE, dependencies::SBOM].map(|path| root.join(path))
    {
        let to = folder.join(path.file_name().context("a file without a name")?);
        fs::copy(&path, &to).with_context(|| format!("copy {} to {}", path.display(), to.display()))?;
    }
    Ok(())
}

fn install(header: &Path, library: &Path, prefix: &Path) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let [include, libraries, packages, cmake] =
        ["include", "lib", "lib/pkgconfig", "lib/cmake/headway"].map(|folder| prefix.join(folder));
    for folder in [&include, &libraries, &packages, &cmake] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let copy = |from: &Path, to: &Path| {
        fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display())).map(drop)
    };
    copy(header, &include.join("headway.h"))?;
    let full = format!("libheadway.so.{version}");
    copy(library, &libraries.join(&full))?;
    for (name, to) in [(SONAME, full.as_str()), ("libheadway.so", SONAME)] {
        let link = libraries.join(name);
        // An earlier version's.
        let _ = fs::remove_file(&link);
        symlink(to, &link).with_context(|| format!("link {}", link.display()))?;
    }
    let text = format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\nName: headway\nDescription: Copies between host and GPU \
         memory: any memory, any stream\nVersion: {version}\nLibs: -L${{libdir}} -lheadway\nCflags: -I${{includedir}}\n",
        prefix.display()
    );
    fs::write(packages.join("headway.pc"), text).context("write headway.pc")?;
    let text = format!(
        "get_filename_component(HEADWAY_PREFIX \"${{CMAKE_CURRENT_LIST_DIR}}/../../..\" ABSOLUTE)\nif(NOT TARGET headway::headway)\n  \
         add_library(headway::headway SHARED IMPORTED)\n  set_target_properties(headway::headway PROPERTIES\n    IMPORTED_LOCATION \
         \"${{HEADWAY_PREFIX}}/lib/{full}\"\n    IMPORTED_SONAME \"{SONAME}\"\n    INTERFACE_INCLUDE_DIRECTORIES \
         \"${{HEADWAY_PREFIX}}/include\")\nendif()\nset(headway_VERSION \"{version}\")\n"
    );
    fs::write(cmake.join("headwayConfig.cmake"), text).context("write headwayConfig.cmake")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_found_by_its_names_and_installed_again() {
        let folder = std::env::temp_dir().join(format!("headway-capi-{}", std::process::id()));
        let (header, library, prefix) = (folder.join("h"), folder.join("so"), folder.join("prefix"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(&header, "header").unwrap();
        for content in ["first", "second"] {
            fs::write(&library, content).unwrap();
            install(&header, &library, &prefix).unwrap();
            for name in ["libheadway.so", SONAME] {
                assert_eq!(fs::read_to_string(prefix.join("lib").join(name)).unwrap(), content);
            }
        }
        let documents = prefix.join("share/doc/headway");
        install_licences(&crate::root(), &documents).unwrap();
        assert_eq!(fs::read_dir(&documents).unwrap().count(), 4);
        let package = fs::read_to_string(prefix.join("lib/pkgconfig/headway.pc")).unwrap();
        assert!(
            package.starts_with(&format!("prefix={}\n", prefix.display()))
                && package.contains("\nLibs: -L${libdir} -lheadway\n")
        );
        let config = fs::read_to_string(prefix.join("lib/cmake/headway/headwayConfig.cmake")).unwrap();
        assert!(config.contains("headway::headway SHARED IMPORTED") && config.contains(SONAME), "{config}");
        let build = include_str!("../../crates/headway-capi/build.rs");
        assert!(build.contains(&format!("-soname,{SONAME}\"")));
        fs::remove_dir_all(&folder).unwrap();
    }
}
