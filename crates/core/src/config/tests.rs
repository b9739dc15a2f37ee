//! Loading, refusing and showing whole configurations.

use std::fmt::Write as _;

use proptest::prelude::{ProptestConfig, Strategy, TestCaseError, any, prop, prop_assert, prop_assert_eq, proptest};

mod agreement;

use super::*;
use crate::time::Span;

const EXAMPLE: &str = include_str!("../../../../examples/config/load-balancing-config.yaml");

/// Uses every section and every form a value can have.
const RICH: &str = "\
seed: 7
profile: low_latency
load_balancing:
  strategy: push
  thresholds: { busy_threshold: 8, idle_threshold: 3, severe_imbalance_ratio: 2 }
stealing:
  steal_timeout: 1.5s
  steal_threshold: 1
scheduling:
  bind: late
  aging_interval: 0s
  policy:
    type: composite
    algorithms:
      - { type: performance_based, weight: 0.6 }
      - weight: 0.4
        type: adaptive
        model: ewma
        alpha: 0.1
  per_type:
    critical: priority_based
    \"two words\": { type: batch, batch_size: 2 }
    \"a.b\": fifo
    \"true\": { type: expected_completion, beta: 1, lambda_cost: null }
limits: &limits
  max_queued: 18446744073709551615
retry:
  jitter: 0
";

