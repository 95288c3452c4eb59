//! A queue's configuration, every field, and listings of queues.

use super::scalar::Micro;
use overtake_base::queue_config as base;
use overtake_wire::message;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::collections::BTreeMap;
use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A queue's configuration.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct QueueConfig {
    /// Priority levels. Fixed at creation; default 5.
    #[schema(minimum = 1, maximum = 100)]
    pub levels: u8,
    /// Shards the queue is spread over; 1 gives exact order. Fixed at creation; default the node's shard set.
    #[schema(minimum = 1, maximum = 1024)]
    pub shards: u16,
    /// How the level of the next delivery is chosen; default `weighted`.
    pub scheduling: Scheduling,
    /// A positive number per level, level 0 first; default 50, 25, 13, 7, 5 for five levels.
    #[schema(schema_with = weights)]
    pub weights: Vec<Micro>,
    /// Least fraction of deliveries for levels 1.. while they have work; default 0.1.
    #[schema(value_type = f64, minimum = 0, maximum = 0.5)]
    pub reserve: Micro,
    /// Least fraction of deliveries for the two least urgent levels; default 0.05.
    #[schema(value_type = f64, minimum = 0, maximum = 0.5)]
    pub floor: Micro,
    /// Seconds of waiting that make a message one level more urgent (`aging` only); default 1800.
    #[schema(minimum = 1, maximum = 31_622_400)]
    pub aging_s: u64,
    /// Failed deliveries before a message is dead; default 5.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub max_deliveries: u32,
    /// Lease of a receive that does not say, in seconds; default 30.
    #[schema(minimum = 1, maximum = 43_200)]
    pub lease_s: u32,
    /// Seconds a dedup key is remembered; default 600, 0 is off.
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub dedup_window_s: u64,
    /// Seconds a message lives from its first visibility; default 345600.
    #[schema(minimum = 1, maximum = 31_622_400)]
    pub retention_s: u64,
    /// Most messages visible, delayed and leased together; default null, no limit.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000i64)]
    pub max_depth: Option<u64>,
    /// Most body bytes of those; default null, no limit.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000i64)]
    pub max_bytes: Option<u64>,
    /// Delivery rate caps.
    pub rate_caps: RateCaps,
    /// Whether expired messages become dead letters; default false.
    pub dead_letter_expired: bool,
    /// Delay before a failed delivery returns; default null, none.
    pub backoff: Option<Backoff>,
    /// Seconds a level with visible work may go without a delivery before it counts as starved; default 60.
    pub starvation_s: StarvationS,
}

fn weights() -> Schema {
    let weight = ObjectBuilder::new()
        .schema_type(Type::Number)
        .exclusive_minimum(Some(0.0))
        .maximum(Some(1_000_000_000.0));
    ArrayBuilder::new().items(weight).min_items(Some(1)).max_items(Some(100)).into()
}

/// How the level of the next delivery is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheduling {
    /// Level 0 first, the others by weight, with a reserve and a floor.
    Weighted,
    /// Level order only.
    Strict,
    /// A message becomes one level more urgent for each `aging_s` waited; with a reserve and a floor.
    Aging,
}

/// Deliveries per second, burst one second; 0 pauses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RateCaps {
    /// `queue`: for the whole queue.
    pub queue: Option<u64>,
    /// `p0`, `p1`, …: for single levels.
    pub levels: BTreeMap<u8, u64>,
}

impl Serialize for RateCaps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(cap) = self.queue {
            map.serialize_entry("queue", &cap)?;
        }
        for (level, cap) in &self.levels {
            map.serialize_entry(&format_args!("p{level}"), cap)?;
        }
        map.end()
    }
}

impl PartialSchema for RateCaps {
    fn schema() -> RefOr<Schema> {
        let names =
            ObjectBuilder::new().schema_type(Type::String).pattern(Some("^(queue|p[0-9]|p[1-9][0-9])$"));
        let cap =
            ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(1_000_000_000));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some(
                "Deliveries per second of the whole queue and of single levels, burst one second; 0 pauses",
            ))
            .property_names(Some(names.build()))
            .additional_properties(Some(AdditionalProperties::RefOr(cap.into())))
            .examples([serde_json::json!({ "queue": 1000, "p0": 200 })])
            .into()
    }
}

impl ToSchema for RateCaps {}

/// A failed delivery returns after `first_s` × `factor`^(failures − 1), at most `max_s`, which is not below `first_s`.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct Backoff {
    /// After the first failure.
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub first_s: u64,
    /// Growth with each further failure.
    #[schema(value_type = f64, minimum = 1, maximum = 1000)]
    pub factor: Micro,
    /// At most.
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub max_s: u64,
}

/// Seconds, the same for all levels or one for each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum StarvationS {
    /// For all levels.
    All(u64),
    /// One for each level, level 0 first.
    PerLevel(Vec<u64>),
}

impl PartialSchema for StarvationS {
    fn schema() -> RefOr<Schema> {
        let seconds =
            || ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(31_622_400));
        let list = ArrayBuilder::new().items(seconds()).min_items(Some(1)).max_items(Some(100));
        utoipa::openapi::OneOfBuilder::new().item(seconds()).item(list).into()
    }
}

