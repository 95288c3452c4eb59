//! Bodies, queries and headers of HTTP requests.

pub(crate) fn bodies(data: &[u8]) {
    overtake_gateway::read_as_any_request(data);
}

/// The data is lines of headers, `name: value`, an empty line, and a body.
pub(crate) fn raw(data: &[u8]) {
    let end = data.windows(2).position(|two| two == b"\n\n");
    let (head, body) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
    let lines = head.split(|byte| *byte == b'\n');
    let headers = lines.filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let value = line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..]);
        Some((&line[..colon], value))
    });
    overtake_gateway::read_as_raw_request(headers, body);
}
