//! How a task is told which accelerators are its own, in the words that the libraries of their makers listen to.
//!
//! Which of them it gets is decided by the machine. Never hides an accelerator from a task that asked for none.

use crate::detect::Gpu;

/// What a task finds in its environment that has the accelerators at these positions, of those that are known. `inherited` is what this
/// process itself was told of NVIDIA's.
///
/// If none are known, a worker that was only told how many it has keeps its tasks apart all the same: they go by their position, as if
/// they were NVIDIA's. Of one that is said to have more than were found, or than it was given, nobody knows what those are called.
pub(super) fn variables(known: &[Gpu], inherited: Option<&str>, positions: &[u16]) -> Vec<(&'static str, String)> {
    let mut variables = vec![("FILCH_GPUS", listed(positions.iter().map(u16::to_string)))];
    let given: Option<Vec<&str>> = inherited.map(|list| list.split(',').map(str::trim).collect());
    let (mut nvidia, mut amd) = (Vec::new(), Vec::new());
    for position in positions.iter().map(|&position| usize::from(position)) {
        match (known.get(position), &given) {
            (Some(gpu), _) if gpu.vendor == "amd" => amd.push(name_of_amd(gpu, position)),
            (Some(gpu), _) => nvidia.push(gpu.id.clone()),
            (None, Some(given)) if known.is_empty() && position < given.len() => {
                nvidia.push(given[position].to_owned());
            }
            (None, None) if known.is_empty() => nvidia.push(position.to_string()),
            (None, _) => return variables,
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

/// By what AMD's libraries know one; those without a name of their own go by their position.
fn name_of_amd(gpu: &Gpu, position: usize) -> String {
    if gpu.id.chars().all(|digit| digit == '0') { position.to_string() } else { format!("GPU-{}", gpu.id) }
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
        let named = |positions: &[u16]| variables(&known, Some("GPU-aa,GPU-bb"), positions);
        let expected = |all: &str, cuda: &str, rocr: &str| {
            let pairs = [("FILCH_GPUS", all), ("CUDA_VISIBLE_DEVICES", cuda), ("ROCR_VISIBLE_DEVICES", rocr)];
            pairs.map(|(name, value)| (name, value.to_owned())).to_vec()
        };
        assert_eq!(named(&[1]), expected("1", "GPU-bb", ""));
        assert_eq!(named(&[0, 3]), expected("0,3", "GPU-aa", "GPU-0100"));
        // Another worker of the machine that has the rest calls them the same.
        assert_eq!(variables(&known[3..], None, &[0])[1], ("ROCR_VISIBLE_DEVICES", "GPU-0100".to_owned()));
        assert_eq!(variables(&[gpu("amd", "0000")], None, &[0])[1], ("ROCR_VISIBLE_DEVICES", "0".to_owned()));
    }

    #[test]
    fn those_nobody_described_go_by_their_position_or_by_what_this_process_was_told() {
        let cuda = |known: &[Gpu], inherited, positions: &[u16]| {
            variables(known, inherited, positions).get(1).map(|(name, value)| ((*name).to_owned(), value.clone()))
        };
        let is = |value: &str| Some(("CUDA_VISIBLE_DEVICES".to_owned(), value.to_owned()));
        assert_eq!(cuda(&[], None, &[0, 2]), is("0,2"));
        assert_eq!(cuda(&[], Some("MIG-a, MIG-b"), &[1]), is("MIG-b"));
        assert_eq!(cuda(&[], Some("3"), &[1]), None, "it was given one");
        assert_eq!(cuda(&[gpu("nvidia", "GPU-aa")], None, &[0, 1]), None, "one was found");
    }
}
