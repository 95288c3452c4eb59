//! Bodies and queries of HTTP requests.

pub(crate) fn bodies(data: &[u8]) {
    overtake_gateway::read_as_any_request(data);
}
