//! The cluster's own certificate authority: what it issues, the files that hold it, and reading them again.
//!
//! One folder holds it all. `ca.pem` is the authority's certificate, which nodes and clients need a copy of; `ca.key`
//! issues, and belongs on no node. `node-ID.pem` and `node-ID.key` are for that node alone, `client-NAME.pem` and
//! `client-NAME.key` for a client of nodes that ask for one. Nothing that exists is ever written over. The cluster's identity is made with the authority and stands in the names of all certificates.

use crate::random;
use overtake_base::NodeId;
use overtake_transport::peer::{ClusterName, NodeName};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const AUTHORITY: &str = "ca";
const DAY: Duration = Duration::from_secs(86_400);
/// Certificates are good from a day before they are made: clocks differ.
const BEFORE: Duration = DAY;
/// Names under which every node may be called, whatever it is reached by.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Why certificates cannot be made or used; says what to do.
#[derive(Debug)]
pub struct CertificateError {
    /// The file at fault.
    pub path: PathBuf,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.detail)
    }
}

impl core::error::Error for CertificateError {}

fn wrong(path: &Path, detail: impl fmt::Display) -> CertificateError {
    CertificateError { path: path.into(), detail: detail.to_string() }
}

/// A certificate and its key, and where they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM, for its owner only.
    pub key: PathBuf,
}

impl Files {
    fn of(folder: &Path, name: &str) -> Self {
        Self { certificate: folder.join(format!("{name}.pem")), key: folder.join(format!("{name}.key")) }
    }

    /// The authority's.
    pub fn authority(folder: &Path) -> Self {
        Self::of(folder, AUTHORITY)
    }

    /// A client's.
    pub fn client(folder: &Path, name: &str) -> Self {
        Self::of(folder, &format!("client-{name}"))
    }

    /// A node's.
    pub fn node(folder: &Path, node: NodeId) -> Self {
        Self::of(folder, &format!("node-{node}"))
    }
}

/// Makes an authority with a new identity of a cluster. Gives that identity.
pub fn make_authority(folder: &Path, days: u32) -> Result<u128, CertificateError> {
    let files = Files::authority(folder);
    make_folder(folder)?;
    refuse_existing(&files)?;
    let cluster = random::number().map_err(|error| wrong(Path::new(random::SOURCE), error))?;
    let key = KeyPair::generate().map_err(|error| wrong(&files.key, error))?;
    let mut params = authority_params(cluster).map_err(|error| wrong(&files.certificate, error))?;
    valid_for(&mut params, days);
    let made = params.self_signed(&key).map_err(|error| wrong(&files.certificate, error))?;
    write_both(&files, &made.pem(), &key)?;
    Ok(cluster)
}

