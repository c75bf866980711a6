"""Recordings: every request that a workload makes, as a folder that a person can read and a reviewer can diff.

    recording.json          the requests in the order in which the workload made them, in words, and how often each was
                            made; what was not sent to a farm, and why
    requests/NAME.cfreq     a request as `requests` writes it, without the tensors that its graph holds
    tensors/DIGEST          such a tensor, once however many graphs hold it
    packages/NAME.cfpkg     a package of Dynamo that the workload published, as `recorded_packages` writes it

Nothing in a folder depends on the time or on who was first, so equal workloads have equal recordings. A request has its
name from its content: the first 16 digits of the digest of its graph, with which its keys begin, and 32 of the digest
of the whole. Entries may be taken out of recording.json by hand, and their counts changed; what it says of a request in
words has to be what the request says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compilefarm.core.digests import digest_of, is_digest
from compilefarm.core.errors import (
    DamagedRecording,
    InvalidRequest,
    NewerRecording,
    NotARecording,
    UnusableRecording,
)
from compilefarm.core.expressions import check_expression, say
from compilefarm.core.held_tensors import MAX_BYTES
from compilefarm.core.recorded_packages import RecordedPackage, Unpublished, check_words_of_package, read_package
from compilefarm.core.regular_files import open_regular
from compilefarm.core.requests import SUFFIX, Request, read_request
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Dimension, Expression, Input, NamedValue

MANIFEST = "recording.json"
REQUESTS = "requests"
TENSORS = "tensors"
FORMAT = 1
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
# As `file_of` makes them: no other text becomes a path.
_REQUEST_FILE = re.compile(rf"{REQUESTS}/[0-9a-f]{{16}}-[0-9a-f]{{32}}{re.escape(SUFFIX)}")
_PLAIN_KINDS = ("boolean", "integer", "real", "text")
_AGAIN = "record the workload again, or copy the recording whole"
# Numbers that are counted with; Python makes no float of some that JSON can hold.
_MOST = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request that a workload made.

    Attributes:
        request: it, with the tensors that its graph holds if the recording holds tensors.
        file: where it lies, below the folder of the recording.
        name: what torch.compile(name=) called it; empty if nothing.
        first: its position among the graphs of the process that made it first.
        count: how often it was made.
    """

    request: Request
    file: str
    name: str = ""
    first: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBypass:
    """A graph that was not sent to a farm.

    Attributes:
        reason: why, as a word.
        message: the same for people.
        name: what torch.compile(name=) called it; empty if nothing.
        nodes: of the graph.
        first: its position among the graphs of its process.
        count: how often it came.
    """

    reason: str
    message: str
    name: str = ""
    nodes: int = 0
    first: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The content of recording.json.

    Attributes:
        holds_tensors: whether all tensors that graphs hold are part of the recording.
        requests: by file: "first", "count" and "name" beside the words of `words_of`.
        bypasses: graphs that were not sent.
        packages: by file: what `words_of_package` says.
        unpublished: functions without a package.
    """

    holds_tensors: bool = True
    requests: Mapping[str, Mapping[str, Any]]
    bypasses: Sequence[RecordedBypass] = ()
    packages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unpublished: Sequence[Unpublished] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording, read whole.

    Attributes:
        folder: where it lies.
        requests: in the order in which they were made.
        bypasses: likewise.
        packages: of Dynamo, by function.
        unpublished: functions without one, in processes that may publish.
    """

    folder: Path
    requests: Sequence[RecordedRequest]
    bypasses: Sequence[RecordedBypass] = ()
    packages: Sequence[RecordedPackage] = ()
    unpublished: Sequence[Unpublished] = ()


def read_recording(folder: Path) -> Recording:
    """Reads a recording, whole.

    Raises:
        UnusableRecording: there is none, or it cannot be used; the subclasses tell why.
        UnusableRequestFile: a request in it cannot be read; its subclasses tell why.
    """
    outline = read_outline(folder)
    if outline is None:
        raise NotARecording(f"there is no {folder / MANIFEST}: name the folder that COMPILEFARM_RECORD named")
    tensors: dict[str, bytes] = {}
    return Recording(
        folder=folder,
        requests=[
            _read_recorded(folder, file, recorded, outline=outline, tensors=tensors)
            for file, recorded in outline.requests.items()
        ],
        bypasses=outline.bypasses,
        packages=[read_package(folder, file, recorded) for file, recorded in outline.packages.items()],
        unpublished=outline.unpublished,
    )


