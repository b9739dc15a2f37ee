//! The rules for source files: they begin with what they are for, stay short, and leave nothing behind.
//!
//! Reads lines, not syntax; what needs syntax is clippy's business.

use super::{Finding, Tree};

const MAX_LINES: usize = 900;

/// The only crates that may contain unsafe code.
const MAY_USE_UNSAFE: &[&str] = &["crates/pool"];

/// Endings of files that people write and that can grow too long to read.
const SOURCE_ENDINGS: &[&str] = &[".rs", ".py", ".ts", ".js", ".css"];

// Spelled in two parts so that this file does not break its own rules.
const MARKERS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];
const DEBUG_MACRO: &str = concat!("dbg", "!");

/// Applies every rule for source files.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = without_module_doc(tree);
    findings.extend(too_long(tree));
    findings.extend(left_behind(tree));
    findings.extend(unsafe_allowed(tree, MAY_USE_UNSAFE));
    findings
}

fn without_module_doc(tree: &Tree) -> Vec<Finding> {
    let is_module = |path: &str| {
        let parts: Vec<&str> = path.split('/').collect();
        matches!(parts[..], ["crates", _, "src", ..] | ["xtask" | "bench", "src", ..])
    };
    let bare = tree.ending(".rs").filter(|(path, text)| is_module(path) && !text.starts_with("//!"));
    bare.map(|(path, _)| Finding::new(path, 1, "does not begin with `//!` and what the module does")).collect()
}

fn too_long(tree: &Tree) -> Vec<Finding> {
    let is_source = |path: &str| SOURCE_ENDINGS.iter().any(|end| path.ends_with(end));
    let lengths = tree.iter().filter(|(path, _)| is_source(path)).map(|(path, text)| (path, text.lines().count()));
    lengths
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(path, lines)| Finding::new(path, 0, format!("has {lines} lines, more than {MAX_LINES}; split it")))
        .collect()
}

fn left_behind(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".rs") {
        for (number, line) in (1..).zip(text.lines()) {
            for marker in MARKERS.iter().filter(|marker| lacks_reason(line, marker)) {
                let message = format!("{marker} without a reason; write `{marker}(why not now): what`");
                findings.push(Finding::new(path, number, message));
            }
            if words(line, DEBUG_MACRO).next().is_some() {
                findings.push(Finding::new(path, number, format!("{DEBUG_MACRO} left behind")));
            }
        }
    }
    findings
}

/// What follows each place where `word` stands as a word of its own.
fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).filter_map(move |(at, _)| {
        let rest = &line[at + word.len()..];
        let starts = !line[..at].ends_with(inside);
        let ends = !word.ends_with(inside) || !rest.starts_with(inside);
        (starts && ends).then_some(rest)
    })
}

fn lacks_reason(line: &str, marker: &str) -> bool {
    let has_reason = |rest: &str| {
        let Some((reason, what)) = rest.strip_prefix('(').and_then(|rest| rest.split_once("):")) else { return false };
        !reason.trim().is_empty() && !what.trim().is_empty()
    };
    words(line, marker).any(|rest| !has_reason(rest))
}

/// Crates outside `exempt` in which unsafe code would compile.
fn unsafe_allowed(tree: &Tree, exempt: &[&str]) -> Vec<Finding> {
    let shared = tree.text("Cargo.toml").unwrap_or_default();
    let forbidden_by_workspace = has_setting(shared, "[workspace.lints.rust]", "unsafe_code=\"forbid\"");
    let mut findings = Vec::new();
    for (path, manifest) in tree.ending("Cargo.toml") {
        let folder = path.strip_suffix("Cargo.toml").unwrap_or_default().trim_end_matches('/');
        let is_package = manifest.lines().any(|line| line.trim() == "[package]");
        let inherits = has_setting(manifest, "[lints]", "workspace=true");
        if !is_package || exempt.contains(&folder) || inherits && forbidden_by_workspace {
            continue;
        }
        let roots = crate_roots(tree, folder);
        let open = roots.iter().filter(|(_, text)| !text.lines().any(|line| line == "#![forbid(unsafe_code)]"));
        findings.extend(open.map(|(root, _)| {
            Finding::new(root, 0, "nothing forbids unsafe code here; inherit the workspace's lints in Cargo.toml")
        }));
    }
    findings
}

/// Whether the section of a manifest has the setting, whatever the spaces.
fn has_setting(manifest: &str, section: &str, setting: &str) -> bool {
    let mut lines = manifest.lines().map(|line| line.replace(' ', ""));
    lines.any(|line| line == section) && lines.take_while(|line| !line.starts_with('[')).any(|line| line == setting)
}

