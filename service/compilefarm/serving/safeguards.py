"""Refuses to serve as root, and to serve strangers without a sandbox, unless options say so."""

from __future__ import annotations

import os

from compilefarm.service.config import CannotStart, GatewayConfig, is_local
from compilefarm.worker.sandbox import Mode

_ALLOW_ROOT = "--allow-root"


def check_user(*, allow_root: bool) -> None:
    """Refuses to run as root.

    Raises:
        CannotStart: this is root, which was not allowed.
    """
    if os.geteuid() == 0 and not allow_root:
        raise CannotStart(
            "refusing to run as root: to the kernel a process that a graph takes over would be root, too. Run it as a "
            f"user of its own, or pass {_ALLOW_ROOT} where root is no more than that, as in some containers"
        )


def root_allowed() -> tuple[str, ...]:
    """The option for who starts a farm on behalf of whoever runs this process, for that one alone."""
    return (_ALLOW_ROOT,) if os.geteuid() == 0 else ()


def sandbox_mode(asked: Mode, config: GatewayConfig, *, ray_address: str | None = None) -> Mode:
    """Returns the mode of the sandbox: "require" instead of "auto" for a farm that strangers reach, and on a cluster,
    where a child that reaches the network and the token of Ray has all nodes.

    Args:
        asked: by `serve --sandbox`.
        config: who reaches the farm.
        ray_address: of the cluster that has the workers; None if they are on this host.
    """
    has_strangers = bool(config.auth_file) or not is_local(config)
    return "require" if asked == "auto" and (has_strangers or ray_address is not None) else asked