fn load(text: &str) -> Loaded {
    Config::from_yaml(text, "test.yaml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn refuse(text: &str) -> ConfigErrors {
    match Config::from_yaml(text, "test.yaml") {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(errors) => errors,
    }
}

/// Line, column and message of each problem.
fn problems(text: &str) -> Vec<(usize, usize, String)> {
    let position = |problem: &Problem| problem.place.as_ref().map_or((0, 0), |place| (place.line, place.column));
    let errors = refuse(text);
    errors
        .problems()
        .iter()
        .map(|problem| (position(problem).0, position(problem).1, problem.message.clone()))
        .collect()
}

#[test]
fn the_known_balancing_file_loads_as_it_stands() {
    let loaded = load(EXAMPLE);
    let mut expected = Config::default();
    expected.scheduling.bind = Bind::Push;
    expected.scheduling.policy = PolicySpec::Name("best_fit".to_owned());
    expected.stealing.strategy = VictimStrategy::MostLoaded;
    assert_eq!(loaded.config, expected);
    assert_eq!(loaded.origins.of("load_balancing.thresholds.busy_threshold"), Origin::File { line: 8 });
    for key in ["scheduling.bind", "scheduling.policy", "stealing.strategy"] {
        assert_eq!(loaded.origins.of(key), Origin::Implied { line: 4 }, "{key}");
    }
    assert_eq!(loaded.origins.of("stealing.take"), Origin::Default);
}

#[test]
fn what_the_section_implies_yields_to_the_file() {
    let text = "scheduling: { bind: late, policy: { type: batch } }\nstealing: { strategy: random }\nload_balancing:\n";
    let loaded = load(text);
    assert_eq!(loaded.config.scheduling.bind, Bind::Late);
    assert_eq!(loaded.config.scheduling.policy.parts().0, "batch");
    assert_eq!(loaded.config.stealing.strategy, VictimStrategy::Random);
    assert_eq!(loaded.origins.of("scheduling.policy.type"), Origin::File { line: 1 });
    // Without the section nothing is implied.
    assert_eq!(load("limits: { key_limit: 2 }").config.scheduling, Scheduling::default());
}

#[test]
fn empty_texts_give_the_defaults() {
    for text in ["", "\n", "# nothing\n", "---\n", "\u{feff}", "{}", "~", "stealing:\nlimits: ~\n", "profile:\n"] {
        assert_eq!(load(text).config, Config::default(), "{text:?}");
    }
    assert!(load("").origins.iter().all(|(_, origin)| origin == Origin::Default));
    assert_eq!(Config::default().validate(), []);
}

#[test]
fn profiles_set_exactly_their_keys() {
    let millis = Span::from_millis;
    let changed = |change: fn(&mut Stealing)| {
        let mut stealing = Stealing::default();
        change(&mut stealing);
        stealing
    };
    let expected = [
        (
            Profile::LowLatency,
            Stealing { steal_timeout: millis(50), retry_backoff: millis(20), max_retries: 5, ..Stealing::default() },
        ),
        (
            Profile::HighLatency,
            Stealing { steal_timeout: millis(500), retry_backoff: millis(100), max_retries: 2, ..Stealing::default() },
        ),
        (Profile::CpuBound, Stealing { min_local_queue: 4, steal_threshold: 0.3, ..Stealing::default() }),
        (Profile::IoBound, Stealing { min_local_queue: 1, steal_threshold: 0.7, ..Stealing::default() }),
        (Profile::ShortTasks, Stealing { steal_timeout: millis(50), min_local_queue: 1, ..Stealing::default() }),
        (Profile::LongTasks, changed(|s| (s.steal_timeout, s.min_local_queue) = (Span::from_millis(200), 4))),
    ];
    for (profile, stealing) in expected {
        let config = Config { profile: Some(profile), stealing, ..Config::default() };
        assert_eq!(load(&format!("profile: {}", profile.name())).config, config);
        assert_eq!(Config::default().with_profile(profile), config);
        assert_eq!(Config::from_yaml_with_profile("", "x", Some(profile)).unwrap().config, config);
    }
}

#[test]
fn the_file_wins_over_its_profile_and_the_caller_s_profile_over_the_file_s() {
    let text = "profile: low_latency\nstealing:\n  max_retries: 9\n";
    let loaded = load(text);
    assert_eq!(loaded.config.stealing.max_retries, 9);
    assert_eq!(loaded.origins.of("stealing.max_retries"), Origin::File { line: 3 });
    assert_eq!(loaded.origins.of("stealing.retry_backoff"), Origin::Profile(Profile::LowLatency));
    assert_eq!(loaded.origins.of("profile"), Origin::File { line: 1 });

    let other = Config::from_yaml_with_profile(text, "x", Some(Profile::IoBound)).unwrap();
    assert_eq!(
        other.config.stealing,
        Stealing { max_retries: 9, min_local_queue: 1, steal_threshold: 0.7, ..Stealing::default() }
    );
    assert_eq!(other.origins.of("profile"), Origin::Caller);
}

#[test]
fn line_ends_marks_anchors_and_quotes_are_understood() {
    let windows = load("\u{feff}stealing:\r\n  max_retries: 7\r\n");
    assert_eq!(windows.config.stealing.max_retries, 7);
    assert_eq!(windows.origins.of("stealing.max_retries"), Origin::File { line: 2 });
    let shared = load("retry: { jitter: &j 0.25 }\nstealing: { backoff_jitter: *j }\n");
    assert_eq!(shared.config.stealing.backoff_jitter, 0.25);
    assert_eq!(load("stealing: { take: 'half' }").config.stealing.take, Take::Half);
    assert_eq!(load("stealing: { take: ! half, max_retries: !!int 4 }").config.stealing.max_retries, 4);
    assert_eq!(load("limits: { lease: 20 }").config.limits.lease, Span::from_secs(20));
    assert_eq!(load("limits: { lease: 0.25 }").config.limits.lease, Span::from_millis(250));
}

#[test]
fn what_is_shown_loads_again() {
    for text in ["", EXAMPLE, RICH] {
        let loaded = load(text);
        let yaml = loaded.to_yaml();
        assert_eq!(load(&yaml).config, loaded.config, "{yaml}");
        // Except for `profile: null`, which sets nothing.
        let from_file = |(key, origin)| key == "profile" || matches!(origin, Origin::File { .. });
        assert!(load(&yaml).origins.iter().all(from_file), "{yaml}");
    }
    insta::assert_snapshot!("shown", load(RICH).to_yaml());
}

#[test]
fn settings_are_listed_with_value_and_origin() {
    let settings = load(RICH).settings();
    let of = |key: &str| settings.iter().find(|setting| setting.key == key).unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(of("stealing.steal_timeout").value, "1.5s");
    assert_eq!(of("scheduling.policy.algorithms[1].alpha").origin, Origin::File { line: 19 });
    assert_eq!(of("scheduling.per_type.\"a.b\"").value, "fifo");
    assert_eq!(of("stealing.retry_backoff").origin, Origin::Profile(Profile::LowLatency));
}

/// Each mistake with the text it is in; the snapshot shows what people read.
const MISTAKES: &[(&str, &str)] = &[
    ("unknown key, near", "load_balancing:\n  thresholds:\n    busy_treshold: 5\n"),
    ("unknown key, other spelling", "stealing:\n  stealTimeout: 50ms\n"),
    ("unknown key, elsewhere", "busy_threshold: 5\n"),
    ("unknown key, near one elsewhere", "max_requeue_attempt: 5\n"),
    ("unknown key, part of one elsewhere", "load_balancing:\n  imbalance_ratio: 3.0\n"),
    ("unknown key, part of one here", "load_balancing:\n  thresholds:\n    imbalance_ratio: 3.0\n"),
    ("unknown key, far", "retry:\n  colour: red\n"),
    ("unknown option", "scheduling:\n  policy:\n    type: batch\n    batchsize: 4\n"),
    ("wrong type: text for number", "load_balancing:\n  thresholds:\n    busy_threshold: five\n"),
    ("wrong type: quoted number", "limits:\n  key_limit: \"5\"\n"),
    ("wrong type: fraction", "limits:\n  key_limit: 2.5\n"),
    ("wrong type: word for bool", "scheduling:\n  fair_share: yes\n"),
    ("wrong type: nothing", "limits:\n  key_limit:\n"),
    ("wrong type: list for section", "stealing: [1, 2]\n"),
    ("wrong type: section for duration", "stealing:\n  steal_timeout: { ms: 50 }\n"),
    ("wrong type: the whole file", "- a\n- b\n"),
    ("wrong type: key", "1: 2\n"),
    ("bad duration", "stealing:\n  steal_timeout: 50 fortnights\n"),
    ("bad word", "load_balancing:\n  strategy: hybird\n"),
    ("bad word, far", "load_balancing:\n  strategy: everything\n"),
    ("bad profile", "profile: lowlatncy\n"),
    ("bad policy", "scheduling:\n  policy: expected_compleion\n"),
    ("bad policy, far", "scheduling:\n  per_type:\n    gpu: magic\n"),
    ("duplicate key", "seed: 1\nseed: 2\n"),
    ("duplicate key and more", "seed: 1\nseed: 2\nsed: 3\n"),
    ("not YAML", "stealing: [1, 2\n"),
    ("tabs", "stealing:\n\ttake: one\n"),
    ("tabs after spaces", "stealing:\n  take: one\n  \tmax_retries: 3\n"),
    ("tabs, second line", "stealing:\n  take:\tone\n\tmax_retries: 3\n"),
    ("unclosed quote", "stealing: { take: 'one', max_retries: \"3 }\n"),
    ("unclosed quote, next key", "stealing:\n  take: \"one\n  max_retries: 3\n"),
    ("unclosed quote, last line", "# it's\nstealing:\n  take: 'it''s\n"),
    ("unclosed quote, next document", "profile: \"a \\\" b\n---\nseed: 1\n"),
    ("unknown tag", "seed: !foo 3\n"),
    ("unknown tags", "stealing: !bar\n  !key take: !!half one\nlimits: !<tag:x.org,1:y> {}\n"),
    ("alias inside itself", "limits: &a { key_limit: *a }\n"),
    ("empty name", "scheduling:\n  per_type: { a: fifo, \"\": fifo }\n"),
    ("two documents", "seed: 1\n---\nseed: 2\n"),
    ("unknown alias", "seed: *nobody\n"),
    ("idle above busy", "load_balancing:\n  thresholds:\n    busy_threshold: 2\n"),
    ("ratio", "load_balancing:\n  thresholds:\n    severe_imbalance_ratio: 1\n"),
    ("interval", "load_balancing:\n  thresholds:\n    rebalance_interval_sec: 0\n"),
    ("tiny interval", "load_balancing:\n  thresholds:\n    rebalance_interval_sec: 1e-12\n"),
    (
        "tiny intervals",
        "limits:\n  sample_interval: 1ns\n  requeue_interval: 999us\nscheduling:\n  aging_interval: 1us\n",
    ),
    ("many requeues", "limits:\n  max_requeue_attempts: 70000\n"),
    ("negative", "limits:\n  decisions_kept: -1\n"),
    ("negative duration", "limits:\n  lease: -1\n"),
    ("too large", "limits:\n  decisions_kept: 4294967296\n"),
    ("much too large", "seed: 18446744073709551616\n"),
    ("not a number", "load_balancing:\n  capabilities:\n    history_weight: .nan\n"),
    ("infinite", "stealing:\n  steal_threshold: .inf\n"),
    ("weight", "load_balancing:\n  capabilities:\n    history_weight: 1.5\n"),
    ("priority", "load_balancing:\n  priority:\n    high_priority_threshold: 7\n"),
    ("no timeout", "stealing:\n  steal_timeout: 0s\n"),
    ("backoff", "stealing:\n  backoff_base: 2s\n"),
    ("backoff of retries", "retry:\n  backoff: 2s\n  backoff_max: 1s\n"),
    ("jitter", "retry:\n  jitter: 1.1\n"),
    ("quarantine", "limits:\n  quarantine: 0s\n"),
    ("settled", "limits:\n  settled_kept: 200000\n"),
    ("composite, bare", "scheduling:\n  policy: composite\n"),
    ("composite, empty", "scheduling:\n  policy:\n    type: composite\n    algorithms: []\n"),
    ("composite, no weight", "scheduling:\n  policy:\n    type: composite\n    algorithms:\n      - type: fifo\n"),
    ("composite, weights", "scheduling:\n  policy:\n    type: composite\n    algorithms: [{type: fifo, weight: 0}]\n"),
    (
        "composite, negative",
        "scheduling:\n  policy:\n    type: composite\n    algorithms: [{type: fifo, weight: -1}]\n",
    ),
    (
        "composite, option",
        "scheduling:\n  policy:\n    type: composite\n    algorithms: [{type: fifo, weight: 1, alpha: 1}]\n",
    ),
    ("no type", "scheduling:\n  policy: { batch_size: 3 }\n"),
    ("foreign option", "scheduling:\n  policy: { type: best_fit, batch_size: 3 }\n"),
    ("batch size", "scheduling:\n  policy: { type: batch, batch_size: 0 }\n"),
    ("alpha", "scheduling:\n  policy: { type: adaptive, alpha: 0 }\n"),
    ("alpha without use", "scheduling:\n  policy: { type: adaptive, model: learned, alpha: 0.5 }\n"),
    ("wide characters", "scheduling: { per_type: { größe: fifo, 画像: magic } }\n"),
    ("a probe without a command", "detection:\n  probes:\n    - { capability: python, command: [] }\n"),
    (
        "a probe with a pattern that is none",
        "detection:\n  probes:\n    - capability: python-$1\n      command: [python3, --version]\n      pattern: 'Python (\\d+'\n",
    ),
    ("a probe that is misspelt", "detection: { probes: [{ capability: git, comand: [git] }] }\n"),
];

#[test]
fn mistakes_are_shown_with_their_place_and_a_way_out() {
    let mut shown = String::new();
    for (name, text) in MISTAKES {
        writeln!(shown, "--- {name}\n{}", refuse(text)).unwrap();
    }
    insta::assert_snapshot!("mistakes", shown);
}

#[test]
fn all_mistakes_of_a_file_are_reported_at_once_in_their_order() {
    let text = "\
sed: 1
load_balancing:
  strategy: hybird
  thresholds:
    busy_threshold: 2
    idle_threshold: 6
stealing:
  backoff_jitter: 2
  steal_timeout: soon
scheduling:
  policy: { type: fifo, alpha: 0.5 }
";
    let found: Vec<(usize, usize)> = problems(text).into_iter().map(|(line, column, _)| (line, column)).collect();
    assert_eq!(found, [(1, 1), (3, 13), (6, 21), (8, 19), (9, 18), (11, 25)]);
}

#[test]
fn one_mistake_is_not_reported_twice() {
    // Judged by its default, a refused busy_threshold would make this idle_threshold wrong too.
    let text = "load_balancing:\n  thresholds:\n    busy_threshold: many\n    idle_threshold: 6\n";
    assert_eq!(problems(text).len(), 1);
    // A part that cannot be read takes its composite with it, without a second complaint.
    let text = "scheduling:\n  policy:\n    type: composite\n    algorithms: [{ type: fifi, weight: 1 }]\n";
    assert_eq!(problems(text).len(), 1);
}

#[test]
fn settings_built_in_code_are_judged_alike() {
    let messages = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        let problems = config.validate();
        assert!(problems.iter().all(|problem| problem.place.is_none()));
        problems.into_iter().map(|problem| (problem.key, problem.message)).collect::<Vec<_>>()
    };
    let key = |change: fn(&mut Config)| match messages(change).as_slice() {
        [(key, _)] => key.clone(),
        other => panic!("expected one problem, found {other:?}"),
    };
    assert_eq!(key(|c| c.load_balancing.thresholds.idle_threshold = 5), "load_balancing.thresholds.idle_threshold");
    assert_eq!(
        key(|c| c.load_balancing.thresholds.severe_imbalance_ratio = f64::NAN),
        "load_balancing.thresholds.severe_imbalance_ratio"
    );
    assert_eq!(key(|c| c.stealing.steal_threshold = f64::INFINITY), "stealing.steal_threshold");
    assert_eq!(
        key(|c| c.load_balancing.priority.high_priority_threshold = 0),
        "load_balancing.priority.high_priority_threshold"
    );
    assert_eq!(key(|c| c.stealing.steal_timeout = Span::ZERO), "stealing.steal_timeout");
    assert_eq!(key(|c| c.scheduling.default_estimate = Span::ZERO), "scheduling.default_estimate");
    assert_eq!(key(|c| c.scheduling.candidates_per_class = 0), "scheduling.candidates_per_class");
    assert_eq!(key(|c| c.limits.max_queued = 0), "limits.max_queued");
    assert_eq!(key(|c| c.limits.key_limit = 0), "limits.key_limit");
    assert_eq!(key(|c| c.retry.jitter = -0.1), "retry.jitter");
    assert_eq!(key(|c| c.scheduling.policy = PolicySpec::Name("magic".to_owned())), "scheduling.policy");
    assert_eq!(key(|c| c.scheduling.policy = PolicySpec::Name("composite".to_owned())), "scheduling.policy.algorithms");
    let weighted = |weight| {
        let policy = PolicyOptions { kind: "fifo".to_owned(), ..PolicyOptions::default() };
        PolicyOptions {
            kind: "composite".to_owned(),
            algorithms: vec![WeightedPolicy { weight, policy }],
            ..PolicyOptions::default()
        }
    };
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut config = Config::default();
        config.scheduling.per_type.insert("x".to_owned(), PolicySpec::Options(weighted(weight)));
        assert_eq!(config.validate().len(), 1, "{weight}");
    }
    // Each finite, but not their sum.
    let mut config = Config::default();
    let mut huge = weighted(f64::MAX);
    huge.algorithms.push(huge.algorithms[0].clone());
    config.scheduling.policy = PolicySpec::Options(huge);
    assert_eq!(config.validate().len(), 1);
}

