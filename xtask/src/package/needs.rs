//! What packages have to promise: the libraries that the binaries need, and how new.

use super::elf::Needs;

/// Of those that PEP 600 lets a wheel expect on every Linux, the ones that we could need.
const ON_EVERY_LINUX: &[&str] = &[
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
];
/// The newest symbols of libstdc++ (`GLIBCXX_3.4.N`) with the GCC that brought them and the
/// glibc (2.N) of the systems that have it, as auditwheel's policies pair them.
const LIBSTDCXX: &[(u32, u32, u32)] = &[
    (24, 7, 27),
    (28, 10, 31),
    (29, 11, 34),
    (30, 12, 35),
    (32, 13, 39),
    (33, 14, 39),
];
/// Relative relocations in a packed form: the dynamic linker's own version, not a symbol's.
const PACKED_RELOCATIONS: &str = "GLIBC_ABI_DT_RELR";

/// `manylinux_2_35_x86_64`: every system with this glibc or a newer one.
pub fn platform_tag(needs: &Needs) -> Result<String, String> {
    for library in &needs.libraries {
        if !ON_EVERY_LINUX.contains(&library.as_str()) {
            return Err(format!(
                "the binaries need {library}, which a manylinux wheel may not expect; link it statically"
            ));
        }
    }
    let glibc = glibc(needs)?.max(libstdcxx(needs)?.map_or(0, |(_, glibc)| glibc));
    Ok(format!("manylinux_2_{glibc}_{}", std::env::consts::ARCH))
}

/// `libc6 (>= 2.35), libgcc-s1`: Debian's packages with what is needed.
pub fn debian_depends(needs: &Needs) -> Result<String, String> {
    let mut packages = vec![format!("libc6 (>= 2.{})", glibc(needs)?)];
    for library in &needs.libraries {
        match library.as_str() {
            "libgcc_s.so.1" => packages.push("libgcc-s1".into()),
            "libgomp.so.1" => packages.push("libgomp1".into()),
            "libstdc++.so.6" => {
                let (gcc, _) = libstdcxx(needs)?.unwrap_or((7, 27));
                packages.push(format!("libstdc++6 (>= {gcc})"));
            }
            // Parts of libc6.
            other if ON_EVERY_LINUX.contains(&other) => {}
            other => return Err(format!("which package of Debian has {other}?")),
        }
    }
    packages.sort();
    Ok(packages.join(", "))
}

/// The N of glibc 2.N.
fn glibc(needs: &Needs) -> Result<u32, String> {
    let mut newest = match needs.newest("GLIBC_").as_deref() {
        Some([2, minor, ..]) => *minor,
        other => return Err(format!("glibc {other:?} is no version that we know")),
    };
    let mut all = needs.versions.values().flatten();
    if all.any(|version| version == PACKED_RELOCATIONS) {
        newest = newest.max(36);
    }
    Ok(newest)
}

/// GCC and glibc that come with the libstdc++ that is needed, if it is.
fn libstdcxx(needs: &Needs) -> Result<Option<(u32, u32)>, String> {
    let symbols = match needs.newest("GLIBCXX_").as_deref() {
        None => return Ok(None),
        Some([3, 4, symbols]) => *symbols,
        Some([3, 4]) => 0,
        Some(other) => return Err(format!("GLIBCXX {other:?} is no version that we know")),
    };
    let row = LIBSTDCXX.iter().find(|(newest, ..)| symbols <= *newest);
    let (_, gcc, glibc) = row.ok_or_else(|| {
        format!("GLIBCXX_3.4.{symbols} is newer than the table in xtask/src/package/needs.rs")
    })?;
    Ok(Some((*gcc, *glibc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(libraries: &[&str], versions: &[&str]) -> Needs {
        let owned = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        Needs {
            libraries: owned(libraries),
            versions: [("any".to_owned(), owned(versions))].into(),
        }
    }

    #[track_caller]
    fn check(needs: &Needs, tag: &str, depends: &str) {
        let arch = std::env::consts::ARCH;
        assert_eq!(platform_tag(needs), Ok(format!("{tag}_{arch}")));
        assert_eq!(debian_depends(needs).as_deref(), Ok(depends));
    }

    #[test]
    fn a_package_promises_what_the_newest_symbol_needs() {
        let libc = ["libc.so.6", "libm.so.6"];
        let old = needs(&libc, &["GLIBC_2.2.5", "GLIBC_2.28", "GLIBC_2.9"]);
        check(&old, "manylinux_2_28", "libc6 (>= 2.28)");
        let packed = needs(&libc, &["GLIBC_2.28", PACKED_RELOCATIONS]);
        check(&packed, "manylinux_2_36", "libc6 (>= 2.36)");
        let libraries = ["libc.so.6", "libstdc++.so.6", "libgcc_s.so.1"];
        let cxx = needs(&libraries, &["GLIBC_2.28", "GLIBCXX_3.4.29", "GCC_3.0"]);
        let depends = "libc6 (>= 2.28), libgcc-s1, libstdc++6 (>= 11)";
        check(&cxx, "manylinux_2_34", depends);
    }

    #[test]
    fn what_not_every_linux_has_is_refused() {
        let needs = needs(&["libc.so.6", "libnuma.so.1"], &["GLIBC_2.28"]);
        assert!(platform_tag(&needs).unwrap_err().contains("libnuma.so.1"));
        assert!(debian_depends(&needs).unwrap_err().contains("libnuma.so.1"));
    }

    #[test]
    fn a_libstdcxx_from_the_future_is_refused() {
        let needs = needs(&["libc.so.6"], &["GLIBC_2.28", "GLIBCXX_3.4.99"]);
        assert!(platform_tag(&needs).unwrap_err().contains("GLIBCXX_3.4.99"));
    }
}
