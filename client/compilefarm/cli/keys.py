"""`compilefarm keys`: tokens for callers, and keys that sign artifacts."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from compilefarm.core.digests import digest_of

ROLES = ("read", "compile", "prewarm", "admin")
CACHE_ROLES = ("cache-read", "cache-write")
PACKAGE_ROLES = ("package-read", "publish")
# Tells people and scanners for secrets what a text is, where they find it.
_TOKEN_PREFIX = "cft_"  # noqa: S105 - of tokens, not one
_TOKEN_BYTES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    commands = parser.add_subparsers(dest="keys_command", metavar="COMMAND", required=True)
    text = "make a token for a caller, and print its entry for the file of `serve --auth`"
    token = commands.add_parser("token", help=text, description=text)
    token.add_argument("name", metavar="NAME", help="name of the caller in logs and messages, and its tenant")
    token.add_argument(
        "--role",
        choices=(*ROLES, *CACHE_ROLES, *PACKAGE_ROLES),
        default=[],
        action="append",
        help="what the caller may do: read, compile, prewarm or admin, of which each includes those before it; "
        "cache-read or cache-write for torch's own caches; package-read or publish for what Dynamo found out; may be "
        "given several times, for one of each; default: compile",
    )
    token.add_argument(
        "--namespace", metavar="NAME", help="namespace in which its artifacts are kept, if the file lists namespaces"
    )
    token.add_argument(
        "--write", metavar="FILE", type=Path, help="write the token to this new file instead of printing it"
    )
    token.set_defaults(run_keys=_make_token)
    text = "make a key for `serve --signing-key`, which signs artifacts, and print its public half for pods"
    new = commands.add_parser("new", help=text, description=text)
    new.add_argument("file", metavar="FILE", type=Path, help="new file for the private key")
    new.set_defaults(run_keys=_make_key)
    text = "print the public half of a key"
    public = commands.add_parser("public", help=text, description=text)
    public.add_argument(
        "file", metavar="FILE", type=Path, help="file of the private key, as `compilefarm keys new` wrote it"
    )
    public.set_defaults(run_keys=_show_public)


def run(arguments: argparse.Namespace) -> int:
    """Makes a token or a key, or prints the public key of one."""
    try:
        arguments.run_keys(arguments)
    except OSError as error:
        print(f"compilefarm keys: {error.filename}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"compilefarm keys: {arguments.file}: {error}", file=sys.stderr)
        return 1
    return 0


def _make_token(arguments: argparse.Namespace) -> None:
    token = f"{_TOKEN_PREFIX}{secrets.token_urlsafe(_TOKEN_BYTES)}"
    if arguments.write:
        write_secret(arguments.write, content=f"{token}\n".encode())
    else:
        print("# The token, for COMPILEFARM_TOKEN or a file that COMPILEFARM_TOKEN_FILE names. It is not shown again.")
        print(f"# {token}")
        print("# For the file that `serve --auth` names:")
    print(f'[[callers]]\nname = "{arguments.name}"\nrole = {_roles(arguments.role)}')
    if arguments.namespace:
        print(f'namespace = "{arguments.namespace}"')
    print(f'tokens = ["sha256:{digest_of(token.encode())}"]')


def _roles(given: Sequence[str]) -> str:
    """One role, or a list of them, as TOML writes it."""
    words = [f'"{role}"' for role in given or ("compile",)]
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


def _make_key(arguments: argparse.Namespace) -> None:
    from compilefarm.core.signatures import new_signing_key

    key = new_signing_key()
    write_secret(arguments.file, content=key.pem())
    print(key.public.text)


def _show_public(arguments: argparse.Namespace) -> None:
    from compilefarm.core.signatures import read_signing_key

    print(read_signing_key(arguments.file.read_bytes()).public.text)


def write_secret(path: Path, *, content: bytes) -> None:
    """Writes a new file that only this user may read.

    Raises:
        OSError: the file cannot be written, or exists already.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
