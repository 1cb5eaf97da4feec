//! TLS: who we are, and whose word we take for who others are. Both ends show a certificate, as Open vSwitch has it; names in certificates do
//! not count, since controllers are addresses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use millrace_tool::failure::Failure;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, RootCertStore,
    ServerConfig, ServerConnection, SignatureScheme,
};

/// Options for TLS.
#[derive(Debug, Args)]
pub struct TlsArgs {
    /// Key of the agent for TLS, PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_ca"])]
    tls_key: Option<PathBuf>,
    /// Certificate of the agent, PEM, with those that lead to its CA
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// Certificates of the CAs that controllers' certificates have to be of, PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_cert"])]
    tls_ca: Option<PathBuf>,
}

/// What connections are made with.
pub struct Tls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Tls {
    /// Reads key and certificates; `None`: there are none.
    pub fn new(args: &TlsArgs) -> Result<Option<Self>, Failure> {
        let TlsArgs { tls_key: Some(key), tls_cert: Some(cert), tls_ca: Some(ca) } = args else { return Ok(None) };
        let own = certificates(cert)?;
        let unread = |error: rustls::pki_types::pem::Error| wrong(key, &error);
        let key_of = || PrivateKeyDer::from_pem_file(key).map_err(unread);
        let mut roots = RootCertStore::empty();
        for root in certificates(ca)? {
            roots.add(root).map_err(|error| wrong(ca, &error))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
        let ours = |error: Error| wrong(cert, &error);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let verifier = verifier.build().map_err(|error| wrong(ca, &error))?;
        let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let server = server.map_err(ours)?.with_client_cert_verifier(verifier);
        let server = server.with_single_cert(own.clone(), key_of()?).map_err(ours)?;
        let inner = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        let inner = inner.build().map_err(|error| wrong(ca, &error))?;
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let client = client.map_err(ours)?.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(inner)));
        let client = client.with_client_auth_cert(own, key_of()?).map_err(ours)?;
        Ok(Some(Self { server: Arc::new(server), client: Arc::new(client) }))
    }

    /// A connection that others have begun.
    pub fn accept(&self) -> Result<Connection, Error> {
        ServerConnection::new(self.server.clone()).map(Connection::from)
    }

    /// One that we begin.
    pub fn connect(&self, to: std::net::IpAddr) -> Result<Connection, Error> {
        ClientConnection::new(self.client.clone(), ServerName::from(to)).map(Connection::from)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|error| wrong(path, &error))?;
    if all.is_empty() {
        return Err(Failure::Found(format!("{}: there is no certificate in it", path.display())));
    }
    Ok(all)
}

fn wrong(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Found(format!("{}: {error}", path.display()))
}

/// Takes a certificate of the right CA, whatever name is in it.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The name is looked at last: everything else is right then.
        match self.0.verify_server_cert(end, between, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
