//! The rules for prose and for all files: links lead somewhere, the changelog is open, nobody's own paths are told.
//!
//! Never follows a link out of the repository.

use super::{Finding, Tree};

/// Folders that exist on one machine only. In two parts so that this file does not break its own rule.
const PRIVATE_FOLDERS: &[&str] =
    &[concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/"), concat!("/wo", "rk/")];

/// Applies every rule for prose.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = dead_links(tree);
    findings.extend(closed_changelog(tree));
    findings.extend(private_paths(tree));
    findings
}

/// The lines of a markdown text with their numbers and the language of the fence they are in.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, Option<&str>, &str)> {
    let mut fence: Option<(&str, &str)> = None;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let bare = line.trim_start();
        let marks = &bare[..bare.len() - bare.trim_start_matches(if bare.starts_with('~') { '~' } else { '`' }).len()];
        match fence {
            // A fence ends with at least as many marks as it began with, and nothing else.
            Some((opened, _)) if bare.trim_end() == marks && marks.starts_with(opened) => fence = None,
            None if marks.len() >= 3 => fence = Some((marks, bare[marks.len()..].trim())),
            _ => return Some((number, fence.map(|(_, language)| language), line)),
        }
        None
    })
}

fn dead_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".md") {
        let prose = lines(text).filter(|(_, language, _)| language.is_none());
        for (number, _, line) in prose {
            for target in targets(&without_code(line)) {
                if local_path(path, target).is_some_and(|file| !file.is_some_and(|file| tree.holds(&file))) {
                    findings.push(Finding::new(path, number, format!("links to {target}, which is not there")));
                }
            }
        }
    }
    findings
}

/// The line without what stands between backquotes.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    // An odd backquote at the end quotes nothing.
    let quoted = |at: usize| at % 2 == 1 && at + 1 < parts.len();
    parts.iter().enumerate().filter(|(at, _)| !quoted(*at)).map(|(_, part)| *part).collect()
}

/// Where the links of a line lead: `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let definition = line.trim_start().strip_prefix('[').filter(|rest| !rest.starts_with('^'));
    let definition = definition.and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    let inline = line.match_indices("](").map(|(at, _)| &line[at + 2..]);
    definition
        .into_iter()
        .chain(inline)
        .filter_map(|rest| rest.trim_start().split([')', ' ', '\t']).next())
        .map(|target| target.trim_matches(['<', '>']))
        .collect()
}

/// The file a link in `from` leads to: nothing if it leaves the repository by intent (an address) or stays on its page,
/// `Some(None)` if it climbs out of the root.
fn local_path(from: &str, target: &str) -> Option<Option<String>> {
    let path = target.split(['#', '?']).next().unwrap_or_default();
    if path.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let mut parts: Vec<&str> = match path.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').collect(),
    };
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.is_empty() => return Some(None),
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    Some(Some(parts.join("/")))
}

fn closed_changelog(tree: &Tree) -> Vec<Finding> {
    let is_open = |text: &str| text.lines().any(|line| matches!(line.trim_end(), "## [Unreleased]" | "## Unreleased"));
    match tree.text("CHANGELOG.md") {
        Some(text) if is_open(text) => Vec::new(),
        Some(_) => vec![Finding::new("CHANGELOG.md", 0, "has no section `## [Unreleased]`")],
        None => vec![Finding::new("CHANGELOG.md", 0, "is missing")],
    }
}

fn private_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.iter() {
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(folder) = PRIVATE_FOLDERS.iter().find(|folder| names_path_in(line, folder)) {
                findings.push(Finding::new(
                    path,
                    number,
                    format!("names a path in {folder}, which is one machine's own"),
                ));
            }
        }
    }
    findings
}

/// Whether a path begins with the folder, rather than having it in its middle, and goes on with a name.
fn names_path_in(line: &str, folder: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let before = |c: char| goes_on(c) || matches!(c, '~' | '*' | '}' | ')');
    line.match_indices(folder)
        .any(|(at, _)| !line[..at].ends_with(before) && line[at + folder.len()..].starts_with(goes_on))
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn dead(path: &str, text: &str) -> Vec<Finding> {
        dead_links(&tree(&[
            (path, text),
            ("README.md", ""),
            ("docs/architecture.md", ""),
            ("crates/core/src/lib.rs", ""),
        ]))
    }

    #[test]
    fn links_to_files_and_folders_are_followed() {
        let good = "[a](architecture.md#words) [b](../README.md) [c](../crates/core) [d](/docs/architecture.md)\n\
                    [e](https://example.org/x.md) [f](#below) [g](mailto:a@example.org) `[h](nowhere.md)`\n\
                    ```rust\n[i](nowhere.md)\n```\n\n[j]: architecture.md \"title\"\n";
        assert_eq!(dead("docs/journey.md", good), []);
    }

    #[test]
    fn a_dead_link_is_found() {
        let bad =
            ["[a](nowhere.md)", "![a](nowhere.png)", "[a]: nowhere.md", "[a](docs/architecture.md)", "[a](../../b)"];
        for text in bad {
            let findings = dead("docs/journey.md", &format!("Fine.\n{text}\n"));
            assert_eq!(findings.len(), 1, "{text}");
            assert_eq!(findings[0].line, 2, "{text}");
        }
        assert_eq!(dead("docs/journey.md", "[a](architecture.md) [b](nowhere.md) and [c](elsewhere.md)").len(), 2);
    }

    #[test]
    fn a_fence_ends_where_markdown_ends_it() {
        let text = "a\n````md\n```sh\nb\n```\nc\n````\nd\n~~~\n```\n~~~\ne\n";
        let outside: Vec<&str> = lines(text).filter(|(_, fence, _)| fence.is_none()).map(|(_, _, line)| line).collect();
        assert_eq!(outside, ["a", "d", "e"]);
        let languages: Vec<Option<&str>> = lines("```console\n$ x\n```\ny\n").map(|(_, fence, _)| fence).collect();
        assert_eq!(languages, [Some("console"), None]);
    }

    #[test]
    fn the_changelog_is_open() {
        assert_eq!(closed_changelog(&tree(&[("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n")])), []);
        let closed = closed_changelog(&tree(&[("CHANGELOG.md", "# Changelog\n\nUnreleased\n\n## [0.1.0]\n")]));
        assert!(closed[0].message.contains("has no section"));
        assert!(closed_changelog(&tree(&[]))[0].message.contains("is missing"));
    }

    #[test]
    fn private_paths_are_found() {
        for folder in PRIVATE_FOLDERS {
            for bad in [format!("cd {folder}someone"), format!("\"{folder}x\""), format!("file://{folder}x/y")] {
                let findings = private_paths(&tree(&[("Makefile", &format!("fine\n{bad}\n"))]));
                assert_eq!(findings.len(), 1, "{bad}");
                assert_eq!(findings[0].line, 2);
            }
            for good in [format!("https://example.org{folder}x"), format!("~{folder}x"), format!("GET {folder}{{id}}")]
            {
                assert_eq!(private_paths(&tree(&[("Makefile", &good)])), [], "{good}");
            }
        }
    }
}
