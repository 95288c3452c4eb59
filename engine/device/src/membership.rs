//! Which node of which cluster a data folder is, and which data folders the other nodes had when they were last seen. A
//! folder of a node by itself has neither file.
//!
//! `member`:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `OVTKMEMB` |
//! | 8 | 8 | node |
//! | 16 | 16 | cluster |
//! | 32 | 8 | checksum of bytes 0..32 |
//!
//! `peers`: magic `OVTKPEER`, then for each other node its id (8) and the identity of its data folder (16), then the
//! checksum of all before it (8).
//!
//! `cluster`: magic `OVTKCLUS`, then the cluster as this node knew it last (bytes of `overtake_queue::members`, which are
//! none of this crate's business), then the checksum of all before it (8). A node of a cluster that has not told it anything
//! yet has no such file.

use crate::error::FolderError;
use crate::folder::{make_folder, read_small_file, replace_file};
use crate::store::is_made;
use overtake_base::checksum::checksum;
use overtake_base::limits::NODES_MAX;
use overtake_base::{Malformed, NodeId, Reader, Writer};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const MEMBER_FILE: &str = "member";
const MEMBER_MAGIC: &[u8; 8] = b"OVTKMEMB";
const PEERS_FILE: &str = "peers";
const PEERS_MAGIC: &[u8; 8] = b"OVTKPEER";
const CLUSTER_FILE: &str = "cluster";
const CLUSTER_MAGIC: &[u8; 8] = b"OVTKCLUS";
const DOMAIN: u64 = u64::from_le_bytes(*b"member01");
const SHORT: &str = "the file is too short";

/// A node of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The node.
    pub node: NodeId,
    /// Identity of the cluster.
    pub cluster: u128,
}

impl Membership {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        writer.raw(MEMBER_MAGIC);
        writer.u64(self.node.0);
        writer.u128(self.cluster);
        sealed(bytes)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = unsealed(bytes, MEMBER_MAGIC)?;
        let found = Self { node: NodeId(reader.u64(SHORT)?), cluster: reader.u128(SHORT)? };
        reader.finish("the file is too long")?;
        Ok(found)
    }
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(DOMAIN, &bytes);
    Writer(&mut bytes).u64(sum);
    bytes
}

/// What lies between magic and checksum.
fn unsealed<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Result<Reader<'a>, Malformed> {
    let (content, sum) = bytes.split_last_chunk::<8>().ok_or(Malformed(SHORT))?;
    if checksum(DOMAIN, content) != u64::from_le_bytes(*sum) {
        return Err(Malformed("its checksum does not fit"));
    }
    match content.strip_prefix(magic) {
        Some(content) => Ok(Reader::new(content)),
        None => Err(Malformed("it is another file")),
    }
}

/// The node of a cluster that a data folder belongs to; none: a node by itself.
pub fn read_member(folder: &Path) -> Result<Option<Membership>, FolderError> {
    let path = folder.join(MEMBER_FILE);
    let Some(bytes) = read_small_file(&path)? else { return Ok(None) };
    let member = Membership::decode(&bytes);
    member.map(Some).map_err(|Malformed(detail)| FolderError::Damaged { path, detail })
}

/// Checks that a locked data folder is the one of this node (none: of a node by itself), or makes a new one its own. Called
/// before [`crate::open_store`], so that a start that was cut short is repeated.
pub fn claim_folder(folder: &Path, asked: Option<Membership>) -> Result<(), FolderError> {
    make_folder(folder)?;
    let path = folder.join(MEMBER_FILE);
    if !is_made(folder) {
        return match asked {
            Some(asked) => {
                replace_file(&path, &asked.encode()).map_err(|error| FolderError::of(&path, error))
            }
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(FolderError::of(&path, error)),
                _ => Ok(()),
            },
        };
    }
    let found = read_member(folder)?;
    if found == asked {
        return Ok(());
    }
    Err(FolderError::OtherMember {
        folder: folder.into(),
        found: found.map(Box::new),
        asked: asked.map(Box::new),
    })
}

/// The cluster as this node knew it last.
pub fn read_cluster(folder: &Path) -> Result<Option<Vec<u8>>, FolderError> {
    let path = folder.join(CLUSTER_FILE);
    let Some(bytes) = read_small_file(&path)? else { return Ok(None) };
    let content =
        unsealed(&bytes, CLUSTER_MAGIC).and_then(|mut reader| Ok(reader.raw(reader.left(), SHORT)?.to_vec()));
    content.map(Some).map_err(|Malformed(detail)| FolderError::Damaged { path, detail })
}

