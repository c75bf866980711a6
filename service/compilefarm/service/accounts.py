"""On whose account a call goes where what one caller may take is bounded."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

# Whoever has one address of IPv6 has all that begin with these bits.
_IPV6_PREFIX_BITS = 64


def account_of_peer(peer: str) -> str:
    """The account of a caller of whom only the address is known.

    Args:
        peer: as gRPC writes it: "ipv4:10.0.0.7:41234", "ipv6:%5B2001:db8::7%5D:41234", "unix:/run/farm".
    """
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]")
    if kind not in ("ipv4", "ipv6"):
        return kind
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))
