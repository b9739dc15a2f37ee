//! Configuration: settings with their defaults and, from YAML, loading, checking and explaining them.
//!
//! A text becomes a tree with positions, is compared with the schema of the settings, laid over the defaults and
//! the profile, read as [`Config`] and judged by the rules between settings. Nothing here reads files.

mod check;
mod document;
mod load;
mod nearest;
mod node;
mod policies;
mod problem;
mod profiles;
mod reference;
mod rules;
mod schema;
mod settings;
mod show;
pub mod span;
mod syntax;
#[cfg(test)]
mod tests;

pub use document::{Document, schema_of};
pub use load::{Limits, Loaded, MAX_BYTES, Origin, Origins, decode, decode_within};
pub use nearest::nearest;
pub(crate) use policies::policy_hint;
pub use policies::{POLICIES, PolicyEntry, policy};
pub use problem::{ConfigErrors, Palette, Place, Problem, printable};
pub use reference::reference;
pub use schema::schema;
pub use settings::*;
pub use show::Setting;

/// The path of `key` inside `path`. A key that is not a plain word is put in quotes, so that paths are unambiguous.
fn key_path(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    let key = if plain { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}
