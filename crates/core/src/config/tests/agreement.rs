//! The schema and the checks accept the same documents.
//!
//! The schema is read here by a validator of its own, of the keywords that the schema uses; one it does not know is a
//! failure, so that the schema cannot outgrow it.

use proptest::prelude::{ProptestConfig, any, prop, prop_assert_eq, proptest};
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Value as Json, json};

use super::{EXAMPLE, MISTAKES, RICH};
use crate::config::{Config, schema};

/// Whether `value` is what `schema` describes.
fn accepts(schema: &Json, value: &Json, root: &Json) -> bool {
    let Json::Object(keywords) = schema else {
        return schema.as_bool().expect("a schema is an object or a truth value");
    };
    keywords.iter().all(|(keyword, argument)| keyword_holds(keyword, argument, value, schema, root))
}

fn keyword_holds(keyword: &str, argument: &Json, value: &Json, schema: &Json, root: &Json) -> bool {
    let is = |schema: &Json, value: &Json| accepts(schema, value, root);
    let branches = || argument.as_array().expect("a list of schemas").iter();
    let number = || argument.as_f64().expect("a number");
    let holds_for_number = |rule: fn(f64, f64) -> bool| value.as_f64().is_none_or(|value| rule(value, number()));
    let length = |rule: fn(usize, usize) -> bool| {
        value.as_array().is_none_or(|items| rule(items.len(), argument.as_u64().expect("a length") as usize))
    };
    match keyword {
        // They describe; or `if` judges by its neighbours.
        "$schema" | "$defs" | "$comment" | "title" | "description" | "default" | "format" | "then" => true,
        "$ref" => {
            let path = argument.as_str().and_then(|path| path.strip_prefix('#')).expect("a path in the schema");
            is(root.pointer(path).expect("a definition"), value)
        }
        "type" => match argument {
            Json::String(name) => has_type(name, value),
            names => {
                names.as_array().expect("names").iter().any(|name| has_type(name.as_str().expect("a name"), value))
            }
        },
        "enum" => branches().any(|one| one == value),
        "const" => argument == value,
        "not" => !is(argument, value),
        "anyOf" => branches().any(|one| is(one, value)),
        "allOf" => branches().all(|one| is(one, value)),
        "oneOf" => branches().filter(|one| is(one, value)).count() == 1,
        "if" => !is(argument, value) || is(&schema["then"], value),
        "minimum" => holds_for_number(|value, least| value >= least),
        "exclusiveMinimum" => holds_for_number(|value, least| value > least),
        // Floats cannot tell the largest 64-bit numbers apart.
        "maximum" => match (value.as_u64(), argument.as_u64()) {
            (Some(value), Some(most)) => value <= most,
            (None, Some(most)) => value.as_f64().is_none_or(|value| value as u128 <= u128::from(most)),
            _ => holds_for_number(|value, most| value <= most),
        },
        "minItems" => length(|items, least| items >= least),
        "maxItems" => length(|items, most| items <= most),
        "minLength" => {
            value.as_str().is_none_or(|text| text.chars().count() as u64 >= argument.as_u64().expect("a length"))
        }
        "pattern" => value.as_str().is_none_or(|text| matches(argument.as_str().expect("a pattern"), text)),
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| is(argument, item))),
        "contains" => value.as_array().is_none_or(|items| items.iter().any(|item| is(argument, item))),
        "properties" => value.as_object().is_none_or(|fields| {
            fields.iter().all(|(name, field)| argument.get(name).is_none_or(|schema| is(schema, field)))
        }),
        "propertyNames" => value.as_object().is_none_or(|fields| fields.keys().all(|name| is(argument, &json!(name)))),
        "additionalProperties" => value.as_object().is_none_or(|fields| {
            let mut others = fields.iter().filter(|(name, _)| schema["properties"].get(name.as_str()).is_none());
            others.all(|(_, field)| is(argument, field))
        }),
        "required" => value
            .as_object()
            .is_none_or(|fields| branches().all(|name| fields.contains_key(name.as_str().expect("a name")))),
        unknown => panic!("the schema uses `{unknown}`, which this validator must learn first"),
    }
}

fn has_type(name: &str, value: &Json) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        // 2.0 is an integer to JSON schema.
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "array" => value.is_array(),
        "object" => value.is_object(),
        unknown => panic!("the schema uses the type `{unknown}`"),
    }
}

/// Whether the whole text has the form of the pattern, which begins with `^` and ends with `$`.
fn matches(pattern: &str, text: &str) -> bool {
    assert!(pattern.starts_with('^') && pattern.ends_with('$'), "{pattern}");
    let hir = regex_syntax::parse(&pattern[1..pattern.len() - 1]).expect("a pattern");
    ends(&hir, text.as_bytes(), 0).contains(&text.len())
}

