//! QUIC as a state machine on quinn-proto.
