//! Accelerators, asked for through what their drivers bring along: `nvidia-smi`, and the files of AMD's kernel driver.
//!
//! Never loads a driver's library into this process: that would cost memory on every worker, and unsafe code.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::Gpu;
use super::probe::output;
use super::system::read;

const MEBIBYTE: u64 = 1 << 20;

/// NVIDIA's, those that may be used; none without its tool.
pub(super) fn nvidia(tool: &Path, visible: Option<&str>) -> Vec<Gpu> {
    let arguments = ["--query-gpu=index,uuid,memory.total,name", "--format=csv,noheader,nounits"];
    let Ok(said) = output(tool.as_os_str(), arguments.map(OsStr::new)) else { return Vec::new() };
    let all = said.lines().filter_map(nvidia_line);
    match visible {
        None => all.map(|(_, gpu)| gpu).collect(),
        Some(list) => {
            let wanted: Vec<&str> = list.split(',').map(str::trim).collect();
            let is_wanted = |index: &str, id: &str| {
                wanted.iter().any(|name| *name == index || name.len() > 4 && id.starts_with(name))
            };
            all.filter(|(index, gpu)| is_wanted(index, &gpu.id)).map(|(_, gpu)| gpu).collect()
        }
    }
}

/// `0, GPU-8f1c…, 81920, NVIDIA A100-SXM4-80GB`
fn nvidia_line(line: &str) -> Option<(String, Gpu)> {
    let mut parts = line.splitn(4, ',').map(str::trim);
    let (index, id, memory, model) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Some devices do not tell their memory; they are there all the same.
    let memory = memory.parse::<u64>().unwrap_or(0).saturating_mul(MEBIBYTE);
    Some((index.to_owned(), Gpu { vendor: "nvidia".to_owned(), model: model.to_owned(), id: id.to_owned(), memory }))
}

/// AMD's, as the kernel driver for computing describes them.
pub(super) fn amd(root: &Path) -> Vec<Gpu> {
    let Ok(nodes) = fs::read_dir(root.join("sys/class/kfd/kfd/topology/nodes")) else { return Vec::new() };
    let mut nodes: Vec<_> = nodes.filter_map(|node| node.ok().map(|node| node.path())).collect();
    nodes.sort();
    nodes.iter().filter_map(|node| amd_node(node)).collect()
}

fn amd_node(node: &Path) -> Option<Gpu> {
    let properties = read(&node.join("properties"));
    // Processors are nodes too; they have none.
    property(&properties, "simd_count").filter(|count| *count > 0)?;
    let banks = fs::read_dir(node.join("mem_banks")).into_iter().flatten().filter_map(Result::ok);
    let memory = banks.filter_map(|bank| property(&read(&bank.path().join("properties")), "size_in_bytes")).sum();
    let id = property(&properties, "unique_id").unwrap_or(0);
    let model = read(&node.join("name")).trim().to_owned();
    Some(Gpu { vendor: "amd".to_owned(), model, id: format!("{id:016x}"), memory })
}

fn property(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    words.find(|(found, _)| *found == name).and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn tool(dir: &Path, script: &str) -> std::path::PathBuf {
        let path = dir.join("smi");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn nvidias_are_those_its_tool_lists_and_the_environment_allows() {
        let dir = tempfile::tempdir().unwrap();
        let lines = "echo '0, GPU-aaaa1, 81920, NVIDIA A100-SXM4-80GB'; echo '1, GPU-bbbb2, [N/A], A thing, of sorts'";
        let path = tool(dir.path(), lines);
        let all = nvidia(&path, None);
        assert_eq!(
            all.iter().map(|gpu| gpu.model.as_str()).collect::<Vec<_>>(),
            ["NVIDIA A100-SXM4-80GB", "A thing, of sorts"]
        );
        assert_eq!((all[0].memory, all[1].memory), (80 << 30, 0));
        assert_eq!(nvidia(&path, Some("1")), all[1..]);
        assert_eq!(nvidia(&path, Some("GPU-aaaa")), all[..1]);
        assert_eq!(nvidia(&path, Some("")), []);
        assert_eq!(nvidia(&tool(dir.path(), "echo 'No devices were found'; exit 6"), None), []);
        assert_eq!(nvidia(&dir.path().join("not there"), None), []);
    }

    #[test]
    fn amds_are_the_nodes_that_compute() {
        let root = tempfile::tempdir().unwrap();
        let nodes = root.path().join("sys/class/kfd/kfd/topology/nodes");
        for (node, properties) in
            [("0", "cpu_cores_count 64\nsimd_count 0\n"), ("1", "simd_count 416\nunique_id 255\n")]
        {
            fs::create_dir_all(nodes.join(node).join("mem_banks/0")).unwrap();
            fs::write(nodes.join(node).join("properties"), properties).unwrap();
            fs::write(nodes.join(node).join("name"), "gfx90a\n").unwrap();
            fs::write(nodes.join(node).join("mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 68702699520\n")
                .unwrap();
        }
        let expected =
            Gpu { vendor: "amd".into(), model: "gfx90a".into(), id: "00000000000000ff".into(), memory: 68_702_699_520 };
        assert_eq!(amd(root.path()), [expected]);
    }
}