#[test]
fn hostile_texts_are_refused_quickly() {
    let deep_flow = "[".repeat(100_000);
    let deep_block = "- ".repeat(100_000);
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        writeln!(laughs, "a{level}: &a{level} [{below}]").unwrap();
    }
    let many = "x: 1\n".repeat(150_000);
    let long_key = "k".repeat(500_000) + ": 1";
    let huge = "#".repeat(2 << 20);
    let laughed = "\
test.yaml:6:10: error: with this alias the file becomes too large
    6 | a5: &a5 [*a4, *a4, *a4, *a4, *a4, *a4, *a4, *a4, *a4, *a4, ]
      |          ^^^
      help: an alias repeats all that its anchor holds, aliases included; write out the few values that are meant";
    assert_eq!(refuse(&laughs).to_string(), laughed);
    for text in [deep_flow, deep_block, laughs, many, long_key, huge] {
        let errors = refuse(&text);
        assert!(errors.to_string().len() < 2_000, "{}", errors.to_string().len());
    }
}

/// The time grows with the text, not with its square: every line has a mistake, or two.
#[test]
fn a_text_of_nothing_but_mistakes_is_answered_with_all_of_them() {
    let lines = 60_000;
    let mut text = String::new();
    for line in 0..lines {
        writeln!(text, "!t k{line}: 1").unwrap();
    }
    let errors = refuse(&text);
    assert_eq!(errors.problems().len(), 2 * lines);
    let last =
        errors.problems().last().and_then(|problem| problem.place.as_ref()).map(|place| (place.line, place.column));
    assert_eq!(last, Some((lines, 4)));
}

