//! From text to a checked [`Config`], layer by layer, remembering where each value came from.
//!
//! Pure: whoever calls it has read the file.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value as Json;

use super::check::{self, Findings};
use super::node::{self, Mark, Node, Value};
use super::problem::{ConfigErrors, Place, Problem, lines};
use super::rules::{self, Violation};
use super::syntax::SyntaxError;
use super::{Config, Profile, key_path};

/// The most bytes a configuration may have; whoever reads one need not read on beyond it.
pub const MAX_BYTES: usize = 1 << 20;

/// How large a file may be. What reading takes grows with it, so that each sort of file has what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of its text.
    pub bytes: usize,
    /// Keys and values, those that aliases repeat included.
    pub nodes: usize,
}

impl Limits {
    /// Of a configuration, which has a few hundred keys.
    pub const CONFIG: Limits = Limits { bytes: MAX_BYTES, nodes: 200_000 };
}

/// What a file with a `load_balancing` section means where it does not say otherwise: such files were written for a
/// scheduler that pushes tasks into queues by the `best_fit` formula and lets idle workers ask the busiest.
const IMPLIED: [(&str, &str, &str); 3] =
    [("scheduling", "bind", "push"), ("scheduling", "policy", "best_fit"), ("stealing", "strategy", "most_loaded")];

/// A configuration and where its values came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The settings, checked.
    pub config: Config,
    /// Where each of them came from.
    pub origins: Origins,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The file has a `load_balancing` section, which changes this default.
    Implied {
        /// The line of that section.
        line: usize,
    },
    /// The profile set it.
    Profile(Profile),
    /// The file set it.
    File {
        /// The line of the value.
        line: usize,
    },
    /// Whoever loaded the file set it beside the file.
    Caller,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Implied { line } => write!(f, "implied by `load_balancing` (line {line})"),
            Origin::Profile(profile) => write!(f, "profile {}", profile.name()),
            Origin::File { line } => write!(f, "line {line}"),
            Origin::Caller => f.write_str("given when loading"),
        }
    }
}

/// The origin of every leaf, by its path. A leaf is a value without parts of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Where the value at a path such as `stealing.steal_timeout` came from; the default if there is no such leaf.
    #[must_use]
    pub fn of(&self, key: &str) -> Origin {
        self.0.get(key).copied().unwrap_or(Origin::Default)
    }

    /// All leaves, sorted by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Origin)> {
        self.0.iter().map(|(key, origin)| (key.as_str(), *origin))
    }
}

impl Config {
    /// Loads and checks the text of a configuration file; `label` names it in errors.
    ///
    /// ```
    /// use filch_core::Config;
    /// let loaded = Config::from_yaml("stealing: { steal_timeout: 20ms }", "inline").unwrap();
    /// assert_eq!(loaded.origins.of("stealing.steal_timeout").to_string(), "line 1");
    ///
    /// let errors = Config::from_yaml("stealing: { steal_timeot: 20ms }", "inline").unwrap_err();
    /// assert_eq!(errors.problems()[0].help.as_deref(), Some("did you mean `steal_timeout`?"));
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its line and column.
    pub fn from_yaml(text: &str, label: &str) -> Result<Loaded, ConfigErrors> {
        Config::from_yaml_with_profile(text, label, None)
    }

    /// As [`Config::from_yaml`], with a profile that replaces the one the file names.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its line and column.
    pub fn from_yaml_with_profile(text: &str, label: &str, profile: Option<Profile>) -> Result<Loaded, ConfigErrors> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let fail = |problems: Vec<(Problem, Option<Mark>)>| {
            // Once for all of them: there may be as many as lines.
            let lines = lines(text);
            let placed = problems.into_iter().map(|(problem, mark)| place(problem, mark, &lines));
            ConfigErrors::new(label, placed.collect())
        };
        refuse_large(text.as_bytes(), label, Limits::CONFIG)?;
        let (tree, mistakes) = node::from_yaml(text, Limits::CONFIG).map_err(|error| fail(vec![syntax(error)]))?;
        read(&tree, mistakes.into_iter().map(syntax).collect(), profile).map_err(fail)
    }

    /// Everything that is wrong with settings that were built in code; empty if they are sound.
    ///
    /// ```
    /// let mut config = filch_core::Config::default();
    /// config.load_balancing.thresholds.idle_threshold = 9;
    /// assert_eq!(config.validate().len(), 1);
    /// ```
    #[must_use]
    pub fn validate(&self) -> Vec<Problem> {
        let mut json = to_json(self);
        if let (None, Json::Object(entries)) = (self.profile, &mut json) {
            entries.remove("profile");
        }
        let (_, mut findings) = check::check(&node::from_json(&json));
        for violation in rules::violations(self) {
            findings.add(violation);
        }
        findings.problems.into_iter().map(|(problem, _)| problem).collect()
    }

    /// This configuration with `profile` applied to it.
    #[must_use]
    pub fn with_profile(self, profile: Profile) -> Config {
        let mut json = to_json(&self);
        for (key, value) in profile.settings() {
            set(&mut json, "stealing", key, value);
        }
        // The profile's keys and values are those of the type, as a test proves for each; so this cannot fail.
        let applied: Config = serde_json::from_value(json).unwrap_or(self);
        Config { profile: Some(profile), ..applied }
    }
}

