//! The machine, as `/proc` and `/sys` tell it.
//!
//! Nothing here can fail: what is not there, in a container or on another
//! architecture, is left out.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What a result depends on besides model and settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub hostname: Option<String>,
    /// Tells boots apart: times of CLOCK_MONOTONIC compare only within one.
    pub boot_id: Option<String>,
    /// `Linux 6.18.5`.
    pub kernel: Option<String>,
    /// `x86_64`, `aarch64`.
    pub architecture: String,
    pub cpu_model: Option<String>,
    /// Hardware threads that the kernel uses.
    pub cpus_online: Option<u64>,
    /// Cores: fewer where each has several hardware threads.
    pub cores: Option<u64>,
    /// Memory nodes.
    pub nodes: Option<u64>,
    /// What transparent huge pages are given to: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// Those of them that the recording process may run on.
    pub cpus_allowed: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Memory that could be had without swapping when the run started.
    pub memory_available_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    pub page_size_bytes: Option<u64>,
    /// The disk that holds the model's first file.
    pub model_disk: Option<Disk>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// Kernel name of the whole disk: `nvme0n1`.
    pub device: String,
    pub model: Option<String>,
    pub is_rotational: Option<bool>,
    /// What the kernel reads ahead of a page fault.
    pub read_ahead_bytes: Option<u64>,
    pub size_bytes: Option<u64>,
}

/// Describes the machine that this runs on. `model_file` tells which disk
/// matters; without it no disk is described.
pub fn describe(model_file: Option<&Path>) -> Machine {
    describe_in(Path::new("/"), model_file)
}

/// As [`describe`], with `/proc` and `/sys` below another root.
pub fn describe_in(root: &Path, model_file: Option<&Path>) -> Machine {
    let line = |path: &str| read_line(&root.join(path));
    let kernel = ["proc/sys/kernel/ostype", "proc/sys/kernel/osrelease"].map(line);
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let memory = |key| field(&meminfo, key).and_then(kilobytes);
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    Machine {
        hostname: line("proc/sys/kernel/hostname"),
        boot_id: boot_id(root),
        kernel: match kernel {
            [Some(name), Some(release)] => Some(format!("{name} {release}")),
            [_, release] => release,
        },
        architecture: std::env::consts::ARCH.to_owned(),
        cpu_model: cpu_model(root),
        cpus_online: line("sys/devices/system/cpu/online").and_then(|list| count_in(&list)),
        cores: cores(root),
        nodes: line("sys/devices/system/node/online").and_then(|list| count_in(&list)),
        huge_pages: line("sys/kernel/mm/transparent_hugepage/enabled").and_then(|choices| {
            let (_, rest) = choices.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        }),
        cpus_allowed: field(&status, "Cpus_allowed_list").and_then(count_in),
        memory_bytes: memory("MemTotal"),
        memory_available_bytes: memory("MemAvailable"),
        swap_bytes: memory("SwapTotal"),
        page_size_bytes: page_size_bytes(root),
        model_disk: model_file.and_then(|file| disk_of(root, file)),
    }
}

pub(crate) fn boot_id(root: &Path) -> Option<String> {
    read_line(&root.join("proc/sys/kernel/random/boot_id"))
}

/// First line of a file, trimmed; `None` when it is missing or empty.
pub(crate) fn read_line(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // Device-tree strings end in NUL.
    let line = text.lines().next()?.trim_matches(['\0', ' ', '\t']);
    (!line.is_empty()).then(|| line.to_owned())
}

/// The value of the first `key: value` line with this key.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == key).then(|| value.trim())
    })
}