impl ToSchema for StarvationS {}

impl From<&base::QueueConfig> for QueueConfig {
    fn from(config: &base::QueueConfig) -> Self {
        Self {
            levels: config.levels,
            shards: config.shards,
            scheduling: match config.scheduling {
                base::Scheduling::Weighted => Scheduling::Weighted,
                base::Scheduling::Strict => Scheduling::Strict,
                base::Scheduling::Aging => Scheduling::Aging,
            },
            weights: config.weights_micro.iter().copied().map(Micro).collect(),
            reserve: Micro(u64::from(config.reserve_ppm)),
            floor: Micro(u64::from(config.floor_ppm)),
            aging_s: config.aging_s,
            max_deliveries: config.max_deliveries,
            lease_s: config.lease_s,
            dedup_window_s: config.dedup_window_s,
            retention_s: config.retention_s,
            max_depth: config.max_depth,
            max_bytes: config.max_bytes,
            rate_caps: RateCaps { queue: config.rate_caps.queue, levels: config.rate_caps.levels.clone() },
            dead_letter_expired: config.dead_letter_expired,
            backoff: config.backoff.map(|backoff| Backoff {
                first_s: backoff.first_s,
                factor: Micro(backoff.factor_micro),
                max_s: backoff.max_s,
            }),
            starvation_s: match &config.starvation {
                base::Starvation::All(seconds) => StarvationS::All(*seconds),
                base::Starvation::PerLevel(list) => StarvationS::PerLevel(list.clone()),
            },
        }
    }
}

/// One page of queues.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct Queues {
    /// By name.
    pub queues: Vec<QueueListed>,
    /// Where the next page goes on; null at the end.
    pub next: Option<String>,
}

/// One queue of a listing.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct QueueListed {
    /// Its name.
    pub name: String,
    /// Every field.
    pub config: QueueConfig,
    /// Messages visible, delayed and leased.
    pub depth: u64,
}

impl From<message::QueueListed> for QueueListed {
    fn from(listed: message::QueueListed) -> Self {
        Self { config: (&listed.config).into(), name: listed.name, depth: listed.depth }
    }
}

/// The schema of a change: every field of a configuration, none required, null for the default.
pub(crate) struct QueueConfigUpdate;

impl PartialSchema for QueueConfigUpdate {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(mut object)) = QueueConfig::schema() else {
            return QueueConfig::schema();
        };
        object.required.clear();
        object.description =
            Some("Fields left out stay as they are; null puts a field back to its default".into());
        for property in object.properties.values_mut() {
            *property = nullable(core::mem::take(property));
        }
        RefOr::T(Schema::Object(object))
    }
}

impl ToSchema for QueueConfigUpdate {
    fn name() -> std::borrow::Cow<'static, str> {
        "QueueConfigUpdate".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        QueueConfig::schemas(schemas);
    }
}

fn nullable(schema: RefOr<Schema>) -> RefOr<Schema> {
    let null = ObjectBuilder::new().schema_type(Type::Null);
    match schema {
        already @ RefOr::T(Schema::OneOf(_)) => already,
        plain => utoipa::openapi::OneOfBuilder::new().item(plain).item(null).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::config::{FIELDS, parse_config};

    fn full() -> base::QueueConfig {
        base::QueueConfig {
            rate_caps: base::RateCaps { queue: Some(0), levels: [(0, 5), (10, 7)].into() },
            backoff: Some(base::Backoff { first_s: 1, factor_micro: 1_500_000, max_s: 60 }),
            starvation: base::Starvation::PerLevel(vec![9; 12]),
            max_bytes: Some(12),
            weights_micro: (0..12).map(|i| i * 123_457 + 1).collect(),
            ..base::QueueConfig::with_defaults(12, 8)
        }
    }

    #[test]
    fn defaults_print_every_field() {
        let json =
            serde_json::to_string(&QueueConfig::from(&base::QueueConfig::with_defaults(5, 8))).unwrap();
        let want = concat!(
            r#"{"levels":5,"shards":8,"scheduling":"weighted","weights":[50,25,13,7,5],"reserve":0.1,"floor":0.05,"#,
            r#""aging_s":1800,"max_deliveries":5,"lease_s":30,"dedup_window_s":600,"retention_s":345600,"#,
            r#""max_depth":null,"max_bytes":null,"rate_caps":{},"dead_letter_expired":false,"backoff":null,"#,
            r#""starvation_s":60}"#
        );
        assert_eq!(json, want);
    }

    #[test]
    fn what_is_printed_can_be_put_back() {
        for config in [full(), base::QueueConfig::with_defaults(3, 1)] {
            let json = serde_json::to_vec(&QueueConfig::from(&config)).unwrap();
            let patch = parse_config(&json).unwrap();
            assert_eq!(base::QueueConfig::create(&patch, 8).unwrap(), config);
        }
    }

    #[test]
    fn printed_and_read_fields_are_the_same() {
        let json = serde_json::to_value(QueueConfig::from(&full())).unwrap();
        let mut printed: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let mut read = FIELDS.to_vec();
        printed.sort_unstable();
        read.sort_unstable();
        assert_eq!(printed, read);
    }
}
