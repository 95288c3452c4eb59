//! What cores of other nodes send: any bytes. What is understood is written again and understood in the same way.

use bytes::Bytes;
use overtake_core::codec::{decode, encode};

pub(crate) fn message(data: &[u8]) {
    let Ok(message) = decode(&Bytes::copy_from_slice(data)) else { return };
    let mut bytes = Vec::new();
    assert!(encode(&message, &mut bytes), "what came over a link can go over one: {message:?}");
    // As text: what is not a number is not equal to itself.
    assert_eq!(format!("{:?}", decode(&bytes.into()).ok()), format!("{:?}", Some(message)));
}
