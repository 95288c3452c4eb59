//! Frames of the client protocol. What is understood is written again and understood in the same way.

use bytes::Bytes;
use overtake_base::{MessageId, QueueName, Receipt};
use overtake_log::disk::FileName;
use overtake_wire::peer::PeerHello;
use overtake_wire::{
    FrameSplitter, LENGTH_BYTES, decode_request, decode_response, encode_request, encode_response,
};

pub(crate) fn request(data: &[u8]) {
    if let Ok((id, request)) = decode_request(&Bytes::copy_from_slice(data)) {
        // A client that says this must be told, not served: no panic here either.
        let _ = request.validate();
        let mut frame = Vec::new();
        encode_request(id, &request, &mut frame);
        let again = decode_request(&Bytes::from(frame).slice(LENGTH_BYTES..));
        assert_eq!(again.ok(), Some((id, request)));
    }
}

pub(crate) fn response(data: &[u8]) {
    if let Ok((id, response)) = decode_response(&Bytes::copy_from_slice(data)) {
        let mut frame = Vec::new();
        encode_response(id, &response, &mut frame);
        let again = decode_response(&Bytes::from(frame).slice(LENGTH_BYTES..));
        // As text: what is not a number is not equal to itself.
        assert_eq!(format!("{:?}", again.ok()), format!("{:?}", Some((id, response))));
    }
}

/// However a stream is cut, the same frames come out of it.
pub(crate) fn frames(data: &[u8]) {
    let Some((step, stream)) = data.split_first() else { return };
    let split = |chunk_bytes: usize| {
        let mut splitter = FrameSplitter::with_max(1_024);
        let mut frames = Vec::new();
        for chunk in stream.chunks(chunk_bytes.max(1)) {
            splitter.push(Bytes::copy_from_slice(chunk));
            loop {
                match splitter.next_frame() {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(_) => return (frames, false),
                }
            }
        }
        (frames, true)
    };
    assert_eq!(split(usize::from(*step)), split(usize::MAX));
}

/// What the core of another node says first.
pub(crate) fn greeting(data: &[u8]) {
    if let Ok(hello) = PeerHello::decode(data) {
        let mut frame = Vec::new();
        hello.encode(&mut frame);
        assert_eq!(&frame[LENGTH_BYTES..], data, "a greeting has one form");
    }
}

/// Names as text: of messages, leases, queues, files.
pub(crate) fn names(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    if let Ok(id) = text.parse::<MessageId>() {
        assert_eq!(id.to_string(), text, "an id has one spelling");
    }
    if let Ok(receipt) = text.parse::<Receipt>() {
        assert_eq!(receipt.to_string(), text, "a receipt has one form");
    }
    if let Ok(queue) = text.parse::<QueueName>() {
        assert_eq!(queue.to_string(), text);
    }
    if let Ok(file) = text.parse::<FileName>() {
        assert_eq!(file.to_string(), text, "a file has one name");
    }
}