fn kilobytes(value: &str) -> Option<u64> {
    value
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// How many numbers a list like `0-3,8` holds.
fn count_in(list: &str) -> Option<u64> {
    list.split(',').try_fold(0u64, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Hardware threads of one core name the same siblings.
fn cores(root: &Path) -> Option<u64> {
    let processors = fs::read_dir(root.join("sys/devices/system/cpu")).ok()?;
    let siblings =
        |entry: fs::DirEntry| read_line(&entry.path().join("topology/thread_siblings_list"));
    let cores: BTreeSet<String> = processors.flatten().filter_map(siblings).collect();
    (!cores.is_empty()).then_some(cores.len() as u64)
}

fn cpu_model(root: &Path) -> Option<String> {
    let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    // ARM kernels name the core by numbers only, the board in the device tree.
    ["model name", "Model", "Hardware", "cpu"]
        .into_iter()
        .find_map(|key| field(&cpuinfo, key).map(str::to_owned))
        .or_else(|| read_line(&root.join("sys/firmware/devicetree/base/model")))
        .or_else(|| {
            let implementer = field(&cpuinfo, "CPU implementer")?;
            let part = field(&cpuinfo, "CPU part")?;
            Some(format!("implementer {implementer} part {part}"))
        })
}

/// From the auxiliary vector: pairs of words, of which number 6 is the size.
fn page_size_bytes(root: &Path) -> Option<u64> {
    const AT_PAGESZ: usize = 6;
    let auxv = fs::read(root.join("proc/self/auxv")).ok()?;
    let (words, _) = auxv.as_chunks::<{ size_of::<usize>() }>();
    words
        .chunks_exact(2)
        .map(|pair| [usize::from_ne_bytes(pair[0]), usize::from_ne_bytes(pair[1])])
        .find_map(|[key, value]| (key == AT_PAGESZ).then_some(value as u64))
}

/// The disk below the file system that holds `file`.
fn disk_of(root: &Path, file: &Path) -> Option<Disk> {
    let device = fs::metadata(file).ok()?.dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let by_number = root.join("sys/dev/block").join(&number);
    let block = fs::canonicalize(by_number).ok().or_else(|| {
        // File systems such as btrfs invent device numbers; the mount table
        // has the real device.
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
        let source = mounts.lines().find_map(|line| {
            let (mount, rest) = line.split_once(" - ")?;
            (mount.split(' ').nth(2)? == number).then(|| rest.split(' ').nth(1))?
        })?;
        let name = fs::canonicalize(root.join(source.strip_prefix('/')?)).ok()?;
        fs::canonicalize(root.join("sys/class/block").join(name.file_name()?)).ok()
    })?;
    Some(describe_disk(whole_disk(block)))
}

/// A partition lies inside the folder of its disk.
fn whole_disk(block: PathBuf) -> PathBuf {
    match block.parent() {
        Some(parent) if block.join("partition").exists() => parent.to_owned(),
        _ => block,
    }
}

fn describe_disk(block: PathBuf) -> Disk {
    let number = |path: &str| read_line(&block.join(path))?.parse::<u64>().ok();
    Disk {
        device: block
            .file_name()
            .map_or(String::new(), |n| n.to_string_lossy().into_owned()),
        model: read_line(&block.join("device/model")),
        is_rotational: number("queue/rotational").map(|n| n != 0),
        read_ahead_bytes: number("queue/read_ahead_kb").and_then(|n| n.checked_mul(1024)),
        // `size` counts units of 512 bytes whatever the disk's own sector size.
        size_bytes: number("size").and_then(|n| n.checked_mul(512)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        let check = |list, expect| assert_eq!(count_in(list), expect, "{list}");
        check("0", Some(1));
        check("0-1", Some(2));
        check("0-3,8,10-11", Some(7));
        check("", None);
        check("3-1", None);
        check("0-18446744073709551615", None);
        check("garbage", None);
    }

    #[test]
    fn a_bare_root_describes_nothing_and_does_not_fail() {
        let root = tempfile::tempdir().unwrap();
        let machine = describe_in(root.path(), Some(root.path()));
        let expected = Machine {
            architecture: std::env::consts::ARCH.to_owned(),
            ..Machine::default()
        };
        assert_eq!(machine, expected);
    }

    #[test]
    fn files_of_a_machine_are_understood() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/ostype", "Linux\n");
        write("proc/sys/kernel/osrelease", "6.18.5-arm64\n");
        write("proc/sys/kernel/hostname", "pi\n");
        write(
            "proc/cpuinfo",
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n",
        );
        write("sys/firmware/devicetree/base/model", "Raspberry Pi 5\0");
        write("sys/devices/system/cpu/online", "0-3\n");
        for cpu in 0..4 {
            let siblings = format!("{},{}\n", cpu % 2, cpu % 2 + 2);
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            write(&path, &siblings);
        }
        write("sys/devices/system/node/online", "0-1\n");
        write(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        );
        write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t1-2\n");
        write(
            "proc/meminfo",
            "MemTotal:       16384 kB\nMemAvailable: 8 kB\nSwapTotal: 0 kB\n",
        );
        let machine = describe_in(root.path(), None);
        assert_eq!(machine.kernel.as_deref(), Some("Linux 6.18.5-arm64"));
        assert_eq!(machine.hostname.as_deref(), Some("pi"));
        assert_eq!(machine.cpu_model.as_deref(), Some("Raspberry Pi 5"));
        assert_eq!(machine.cpus_online, Some(4));
        assert_eq!((machine.cores, machine.nodes), (Some(2), Some(2)));
        assert_eq!(machine.huge_pages.as_deref(), Some("madvise"));
        assert_eq!(machine.cpus_allowed, Some(2));
        assert_eq!(machine.memory_bytes, Some(16 << 20));
        assert_eq!(machine.memory_available_bytes, Some(8192));
        assert_eq!(machine.swap_bytes, Some(0));
    }

    #[test]
    fn a_disk_of_a_partition_is_the_whole_disk() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("sys/devices/pci/nvme0n1");
        let partition = disk.join("nvme0n1p2");
        fs::create_dir_all(&partition).unwrap();
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("device")).unwrap();
        fs::write(partition.join("partition"), "2\n").unwrap();
        fs::write(disk.join("device/model"), "WUS4BB096D7P3E3   \n").unwrap();
        fs::write(disk.join("queue/rotational"), "0\n").unwrap();
        fs::write(disk.join("queue/read_ahead_kb"), "128\n").unwrap();
        fs::write(disk.join("size"), "8\n").unwrap();
        let file = root.path().join("model.gguf");
        fs::write(&file, "").unwrap();
        let device = fs::metadata(&file).unwrap().dev();
        let links = root.path().join("sys/dev/block");
        fs::create_dir_all(&links).unwrap();
        let number = format!("{}:{}", libc::major(device), libc::minor(device));
        std::os::unix::fs::symlink(&partition, links.join(number)).unwrap();
        let expected = Disk {
            device: "nvme0n1".to_owned(),
            model: Some("WUS4BB096D7P3E3".to_owned()),
            is_rotational: Some(false),
            read_ahead_bytes: Some(131_072),
            size_bytes: Some(4096),
        };
        assert_eq!(disk_of(root.path(), &file), Some(expected));
    }

    #[test]
    fn this_machine_has_memory_pages_and_cpus() {
        let machine = describe(None);
        assert!(machine.memory_bytes.unwrap() > 0);
        assert!(machine.page_size_bytes.unwrap().is_power_of_two());
        assert!(machine.cpus_allowed.unwrap() >= 1);
        assert!(machine.kernel.unwrap().starts_with("Linux "));
    }
}
