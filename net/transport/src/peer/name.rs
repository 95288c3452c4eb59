//! What a node is called in its certificate: `node-2.cluster-<32 hexadecimal digits>.overtake`, a DNS name that both
//! sides of a link check. The certificate of the cluster's authority bears the name without the node.

use core::fmt;
use overtake_base::NodeId;
use rustls::pki_types::CertificateDer;

const SUFFIX: &str = ".overtake";
const CLUSTER: &str = "cluster-";
const NODE: &str = "node-";
/// Digits of a cluster's identity.
const CLUSTER_DIGITS: usize = 32;

/// The name of a cluster's authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterName(pub u128);

/// The name of one node of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeName {
    /// The node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: u128,
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CLUSTER}{:032x}{SUFFIX}", self.0)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NODE}{}.{}", self.node, ClusterName(self.cluster))
    }
}

impl ClusterName {
    fn parse(name: &str) -> Option<Self> {
        let digits = name.strip_prefix(CLUSTER)?.strip_suffix(SUFFIX)?;
        let plain = digits.len() == CLUSTER_DIGITS
            && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if plain { u128::from_str_radix(digits, 16).ok().map(Self) } else { None }
    }

    /// The name in the certificate of an authority, DER; none where it is no cluster's.
    #[must_use]
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        names(der).iter().find_map(|name| Self::parse(name))
    }
}

impl NodeName {
    fn parse(name: &str) -> Option<Self> {
        let (node, cluster) = name.strip_prefix(NODE)?.split_once('.')?;
        let canonical = node.bytes().all(|digit| digit.is_ascii_digit()) && !node.starts_with('0');
        let node = NodeId(if canonical { node.parse().ok()? } else { return None });
        Some(Self { node, cluster: ClusterName::parse(cluster)?.0 })
    }

    /// The name in a node's certificate, DER; none where it is no node's.
    #[must_use]
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        names(der).iter().find_map(|name| Self::parse(name))
    }
}

fn names(der: &[u8]) -> Vec<String> {
    let der = CertificateDer::from(der);
    let certificate = webpki::EndEntityCert::try_from(&der);
    certificate.map_or_else(|_| Vec::new(), |found| found.valid_dns_names().map(ToOwned::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_survive_their_text(node in 1u64.., cluster: u128) {
            let name = NodeName { node: NodeId(node), cluster };
            prop_assert_eq!(NodeName::parse(&name.to_string()), Some(name));
            prop_assert_eq!(ClusterName::parse(&ClusterName(cluster).to_string()), Some(ClusterName(cluster)));
        }

        #[test]
        fn any_text_is_a_name_or_not(text: String) {
            prop_assert!(NodeName::parse(&text).is_none_or(|name| name.to_string() == text));
        }
    }

    #[test]
    fn names_have_one_spelling() {
        let cluster = "cluster-000000000000000000000000000000ab.overtake";
        assert_eq!(ClusterName::parse(cluster), Some(ClusterName(0xab)));
        for bad in ["node-.", "node-0.", "node-01.", "node-+1.", "node-18446744073709551616.", "nod-1.", "1."]
        {
            assert_eq!(NodeName::parse(&format!("{bad}{cluster}")), None, "{bad}");
        }
        for bad in
            ["cluster-ab.overtake", "cluster-000000000000000000000000000000AB.overtake", "overtake", ""]
        {
            assert_eq!(ClusterName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_name_is_read_from_a_certificate() {
        let name = NodeName { node: NodeId(3), cluster: 7 };
        let of = |names: &[String]| {
            let made = rcgen::generate_simple_self_signed(names).unwrap();
            NodeName::of_certificate(made.cert.der())
        };
        assert_eq!(of(&["localhost".into(), name.to_string()]), Some(name));
        assert_eq!(of(&["localhost".into()]), None);
        assert_eq!(NodeName::of_certificate(b"nonsense"), None);
    }
}
