//! What the system's own files say. Only reads, and takes what it does not understand for absent.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use super::{Cpu, Disk, Memory, Node, Os};

pub(super) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub(super) fn os(root: &Path) -> Os {
    let kernel = rustix::system::uname();
    let text = read(&root.join("etc/os-release"));
    let pretty = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name =
        pretty.map_or_else(|| kernel.sysname().to_string_lossy().into_owned(), |name| name.trim_matches('"').into());
    Os {
        name,
        kernel: kernel.release().to_string_lossy().into_owned(),
        architecture: kernel.machine().to_string_lossy().into_owned(),
    }
}

pub(super) fn cpu(root: &Path) -> Cpu {
    // The standard library respects affinity and the quotas of control groups of both versions.
    let usable = thread::available_parallelism().map_or(1, usize::from);
    let info = read(&root.join("proc/cpuinfo"));
    let model = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let system = root.join("sys/devices/system/cpu");
    let online = numbers(&read(&system.join("online")));
    let topology = |cpu: &u32, what: &str| read(&system.join(format!("cpu{cpu}/topology/{what}"))).trim().to_owned();
    let cores: BTreeSet<_> =
        online.iter().map(|cpu| (topology(cpu, "physical_package_id"), topology(cpu, "core_id"))).collect();
    Cpu {
        model: model.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
        usable,
        threads: online.len().max(usable),
        cores: if online.is_empty() { usable } else { cores.len() },
        features: features(),
    }
}

