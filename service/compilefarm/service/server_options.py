"""Options of gRPC servers: what gRPC bounds by itself, before anything of ours is asked."""

from __future__ import annotations

from compilefarm.service.call_limits import MOST_CALLS

# To the sizes and numbers that a connection is told gRPC holds it when it has acknowledged them, which takes clients a
# round trip. Until then the headers of a call have no end, and gRPC would wait for a minute.
_ACKNOWLEDGED_SECONDS = 5.0
# Pods leave a farm alone that is silent for a minute.
_MOST_UNTAKEN_SECONDS = 120


def server_options(*, most_connections: int) -> list[tuple[str, int]]:
    """Returns the options of a server.

    Args:
        most_connections: at a time, of all callers.
    """
    return [
        # It takes no compressed request. gRPC 1.62 unpacks one before it looks how large it is, and four megabytes may
        # be four gigabytes then. The algorithms are numbered (grpc/impl/compression_types.h); none is the first.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # What comes before it is asked for stays below 64 KiB for each call. gRPC would measure the line and let come
        # as much as that carries, for calls that wait for a place, too.
        ("grpc.http2.bdp_probe", 0),
        # Whoever comes when files run out is turned away at once. gRPC before 1.63 does not know it.
        ("grpc.max_allowed_incoming_connections", most_connections),
        # Linux would let a second service share the port, and each would get some of the calls.
        ("grpc.so_reuseport", 0),
        # Clients ping every 10 s while they wait; gRPC would end the connection of one that pings more often than this.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client that vanished without a word is noticed, so that its stream does not stay for ever.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_concurrent_streams", 1024),
        # Calls that gRPC has received and this process has not taken yet. Beyond a thousand, or after 30 s, it ends
        # them as CANCELLED and says nothing. They are taken here, and have to wait or are refused with a reason.
        ("grpc.server.max_pending_requests", MOST_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MOST_CALLS),
        ("grpc.server_max_unrequested_time_in_server", _MOST_UNTAKEN_SECONDS),
        # Whoever connects and says nothing goes: at once while it does not speak the protocol, later while it does.
        ("grpc.server_handshake_timeout_ms", 20_000),
        ("grpc.http2.settings_timeout", int(_ACKNOWLEDGED_SECONDS * 1000)),
        ("grpc.max_connection_idle_ms", 3_600_000),
    ]
