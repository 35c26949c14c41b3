//! The schema of the program's JSON, and a checker for the keywords that it uses.

use serde_json::Value;

/// The schema that the pages describe.
pub fn schema() -> Value {
    serde_json::from_str(include_str!("../../../docs/warpann.schema.json")).expect("the schema is JSON")
}

/// Keywords that say nothing about a value.
const ANNOTATIONS: [&str; 4] = ["$schema", "$defs", "title", "description"];

/// The places at which `value` differs from `schema`, a part of the schema `root`.
///
/// # Panics
/// If the schema has a keyword that this checker does not know.
pub fn differences(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut all = Vec::new();
    let part = |schema: &Value, value: &Value, place: &str| differences(root, schema, value, &format!("{at}{place}"));
    for (keyword, rule) in schema.as_object().expect("a schema is an object") {
        let list = || rule.as_array().expect("the keyword has a list");
        match keyword.as_str() {
            keyword if ANNOTATIONS.contains(&keyword) => {}
            "$ref" => {
                let path = rule.as_str().and_then(|path| path.strip_prefix('#')).expect("a place in this schema");
                all.extend(part(root.pointer(path).expect("the place exists"), value, ""));
            }
            "oneOf" => {
                let tried: Vec<Vec<String>> = list().iter().map(|schema| part(schema, value, "")).collect();
                match tried.iter().filter(|differences| differences.is_empty()).count() {
                    1 => {}
                    // The form with the fewest differences is the one that was meant.
                    0 => all.extend(tried.into_iter().min_by_key(Vec::len).unwrap_or_default()),
                    several => all.push(format!("{at}: {several} forms fit")),
                }
            }
            "type" => {
                let names = rule.as_array().map_or_else(|| vec![rule], |names| names.iter().collect());
                if !names.iter().any(|name| is(value, name.as_str().expect("the name of a type"))) {
                    all.push(format!("{at}: {value} is not {rule}"));
                }
            }
            "const" if rule != value => all.push(format!("{at}: {value} is not {rule}")),
            "enum" if !list().contains(value) => all.push(format!("{at}: {value} is not one of {rule}")),
            "const" | "enum" => {}
            "required" => {
                let missing = |name: &&Value| value.is_object() && value.get(name.as_str().expect("a name")).is_none();
                all.extend(list().iter().filter(missing).map(|name| format!("{at}.{name} is missing")));
            }
            "properties" => {
                let known = rule.as_object().expect("the keyword has an object");
                let there = known.iter().filter_map(|(name, schema)| Some((name, schema, value.get(name)?)));
                all.extend(there.flat_map(|(name, schema, value)| part(schema, value, &format!(".{name}"))));
            }
            "additionalProperties" => {
                assert_eq!(rule, &Value::Bool(false), "the only value that this checker knows");
                let known = |name: &str| schema["properties"].get(name).is_some();
                let unknown = value.as_object().into_iter().flatten().filter(|(name, _)| !known(name));
                all.extend(unknown.map(|(name, _)| format!("{at}.{name} is not in the schema")));
            }
            "items" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                all.extend(items.flat_map(|(index, value)| part(rule, value, &format!("[{index}]"))));
            }
            "prefixItems" => {
                let items = value.as_array().into_iter().flatten().zip(list()).enumerate();
                all.extend(items.flat_map(|(index, (value, schema))| part(schema, value, &format!("[{index}]"))));
            }
            "minItems" | "maxItems" => {
                let (length, bound) = (value.as_array().map(Vec::len), rule.as_u64().expect("a number") as usize);
                if length.is_some_and(|length| if keyword == "minItems" { length < bound } else { length > bound }) {
                    all.push(format!("{at}: {keyword} is {bound}"));
                }
            }
            _ => panic!("the checker does not know the keyword {keyword}"),
        }
    }
    all
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("{name} is not a type"),
    }
}

/// Checks an object that the program printed.
///
/// # Panics
/// If the object differs from the schema.
pub fn check(value: &Value) {
    let schema = schema();
    let differences = differences(&schema, &schema, value, "$");
    assert!(differences.is_empty(), "{value}\ndiffers from docs/warpann.schema.json:\n{}", differences.join("\n"));
}
