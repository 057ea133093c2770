//! What must be on the machine, how to tell, and how to get it.
//!
//! A need is met or not by looking (does the program run, is the file there),
//! never by asking the package manager, so that a compiler from elsewhere is as
//! good as Debian's. Only when something is missing is `apt-get` called, with
//! `sudo` unless we are root. Without either we print the command and stop.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::aarch64;
use crate::house::House;
use crate::step::{Outcome, say};

/// Who needs it: the demo builds, the tests also compare with other programs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum For {
    Build,
    Tests,
}

struct Need {
    what: &'static str,
    why: &'static str,
    packages: &'static [&'static str],
    needed_for: For,
    is_met: fn(&House) -> bool,
}

const NEEDS: &[Need] = &[
    Need {
        what: "a C and C++ compiler",
        why: "llama.cpp is compiled from source",
        packages: &["gcc", "g++"],
        needed_for: For::Build,
        is_met: |house| answers(house, "cc") && answers(house, "c++"),
    },
    Need {
        what: "make",
        why: "CMake drives the build of llama.cpp with it",
        packages: &["make"],
        needed_for: For::Build,
        is_met: |house| answers(house, "make"),
    },
    Need {
        what: "cmake",
        why: "llama.cpp's build system",
        packages: &["cmake"],
        needed_for: For::Build,
        is_met: |house| answers(house, "cmake"),
    },
    Need {
        what: "libclang with its headers",
        why: "bindgen reads llama.cpp's headers with it",
        packages: &["libclang-dev"],
        needed_for: For::Build,
        is_met: |_| has_libclang(),
    },
    Need {
        what: "python3 with venv",
        why: "tests compare our GGUF reader with the one on PyPI",
        packages: &["python3", "python3-venv"],
        needed_for: For::Tests,
        is_met: |house| python(house).is_some(),
    },
    Need {
        what: "a Java runtime",
        why: "Spark is one of the readers that our tables are compared with",
        packages: &["default-jre-headless"],
        needed_for: For::Tests,
        is_met: |house| answers(house, "java"),
    },
    Need {
        what: "Node.js with npm",
        why: "the viewer's page is built again and compared, and tests drive a browser with it",
        packages: &["nodejs", "npm"],
        needed_for: For::Tests,
        is_met: |house| answers(house, "node") && answers(house, "npm"),
    },
    Need {
        what: "perf",
        why: "page faults that we record are compared with those that it records",
        packages: &["linux-perf"],
        needed_for: For::Tests,
        is_met: |house| answers(house, "perf"),
    },
    Need {
        what: "strace",
        why: "posts count system calls with it, and are run again",
        packages: &["strace"],
        needed_for: For::Tests,
        is_met: |house| answers(house, "strace"),
    },
    Need {
        what: "valgrind",
        why: "cachegrind counts the misses that we count",
        packages: &["valgrind"],
        needed_for: For::Tests,
        is_met: |house| answers(house, "valgrind"),
    },
    Need {
        what: "a C compiler and libraries for AArch64",
        why: "the preload library and the reader are built for it too",
        packages: &[
            "gcc-aarch64-linux-gnu",
            "libc6-dev-arm64-cross",
            "libstdc++6-arm64-cross",
        ],
        needed_for: For::Tests,
        is_met: |house| {
            let has = |path: &str| Path::new(aarch64::SYSTEM_ROOT).join(path).exists();
            aarch64::is_this_machine()
                || answers(house, aarch64::COMPILER)
                    && has("include/stdio.h")
                    && has("lib/libstdc++.so.6")
        },
    },
    Need {
        what: "qemu for programs of AArch64",
        why: "what is built for it is run",
        packages: &["qemu-user"],
        needed_for: For::Tests,
        is_met: |house| aarch64::is_this_machine() || answers(house, aarch64::QEMU),
    },
    Need {
        what: "Vulkan on the processor (llvmpipe)",
        why: "it stands for a GPU, beside which a program is fed and recorded",
        packages: &["mesa-vulkan-drivers", "libvulkan1"],
        needed_for: For::Tests,
        is_met: |_| {
            let is_llvmpipe = |path: PathBuf| file_name(&path).starts_with("lvp_icd");
            children("/usr/share/vulkan/icd.d").any(is_llvmpipe)
        },
    },
    Need {
        what: "Chromium",
        why: "the viewer and the HTML report are tested in a real browser",
        // Without a font the page has no letters.
        packages: &["chromium", "fonts-dejavu-core"],
        needed_for: For::Tests,
        is_met: |house| answers(house, "/usr/bin/chromium"),
    },
];

