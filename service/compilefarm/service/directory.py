"""The directory of callers, read from a file in TOML.

    namespaces = ["prod", "dev"]          # the most trusted first; absent: all callers share what is stored

    [[callers]]
    name = "search"                       # in the log and in messages
    role = "compile"                      # read, compile, prewarm or admin; cache-read or cache-write; package-read
                                          # or publish; or a list of one of each, ["compile", "cache-write"]
    tenant = "search"                     # whose share of the workers it uses; the name if absent
    tokens = ["sha256:9f86d081884c..."]   # as `compilefarm keys token` prints them; several while one replaces another
    namespace = "dev"                     # where what it has made is kept; it is served this and what is trusted more
    certificates = ["search.example.com"] # names (DNS, URI, or CN where there are none) in certificates

The file holds digests of tokens. Tokens have 256 random bits, so that their digests tell nothing.
"""

from __future__ import annotations

import hmac
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compilefarm.core.digests import digest_of
from compilefarm.core.metadata import LONGEST_TENANT
from compilefarm.service.callers import Caller
from compilefarm.service.config import CannotStart
from compilefarm.service.roles import AnyRole, CacheRole, PackageRole, Role
from compilefarm.service.watched import read_file
from compilefarm.store.artifact_store import EVERYBODYS
from compilefarm.store.layout import DEFAULT_NAMESPACE, is_namespace

_NAME = re.compile(rf"[!-~]{{1,{LONGEST_TENANT}}}")
_TOKEN = re.compile(r"sha256:[0-9a-f]{64}")
_FIELDS = ("name", "role", "tenant", "namespace", "tokens", "certificates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A listed caller and its credentials.

    Attributes:
        caller: the caller.
        token_digests: sha256 of each of its tokens, in hex.
        certificates: names in its certificates.
    """

    caller: Caller
    token_digests: Sequence[str]
    certificates: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """The callers of a farm."""

    listed: Sequence[Listed]

    def find_by_token(self, token: str) -> Caller | None:
        """Whose token it is."""
        digest = digest_of(token.encode())
        found = None
        # All are compared, each in constant time: how long it takes tells nothing.
        for each in self.listed:
            for known in each.token_digests:
                if hmac.compare_digest(known, digest):
                    found = each.caller
        return found

    def find_by_certificate(self, names: Collection[str]) -> Caller | None:
        """Whose certificate has these names; the first in the list if several have one of them."""
        return next((each.caller for each in self.listed if not set(names).isdisjoint(each.certificates)), None)


def read_directory(path: str) -> Directory:
    """Reads the directory in a file.

    Raises:
        CannotStart: it cannot be read, or says something that makes no sense; the message names file and place.
    """
    content = read_file(path, what="the list of callers")
    try:
        return _parse(tomllib.loads(content.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, _Unusable) as error:
        raise CannotStart(f"the list of callers {path} cannot be used: {error}") from None


class _Unusable(ValueError):
    """The file says something that makes no sense."""


def _parse(content: Mapping[str, Any]) -> Directory:
    _check_names(content, known=("namespaces", "callers"), where="at the top")
    callers = content.get("callers", [])
    if not isinstance(callers, list) or not callers or not all(isinstance(table, dict) for table in callers):
        raise _Unusable("it lists nobody: write a table [[callers]] for each")
    namespaces = _words(content, "namespaces", where="at the top")
    for namespace in namespaces:
        if not is_namespace(namespace):
            raise _Unusable(f"namespace {namespace!r}: use at most 40 of a-z, 0-9 and dashes, a letter first")
    _check_unique(namespaces, what="the namespace")
    listed = [_listed(table, namespaces=namespaces, where=f"callers[{index}]") for index, table in enumerate(callers)]
    _check_unique([each.caller.name for each in listed], what="the name")
    _check_unique([digest for each in listed for digest in each.token_digests], what="the token sha256:")
    _check_unique([name for each in listed for name in each.certificates], what="the certificate")
    return Directory(listed=listed)


def _listed(table: Mapping[str, Any], *, namespaces: Sequence[str], where: str) -> Listed:
    _check_names(table, known=_FIELDS, where=where)
    name = _word(table, "name", where=where)
    where = f"{where} ({name})"
    tokens = _words(table, "tokens", where=where)
    for token in tokens:
        if not _TOKEN.fullmatch(token):
            # It may be a token, which does not belong into a log.
            raise _Unusable(f"{where}: a token is not written as sha256:<64 digits>; `compilefarm keys token` does so")
    certificates = _words(table, "certificates", where=where)
    if not tokens and not certificates:
        raise _Unusable(f"{where}: it has neither tokens nor certificates, so nobody can be it")
    role, cache_role, package_role = _roles(table, where=where)
    readable = _readable(table, namespaces=namespaces, where=where)
    return Listed(
        caller=Caller(
            name=name,
            account=name,
            tenant=_word(table, "tenant", where=where) if "tenant" in table else name,
            role=role,
            cache_role=cache_role,
            package_role=package_role,
            namespaces=readable,
            # What was stored before there were namespaces is served to nobody, and still there to look at.
            seen=(*namespaces, DEFAULT_NAMESPACE) if role is Role.ADMIN else readable,
        ),
        token_digests=[token.removeprefix("sha256:") for token in tokens],
        certificates=certificates,
    )


def _roles(table: Mapping[str, Any], *, where: str) -> tuple[Role, CacheRole, PackageRole]:
    given = table.get("role")
    words = [_word(table, "role", where=where)] if not isinstance(given, list) else _words(table, "role", where=where)
    known: dict[str, AnyRole] = {role.word: role for role in (*Role, *CacheRole, *PackageRole) if role}
    for word in words:
        if word not in known:
            raise _Unusable(f"{where}: role is {word!r}: use one of {', '.join(known)}")
    held = {type(known[word]): known[word] for word in words}
    if not words or len(held) < len(words):
        raise _Unusable(f"{where}: role is {given!r}: use one for artifacts, for caches, for packages, or one of each")
    return (
        Role(held.get(Role, Role.NONE)),
        CacheRole(held.get(CacheRole, CacheRole.NONE)),
        PackageRole(held.get(PackageRole, PackageRole.NONE)),
    )


def _readable(table: Mapping[str, Any], *, namespaces: Sequence[str], where: str) -> Sequence[str]:
    """A caller's own namespace, then those that are trusted more, from the nearest on."""
    if not namespaces:
        if "namespace" in table:
            raise _Unusable(
                f"{where}: it has a namespace, and the list does not say which there are: namespaces = [...]"
            )
        return EVERYBODYS
    namespace = table.get("namespace")
    if namespace not in namespaces:
        said = f"namespace is {namespace!r}" if "namespace" in table else "it has no namespace"
        raise _Unusable(f"{where}: {said}: use one of {', '.join(namespaces)}")
    return tuple(reversed(namespaces[: namespaces.index(namespace) + 1]))


def _word(table: Mapping[str, Any], field: str, *, where: str) -> str:
    value = table.get(field)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _Unusable(f"{where}: {field} has to be a text of at most {LONGEST_TENANT} characters, without spaces")
    return value


def _words(table: Mapping[str, Any], field: str, *, where: str) -> list[str]:
    values = table.get(field, [])
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise _Unusable(f"{where}: {field} has to be a list of texts")
    return values


def _check_names(table: Mapping[str, Any], *, known: Sequence[str], where: str) -> None:
    for name in table:
        if name not in known:
            raise _Unusable(f"{where}: {name!r} is unknown; known are {', '.join(known)}")


def _check_unique(values: Sequence[str], *, what: str) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise _Unusable(f"{what} {value} is there twice")
        seen.add(value)