def read_outline(folder: Path) -> Outline | None:
    """Reads recording.json; None if there is no such file.

    Raises:
        UnusableRecording: it is none, or cannot be read.
    """
    path = folder / MANIFEST
    try:
        with open_regular(path) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1) or b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnusableRecording(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_MANIFEST_BYTES:
        raise DamagedRecording(f"{path} has more than {MAX_MANIFEST_BYTES} bytes, the most that it may have")
    try:
        return _outline(json.loads(content), path=path)
    except (ValueError, RecursionError) as error:
        raise DamagedRecording(f"{path} is cut short, or no JSON ({error}): {_AGAIN}") from None


def outline_text(outline: Outline) -> str:
    """Returns the text of recording.json: entries in the order in which they were made first."""
    requests = [
        {"file": file, **recorded}
        for file, recorded in sorted(outline.requests.items(), key=lambda item: (item[1]["first"], item[0]))
    ]
    bypasses = sorted(outline.bypasses, key=lambda bypass: (bypass.first, bypass.reason, bypass.message))
    packages = sorted(outline.packages.items(), key=lambda item: (item[1]["function"], item[0]))
    data: dict[str, Any] = {
        "format": FORMAT,
        "holds_tensors": outline.holds_tensors,
        "requests": requests,
        "bypasses": [asdict(bypass) for bypass in bypasses],
    }
    if packages:
        data["packages"] = [{"file": file, **recorded} for file, recorded in packages]
    if outline.unpublished:
        data["unpublished"] = [asdict(each) for each in sorted(outline.unpublished)]
    return json.dumps(data, indent=2) + "\n"


def file_of(request: Request) -> str:
    """Returns the path of a request below the folder of its recording."""
    graph = request.job.graph.SerializeToString(deterministic=True)
    whole = hashlib.sha256(request.job.SerializeToString(deterministic=True))
    if request.arguments is not None:
        whole.update(b"arguments" + request.arguments.SerializeToString(deterministic=True))
    # As `keys` digests it.
    graph_digest = hashlib.sha256(len(graph).to_bytes(8, "little") + graph).hexdigest()
    return f"{REQUESTS}/{graph_digest[:16]}-{whole.hexdigest()[:32]}{SUFFIX}"


def words_of(request: Request) -> dict[str, Any]:
    """Returns the description of a request for reviewers, as JSON. It is part of the format."""
    job, arguments = request.job, request.arguments
    return {
        "environment": _environment_words(job.environment),
        "mode": arguments.mode if arguments is not None else "",
        "options": _settings(arguments.options if arguments is not None else ()),
        "settings": _settings(job.options.inductor)
        | {f"functorch.{name}": value for name, value in _settings(job.options.functorch).items()},
        "nodes": len(job.graph.nodes),
        "tensors": len({constant.digest for constant in job.graph.constants}),
        "parameters": sum(given.is_parameter for given in job.inputs),
        "inputs": [_input_words(given) for given in job.inputs if not given.is_parameter],
        "hints": list(job.hints),
    }


def _outline(data: Any, *, path: Path) -> Outline:
    number = data.get("format") if isinstance(data, dict) else None
    if not isinstance(number, int):
        raise DamagedRecording(f"{path} names no format, so that it is no recording: {_AGAIN}")
    if number > FORMAT:
        raise NewerRecording(f"{path} has format {number}, this release reads up to {FORMAT}; upgrade Compilefarm")
    try:
        requests = {str(recorded.pop("file")): _checked_request(recorded) for recorded in data["requests"]}
        bypasses = [_checked_bypass(RecordedBypass(**bypass)) for bypass in data["bypasses"]]
        packages = {str(each.pop("file")): check_words_of_package(each) for each in data.get("packages", ())}
        unpublished = [Unpublished(**each) for each in data.get("unpublished", ())]
        if len(requests) != len(data["requests"]) or not isinstance(data["holds_tensors"], bool):
            raise ValueError("a request is named twice, or holds_tensors is neither true nor false")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedRecording(f"{path} was changed into something that nobody writes ({error!r}): {_AGAIN}") from None
    return Outline(
        holds_tensors=data["holds_tensors"],
        requests=requests,
        bypasses=bypasses,
        packages=packages,
        unpublished=unpublished,
    )


def _checked_request(recorded: dict[str, Any]) -> dict[str, Any]:
    for name, least in (("first", 0), ("count", 1)):
        _check_number(recorded[name], least=least, what=name)
    if not isinstance(recorded["name"], str):
        raise ValueError("name is no text")
    return recorded


def _checked_bypass(bypass: RecordedBypass) -> RecordedBypass:
    for number, least in ((bypass.first, 0), (bypass.count, 1), (bypass.nodes, 0)):
        _check_number(number, least=least, what="a number of a bypass")
    if not all(isinstance(text, str) for text in (bypass.reason, bypass.message, bypass.name)):
        raise ValueError("a text of a bypass is none")
    return bypass


def _check_number(number: object, *, least: int, what: str) -> None:
    if type(number) is not int or not least <= number < _MOST:
        raise ValueError(f"{what} is {number!r:.80}")


def _read_recorded(
    folder: Path, file: str, recorded: Mapping[str, Any], *, outline: Outline, tensors: dict[str, bytes]
) -> RecordedRequest:
    path = folder / file
    if _REQUEST_FILE.fullmatch(file) is None:
        raise DamagedRecording(f"{folder / MANIFEST} names {file!a}, which is no request of a recording: {_AGAIN}")
    if not path.exists():
        raise DamagedRecording(
            f"{path}, which {MANIFEST} names, is missing: {_AGAIN}, or take the entry out of {MANIFEST}"
        )
    try:
        open_regular(path).close()
    except OSError as error:
        raise DamagedRecording(f"{path}, a request, cannot be read ({error.strerror}): {_AGAIN}") from None
    bare = read_request(path)
    if file_of(bare) != file:
        raise DamagedRecording(f"{path} holds another request than its name says: {_AGAIN}")
    _check_words(bare, recorded, path=path)
    digests = bare.missing_digests()
    if not outline.holds_tensors and not all(
        (folder / TENSORS / _checked_digest(digest)).exists() for digest in digests
    ):
        # Left out on purpose: whoever serves it has them, or says that it lacks them.
        digests = []
    blobs = {digest: _read_tensor(folder, digest, known=tensors) for digest in digests}
    return RecordedRequest(
        request=Request(job=bare.job, blobs=blobs, arguments=bare.arguments),
        file=file,
        name=recorded["name"],
        first=recorded["first"],
        count=recorded["count"],
    )


def _check_words(request: Request, recorded: Mapping[str, Any], *, path: Path) -> None:
    words = words_of(request)
    for name in dict.fromkeys((*words, *(name for name in recorded if name not in ("first", "count", "name")))):
        ours, theirs = (json.dumps(each.get(name), sort_keys=True) for each in (words, recorded))
        if ours != theirs:
            raise DamagedRecording(
                f"{MANIFEST} says of {path} that {name[:80]!a} is {theirs[:200]}, and the request that it is"
                f" {ours[:200]}: one of them was edited; {_AGAIN}"
            )


def _read_tensor(folder: Path, digest: str, *, known: dict[str, bytes]) -> bytes:
    if digest in known:
        return known[digest]
    path = folder / TENSORS / _checked_digest(digest)
    try:
        with open_regular(path) as file:
            # More than that no graph holds.
            content = file.read(MAX_BYTES + 1) or b""
    except OSError as error:
        raise DamagedRecording(
            f"{path}, a tensor that a graph holds, cannot be read ({error.strerror}): {_AGAIN}"
        ) from None
    if digest_of(content) != digest:
        raise DamagedRecording(f"{path} holds other bytes than its name says: {_AGAIN}")
    known[digest] = content
    return content


def _checked_digest(digest: str) -> str:
    # The request may come from a stranger, and what it calls a digest be a path.
    if not is_digest(digest):
        raise DamagedRecording(f"a request refers to the tensor {digest[:80]!a}, which is no digest: {_AGAIN}")
    return digest


def _settings(settings: Sequence[NamedValue]) -> dict[str, Any]:
    return {setting.name: _plain(setting) for setting in settings}


def _plain(setting: NamedValue) -> Any:
    kind = setting.value.WhichOneof("kind")
    if kind == "none":
        return None
    if kind in _PLAIN_KINDS:
        return getattr(setting.value, kind)
    # Only those who write or check recordings pay for the import: 6 ms.
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(setting.value)


def _input_words(given: Input) -> str:
    if given.WhichOneof("kind") != "tensor":
        return f"int {_expression_words(given.integer)}"
    spec = given.tensor
    words = [f"{spec.dtype}[{', '.join(_dimension_words(spec.shape))}]"]
    words += [spec.device.type] if spec.device.type != "cpu" else []
    words += ["requires_grad"] if spec.requires_grad else []
    words += ["result"] if given.is_result else []
    return " ".join(filter(None, words))


def _dimension_words(dimensions: Sequence[Dimension]) -> Iterator[str]:
    for dimension in dimensions:
        yield _expression_words(dimension.expression) if dimension.HasField("expression") else str(dimension.size)


def _expression_words(expression: Expression) -> str:
    try:
        check_expression(expression, symbols=1 << 32, condition=False, what="it")
    except InvalidRequest:
        return "?"
    return say(expression)


def _environment_words(environment: Environment) -> dict[str, str]:
    device = environment.cuda.name if environment.HasField("cuda") else environment.cpu.architecture
    return {"torch": environment.torch, "python": environment.python_abi, "device": device}
