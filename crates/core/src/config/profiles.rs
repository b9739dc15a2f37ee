//! What each named profile sets, as pairs of a `stealing` key and its value.

use super::Profile;
use super::nearest::choice_names;

impl Profile {
    /// Every profile.
    pub const ALL: [Profile; 6] = [
        Profile::LowLatency,
        Profile::HighLatency,
        Profile::CpuBound,
        Profile::IoBound,
        Profile::ShortTasks,
        Profile::LongTasks,
    ];

    /// The name users write.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Profile::LowLatency => "low_latency",
            Profile::HighLatency => "high_latency",
            Profile::CpuBound => "cpu_bound",
            Profile::IoBound => "io_bound",
            Profile::ShortTasks => "short_tasks",
            Profile::LongTasks => "long_tasks",
        }
    }

    /// The profile with that name.
    ///
    /// # Errors
    /// Names the known profiles, the nearest one first.
    pub fn from_name(name: &str) -> Result<Profile, String> {
        let names = Profile::ALL.map(Profile::name);
        Profile::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| format!("unknown profile `{name}`; {}", choice_names(name, &names)))
    }

    /// The `stealing` keys it sets, with their values as JSON.
    pub(super) fn settings(self) -> Vec<(&'static str, serde_json::Value)> {
        use serde_json::json;
        match self {
            Profile::LowLatency => {
                vec![("steal_timeout", json!("50ms")), ("retry_backoff", json!("20ms")), ("max_retries", json!(5))]
            }
            Profile::HighLatency => {
                vec![("steal_timeout", json!("500ms")), ("retry_backoff", json!("100ms")), ("max_retries", json!(2))]
            }
            Profile::CpuBound => vec![("min_local_queue", json!(4)), ("steal_threshold", json!(0.3))],
            Profile::IoBound => vec![("min_local_queue", json!(1)), ("steal_threshold", json!(0.7))],
            Profile::ShortTasks => vec![("steal_timeout", json!("50ms")), ("min_local_queue", json!(1))],
            Profile::LongTasks => vec![("steal_timeout", json!("200ms")), ("min_local_queue", json!(4))],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_file_format() {
        for profile in Profile::ALL {
            assert_eq!(serde_json::to_value(profile).unwrap(), profile.name());
            assert_eq!(Profile::from_name(profile.name()), Ok(profile));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let message = Profile::from_name("low_latancy").unwrap_err();
        assert_eq!(message, "unknown profile `low_latancy`; did you mean `low_latency`?");
        let message = Profile::from_name("warp").unwrap_err();
        assert!(message.contains("one of low_latency, high_latency"), "{message}");
    }
}