/// Asks the processor for each of these.
macro_rules! detected {
    ($ask:ident: $($name:tt)*) => {
        [$(($name, std::arch::$ask!($name))),*]
    };
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<String> {
    named(&detected!(is_x86_feature_detected:
        "sse3" "ssse3" "sse4.1" "sse4.2" "popcnt" "aes" "pclmulqdq" "sha" "avx" "avx2" "fma" "f16c" "bmi1" "bmi2"
        "lzcnt" "adx" "rdrand" "rdseed" "gfni" "vaes" "vpclmulqdq" "avxvnni" "avx512f" "avx512bw" "avx512cd" "avx512dq"
        "avx512vl" "avx512vnni" "avx512bf16" "avx512vbmi" "avx512vbmi2" "avx512bitalg" "avx512ifma" "avx512vpopcntdq"
        "avx512fp16"))
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<String> {
    named(&detected!(is_aarch64_feature_detected:
        "neon" "aes" "sha2" "sha3" "crc" "lse" "fp16" "dotprod" "bf16" "i8mm" "sve" "sve2"))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<String> {
    Vec::new()
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn named(found: &[(&str, bool)]) -> Vec<String> {
    found.iter().filter(|(_, is_there)| *is_there).map(|(name, _)| (*name).to_owned()).collect()
}

pub(super) fn memory(root: &Path) -> Memory {
    let total = kibibytes(&read(&root.join("proc/meminfo")), "MemTotal:").unwrap_or(0);
    let limit = control_groups(root).filter_map(|path| read(&path).trim().parse::<u64>().ok()).min();
    // Without a limit, version 1 says a number greater than any machine has.
    Memory { usable: limit.map_or(total, |limit| if total == 0 { limit } else { limit.min(total) }), total }
}

/// The files that may hold a limit on this process's memory: those of its control group and of every one around it.
fn control_groups(root: &Path) -> impl Iterator<Item = PathBuf> {
    let mounts = root.join("sys/fs/cgroup");
    let text = read(&root.join("proc/self/cgroup"));
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (bases, file) = match kinds {
            "" => (vec![mounts.clone(), mounts.join("unified")], "memory.max"),
            _ if kinds.split(',').any(|kind| kind == "memory") => {
                (vec![mounts.join("memory")], "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for base in bases {
            let group = base.join(group.trim_start_matches('/'));
            // Inside a container the path may be the one outside, which is not there; the root then has the limit.
            found.extend(
                group.ancestors().take_while(|around| around.starts_with(&base)).map(|around| around.join(file)),
            );
        }
    }
    found.into_iter()
}

pub(super) fn numa(root: &Path) -> Vec<Node> {
    let system = root.join("sys/devices/system/node");
    let node = |id| {
        let near = system.join(format!("node{id}"));
        let cpus = numbers(&read(&near.join("cpulist")));
        let info = read(&near.join("meminfo"));
        // "Node 0 MemTotal:  24682416 kB"
        Node { id, cpus, memory: kibibytes(&info, "MemTotal:").unwrap_or(0) }
    };
    numbers(&read(&system.join("online"))).into_iter().map(node).collect()
}

pub(super) fn disk(path: &Path) -> Option<Disk> {
    let found = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(Disk { path: path.to_owned(), total: bytes(found.f_blocks), free: bytes(found.f_bavail) })
}

/// What a file says; nothing if it cannot be read.
pub(super) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let (_, after) = text.lines().find_map(|line| line.split_once(name))?;
    after.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Numbers as the kernel lists them: `0-3,8,10-11`.
fn numbers(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    // No machine has so many; a file that says so is wrong.
    list.trim().split(',').filter_map(range).flatten().take(1 << 16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up machine: files by path.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_smallest_limit_around_the_control_group_counts_in_both_versions() {
        type File = (&'static str, &'static str);
        const MEMINFO: File = ("proc/meminfo", "MemFree: 5 kB\nMemTotal:       1000 kB\n");
        let cases: &[(&str, &[File], u64)] = &[
            ("no control groups", &[MEMINFO], 1000 * 1024),
            (
                "version 2, limit above",
                &[
                    MEMINFO,
                    ("proc/self/cgroup", "0::/a/b\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                    ("sys/fs/cgroup/a/memory.max", "4096\n"),
                ],
                4096,
            ),
            (
                "version 2 in a container",
                &[MEMINFO, ("proc/self/cgroup", "0::/../outside\n"), ("sys/fs/cgroup/memory.max", "8192\n")],
                8192,
            ),
            (
                "version 1",
                &[
                    MEMINFO,
                    ("proc/self/cgroup", "4:memory:/x\n1:cpu:/y\n0::/\n"),
                    ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "12288\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                    ("sys/fs/cgroup/cpu/y/memory.limit_in_bytes", "1\n"),
                ],
                12288,
            ),
            (
                "version 1 without a limit",
                &[
                    MEMINFO,
                    ("proc/self/cgroup", "4:memory:/\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ],
                1000 * 1024,
            ),
        ];
        for (name, files, usable) in cases {
            let root = machine(files);
            assert_eq!(memory(root.path()), Memory { usable: *usable, total: 1000 * 1024 }, "{name}");
        }
        assert_eq!(memory(machine(&[]).path()), Memory { usable: 0, total: 0 });
    }

    #[test]
    fn nodes_and_cores_are_counted() {
        let root = machine(&[
            ("sys/devices/system/node/online", "0,2\n"),
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       24682416 kB\nNode 0 MemFree: 1 kB\n"),
            ("sys/devices/system/node/node2/cpulist", "2-3,8\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
            ("sys/devices/system/cpu/cpu1/topology/core_id", "1\n"),
            ("sys/devices/system/cpu/cpu2/topology/core_id", "0\n"),
            ("sys/devices/system/cpu/cpu3/topology/core_id", "1\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: A fast one: v2\n"),
            ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Some Linux 3\"\n"),
        ]);
        let nodes = numa(root.path());
        assert_eq!(nodes[0], Node { id: 0, cpus: vec![0, 1], memory: 24_682_416 * 1024 });
        assert_eq!(nodes[1], Node { id: 2, cpus: vec![2, 3, 8], memory: 0 });
        let cpu = cpu(root.path());
        assert_eq!((cpu.cores, cpu.model.as_str()), (2, "A fast one: v2"));
        assert!(cpu.threads >= 4);
        assert_eq!(os(root.path()).name, "Some Linux 3");
    }

    #[test]
    fn lists_of_numbers_are_read_as_the_kernel_writes_them() {
        assert_eq!(numbers("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(numbers("\n").is_empty());
        assert_eq!(numbers("5-2,x,7"), [7]);
        assert_eq!(numbers("0-4294967295").len(), 1 << 16);
    }
}
