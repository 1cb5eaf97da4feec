//! Rules as JSON: an object with the words of the language as keys.
//!
//! ```json
//! {"table":0,"priority":100,"match":{"dl_type":"0x800","nw_src":"10.0.0.0/8"},"actions":["queue:3"]}
//! ```

use crate::action::Action;
use crate::field::{Field, text};
use crate::matching::Match;
use crate::rule::{DEFAULT_PRIORITY, RuleSpec};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt;

impl Serialize for Match {
    /// An object of field names and values, both as in the language.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields();
        let mut map = serializer.serialize_map(Some(fields.len()))?;
        for (field, value, mask) in fields {
            map.serialize_entry(field.name(), &text::print(field, value, mask))?;
        }
        map.end()
    }
}

/// A value: text as in the language, or a number.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u64),
    Text(String),
}

impl Value {
    fn text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

impl<'de> Deserialize<'de> for Match {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Match;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of fields and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Match, A::Error> {
                let (mut matching, mut fields) = (Match::ANY, Vec::new());
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    let field =
                        Field::named(&name).ok_or_else(|| A::Error::custom(format!("there is no field '{name}'")))?;
                    let (value, mask) = text::parse(field, &value.text()).map_err(A::Error::custom)?;
                    matching.add(field, value, mask).map_err(A::Error::custom)?;
                    fields.push(field);
                }
                matching.complete(fields.iter().copied()).map_err(A::Error::custom)?;
                Ok(matching)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A rule as it is in JSON.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    #[serde(default)]
    table: u8,
    #[serde(default = "priority")]
    priority: u16,
    #[serde(default)]
    cookie: u64,
    #[serde(default)]
    idle_timeout: u16,
    #[serde(default)]
    hard_timeout: u16,
    #[serde(default, rename = "match")]
    matching: Match,
    actions: Vec<Action>,
}

fn priority() -> u16 {
    DEFAULT_PRIORITY
}

impl Serialize for RuleSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let RuleSpec { table, priority, matching, actions, cookie, idle_timeout, hard_timeout } = self.clone();
        Object { table, priority, cookie, idle_timeout, hard_timeout, matching, actions }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RuleSpec {
    /// The rule is checked as one that was written.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Object { table, priority, cookie, idle_timeout, hard_timeout, matching, actions } =
            Object::deserialize(deserializer)?;
        let rule = Self { table, priority, matching, actions, cookie, idle_timeout, hard_timeout };
        rule.check().map_err(D::Error::custom)?;
        Ok(rule)
    }
}