/// What identifies the authority; the same whenever it issues.
fn authority_params(cluster: u128) -> Result<CertificateParams, rcgen::Error> {
    let name = ClusterName(cluster).to_string();
    let mut params = CertificateParams::new(vec![name.clone()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// Issues a node's certificate, also good for `hosts` (names and IP addresses under which clients reach it).
pub fn issue_node(
    folder: &Path,
    node: NodeId,
    hosts: &[String],
    days: u32,
) -> Result<(Files, NodeName), CertificateError> {
    let (authority, files) = (Files::authority(folder), Files::node(folder, node));
    refuse_existing(&files)?;
    let (issuer, cluster) = open_authority(&authority)?;
    let name = NodeName { node, cluster };
    let names: Vec<String> = [name.to_string()]
        .into_iter()
        .chain(LOCAL_NAMES.map(Into::into))
        .chain(hosts.iter().cloned())
        .collect();
    let key = KeyPair::generate().map_err(|error| wrong(&files.key, error))?;
    let mut params = CertificateParams::new(names).map_err(|error| {
        wrong(&files.certificate, format!("a host is no DNS name and no IP address: {error}"))
    })?;
    params.distinguished_name.push(DnType::CommonName, name.to_string());
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    valid_for(&mut params, days);
    let made = params.signed_by(&key, &issuer).map_err(|error| wrong(&authority.key, error))?;
    write_both(&files, &made.pem(), &key)?;
    Ok((files, name))
}

/// Issues a client's certificate.
pub fn issue_client(folder: &Path, name: &str, days: u32) -> Result<Files, CertificateError> {
    let (authority, files) = (Files::authority(folder), Files::client(folder, name));
    refuse_existing(&files)?;
    let (issuer, cluster) = open_authority(&authority)?;
    let key = KeyPair::generate().map_err(|error| wrong(&files.key, error))?;
    let mut params = CertificateParams::new(Vec::new()).map_err(|error| wrong(&files.certificate, error))?;
    params.distinguished_name.push(DnType::CommonName, format!("client {name} of {}", ClusterName(cluster)));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    valid_for(&mut params, days);
    let made = params.signed_by(&key, &issuer).map_err(|error| wrong(&authority.key, error))?;
    write_both(&files, &made.pem(), &key)?;
    Ok(files)
}

fn valid_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(BEFORE);
    params.not_after = epoch + now + DAY * days;
}

fn open_authority(files: &Files) -> Result<(Issuer<'static, KeyPair>, u128), CertificateError> {
    let missing = |path: &Path, error: io::Error| match error.kind() {
        ErrorKind::NotFound => wrong(
            path,
            "there is no authority; make one with `overtake cert init`, or name its folder with --cert-dir",
        ),
        _ => wrong(path, error),
    };
    let pem = fs::read_to_string(&files.key).map_err(|error| missing(&files.key, error))?;
    let key = KeyPair::from_pem(&pem).map_err(|error| wrong(&files.key, error))?;
    fs::metadata(&files.certificate).map_err(|error| missing(&files.certificate, error))?;
    let chain = read_certificates(&files.certificate)?;
    // The newest one, where an old one stands beside it.
    let cluster = cluster_of(&files.certificate, &chain)?;
    let params = authority_params(cluster).map_err(|error| wrong(&files.certificate, error))?;
    Ok((Issuer::new(params, key), cluster))
}

/// The cluster of an authority's certificates, which all are of one.
fn cluster_of(path: &Path, certificates: &[Vec<u8>]) -> Result<u128, CertificateError> {
    let names: Vec<_> = certificates.iter().map(|der| ClusterName::of_certificate(der)).collect();
    match names.first() {
        Some(Some(first)) if names.iter().all(|name| name.as_ref() == Some(first)) => Ok(first.0),
        _ => Err(wrong(path, "it is no authority that `overtake cert init` made")),
    }
}

/// What a node needs to be a member of its cluster.
pub struct NodeCertificates {
    /// Its chain, DER, its own first.
    pub chain: Vec<Vec<u8>>,
    /// Its private key, DER.
    pub key: Vec<u8>,
    /// The authority, DER.
    pub authorities: Vec<Vec<u8>>,
    /// The cluster.
    pub cluster: u128,
}

impl NodeCertificates {
    /// Reads what `overtake cert` made for a node.
    pub fn open(folder: &Path, node: NodeId) -> Result<Self, CertificateError> {
        let (authority, files) = (Files::authority(folder).certificate, Files::node(folder, node));
        if !files.certificate.exists() {
            return Err(wrong(
                &files.certificate,
                format!(
                    "node {node} has no certificate; issue one with `overtake cert node {node}` and bring it here"
                ),
            ));
        }
        if !authority.exists() {
            return Err(wrong(
                &authority,
                "the authority's certificate belongs here, too: bring a copy (not its key)",
            ));
        }
        let (chain, authorities) = (read_certificates(&files.certificate)?, read_certificates(&authority)?);
        let cluster = cluster_of(&authority, &authorities)?;
        match chain.first().and_then(|der| NodeName::of_certificate(der)) {
            Some(name) if name.node == node && name.cluster == cluster => {}
            Some(name) if name.node != node => {
                return Err(wrong(
                    &files.certificate,
                    format!("it is the certificate of node {}", name.node),
                ));
            }
            Some(_) => {
                return Err(wrong(
                    &files.certificate,
                    format!(
                        "it is of another cluster than {}: take both from one folder",
                        authority.display()
                    ),
                ));
            }
            None => return Err(wrong(&files.certificate, "it is no node's; `overtake cert node` makes one")),
        }
        Ok(Self { chain, key: read_key(&files.key)?, authorities, cluster })
    }
}

/// All certificates of a PEM file, of which there is at least one, DER.
pub fn read_certificates(path: &Path) -> Result<Vec<Vec<u8>>, CertificateError> {
    let pem = fs::read(path).map_err(|error| wrong(path, error))?;
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&pem).map(|der| der.map(|der| der.to_vec())).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(wrong(path, "there is no PEM certificate in it")),
        Err(error) => Err(wrong(path, error)),
    }
}

/// The private key of a PEM file, DER.
pub fn read_key(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let pem = fs::read(path).map_err(|error| wrong(path, error))?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| wrong(path, error))?;
    Ok(key.secret_der().to_vec())
}

/// True where others than its owner may read a file.
pub fn is_readable_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

fn make_folder(folder: &Path) -> Result<(), CertificateError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| wrong(folder, error))
}

fn refuse_existing(files: &Files) -> Result<(), CertificateError> {
    for path in [&files.certificate, &files.key] {
        // Also a dangling link.
        if fs::symlink_metadata(path).is_ok() {
            return Err(exists(path));
        }
    }
    Ok(())
}

fn exists(path: &Path) -> CertificateError {
    wrong(path, "it is there already and is not written over; move it away first if it is to be replaced")
}