#[test]
fn bytes_that_are_no_text_are_refused_where_they_stand() {
    assert_eq!(decode(b"seed: 1", "x"), Ok("seed: 1"));
    let errors = decode(b"seed: 1\n\xc3\xa9 \xff", "latin.yaml").unwrap_err();
    let place = errors.problems()[0].place.as_ref().unwrap();
    assert_eq!((place.line, place.column), (2, 3));
    assert!(errors.to_string().starts_with("latin.yaml:2:3: error: not UTF-8 text"), "{errors}");
}

#[test]
fn the_reference_names_every_setting_policy_and_profile() {
    let reference = reference();
    for setting in load("").settings() {
        let (section, key) = setting.key.rsplit_once('.').unwrap_or(("Top level", &setting.key));
        assert!(reference.contains(section) && reference.contains(&format!("| `{key}` |")), "{}", setting.key);
    }
    for name in policies::names().into_iter().chain(Profile::ALL.map(Profile::name)) {
        assert!(reference.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn the_committed_reference_is_fresh() {
    let committed = include_str!("../../../../docs/config-reference.md");
    assert!(committed == reference(), "run `filch config reference > docs/config-reference.md`");
}

/// A valid text with a few bytes changed, removed, inserted or copied elsewhere.
fn mutated() -> impl Strategy<Value = String> {
    let fragment = prop::sample::select(vec![
        ":", "\n", " ", "-", "{", "}", "[", "]", "&a", "*a", "<<: *a", "\t", "\r", "#", "'", "\"", "|", ">", "!", "%",
        "---", "...", "~", ".nan", "-1", "1e400", "é", "\u{85}", "\u{2028}", "\0", "\u{feff}", "true", "? ", "limits",
        "seed: 2",
    ]);
    let edit = (any::<prop::sample::Index>(), 0usize..12, fragment);
    (prop::sample::select(vec![EXAMPLE, RICH]), prop::collection::vec(edit, 1..6)).prop_map(|(text, edits)| {
        let mut characters: Vec<char> = text.chars().collect();
        for (index, removed, fragment) in edits {
            let at = index.index(characters.len() + 1);
            let end = (at + removed).min(characters.len());
            characters.splice(at..end, fragment.chars());
        }
        characters.into_iter().collect()
    })
}

/// Whatever the text is: no panic, every problem inside the text, and what loads is sound and can be shown.
fn survives(text: &str) -> Result<(), TestCaseError> {
    match Config::from_yaml(text, "test.yaml") {
        Ok(loaded) => {
            prop_assert_eq!(loaded.config.validate(), vec![]);
            let again = Config::from_yaml(&loaded.to_yaml(), "again");
            prop_assert_eq!(again.map(|again| again.config), Ok(loaded.config));
        }
        Err(errors) => {
            prop_assert!(!errors.problems().is_empty());
            let body = text.strip_prefix('\u{feff}').unwrap_or(text);
            let lines: Vec<&str> =
                body.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r')).collect();
            for problem in errors.problems() {
                let place = problem.place.as_ref().expect("a problem of a text has a place");
                prop_assert!((1..=lines.len()).contains(&place.line), "{:?}", place);
                let length = lines[place.line - 1].chars().count();
                prop_assert!((1..=length + 1).contains(&place.column), "{:?}", place);
                prop_assert!(!problem.message.is_empty());
            }
            prop_assert!(!errors.to_string().is_empty());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_files_never_panic(text in mutated()) {
        survives(&text)?;
    }

    #[test]
    fn any_text_never_panics(text in any::<String>()) {
        survives(&text)?;
    }

    #[test]
    fn task_types_of_any_name_are_shown_so_that_they_load_again(name in "(?s).+") {
        let mut config = Config::default();
        config.scheduling.per_type.insert(name, PolicySpec::Name("fifo".to_owned()));
        let yaml = Loaded { config: config.clone(), origins: Origins::default() }.to_yaml();
        prop_assert_eq!(Config::from_yaml(&yaml, "shown").map(|again| again.config), Ok(config));
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        match decode(&bytes, "x") {
            Ok(text) => survives(text)?,
            Err(errors) => prop_assert_eq!(errors.problems().len(), 1),
        }
    }
}
