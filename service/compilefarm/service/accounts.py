"""Accounts, by which limits of callers are counted: the name of a caller, or the address that it calls from."""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass
from urllib.parse import unquote

# Whoever has one address of IPv6 has all that begin with these bits.
_IPV6_PREFIX_BITS = 64


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The remote end of a connection."""

    address: Address
    port: int


# Each connection calls more than once.
@functools.lru_cache(maxsize=4096)
def account_of_peer(peer: str) -> str:
    """Returns the account of a caller of which only the address is known.

    Args:
        peer: as gRPC writes it: "ipv4:10.0.0.7:41234", "ipv6:%5B2001:db8::7%5D:41234", "unix:/run/farm".
    """
    end = find_end(peer)
    return peer.partition(":")[0] if end is None else account_of_address(end.address)


def account_of_address(address: Address) -> str:
    """Returns the account of an address."""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))


def find_end(peer: str) -> End | None:
    """Parses the name that gRPC gives the remote end of a connection; None if it has no internet address."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host, _, port = unquote(rest).rpartition(":")
    return End(address=read_address(host.strip("[]")), port=int(port))


def read_address(host: str) -> Address:
    """Reads an address. IPv4 addresses mapped into IPv6 become IPv4 addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