/// Remembers it, durably.
pub fn write_cluster(folder: &Path, cluster: &[u8]) -> Result<(), FolderError> {
    let path = folder.join(CLUSTER_FILE);
    let bytes = [&CLUSTER_MAGIC[..], cluster].concat();
    replace_file(&path, &sealed(bytes)).map_err(|error| FolderError::of(&path, error))
}

/// The data folders that the other nodes had when they were last seen.
pub fn read_peers(folder: &Path) -> Result<BTreeMap<NodeId, u128>, FolderError> {
    let path = folder.join(PEERS_FILE);
    let Some(bytes) = read_small_file(&path)? else { return Ok(BTreeMap::new()) };
    decode_peers(&bytes).map_err(|Malformed(detail)| FolderError::Damaged { path, detail })
}

fn decode_peers(bytes: &[u8]) -> Result<BTreeMap<NodeId, u128>, Malformed> {
    let mut reader = unsealed(bytes, PEERS_MAGIC)?;
    let mut peers = BTreeMap::new();
    while reader.left() > 0 && peers.len() < NODES_MAX {
        peers.insert(NodeId(reader.u64(SHORT)?), reader.u128(SHORT)?);
    }
    reader.finish("the file is too long")?;
    Ok(peers)
}

/// Remembers them, durably.
pub fn write_peers(folder: &Path, peers: &BTreeMap<NodeId, u128>) -> Result<(), FolderError> {
    let path = folder.join(PEERS_FILE);
    let mut bytes = Vec::new();
    let mut writer = Writer(&mut bytes);
    writer.raw(PEERS_MAGIC);
    for (node, store) in peers {
        writer.u64(node.0);
        writer.u128(*store);
    }
    replace_file(&path, &sealed(bytes)).map_err(|error| FolderError::of(&path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::open_store;
    use std::path::PathBuf;

    const FIRST: Membership = Membership { node: NodeId(2), cluster: 0x0102 };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("overtake-member-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let peers = BTreeMap::from([(NodeId(1), 7), (NodeId(3), 8)]);
        let path = folder("bytes");
        make_folder(&path).unwrap();
        write_peers(&path, &peers).unwrap();
        let written = fs::read(path.join(PEERS_FILE)).unwrap();
        assert_eq!(read_peers(&path).unwrap(), peers);
        for good in [FIRST.encode(), written] {
            for at in 0..good.len() {
                let mut bad = good.clone();
                bad[at] ^= 1;
                assert!(Membership::decode(&bad).is_err() && decode_peers(&bad).is_err(), "byte {at}");
                assert!(Membership::decode(&good[..at]).is_err() && decode_peers(&good[..at]).is_err());
            }
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_is_known_of_the_cluster_is_kept_whole_or_not() {
        let path = folder("cluster");
        make_folder(&path).unwrap();
        assert_eq!(read_cluster(&path).unwrap(), None);
        write_cluster(&path, b"all of it").unwrap();
        assert_eq!(read_cluster(&path).unwrap().as_deref(), Some(&b"all of it"[..]));
        let good = fs::read(path.join(CLUSTER_FILE)).unwrap();
        assert_eq!(&good[..17], b"OVTKCLUSall of it");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(path.join(CLUSTER_FILE), bad).unwrap();
            assert!(read_cluster(&path).is_err(), "byte {at}");
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let bytes = FIRST.encode();
        assert_eq!(hex(&bytes[..32]), "4f56544b4d454d42020000000000000002010000000000000000000000000000");
        assert_eq!(Membership::decode(&bytes), Ok(FIRST));
    }

    #[test]
    fn a_folder_belongs_to_the_node_that_made_it() {
        let member = folder("claim");
        // Made by a start that was cut short: nothing is in it yet.
        claim_folder(&member, Some(Membership { node: NodeId(9), cluster: 1 })).unwrap();
        claim_folder(&member, Some(FIRST)).unwrap();
        open_store(&member, Some(1), None, 4).unwrap();
        claim_folder(&member, Some(FIRST)).unwrap();
        for (asked, text) in [
            (None, "node 2 of cluster"),
            (Some(Membership { node: NodeId(3), ..FIRST }), "node 2"),
            (Some(Membership { cluster: 5, ..FIRST }), "cluster"),
        ] {
            let error = claim_folder(&member, asked).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let single = folder("single");
        claim_folder(&single, None).unwrap();
        open_store(&single, Some(1), None, 4).unwrap();
        claim_folder(&single, None).unwrap();
        let error = claim_folder(&single, Some(FIRST)).unwrap_err().to_string();
        assert!(error.contains("a node by itself"), "{error}");
        fs::remove_dir_all(&member).unwrap();
        fs::remove_dir_all(&single).unwrap();
    }
}
