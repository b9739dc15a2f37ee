//! Finds the known word a mistyped one was most likely meant to be.

/// Words longer than this are not worth comparing, and comparing them costs quadratic time.
const LONGEST_WORD: usize = 64;

/// Words shorter than this are parts of too many others to mean one of them.
const SHORTEST_PART: usize = 3;

/// The candidate nearest to `word`, if one is near enough to be meant; the first one among equals. If none is, the only one
/// that `word` is a part of.
///
/// ```
/// use filch_core::config::nearest;
/// assert_eq!(nearest("hotspot", &["basic", "hot-spot"]), Some("hot-spot"));
/// assert_eq!(nearest("bas", &["basic", "hot-spot"]), Some("basic"));
/// ```
#[must_use]
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    misspelt(word, candidates).or_else(|| whole(word, candidates))
}

/// The candidate that `word` is a misspelling of.
pub(super) fn misspelt<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let wanted = plain(word);
    let length = wanted.chars().count();
    if length == 0 || length > LONGEST_WORD {
        return None;
    }
    let allowed = (length / 3).max(1);
    candidates
        .iter()
        .map(|candidate| (strsim::osa_distance(&wanted, &plain(candidate)), *candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The only candidate that `word` is a part of.
fn whole<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let part = plain(word);
    if part.chars().count() < SHORTEST_PART {
        return None;
    }
    let mut wholes = candidates.iter().filter(|candidate| plain(candidate).contains(&part));
    let first = wholes.next()?;
    wholes.all(|other| other == first).then_some(*first)
}

/// "did you mean `x`?", or, when nothing is near, all that is known.
pub(super) fn choice_names(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("it is one of {}", candidates.join(", ")),
    }
}

/// The word without what differs between `stealTimeout`, `steal-timeout` and `steal_timeout`.
fn plain(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[&str] = &["busy_threshold", "idle_threshold", "steal_timeout"];

    #[test]
    fn slips_of_the_finger_and_other_spellings_are_recognised() {
        assert_eq!(nearest("busy_treshold", KEYS), Some("busy_threshold"));
        assert_eq!(nearest("stealTimeout", KEYS), Some("steal_timeout"));
        assert_eq!(nearest("IDLE-THRESHOLD", KEYS), Some("idle_threshold"));
    }

    #[test]
    fn a_part_of_one_word_alone_is_recognised() {
        assert_eq!(nearest("idle", KEYS), Some("idle_threshold"));
        assert_eq!(nearest("stealTime", KEYS), Some("steal_timeout"));
        assert_eq!(nearest("threshold", KEYS), None, "two have it");
        assert_eq!(nearest("bu", KEYS), None, "too little to go by");
    }

    #[test]
    fn far_words_are_not_guessed_at() {
        assert_eq!(nearest("colour", KEYS), None);
        assert_eq!(nearest("", KEYS), None);
        assert_eq!(nearest(&"busy_threshold".repeat(100), KEYS), None);
    }
}