fn crate_roots<'a>(tree: &'a Tree, folder: &str) -> Vec<(&'a str, &'a str)> {
    let binaries = format!("{folder}/src/bin/");
    let named = [format!("{folder}/src/lib.rs"), format!("{folder}/src/main.rs")];
    let is_root = |path: &str| path.starts_with(&binaries) || named.iter().any(|name| name == path);
    tree.ending(".rs").filter(|(path, _)| is_root(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn a_module_begins_with_its_purpose() {
        let good =
            tree(&[("crates/core/src/task/mod.rs", "//! Tasks.\n"), ("crates/core/tests/all.rs", "use a::b;\n")]);
        assert_eq!(without_module_doc(&good), []);
        for path in ["crates/core/src/task/mod.rs", "xtask/src/main.rs", "bench/src/bin/core.rs"] {
            let findings = without_module_doc(&tree(&[(path, "use a::b;\n//! Too late.\n")]));
            assert_eq!(findings.len(), 1, "{path}");
            assert_eq!(findings[0].path, path);
        }
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(too_long(&tree(&[("a.rs", &"//\n".repeat(MAX_LINES)), ("Cargo.lock", &"\n".repeat(5000))])), []);
        let findings = too_long(&tree(&[("crates/core/tests/a.rs", &"//\n".repeat(MAX_LINES + 1))]));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.contains("has 901 lines"));
    }

    #[test]
    fn markers_need_a_reason() {
        for marker in MARKERS {
            let good = format!("// {marker}(waits for the worker machine): ask peers too\nlet {marker}S = 1;\n");
            assert_eq!(left_behind(&tree(&[("a.rs", &good)])), [], "{good}");
            for tail in ["", ": later", "() : x", "(): x", "(why):", " somebody should"] {
                let bad = format!("//! Fine.\n// {marker}{tail}\n");
                let findings = left_behind(&tree(&[("a.rs", &bad)]));
                assert_eq!(findings.len(), 1, "{bad}");
                assert_eq!(findings[0].line, 2);
            }
        }
    }

    #[test]
    fn debug_output_is_found() {
        let bad = format!("let x = {DEBUG_MACRO}(y);\n");
        assert_eq!(left_behind(&tree(&[("a.rs", &bad)])).len(), 1);
        let other = format!("my_{DEBUG_MACRO}(y);\n");
        assert_eq!(left_behind(&tree(&[("a.rs", &other)])), []);
    }

    const WORKSPACE: &str = "[workspace]\n[workspace.lints.rust]\nunsafe_code = \"forbid\"\n";
    const INHERITS: &str = "[package]\nname = \"a\"\n[lints]\nworkspace = true\n";
    const ALONE: &str = "[package]\nname = \"a\"\n[dependencies]\nworkspace = true\n";

    #[test]
    fn a_crate_that_inherits_the_lint_is_fine() {
        let files = [("Cargo.toml", WORKSPACE), ("crates/a/Cargo.toml", INHERITS), ("crates/a/src/lib.rs", "//! A.\n")];
        assert_eq!(unsafe_allowed(&tree(&files), &[]), []);
    }

    #[test]
    fn a_crate_that_says_it_itself_is_fine() {
        let lib = ("crates/a/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n");
        assert_eq!(unsafe_allowed(&tree(&[("Cargo.toml", WORKSPACE), ("crates/a/Cargo.toml", ALONE), lib]), &[]), []);
    }

    #[test]
    fn a_crate_open_to_unsafe_code_is_found_unless_exempt() {
        let lib = ("crates/a/src/lib.rs", "//! A.\n");
        let alone = tree(&[("Cargo.toml", WORKSPACE), ("crates/a/Cargo.toml", ALONE), lib]);
        let weak_workspace = tree(&[("Cargo.toml", "[workspace]\n"), ("crates/a/Cargo.toml", INHERITS), lib]);
        for open in [alone, weak_workspace] {
            let findings = unsafe_allowed(&open, &["crates/b"]);
            assert_eq!(findings.len(), 1);
            assert_eq!(findings[0].path, "crates/a/src/lib.rs");
            assert_eq!(unsafe_allowed(&open, &["crates/a"]), []);
        }
    }

    #[test]
    fn every_binary_is_a_crate_root() {
        let main = ("bench/src/main.rs", "//! B.\n#![forbid(unsafe_code)]\n");
        let files = [("bench/Cargo.toml", ALONE), main, ("bench/src/bin/core.rs", "//! C.\n")];
        let findings = unsafe_allowed(&tree(&files), &[]);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "bench/src/bin/core.rs");
    }
}
