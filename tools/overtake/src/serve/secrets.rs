//! What a node must not lose or show: its certificate with key, and the secret behind its connection ids. Made at the
//! first start in `DATA/tls`, used again at every later one; an operator may put an own certificate in place. A node of a
//! cluster shows its clients the certificate that it shows the other nodes.

use super::ServeError;
use crate::certificates::{NodeCertificates, read_certificates, read_key};
use crate::random;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The certificate chain, PEM, the node's own first. Clients on other machines are given this file.
const CERTIFICATE_FILE: &str = "certificate.pem";
/// Its private key, PEM.
const KEY_FILE: &str = "key.pem";
/// 32 random bytes.
const SECRET_FILE: &str = "secret";

/// See the module's text.
#[derive(Clone)]
pub(super) struct Secrets {
    pub(super) certificates: Vec<Vec<u8>>,
    pub(super) private_key: Vec<u8>,
    pub(super) secret: [u8; 32],
}

impl Secrets {
    /// Reads them from a data folder that this process holds, making what is not there.
    pub(super) fn open(
        data: &Path,
        quic: SocketAddr,
        member: Option<&NodeCertificates>,
    ) -> Result<Self, ServeError> {
        let folder = data.join("tls");
        fs::create_dir_all(&folder).map_err(|error| ServeError::file(&folder, error))?;
        if let Some(NodeCertificates { chain, key, .. }) = member {
            let secret = read_secret(&folder.join(SECRET_FILE))?;
            return Ok(Self { certificates: chain.clone(), private_key: key.clone(), secret });
        }
        let (certificate, key) = (folder.join(CERTIFICATE_FILE), folder.join(KEY_FILE));
        if !certificate.exists() && (!key.exists() || new(&certificate).exists()) {
            make_certificate(&certificate, &key, quic)?;
        }
        Ok(Self {
            certificates: read_certificates(&certificate)?,
            private_key: read_key(&key)?,
            secret: read_secret(&folder.join(SECRET_FILE))?,
        })
    }
}

fn make_certificate(certificate: &Path, key: &Path, quic: SocketAddr) -> Result<(), ServeError> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let own: IpAddr = quic.ip();
    if !own.is_unspecified() && !own.is_loopback() {
        names.push(own.to_string());
    }
    let made = rcgen::generate_simple_self_signed(names)
        .map_err(|error| ServeError::Certificate { path: certificate.into(), detail: error.to_string() })?;
    // A start that was cut short in between leaves the certificate's new file, and both are made again. A key without
    // that file is not ours to replace.
    write_new(certificate, made.cert.pem().as_bytes(), 0o644)?;
    write(key, made.signing_key.serialize_pem().as_bytes(), 0o600)?;
    put_in_place(certificate)
}

fn read_secret(path: &Path) -> Result<[u8; 32], ServeError> {
    match fs::read(path) {
        Ok(bytes) => {
            bytes.try_into().map_err(|_| unusable(path, "it must be 32 bytes; remove it to get a new one"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let secret = random_bytes()?;
            write(path, &secret, 0o600)?;
            Ok(secret)
        }
        Err(error) => Err(ServeError::file(path, error)),
    }
}

/// Random bytes from the operating system.
pub(super) fn random_bytes() -> Result<[u8; 32], ServeError> {
    random::bytes().map_err(|error| ServeError::file(Path::new(random::SOURCE), error))
}

/// Whole or not at all, so that a start that was cut short is repeated from the beginning.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), ServeError> {
    write_new(path, bytes, mode)?;
    put_in_place(path)
}

/// Where a file is written before it is put in its place.
fn new(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), ServeError> {
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(new(path))
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|error| ServeError::file(path, error))
}

fn put_in_place(path: &Path) -> Result<(), ServeError> {
    fs::rename(new(path), path).map_err(|error| ServeError::file(path, error))
}

fn unusable(path: &Path, detail: &str) -> ServeError {
    ServeError::Certificate { path: path.into(), detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_was_made_once_is_used_again_and_damage_is_named() {
        let data = std::env::temp_dir().join(format!("overtake-secrets-{}", std::process::id()));
        let quic = "10.1.2.3:7400".parse().unwrap();
        let first = Secrets::open(&data, quic, None).unwrap();
        let again = Secrets::open(&data, quic, None).unwrap();
        assert_eq!(first.certificates, again.certificates);
        assert_eq!((first.private_key, first.secret), (again.private_key, again.secret));
        for private in [KEY_FILE, SECRET_FILE] {
            let mode = fs::metadata(data.join("tls").join(private)).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{private} is for its owner only");
        }
        for file in [CERTIFICATE_FILE, KEY_FILE, SECRET_FILE] {
            let path = data.join("tls").join(file);
            let good = fs::read(&path).unwrap();
            fs::write(&path, "nonsense").unwrap();
            let error = Secrets::open(&data, quic, None).err().unwrap().to_string();
            assert!(error.contains(file), "{error}");
            fs::write(&path, good).unwrap();
        }
        fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn a_first_start_that_was_cut_short_is_made_again() {
        let data = std::env::temp_dir().join(format!("overtake-secrets-cut-{}", std::process::id()));
        let quic = "127.0.0.1:7400".parse().unwrap();
        let whole = Secrets::open(&data, quic, None).unwrap();
        let (certificate, key) = (data.join("tls").join(CERTIFICATE_FILE), data.join("tls").join(KEY_FILE));
        // Before the key was in its place, and after.
        for with_key in [false, true] {
            fs::rename(&certificate, new(&certificate)).unwrap();
            if !with_key {
                fs::remove_file(&key).unwrap();
            }
            let again = Secrets::open(&data, quic, None).unwrap();
            assert_ne!(again.private_key, whole.private_key);
        }
        // An operator's key that has no certificate yet is left alone.
        fs::remove_file(&certificate).unwrap();
        let before = fs::read(&key).unwrap();
        assert!(Secrets::open(&data, quic, None).err().unwrap().to_string().contains(CERTIFICATE_FILE));
        assert_eq!(fs::read(&key).unwrap(), before);
        fs::remove_dir_all(&data).unwrap();
    }
}
