//! `cargo xtask tidy`: tidiness as a test.
//!
//! Every rule is a pure function from the repository's files, held in memory, to findings; so each rule is tested on a
//! made-up repository that breaks it. Only [`readme`]'s commands run anything, and only `--fix` writes, and then only
//! the files of [`crate::generated`]. Never repairs by guessing.

mod readme;
mod source;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::generated::{FILES, Generated};
use crate::process;

/// The repository's own files, by path from the root with `/` between the parts.
#[derive(Debug, Default)]
struct Tree {
    /// Text by path; empty for files that are not text.
    files: BTreeMap<String, String>,
}

/// Something to put right.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// From 1; 0 if it is about the file as a whole.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "{}: {}", self.path, self.message),
            line => write!(out, "{}:{line}: {}", self.path, self.message),
        }
    }
}

impl Tree {
    /// What git tracks or would track; without git, everything that is not hidden or built.
    fn read(root: &Path) -> Result<Tree> {
        let mut files = BTreeMap::new();
        for path in tracked(root).map_or_else(|| walk(root), Ok)? {
            // A file deleted but not yet committed as such is still listed.
            let Ok(bytes) = fs::read(root.join(&path)) else { continue };
            files.insert(path, String::from_utf8(bytes).unwrap_or_default());
        }
        Ok(Tree { files })
    }

    fn ending<'a>(&'a self, end: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.iter().filter(move |(path, _)| path.ends_with(end))
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether the path is a file or a folder with files in it.
    fn holds(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.files.contains_key(path) || self.files.keys().any(|file| file.starts_with(&folder))
    }
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let output = process::command("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let names = String::from_utf8(output.stdout).ok()?;
    Some(names.split_terminator('\0').map(str::to_owned).collect())
}

fn walk(root: &Path) -> Result<Vec<String>> {
    const KEPT_ALTHOUGH_HIDDEN: &[&str] = &[".cargo", ".ci", ".gitignore"];
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder)).with_context(|| format!("cannot list /{folder}"))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list /{folder}"))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name == "target" || name.starts_with('.') && !KEPT_ALTHOUGH_HIDDEN.contains(&name.as_str()) {
                continue;
            }
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder { folders.push(path) } else { found.push(path) }
        }
    }
    Ok(found)
}

/// Runs every rule and, when none found anything, the README's commands.
pub(crate) fn run(fix: bool) -> Result<()> {
    let root = process::root();
    if fix {
        regenerate(&root, FILES)?;
    }
    let tree = Tree::read(&root)?;
    report(&check(&tree))?;
    println!("tidy: {} files in order", tree.files.len());
    report(&readme::run_commands(&tree)?)
}

fn report(findings: &[Finding]) -> Result<()> {
    for finding in findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("tidy found 1 thing to put right"),
        count => bail!("tidy found {count} things to put right"),
    }
}

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = source::check(tree);
    findings.extend(text::check(tree));
    findings.extend(stale(tree, FILES));
    findings.extend(readme::misplaced(tree));
    findings
}

/// Generated files that differ from what the code makes now.
fn stale(tree: &Tree, generated: &[Generated]) -> Vec<Finding> {
    let is_stale = |file: &&Generated| tree.text(file.path) != Some((file.generate)().as_str());
    let message = "is generated and not fresh; run `cargo xtask tidy --fix` and commit it";
    generated.iter().filter(is_stale).map(|file| Finding::new(file.path, 0, message)).collect()
}

fn regenerate(root: &Path, generated: &[Generated]) -> Result<()> {
    for file in generated {
        let path = root.join(file.path);
        let fresh = (file.generate)();
        if fs::read_to_string(&path).is_ok_and(|present| present == fresh) {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make the folder of {}", file.path))?;
        }
        fs::write(&path, fresh).with_context(|| format!("cannot write {}", file.path))?;
        println!("tidy: wrote {}", file.path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up repository.
    pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    fn scratch(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("filch-tidy-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    const SAMPLE: &[Generated] = &[Generated { path: "docs/sample.md", generate: || "fresh\n".to_owned() }];

    #[test]
    fn a_stale_or_missing_reference_is_found() {
        assert_eq!(stale(&tree(&[("docs/sample.md", "fresh\n")]), SAMPLE), []);
        for bad in [tree(&[("docs/sample.md", "old\n")]), tree(&[])] {
            let findings = stale(&bad, SAMPLE);
            assert_eq!(findings.len(), 1);
            assert!(findings[0].to_string().contains("docs/sample.md: is generated and not fresh"));
        }
    }

    #[test]
    fn fix_makes_a_reference_fresh() {
        let root = scratch("fix");
        regenerate(&root, SAMPLE).unwrap();
        assert_eq!(fs::read_to_string(root.join("docs/sample.md")).unwrap(), "fresh\n");
        assert_eq!(stale(&Tree::read(&root).unwrap(), SAMPLE), []);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn without_git_the_folder_is_walked() {
        let root = scratch("walk");
        for path in ["src/a.rs", ".ci/run", ".git/config", "target/debug/b.rs"] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        let mut found = walk(&root).unwrap();
        found.sort();
        assert_eq!(found, [".ci/run", "src/a.rs"]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn this_repository_is_read_with_its_own_files() {
        let tree = Tree::read(&process::root()).unwrap();
        assert!(tree.holds("xtask/src/main.rs"));
        assert!(tree.holds("xtask/src"));
        assert!(!tree.holds("target"));
    }

    #[test]
    fn findings_fail_the_run() {
        let error = report(&[Finding::new("a.rs", 3, "is wrong")]).unwrap_err();
        assert_eq!(error.to_string(), "tidy found 1 thing to put right");
        assert_eq!(Finding::new("a.rs", 3, "is wrong").to_string(), "a.rs:3: is wrong");
    }
}
