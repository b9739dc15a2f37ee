//! Encryption of connections: a certificate that a coordinator or worker makes for itself, and clients that accept exactly
//! the one whose fingerprint they were told. TLS 1.3 only.
//!
//! Never asks any authority, and never looks at names or dates in a certificate: the fingerprint says it all.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme, version,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::access::{Pin, from_hex, to_hex, write_private};

/// What certificates are made out to. Nobody looks at it.
const NAME: &str = "filch";
/// Bytes of a secret.
const TOKEN: usize = 32;

/// A certificate and its key.
#[derive(Clone)]
pub struct Identity {
    acceptor: TlsAcceptor,
    pin: Pin,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("pin", &to_hex(&self.pin)).finish_non_exhaustive()
    }
}

impl Identity {
    /// A new one.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn generate() -> io::Result<Identity> {
        let (certificate, key) = new_certificate()?;
        Identity::of(certificate, key)
    }

    fn of(certificate: Vec<u8>, key: Vec<u8>) -> io::Result<Identity> {
        let pin = sha256(&certificate);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .and_then(|builder| {
                builder.with_no_client_auth().with_single_cert(vec![CertificateDer::from(certificate)], key)
            })
            .map_err(io::Error::other)?;
        // Nobody comes back so often that a ticket would pay.
        config.send_tls13_tickets = 0;
        Ok(Identity { acceptor: TlsAcceptor::from(Arc::new(config)), pin })
    }

    /// What clients must be told.
    #[must_use]
    pub fn pin(&self) -> Pin {
        self.pin
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

/// What a coordinator keeps for all its lives, so that workers and clients find the same one again.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// Its certificate.
    pub identity: Identity,
    /// What it wants to hear.
    pub token: Bytes,
}

#[derive(Serialize, Deserialize)]
struct SecretsFile {
    certificate: String,
    key: String,
    token: String,
}

impl Secrets {
    /// Those in a file, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be read, understood or written.
    pub fn load_or_create(path: &Path) -> io::Result<Secrets> {
        let garbled = || {
            let what = format!("{} is damaged: remove it, and a new one is made", path.display());
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        match std::fs::read(path) {
            Ok(text) => {
                let file: SecretsFile = serde_json::from_slice(&text).map_err(|_| garbled())?;
                let bytes = |text: &str| from_hex(text).filter(|bytes| !bytes.is_empty()).ok_or_else(garbled);
                let identity = Identity::of(bytes(&file.certificate)?, bytes(&file.key)?).map_err(|_| garbled())?;
                Ok(Secrets { identity, token: bytes(&file.token)?.into() })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (certificate, key) = new_certificate()?;
                let token = new_token()?;
                let file = SecretsFile { certificate: to_hex(&certificate), key: to_hex(&key), token: to_hex(&token) };
                write_private(path, &serde_json::to_vec_pretty(&file)?)?;
                Ok(Secrets { identity: Identity::of(certificate, key)?, token })
            }
            Err(error) => Err(error),
        }
    }
}

fn new_certificate() -> io::Result<(Vec<u8>, Vec<u8>)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
    Ok((made.cert.der().to_vec(), made.signing_key.serialize_der()))
}

/// A secret that nobody can guess.
///
/// # Errors
/// If the system has no randomness.
pub fn new_token() -> io::Result<Bytes> {
    let mut token = vec![0; TOKEN];
    SystemRandom::new().fill(&mut token).map_err(|_| io::Error::other("the system has no randomness"))?;
    Ok(token.into())
}

/// SHA-256 of bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Pin {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest(&SHA256, bytes).as_ref());
    sum
}

/// Whether two secrets are the same. How long that takes tells nothing about them.
pub(crate) fn same_secret(one: &[u8], other: &[u8]) -> bool {
    // What is compared are sums that nobody can choose byte by byte.
    let (one, other) = (sha256(one), sha256(other));
    one.iter().zip(&other).fold(0, |differing, (left, right)| differing | (left ^ right)) == 0
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(tokio_rustls::rustls::crypto::ring::default_provider())
}

/// Speaks TLS with whoever has the certificate with this fingerprint, and with nobody else.
///
/// # Errors
/// If it is somebody else, or does not speak TLS.
pub(crate) async fn connect(socket: TcpStream, pin: Pin) -> io::Result<TlsStream<TcpStream>> {
    let provider = provider();
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { pin, provider }))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, socket).await
}

/// Whether an error of [`connect`] says that the certificate is another one.
pub(crate) fn is_other_certificate(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(inner, Some(Error::InvalidCertificate(_)))
}

/// Accepts one certificate.
#[derive(Debug)]
struct Pinned {
    pin: Pin,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if sha256(end_entity) == self.pin {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_the_same_after_a_restart_and_damage_is_told() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secrets.json");
        let first = Secrets::load_or_create(&path).unwrap();
        let second = Secrets::load_or_create(&path).unwrap();
        assert_eq!((first.identity.pin(), &first.token), (second.identity.pin(), &second.token));
        assert_eq!(first.token.len(), TOKEN);
        std::fs::write(&path, "{\"certificate\": \"ab\", \"key\": \"cd\", \"token\": \"ef\"}").unwrap();
        let error = Secrets::load_or_create(&path).unwrap_err().to_string();
        assert!(error.contains("secrets.json is damaged"), "{error}");
    }

    #[test]
    fn secrets_are_compared() {
        assert!(same_secret(b"abc", b"abc"));
        assert!(!same_secret(b"abc", b"abd") && !same_secret(b"abc", b"ab") && !same_secret(b"", b"a"));
    }

    #[test]
    fn the_sum_is_the_well_known_one() {
        let sum = to_hex(&sha256(b"abc"));
        assert_eq!(sum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