/// Installs what is missing, saying what and why.
pub fn install(house: &House, purpose: For) -> Outcome {
    install_packages(house, purpose)?;
    if purpose == For::Tests {
        install_component(house, "rustfmt", "fmt", "checks the formatting")?;
        install_component(house, "clippy", "clippy", "lints")?;
        install_venv(house)?;
    }
    Ok(())
}

/// The interpreter of the virtual environment that [`install`] fills.
pub fn venv_python(house: &House) -> PathBuf {
    house.target().join("venv/bin/python")
}

fn install_packages(house: &House, purpose: For) -> Outcome {
    let missing = missing(house, purpose);
    if missing.is_empty() {
        say("    all system packages are there");
        return Ok(());
    }
    for need in &missing {
        say(&format!(
            "    missing: {} ({}): package {}",
            need.what,
            need.why,
            need.packages.join(", ")
        ));
    }
    let packages: Vec<&str> = missing
        .iter()
        .flat_map(|need| need.packages)
        .copied()
        .collect();
    let by_hand = format!(
        "apt-get update && apt-get install -y {}",
        packages.join(" ")
    );
    if !answers(house, "apt-get") {
        return Err(format!(
            "there is no apt-get here; on Debian or Ubuntu this would do: {by_hand}"
        ));
    }
    let prefix: &[&str] = if is_root() {
        &[]
    } else if answers(house, "sudo") {
        &["sudo"]
    } else {
        return Err(format!("not root and no sudo; run as root: {by_hand}"));
    };
    house.run(apt_get(house, prefix, &["update"]))?;
    let mut install = apt_get(house, prefix, &["install", "-y", "--no-install-recommends"]);
    install.args(&packages);
    house.run(install)?;
    match self::missing(house, purpose).first() {
        None => Ok(()),
        Some(need) => Err(format!(
            "{} is still missing after installing {}",
            need.what,
            need.packages.join(", ")
        )),
    }
}

fn missing(house: &House, purpose: For) -> Vec<&'static Need> {
    NEEDS
        .iter()
        .filter(|need| need.needed_for <= purpose && !(need.is_met)(house))
        .collect()
}

/// `sudo` drops the environment, hence `env` after it.
fn apt_get(house: &House, prefix: &[&str], args: &[&str]) -> Command {
    let mut words = prefix.to_vec();
    words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    words.extend(args);
    let mut command = house.command(words[0]);
    command.args(&words[1..]);
    command
}

fn install_component(house: &House, component: &str, subcommand: &str, why: &str) -> Outcome {
    if house.succeeds(house.bare_cargo(&[subcommand, "--version"])) {
        return Ok(());
    }
    say(&format!("    missing: {component} ({why})"));
    let mut rustup = house.command("rustup");
    rustup.args(["component", "add", component]);
    house.run(rustup).map_err(|error| {
        format!(
            "{error}; install {component} the way you installed Rust (Debian: package {})",
            if component == "clippy" {
                "rust-clippy"
            } else {
                component
            }
        )
    })
}