/// Reads a tree as a configuration; what is known to be wrong with it already comes along.
pub(super) fn read(tree: &Node, mistakes: Problems, profile: Option<Profile>) -> Result<Loaded, Problems> {
    let (file, mut findings) = check::check(tree);
    findings.problems.extend(mistakes);
    let layers = Layers::new(tree, file, &findings, profile);
    let (merged, origins) = layers.merge();
    let config: Config = match serde_json::from_value(merged) {
        Ok(config) => config,
        Err(error) => {
            findings.problems.push((Problem::new("", format!("cannot be read: {error}")), None));
            return Err(findings.problems);
        }
    };
    for violation in rules::violations(&config) {
        findings.add(violation);
    }
    if !findings.problems.is_empty() {
        return Err(findings.problems);
    }
    let origins = origins.of_leaves(&config);
    Ok(Loaded { config, origins })
}

/// Mistakes, each with its place.
type Problems = Vec<(Problem, Option<Mark>)>;

/// The text of a configuration file.
///
/// # Errors
/// Where the bytes stop being UTF-8; or that there are more than [`MAX_BYTES`].
pub fn decode<'a>(bytes: &'a [u8], label: &str) -> Result<&'a str, ConfigErrors> {
    decode_within(bytes, label, Limits::CONFIG)
}

/// The text of a file of another sort.
///
/// # Errors
/// Where the bytes stop being UTF-8; or that there are too many.
pub fn decode_within<'a>(bytes: &'a [u8], label: &str, limits: Limits) -> Result<&'a str, ConfigErrors> {
    refuse_large(bytes, label, limits)?;
    std::str::from_utf8(bytes).map_err(|error| {
        let sound = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        let line = sound.matches('\n').count() + 1;
        let column = sound.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let problem = Problem::new("", "not UTF-8 text".to_owned())
            .with_help(Some("save the file with the encoding UTF-8".to_owned()));
        let mark = Mark { line, column, length: 1 };
        ConfigErrors::new(label, vec![place(problem, Some(mark), &lines(&sound))])
    })
}

pub(super) fn refuse_large(bytes: &[u8], label: &str, limits: Limits) -> Result<(), ConfigErrors> {
    let Limits { bytes: most, .. } = limits;
    if bytes.len() <= most {
        return Ok(());
    }
    let what = if limits == Limits::CONFIG { "a configuration" } else { "such a file" };
    let problem = Problem::new("", format!("{what} has at most {most} bytes, this has more"))
        .with_help(Some("check that this is the right file".to_owned()));
    let mark = Mark { line: 1, column: 1, length: 1 };
    let start = String::from_utf8_lossy(&bytes[..most.min(200)]);
    Err(ConfigErrors::new(label, vec![place(problem, Some(mark), &lines(&start))]))
}

/// Settings as JSON. Cannot fail: every key is text and numbers out of JSON's reach become null.
pub(super) fn to_json(config: &Config) -> Json {
    serde_json::to_value(config).unwrap_or_default()
}

pub(super) fn syntax(error: SyntaxError) -> (Problem, Option<Mark>) {
    (Problem::new("", error.message).with_help(error.help), error.mark)
}

pub(super) fn place(mut problem: Problem, mark: Option<Mark>, lines: &[&str]) -> Problem {
    // A problem of a text always has a place; the beginning when nothing better is known.
    let mark = mark.unwrap_or(Mark { line: 1, column: 1, length: 1 });
    problem.place = Some(Place::locate(lines, mark));
    problem
}

impl Findings {
    /// Adds a broken rule, unless one of its settings was refused already: then the rule judged a stand-in.
    fn add(&mut self, violation: Violation) {
        let Violation { keys, at_key, message, help } = violation;
        if keys.iter().any(|key| self.broken.iter().any(|broken| related(key, broken))) {
            return;
        }
        let mark = keys
            .iter()
            .find_map(|key| self.marks.get(key))
            .and_then(|marks| if at_key { marks.key } else { marks.value.or(marks.key) });
        let key = keys.first().map_or("", String::as_str);
        self.problems.push((Problem::new(key, message).with_help(help), mark));
    }
}