/// The key first: a certificate without its key would look complete.
fn write_both(files: &Files, certificate: &str, key: &KeyPair) -> Result<(), CertificateError> {
    write_new(&files.key, key.serialize_pem().as_bytes(), 0o600)?;
    write_new(&files.certificate, certificate.as_bytes(), 0o644).inspect_err(|_| {
        // Useless without its certificate, and in the way of the next attempt.
        let _ = fs::remove_file(&files.key);
    })
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CertificateError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = opened.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ => wrong(path, error),
    })?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| {
        // Ours, and not whole.
        let _ = fs::remove_file(path);
        wrong(path, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("overtake-cert-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_can_be_read_and_is_for_its_owner() {
        let folder = Folder::new("made");
        let cluster = make_authority(&folder.0, 30).unwrap();
        let (files, name) = issue_node(&folder.0, NodeId(2), &["queue.example".into()], 30).unwrap();
        assert_eq!(name, NodeName { node: NodeId(2), cluster });
        assert_eq!((mode(&folder.0), mode(&files.key), mode(&files.certificate)), (0o700, 0o600, 0o644));
        assert_eq!(mode(&Files::authority(&folder.0).key), 0o600);
        assert!(!is_readable_by_others(&files.key) && is_readable_by_others(&files.certificate));
        let read = NodeCertificates::open(&folder.0, NodeId(2)).unwrap();
        assert_eq!((read.cluster, read.chain.len(), read.authorities.len()), (cluster, 1, 1));
    }

    #[test]
    fn a_clients_certificate_is_no_nodes() {
        let folder = Folder::new("client");
        make_authority(&folder.0, 30).unwrap();
        let files = issue_client(&folder.0, "reports", 30).unwrap();
        assert_eq!(mode(&files.key), 0o600);
        let der = read_certificates(&files.certificate).unwrap();
        assert_eq!(NodeName::of_certificate(&der[0]), None);
        assert!(issue_client(&folder.0, "reports", 30).unwrap_err().to_string().contains("not written over"));
    }

    #[test]
    fn nothing_is_written_over() {
        let folder = Folder::new("twice");
        make_authority(&folder.0, 30).unwrap();
        issue_node(&folder.0, NodeId(1), &[], 30).unwrap();
        let all = || {
            let files = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
            let mut all: Vec<_> = files.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
            all.sort();
            all
        };
        let before = all();
        assert_eq!(before.len(), 4);
        for error in [
            make_authority(&folder.0, 30).unwrap_err(),
            issue_node(&folder.0, NodeId(1), &[], 30).unwrap_err(),
        ] {
            assert!(error.to_string().contains("is not written over"), "{error}");
        }
        // One of the two alone is as good as both.
        fs::remove_file(Files::node(&folder.0, NodeId(1)).certificate).unwrap();
        issue_node(&folder.0, NodeId(1), &[], 30).unwrap_err();
        fs::write(&before[3].0, &before[3].1).unwrap();
        assert!(all() == before, "a file has changed");
    }

    #[test]
    fn what_does_not_fit_together_is_told_apart() {
        let (folder, other) = (Folder::new("fits"), Folder::new("fits-not"));
        let open = |node| NodeCertificates::open(&folder.0, NodeId(node)).err().unwrap().to_string();
        let none = issue_node(&folder.0, NodeId(1), &[], 30).unwrap_err().to_string();
        assert!(none.contains("overtake cert init"), "{none}");
        make_authority(&folder.0, 30).unwrap();
        make_authority(&other.0, 30).unwrap();
        assert!(open(1).contains("overtake cert node 1"), "{}", open(1));
        let bad = issue_node(&folder.0, NodeId(1), &["no host".into()], 30);
        assert!(bad.is_err() || Files::node(&folder.0, NodeId(1)).key.exists());
        let (theirs, _) = issue_node(&other.0, NodeId(3), &[], 30).unwrap();
        let ours = Files::node(&folder.0, NodeId(3));
        fs::copy(&theirs.certificate, &ours.certificate).unwrap();
        fs::copy(&theirs.key, &ours.key).unwrap();
        assert!(open(3).contains("another cluster"), "{}", open(3));
        let fourth = Files::node(&folder.0, NodeId(4));
        fs::copy(&theirs.certificate, &fourth.certificate).unwrap();
        assert!(open(4).contains("certificate of node 3"), "{}", open(4));
        fs::copy(Files::authority(&folder.0).certificate, &fourth.certificate).unwrap();
        assert!(open(4).contains("no node's"), "{}", open(4));
        fs::write(&fourth.certificate, "nonsense").unwrap();
        assert!(open(4).contains("no PEM certificate"), "{}", open(4));
        fs::remove_file(Files::authority(&folder.0).certificate).unwrap();
        assert!(open(4).contains("bring a copy"), "{}", open(4));
    }
}
