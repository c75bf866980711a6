"""`compilefarm explain FILE|KEY [FILE|KEY]`: a saved request in words, or what tells two of them apart."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from compilefarm.cli.facts import differences, fact_words, facts_of
from compilefarm.cli.farm import add_address, admin
from compilefarm.cli.listing import code_of
from compilefarm.cli.messages import plain
from compilefarm.core.environments import describe
from compilefarm.core.errors import InvalidRequest, UnusableRequestFile
from compilefarm.core.keys import key_of
from compilefarm.core.requests import Request, read_request
from compilefarm.v1.admin_service_pb2 import InspectRequest
from compilefarm.v1.manifest_pb2 import Manifest

# A key, or a beginning of it that a farm looks for.
_KEY = re.compile(r"[0-9a-f]{6,16}|[0-9a-f]{16}-[0-9a-f]{0,64}")
_SHOWN_AS_CODE = ("graph", "inputs", "symbols", "hints")
_NO_REQUEST = "a farm keeps no requests: what a part of the key says is known of saved requests alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A request or an artifact that is to be explained.

    Attributes:
        name: file or key, as it was typed.
        key: of the request or artifact; empty if none can be made.
        parts: digest of each part of the key, by name, in order; none if there is no key.
        problem: why there is no key; empty if there is one.
        request: the request, for a file.
        manifest: the description of the artifact, for a key.
    """

    name: str
    key: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    request: Request | None = None
    manifest: Manifest | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    what = "file of a request that save_request wrote, or key of an artifact that a farm has stored"
    parser.add_argument("first", metavar="FILE|KEY", help=what)
    parser.add_argument("second", metavar="FILE|KEY", nargs="?", help="another one, to compare with the first")
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Explains one request or artifact, or prints how two differ."""
    first = _get_subject(arguments.first, arguments=arguments)
    second = _get_subject(arguments.second, arguments=arguments) if arguments.second else None
    if arguments.json:
        print(json.dumps(_data(first) if second is None else _comparison_data(first, second), indent=2))
        return 0
    for line in _lines(first) if second is None else _comparison_lines(first, second):
        print(line)
    return 0


def _get_subject(text: str, *, arguments: argparse.Namespace) -> Subject:
    if not os.path.exists(text):
        if not _KEY.fullmatch(text):
            raise UnusableRequestFile(f"there is no file {text}, and a key or the beginning of one reads differently")
        with admin(arguments) as service:
            manifest = service.Inspect(InspectRequest(key=text)).manifest
        parts = {plain(part.name): plain(part.digest) for part in manifest.key_parts}
        return Subject(name=text, key=plain(manifest.key), parts=parts, manifest=manifest)
    request = read_request(Path(text))
    try:
        key = key_of(request.job)
    except InvalidRequest as error:
        return Subject(name=text, problem=str(error), request=request)
    return Subject(name=text, key=key.text, parts={part.name: part.digest for part in key.parts}, request=request)


def _lines(subject: Subject) -> Iterator[str]:
    yield f"key {subject.key or 'none: ' + subject.problem}"
    yield from (f"  {name:<12} {digest}" for name, digest in subject.parts.items())
    if subject.manifest is not None:
        yield f"made for {plain(describe(subject.manifest.environment))}"
        yield f"by {plain(subject.manifest.worker)}; compilefarm inspect {subject.key} says more"
        yield _NO_REQUEST
    if subject.request is not None:
        yield from _request_lines(subject.request)


def _request_lines(request: Request) -> Iterator[str]:
    held, missing = len(request.job.graph.constants), len(request.missing_digests())
    if held:
        yield f"tensors\n  the graph holds {held}, which the file {'leaves out' if missing else 'has'}"
    for section in request.job.DESCRIPTOR.fields:
        if section.name in _SHOWN_AS_CODE:
            continue
        yield section.name
        facts = facts_of(getattr(request.job, section.name))
        for name, fact in facts.items():
            yield f"  {name}: {fact_words(fact)}"
        if not facts:
            yield "  nothing that differs from torch's defaults"
    yield from code_of(request.job)


def _comparison_lines(first: Subject, second: Subject) -> Iterator[str]:
    found = _differences(first, second)
    yield f"first  {first.key}  {first.name}"
    yield f"second {second.key}  {second.name}"
    if not found:
        yield "the same key: one artifact answers both"
    for part, lines in found.items():
        yield f"{part} differs, first / second:"
        yield from (f"  {line}" for line in lines)


def _differences(first: Subject, second: Subject) -> dict[str, Sequence[str]]:
    """How two requests differ, by part of the key."""
    for subject in (first, second):
        if not subject.key:
            raise InvalidRequest(f"{subject.name} has no key to compare: {subject.problem}")
    names = [name for name in {**first.parts, **second.parts} if first.parts.get(name) != second.parts.get(name)]
    if first.request is None or second.request is None:
        return {name: [_NO_REQUEST] for name in names}
    jobs = first.request.job, second.request.job
    return {name: differences(*jobs, part=name) for name in names}


def _data(subject: Subject) -> dict[str, Any]:
    data: dict[str, Any] = {"name": subject.name, "key": subject.key, "key_parts": dict(subject.parts)}
    if subject.problem:
        data["problem"] = subject.problem
    if subject.manifest is not None:
        data["environment"] = _message_data(subject.manifest.environment)
    if subject.request is not None:
        data["missing_tensors"] = subject.request.missing_digests()
        data["code"] = list(code_of(subject.request.job))
        data["job"] = _message_data(subject.request.job)
    return data


def _comparison_data(first: Subject, second: Subject) -> dict[str, Any]:
    subjects = {"first": first, "second": second}
    keys = {name: {"name": given.name, "key": given.key} for name, given in subjects.items()}
    return {**keys, "differences": _differences(first, second)}


def _message_data(message: Message) -> dict[str, Any]:
    data: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return data
