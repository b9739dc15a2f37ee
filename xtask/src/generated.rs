//! The files that are made from the code, each with the function that makes it.
//!
//! To add one, add a line to [`FILES`] and run `cargo xtask tidy --fix`; from then on `cargo xtask tidy` refuses a stale
//! copy. Never edits anything but the files named here.

/// One generated file.
pub(crate) struct Generated {
    /// Where it is, from the root.
    pub(crate) path: &'static str,
    /// Its whole text, from the code as it is now.
    pub(crate) generate: fn() -> String,
}

/// Every generated file of the repository, for example
/// `Generated { path: "docs/config-reference.md", generate: filch_core::config::reference }`.
pub(crate) const FILES: &[Generated] =
    &[Generated { path: "docs/config-reference.md", generate: filch_core::config::reference }];