/// Where a match that begins at `from` may end.
fn ends(hir: &Hir, text: &[u8], from: usize) -> Vec<usize> {
    let all = |hir: &Hir, from: Vec<usize>| {
        let mut to: Vec<usize> = from.into_iter().flat_map(|from| ends(hir, text, from)).collect();
        to.sort_unstable();
        to.dedup();
        to
    };
    match hir.kind() {
        HirKind::Empty => vec![from],
        HirKind::Literal(literal) if text[from..].starts_with(&literal.0) => vec![from + literal.0.len()],
        HirKind::Literal(_) => Vec::new(),
        HirKind::Class(class) => {
            let ascii = match class {
                Class::Unicode(class) => class.to_byte_class().expect("only ASCII in classes"),
                Class::Bytes(class) => class.clone(),
            };
            let found =
                text.get(from).filter(|byte| ascii.ranges().iter().any(|r| (r.start()..=r.end()).contains(byte)));
            found.map(|_| from + 1).into_iter().collect()
        }
        HirKind::Repetition(repetition) => {
            let most = repetition.max.unwrap_or(u32::MAX);
            let (mut reached, mut now) = (Vec::new(), vec![from]);
            for turn in 0.. {
                if turn >= repetition.min {
                    reached.extend(&now);
                }
                if turn == most || now.is_empty() {
                    break;
                }
                now = all(&repetition.sub, now);
            }
            reached
        }
        HirKind::Capture(capture) => ends(&capture.sub, text, from),
        HirKind::Concat(parts) => parts.iter().fold(vec![from], |from, part| all(part, from)),
        HirKind::Alternation(branches) => branches.iter().flat_map(|branch| ends(branch, text, from)).collect(),
        HirKind::Look(_) => panic!("a pattern that looks around"),
    }
}

/// A text as the validator of an editor sees it.
fn plain(text: &str) -> Option<Json> {
    serde_saphyr::from_str_with_options::<Json>(text, serde_saphyr::options! { strict_booleans: true }).ok()
}

/// Whether the schema and the checks accept the text.
fn both(text: &str) -> Option<(bool, bool)> {
    let root = schema();
    plain(text).map(|value| (accepts(&root, &value, &root), Config::from_yaml(text, "test.yaml").is_ok()))
}

