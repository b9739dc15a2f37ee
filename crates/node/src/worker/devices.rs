//! How a task is told which accelerators are its own, in the words that the libraries of their makers listen to.
//!
//! Which of them it gets is decided by the machine. Never hides an accelerator from a task that asked for none.

use crate::detect::Gpu;

/// What a task finds in its environment that has the accelerators at these positions, of those that are known.
///
/// Those that nobody described go by their position, as if they were NVIDIA's: so a worker that was only told how many it has
/// keeps its tasks apart too.
pub(super) fn variables(known: &[Gpu], positions: &[u16]) -> Vec<(&'static str, String)> {
    let mut variables = vec![("FILCH_GPUS", listed(positions.iter().map(u16::to_string)))];
    let (mut nvidia, mut amd) = (Vec::new(), Vec::new());
    for &position in positions {
        let position = usize::from(position);
        match known.get(position) {
            // Its place among those of its maker is what it is called.
            Some(gpu) if gpu.vendor == "amd" => {
                amd.push(known[..position].iter().filter(|other| other.vendor == "amd").count().to_string());
            }
            Some(gpu) => nvidia.push(gpu.id.clone()),
            None => nvidia.push(position.to_string()),
        }
    }
    // Whoever has some of one maker and none of another is not to find those of the other either.
    let has = |vendor: &str| known.iter().any(|gpu| gpu.vendor == vendor);
    if !nvidia.is_empty() || has("nvidia") {
        variables.push(("CUDA_VISIBLE_DEVICES", listed(nvidia)));
    }
    if !amd.is_empty() || has("amd") {
        variables.push(("ROCR_VISIBLE_DEVICES", listed(amd)));
    }
    variables
}

fn listed(names: impl IntoIterator<Item = String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(vendor: &str, id: &str) -> Gpu {
        Gpu { vendor: vendor.to_owned(), model: "a model".to_owned(), id: id.to_owned(), memory: 1 << 30 }
    }

    #[test]
    fn each_maker_is_told_in_its_own_words() {
        let known = [gpu("nvidia", "GPU-aa"), gpu("nvidia", "GPU-bb"), gpu("amd", "00ff"), gpu("amd", "0100")];
        let named = |positions: &[u16]| variables(&known, positions);
        let expected = |all: &str, cuda: &str, rocr: &str| {
            let pairs = [("FILCH_GPUS", all), ("CUDA_VISIBLE_DEVICES", cuda), ("ROCR_VISIBLE_DEVICES", rocr)];
            pairs.map(|(name, value)| (name, value.to_owned())).to_vec()
        };
        assert_eq!(named(&[1]), expected("1", "GPU-bb", ""));
        assert_eq!(named(&[0, 3]), expected("0,3", "GPU-aa", "1"));
    }

    #[test]
    fn those_nobody_described_go_by_their_position() {
        let expected = [("FILCH_GPUS", "0,2".to_owned()), ("CUDA_VISIBLE_DEVICES", "GPU-aa,2".to_owned())];
        assert_eq!(variables(&[gpu("nvidia", "GPU-aa")], &[0, 2]), expected);
    }
}