/// Fills `target/venv`, unless it was filled from the same requirements.
/// The stamp is a copy of them and is written last, so that an interrupted
/// installation starts afresh.
fn install_venv(house: &House) -> Outcome {
    let requirements = house.root().join("tests/python/requirements.txt");
    let wanted = fs::read_to_string(&requirements)
        .map_err(|error| format!("{}: {error}", requirements.display()))?;
    let venv = house.target().join("venv");
    let stamp = venv.join("requirements.stamp");
    let python_runs = || {
        let mut python = house.command(venv_python(house));
        python.args(["-c", "pass"]);
        house.succeeds(python)
    };
    if fs::read_to_string(&stamp).is_ok_and(|filled| filled == wanted) && python_runs() {
        say("    the Python environment is up to date");
        return Ok(());
    }
    say("    filling target/venv (packages from PyPI that tests compare us with)");
    let python = python(house).ok_or("python3 with venv disappeared")?;
    let mut create = house.command(python);
    create.args(["-m", "venv", "--clear"]).arg(&venv);
    house.run(create)?;
    let mut pip = house.command(venv_python(house));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    pip.arg("-r").arg(&requirements);
    house.run(pip)?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// A Python that can make virtual environments. The one on PATH may be pyenv's
/// shim without a version behind it, so Debian's own comes second.
fn python(house: &House) -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|program| {
        let mut command = house.command(program);
        command.args(["-c", "import venv, ensurepip"]);
        house.succeeds(command)
    })
}

fn answers(house: &House, program: &str) -> bool {
    let mut command = house.command(program);
    command.arg("--version");
    house.succeeds(command)
}

/// libclang alone (Debian's libclang1) is not enough: bindgen also needs the
/// compiler's own headers, which come with the -dev package.
fn has_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return true;
    }
    let llvms = || children("/usr/lib").filter(|path| file_name(path).starts_with("llvm-"));
    let mut library_dirs: Vec<PathBuf> = ["/usr/lib", "/usr/lib64", "/usr/local/lib"]
        .iter()
        .map(PathBuf::from)
        .collect();
    library_dirs.extend(llvms().map(|llvm| llvm.join("lib")));
    library_dirs
        .extend(children("/usr/lib").filter(|path| file_name(path).ends_with("-linux-gnu")));
    let has_library = library_dirs
        .iter()
        .flat_map(children)
        .any(|path| is_libclang(&file_name(&path)));
    let has_headers = library_dirs
        .iter()
        .flat_map(|dir| children(dir.join("clang")))
        .any(|version| version.join("include/stddef.h").exists());
    has_library && has_headers
}

/// `libclang.so`, `libclang.so.13`, `libclang-14.so.1`; not `libclang-cpp.so`.
fn is_libclang(name: &str) -> bool {
    name.strip_prefix("libclang")
        .and_then(|rest| rest.split_once(".so"))
        .is_some_and(|(version, _)| {
            version
                .chars()
                .all(|c| c == '-' || c == '.' || c.is_ascii_digit())
        })
}

fn children(dir: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// `std` cannot ask for the user id, but a process owns its own /proc entry.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libclang_is_told_from_its_neighbours() {
        for name in [
            "libclang.so",
            "libclang.so.1",
            "libclang-14.so.13",
            "libclang-14.so",
        ] {
            assert!(is_libclang(name), "{name}");
        }
        for name in [
            "libclang-cpp.so.14",
            "libclangAST.a",
            "libclang_rt.so",
            "libc.so",
        ] {
            assert!(!is_libclang(name), "{name}");
        }
    }

    #[test]
    fn sudo_comes_before_the_environment_it_would_drop() {
        let command = apt_get(&House::new(), &["sudo"], &["update"]);
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(command.get_program(), "sudo");
        assert_eq!(
            args,
            ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "update"]
        );
    }

    #[test]
    fn the_demo_needs_no_python_and_no_node() {
        let for_build = NEEDS.iter().filter(|need| need.needed_for <= For::Build);
        assert!(
            for_build
                .flat_map(|need| need.packages)
                .all(|name| !name.contains("python") && !name.contains("node"))
        );
    }
}
