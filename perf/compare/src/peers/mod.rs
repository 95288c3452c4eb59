//! The systems, each with the settings that a person who loves it would choose.

mod beanstalkd;
mod nats;
mod overtake;
mod postgres;
mod rabbitmq;
mod redis;

use crate::job::System;
use std::path::PathBuf;

/// All systems, strict ones first.
pub fn all(overtake: Option<PathBuf>) -> Vec<Box<dyn System>> {
    vec![
        Box::new(overtake::Overtake { binary: overtake }),
        Box::new(postgres::Postgres { strict: true }),
        Box::new(redis::Redis { strict: true }),
        Box::new(rabbitmq::RabbitMq { kind: rabbitmq::Kind::Quorum }),
        Box::new(rabbitmq::RabbitMq { kind: rabbitmq::Kind::Classic }),
        Box::new(nats::Nats { strict: true }),
        Box::new(beanstalkd::Beanstalkd { strict: true }),
        Box::new(redis::Redis { strict: false }),
        Box::new(postgres::Postgres { strict: false }),
        Box::new(rabbitmq::RabbitMq { kind: rabbitmq::Kind::ClassicTransient }),
        Box::new(nats::Nats { strict: false }),
        Box::new(beanstalkd::Beanstalkd { strict: false }),
    ]
}
