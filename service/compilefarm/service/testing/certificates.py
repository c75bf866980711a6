"""Certificates that are made when they are needed."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, *, name: str) -> tuple[str, str]:
        """Writes them to files, and returns the paths of both."""
        paths = folder / f"{name}.pem", folder / f"{name}-key.pem"
        for path, content in zip(paths, (self.certificate, self.key), strict=True):
            path.write_bytes(content)
        return str(paths[0]), str(paths[1])


class Authority:
    """Issues certificates.

    Attributes:
        certificate: its own, in PEM.
    """

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        signed = (
            _builder(self._name, self._name, self._key, expires=datetime.now(UTC) + _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = signed.public_bytes(Encoding.PEM)

    def issue(
        self, name: str = "farm", *, names: Sequence[str] = ("localhost", "127.0.0.1"), expires: datetime | None = None
    ) -> Issued:
        """Issues a certificate.

        Args:
            name: the common name.
            names: the alternative names: hosts, addresses, URIs.
            expires: when it does; in a day if that is None.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key, expires=expires or datetime.now(UTC) + _DAY)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_alternative, names)), critical=False)
        return Issued(
            certificate=builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM),
            key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, expires: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - 2 * _DAY)
        .not_valid_after(expires)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
