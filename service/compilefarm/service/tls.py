"""TLS: encryption and certificates, which may be renewed while the service runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.watched import Watched, read_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The certificate of the service, and the authority of its clients.

    Attributes:
        chain: its certificate and those that certify it, in PEM.
        key: the private key, in PEM.
        client_authority: in PEM; certificates of callers have to be issued by it. Empty: callers need none.
        expires: when the certificate does.
    """

    chain: bytes
    key: bytes
    client_authority: bytes
    expires: datetime


class Tls:
    """The TLS settings of the service.

    Args:
        config: names the files.

    Raises:
        CannotStart: they cannot be used.
    """

    def __init__(self, config: GatewayConfig) -> None:
        paths = [path for path in (config.tls_certificate, config.tls_key, config.tls_client_ca) if path]
        self._certificate = Watched(paths, read=lambda: _read_certificate(config))
        self._served = self._certificate.current()

    @property
    def expires(self) -> datetime:
        """When the certificate of the service expires."""
        return self._certificate.current().expires

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of a port. gRPC asks for the certificate at every new connection, in a thread of its
        own.
        """
        served = self._served
        return grpc.dynamic_ssl_server_credentials(
            _for_grpc(served),
            self._changed,  # type: ignore[arg-type]  # its types do not know that None means no change
            require_client_authentication=bool(served.client_authority),
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        certificate = self._certificate.current()
        if certificate is self._served:
            return None
        self._served = certificate
        return _for_grpc(certificate)


def find_tls(config: GatewayConfig) -> Tls | None:
    """Returns TLS settings if a certificate is configured; None for connections in clear.

    Raises:
        CannotStart: the configuration contradicts itself, or its files cannot be used.
    """
    if bool(config.tls_certificate) != bool(config.tls_key):
        raise CannotStart("a certificate and its key belong together: give --tls-certificate and --tls-key")
    if config.tls_client_ca and not (config.tls_certificate and config.auth_file):
        raise CannotStart(
            "--tls-client-ca asks callers for certificates: give --tls-certificate and --tls-key for TLS, and --auth, "
            "which lists whom these certificates name and what they may do"
        )
    return Tls(config) if config.tls_certificate else None


def _for_grpc(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_authority or None
    )


def _read_certificate(config: GatewayConfig) -> Certificate:
    chain = read_file(config.tls_certificate, what="the certificate")
    key = read_file(config.tls_key, what="the key of the certificate")
    authority = read_file(config.tls_client_ca, what="the authority of callers") if config.tls_client_ca else b""
    certificate = _first_of(chain, path=config.tls_certificate, what="the certificate")
    try:
        public = load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CannotStart(
            f"the key of the certificate {config.tls_key} is no private key in PEM without a password: {error}"
        ) from None
    if public != certificate.public_key():
        raise CannotStart(f"{config.tls_key} is not the key of the certificate {config.tls_certificate}")
    if authority:
        _first_of(authority, path=config.tls_client_ca, what="the authority of callers")
    expires = certificate.not_valid_after_utc
    if expires < datetime.now(UTC):
        raise CannotStart(f"the certificate {config.tls_certificate} has expired at {expires:%Y-%m-%d %H:%M} UTC")
    return Certificate(chain=chain, key=key, client_authority=authority, expires=expires)


def _first_of(content: bytes, *, path: str, what: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(content)[0]
    except ValueError as error:
        raise CannotStart(f"{what} {path} is no certificate in PEM: {error}") from None