/// Whether one path is the other or lies inside it.
fn related(one: &str, other: &str) -> bool {
    let inside = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    inside(one, other) || inside(other, one)
}

/// What is laid over the defaults, lowest first.
struct Layers<'a> {
    implied_line: Option<usize>,
    profile: Option<(Profile, Origin)>,
    file: Json,
    findings: &'a Findings,
}

impl<'a> Layers<'a> {
    fn new(tree: &Node, file: Json, findings: &'a Findings, chosen: Option<Profile>) -> Layers<'a> {
        let named = file.get("profile").and_then(Json::as_str).and_then(|name| Profile::from_name(name).ok());
        let profile = match (chosen, named) {
            (Some(profile), _) => Some((profile, Origin::Caller)),
            (None, Some(profile)) => Some((profile, line_of("profile", findings))),
            (None, None) => None,
        };
        Layers { implied_line: section_line(tree, "load_balancing"), profile, file, findings }
    }

    fn merge(self) -> (Json, Trail) {
        let mut merged = to_json(&Config::default());
        let mut trail = Trail::default();
        if let Some(line) = self.implied_line {
            for (section, key, value) in IMPLIED {
                set(&mut merged, section, key, Json::from(value));
                trail.put(key_path(section, key), Origin::Implied { line });
            }
        }
        if let Some((profile, _)) = self.profile {
            for (key, value) in profile.settings() {
                set(&mut merged, "stealing", key, value);
                trail.put(key_path("stealing", key), Origin::Profile(profile));
            }
        }
        lay_over(&mut merged, self.file, "", &mut |path| trail.put(path.to_owned(), line_of(path, self.findings)));
        if let (Some((profile, origin)), Json::Object(entries)) = (self.profile, &mut merged) {
            entries.insert("profile".to_owned(), Json::from(profile.name()));
            trail.put("profile".to_owned(), origin);
        }
        (merged, trail)
    }
}

/// The origins found while merging, by path, before it is known which paths are leaves.
#[derive(Default)]
struct Trail(BTreeMap<String, Origin>);

impl Trail {
    fn put(&mut self, path: String, origin: Origin) {
        self.0.insert(path, origin);
    }

    fn of_leaves(&self, config: &Config) -> Origins {
        let mut origins = Origins::default();
        for (path, _) in leaves(&to_json(config), "") {
            let origin = self.0.get(&path).copied().unwrap_or(Origin::Default);
            origins.0.insert(path, origin);
        }
        origins
    }
}

/// Every value at or below `path` without parts of its own, with its path, in the order of the settings.
pub(super) fn leaves(json: &Json, path: &str) -> Vec<(String, Json)> {
    fn visit(json: &Json, path: String, out: &mut Vec<(String, Json)>) {
        match json {
            Json::Object(entries) if !entries.is_empty() => {
                for (key, value) in entries {
                    visit(value, key_path(&path, key), out);
                }
            }
            Json::Array(items) if !items.is_empty() => {
                for (index, item) in items.iter().enumerate() {
                    visit(item, format!("{path}[{index}]"), out);
                }
            }
            leaf => out.push((path, leaf.clone())),
        }
    }
    let mut out = Vec::new();
    visit(json, path.to_owned(), &mut out);
    out
}

fn set(json: &mut Json, section: &str, key: &str, value: Json) {
    if let Some(Json::Object(entries)) = json.get_mut(section) {
        entries.insert(key.to_owned(), value);
    }
}

/// Lays `over` upon `base`; sections are merged, everything else is replaced. Calls `seen` with each path it set.
fn lay_over(base: &mut Json, over: Json, path: &str, seen: &mut impl FnMut(&str)) {
    match (base, over) {
        (Json::Object(base), Json::Object(over)) => {
            if over.is_empty() {
                seen(path);
            }
            for (key, value) in over {
                let place = key_path(path, &key);
                lay_over(base.entry(key).or_insert(Json::Null), value, &place, seen);
            }
        }
        (base, over) => {
            for (leaf, _) in leaves(&over, path) {
                seen(&leaf);
            }
            *base = over;
        }
    }
}

fn line_of(path: &str, findings: &Findings) -> Origin {
    let marks = findings.marks.get(path);
    match marks.and_then(|marks| marks.value.or(marks.key)) {
        Some(mark) => Origin::File { line: mark.line },
        None => Origin::Default,
    }
}

/// The line of a section of the file.
fn section_line(tree: &Node, name: &str) -> Option<usize> {
    let Value::Map(entries) = &tree.value else { return None };
    let (key, _) = entries.iter().find(|(key, _)| matches!(&key.value, Value::Text(text) if text == name))?;
    key.mark.map(|mark| mark.line)
}
