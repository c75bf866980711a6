"""TLS credentials of the client. Only the certificate authority that is named may vouch for the farm."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from compilefarm.client.trust import Trust
from compilefarm.core.errors import Unreachable


def read_credentials(trust: Trust) -> grpc.ChannelCredentials:
    """Returns the credentials for a channel, from the files as they are at this moment.

    Raises:
        Unreachable: the files cannot be used; nothing is sent unencrypted instead.
    """
    _require_usable(trust)
    return grpc.ssl_channel_credentials(
        root_certificates=Path(trust.tls_ca).read_bytes(),
        private_key=Path(trust.tls_key).read_bytes() if trust.tls_key else None,
        certificate_chain=Path(trust.tls_certificate).read_bytes() if trust.tls_certificate else None,
    )


def _require_usable(trust: Trust) -> None:
    """gRPC tells only that it cannot connect."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    path = trust.tls_ca
    try:
        context.load_verify_locations(cafile=path)
        if trust.tls_certificate:
            path = f"{trust.tls_certificate} with {trust.tls_key}"
            context.load_cert_chain(trust.tls_certificate, trust.tls_key)
    except OSError as error:
        # ssl.SSLError is one.
        why = (error.strerror or str(error)) if not isinstance(error, ssl.SSLError) else f"no PEM that fits: {error}"
        raise Unreachable(
            f"the farm is not asked, since {path} cannot be used for TLS ({why}): check the files"
        ) from None