#[test]
fn the_schema_and_the_check_agree() {
    let documents = [
        "",
        "# nothing\n",
        "~",
        "{}",
        "limits:\n",
        "limits: ~\nstealing:\nload_balancing:\n  thresholds:\n",
        "limits: {}\n",
        "limits: []\n",
        "limits: 3\n",
        "profile:\n",
        "profile: low_latency\n",
        "profile: 3\n",
        "seed:\n",
        "seed: 1.0\n",
        "seed: 1.5\n",
        "seed: 1e3\n",
        "seed: -1\n",
        "seed: -1.0\n",
        "seed: true\n",
        "seed: 18446744073709551615\n",
        "limits: { key_limit: 4294967295 }\n",
        "limits: { key_limit: 4294967296 }\n",
        "limits: { key_limit: 1e10 }\n",
        "load_balancing: { priority: { high_priority_threshold: 6 } }\n",
        "load_balancing: { priority: { high_priority_threshold: 7 } }\n",
        "scheduling: { policy: ~ }\n",
        "scheduling: { policy: composite }\n",
        "scheduling: { policy: { type: composite } }\n",
        "scheduling: { policy: { type: composite, algorithms: [] } }\n",
        "scheduling: { policy: { type: composite, algorithms: ~ } }\n",
        "scheduling: { policy: { type: composite, algorithms: [~] } }\n",
        "scheduling: { policy: { type: composite, algorithms: [{ type: fifo, weight: 1 }] } }\n",
        "scheduling: { policy: { type: composite, algorithms: [{ type: fifo, weight: 0 }] } }\n",
        "scheduling: { policy: { type: composite, algorithms: [{ type: fifo, weight: 0 }, { type: batch, weight: 2 }] } }\n",
        "scheduling: { policy: { type: composite, algorithms: [{ type: composite, weight: 1 }] } }\n",
        "scheduling: { policy: { type: composite, algorithms: [{ type: fifo, weight: 1, batch_size: 2 }] } }\n",
        "scheduling: { policy: { type: composite, algorithms: [fifo] } }\n",
        "scheduling: { policy: { type: fifo, batch_size: 2 } }\n",
        "scheduling: { policy: { type: fifo, batch_size: ~ } }\n",
        "scheduling: { policy: { type: fifo, algorithms: [] } }\n",
        "scheduling: { policy: { type: fifo, algorithms: [{ type: fifo, weight: 1 }] } }\n",
        "scheduling: { policy: { type: batch, batch_size: 2 } }\n",
        "scheduling: { policy: { type: batch, batch_size: 0 } }\n",
        "scheduling: { policy: { batch_size: 2 } }\n",
        "scheduling: { policy: {} }\n",
        "scheduling: { policy: { type: ~ } }\n",
        "scheduling: { policy: { type: adaptive, model: learned } }\n",
        "scheduling: { policy: { type: adaptive, model: learned, alpha: 0.5 } }\n",
        "scheduling: { policy: { type: adaptive, model: learned, alpha: ~ } }\n",
        "scheduling: { policy: { type: adaptive, model: ~, alpha: 0.5 } }\n",
        "scheduling: { per_type: }\n",
        "scheduling: { per_type: { a: fifo } }\n",
        "scheduling: { per_type: { a: } }\n",
        "scheduling: { per_type: { \"\": fifo } }\n",
        "scheduling: { per_type: { a: { type: fifo, beta: 1 } } }\n",
        "scheduling: { per_type: { a: composite } }\n",
        "stealing: { steal_timeout: 0 }\n",
        "stealing: { steal_timeout: 0s }\n",
        "stealing: { steal_timeout: 0.0ms }\n",
        "stealing: { steal_timeout: 00.5ms }\n",
        "stealing: { steal_timeout: \" 5 ms \" }\n",
        "stealing: { steal_timeout: \"5ms\\n\" }\n",
        "stealing: { steal_timeout: 5 fortnights }\n",
        "stealing: { steal_timeout: 1e12 }\n",
        "stealing: { steal_timeout: 1.5 }\n",
        "stealing: { retry_backoff: 0s }\n",
        "stealing: { retry_backoff: -1 }\n",
        "stealing: { retry_backoff: }\n",
        "stealing: { backoff_jitter: 1.0000001 }\n",
        "sed: 1\n",
        "stealing: { sed: 1 }\n",
    ];
    let mut accepted = 0;
    for text in documents.into_iter().chain([EXAMPLE, RICH]) {
        let (by_schema, by_check) = both(text).unwrap_or_else(|| panic!("not a document: {text}"));
        assert_eq!(by_schema, by_check, "the schema and the check differ on {text:?}");
        accepted += usize::from(by_check);
    }
    assert_eq!(accepted, 30, "of {} documents", documents.len() + 2);
}

/// What JSON schema has no words for: comparisons between settings, patterns, and tags. Everything else that is refused, it refuses.
#[test]
fn of_the_known_mistakes_the_schema_misses_only_what_it_cannot_say() {
    let missed: Vec<&str> = MISTAKES
        .iter()
        .filter(|(_, text)| both(text).is_some_and(|(by_schema, _)| by_schema))
        .map(|(name, _)| *name)
        .collect();
    let beyond_it = [
        "unknown tag",
        "unknown tags",
        "idle above busy",
        "tiny intervals",
        "backoff",
        "backoff of retries",
        "quarantine",
        "settled",
        "a probe without a command",
        "a probe with a pattern that is none",
    ];
    assert_eq!(missed, beyond_it);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Single settings with values of all sorts.
    #[test]
    fn no_value_of_a_setting_is_judged_differently(
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![
            json!(null), json!(true), json!(0), json!(1), json!(-1), json!(2.0), json!(0.5), json!(1.5), json!(7), json!(300),
            json!(4294967296_u64), json!(u64::MAX), json!(1e300), json!(""), json!("0s"), json!("5ms"), json!("fifo"), json!("x"),
            json!([]), json!({}), json!({ "type": "fifo" }), json!([null]),
        ]),
    ) {
        let settings = Config::from_yaml(RICH, "rich").expect("a sound file").settings();
        let keys: Vec<_> = settings.iter().map(|setting| setting.key.as_str()).filter(|key| !key.contains('[')).collect();
        let key = keys[at.index(keys.len())];
        // The rules that compare settings are not the schema's.
        let compared = ["idle_threshold", "busy_threshold", "backoff", "backoff_base", "backoff_max", "quarantine",
            "quarantine_after", "settled_kept", "settled_max"];
        if !compared.iter().any(|name| key.ends_with(name)) && !key.contains('"') {
            let document = key.rsplit('.').fold(value, |inner, name| json!({ name: inner }));
            if let Some((by_schema, by_check)) = both(&document.to_string()) {
                prop_assert_eq!(by_schema, by_check, "{}", document);
            }
        }
    }
}
