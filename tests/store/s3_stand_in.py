"""What speaks S3 and keeps objects in memory, and answers as a test says: wrongly, too much, or never to the end."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "farm"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "farm", "AWS_SECRET_ACCESS_KEY": "secret-of-the-farm"}
_WRITTEN = "2026-11-27T12:00:00.000Z"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer of HTTP.

    Attributes:
        status: its status.
        headers: its headers; the length of the content is said by those alone, if `pieces` are given.
        content: what is sent.
        pieces: what is sent instead, for as long as there are some and somebody takes them.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    pieces: Iterable[bytes] | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request: its method, the key that it names (empty for the bucket), its query and its headers."""

    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


# Answers in the place of the service, or leaves that to it (None).
Interfere = Callable[[Asked], Answer | None]


class Bucket:
    """A bucket, and who interferes with what is asked of it.

    Attributes:
        objects: contents by key.
        interfere: see Interfere.
        asked: all requests so far.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.interfere: Interfere = lambda _: None
        self.asked: list[Asked] = []
        self.endpoint = ""
        self._lock = threading.Lock()

    def location(self, prefix: str = "") -> str:
        """How a store is named that lies there."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def answer(self, asked: Asked, content: bytes) -> Answer:
        with self._lock:
            self.asked.append(asked)
            interfered = self.interfere(asked)
            if interfered is not None:
                return interfered
            return _METHODS[asked.method](self, asked, content)

    def put(self, asked: Asked, content: bytes) -> Answer:
        if "if-none-match" in asked.headers and asked.key in self.objects:
            return Answer(status=412)
        source = asked.headers.get("x-amz-copy-source")
        if source is not None:
            key = unquote(source).removeprefix(f"{BUCKET}/").removeprefix(f"/{BUCKET}/")
            if key not in self.objects:
                return Answer(status=404, content=error_of("NoSuchKey"))
            self.objects[asked.key] = self.objects[key]
            return Answer(content=b"<CopyObjectResult></CopyObjectResult>")
        self.objects[asked.key] = content
        return Answer(headers={"ETag": _tag(content)})

    def get(self, asked: Asked, _content: bytes) -> Answer:
        if not asked.key:
            return Answer(content=self._listing(asked.query))
        if asked.key not in self.objects:
            return Answer(status=404, content=error_of("NoSuchKey"))
        content = self.objects[asked.key]
        headers = {"ETag": _tag(content), "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT"}
        asked_range = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("range", ""))
        if asked_range is None:
            return Answer(headers=headers, content=content)
        first, last = asked_range.groups()
        start = int(first) if first else max(len(content) - int(last), 0)
        part = content[start : int(last) + 1] if first and last else content[start:]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        return Answer(status=206, headers=headers, content=part)

    def delete(self, asked: Asked, _content: bytes) -> Answer:
        self.objects.pop(asked.key, None)
        return Answer(status=204)

    def post(self, asked: Asked, content: bytes) -> Answer:
        if "delete" not in asked.query:
            return Answer(status=501)
        keys = re.findall(r"<Key>(.*?)</Key>", content.decode())
        for key in keys:
            self.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return Answer(content=f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _listing(self, query: Mapping[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys, folders = [], set()
        for key in sorted(self.objects):
            rest = key.removeprefix(prefix)
            if key.startswith(prefix) and delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            elif key.startswith(prefix):
                keys.append(key)
        return listing_of([(key, len(self.objects[key])) for key in keys], folders=sorted(folders))


def listing_of(
    objects: Iterable[tuple[str, int | str]], *, folders: Iterable[str] = (), written: str = _WRITTEN, more: str = ""
) -> bytes:
    """A listing as S3 writes it.

    Args:
        objects: keys and sizes.
        folders: the beginnings that keys share.
        written: when all were.
        more: what is added to it.
    """
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>{written}</LastModified><ETag>&quot;1&quot;</ETag>"
        f"<Size>{size}</Size></Contents>"
        for key, size in objects
    )
    shared = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
    return f"<ListBucketResult>{contents}{shared}{more}</ListBucketResult>".encode()


def error_of(code: str, message: str = "") -> bytes:
    """An error as S3 writes it."""
    return f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode()


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


_METHODS: Mapping[str, Callable[[Bucket, Asked, bytes], Answer]] = {
    "PUT": Bucket.put,
    "GET": Bucket.get,
    "HEAD": Bucket.get,
    "DELETE": Bucket.delete,
    "POST": Bucket.post,
}


@contextlib.contextmanager
def standing_in() -> Iterator[Bucket]:
    """An empty bucket; gone when the context ends."""
    bucket = Bucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"bucket": bucket}))
    server.daemon_threads = True
    bucket.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(
            method=self.command,
            key=unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/"),
            query={name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()},
            headers=headers,
        )
        content = self.rfile.read(int(headers.get("content-length", 0)))
        with contextlib.suppress(ConnectionError):
            self._send(self.bucket.answer(asked, content))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        if answer.pieces is None and "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.content)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for piece in answer.pieces or [answer.content]:
            self.wfile.write(piece)
        if answer.pieces is not None or "Content-Length" in answer.headers:
            # What was said of the length may be wrong.
            self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Tells nobody."""
