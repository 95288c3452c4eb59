//! Texts that name nodes, zones, peers and tokens, for the file and for the command line. Every error says what is allowed.

use crate::Peer;
use overtake_base::limits::{CORES_MAX, NODE_ID_MAX, TOKEN_BYTES_MAX, ZONE_BYTES_MAX};

/// A node's id.
pub fn node_id(text: &str) -> Result<u64, String> {
    let id = text.parse().ok().filter(|id| (1..=NODE_ID_MAX).contains(id));
    id.ok_or_else(|| format!("expected a node's id, 1..={NODE_ID_MAX}"))
}

/// A zone's name.
pub fn zone(text: &str) -> Result<String, String> {
    let ok = (1..=ZONE_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    if ok { Ok(text.to_owned()) } else { Err(format!("a zone is 1..={ZONE_BYTES_MAX} of A-Z a-z 0-9 _ . -")) }
}

/// Where a peer listens: a name or an address, and a port.
pub fn host_and_port(text: &str) -> Result<String, String> {
    let ok = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && port.parse::<u16>().is_ok_and(|port| port > 0)
            && !text.contains(char::is_whitespace)
    });
    if ok {
        Ok(text.to_owned())
    } else {
        Err("expected a name or an address, and a port, like node2:7402".to_owned())
    }
}

/// Another node of the cluster: `ID@HOST:PORT`, then what is not as the defaults say: `/ZONE,CORES,HTTP`.
pub fn peer(text: &str) -> Result<Peer, String> {
    let expected = "expected ID@HOST:PORT or ID@HOST:PORT/ZONE,CORES,HTTP (the last two may be left out)";
    let (id, rest) = text.split_once('@').ok_or(expected)?;
    let (address, more) = rest.split_once('/').map_or((rest, None), |(address, more)| (address, Some(more)));
    let mut more = more.into_iter().flat_map(|more| more.splitn(3, ','));
    Ok(Peer {
        id: node_id(id)?,
        address: host_and_port(address)?,
        zone: more.next().map(zone).transpose()?,
        cores: match more.next() {
            Some(cores) => Some(
                cores
                    .parse()
                    .ok()
                    .filter(|cores| (1..=CORES_MAX).contains(cores))
                    .ok_or_else(|| format!("cores of a node are 1..={CORES_MAX}"))?,
            ),
            None => None,
        },
        http: more.next().map(ToOwned::to_owned),
    })
}

/// A token as a server takes it.
pub fn token(text: &str) -> Result<(), String> {
    let graphic = text.bytes().all(|byte| byte.is_ascii_graphic());
    if graphic && (1..=TOKEN_BYTES_MAX).contains(&text.len()) {
        Ok(())
    } else {
        Err(format!("a token is 1..={TOKEN_BYTES_MAX} printable ASCII characters without spaces"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_have_an_id_and_an_address() {
        let bare = Peer { id: 2, address: "node2:7402".into(), zone: None, cores: None, http: None };
        assert_eq!(peer("2@node2:7402"), Ok(bare.clone()));
        let full = Peer {
            zone: Some("b".into()),
            cores: Some(4),
            http: Some("10.0.0.2:7401".into()),
            ..bare.clone()
        };
        assert_eq!(peer("2@node2:7402/b,4,10.0.0.2:7401"), Ok(full));
        assert_eq!(peer("2@[::1]:7402/b").map(|peer| peer.address), Ok("[::1]:7402".into()));
        for bad in [
            "",
            "2",
            "2@",
            "@a:1",
            "0@a:1",
            "x@a:1",
            "2@a",
            "2@a:0",
            "2@a:x",
            "2@:1",
            "2@a:1/",
            "2@a:1/b,0",
            "2@a:1/b,x",
            "2@a:1/b c",
        ] {
            assert!(peer(bad).is_err(), "{bad}");
        }
    }
}
