"""An object store on this machine: as much of S3's HTTP as reading needs, over the files of a folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "birds"
KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}
"""What must be in the environment of readers; it lets everybody in."""
_DATE = "2026-01-01T00:00:00.000Z"


class Store(ThreadingHTTPServer):
    """Lists and hands out the files below a folder.

    Attributes:
        asked: set when an object was asked for.
        answers: objects are handed out while it is set.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        self.objects = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()

    @property
    def address(self) -> str:
        return f"s3://{BUCKET}/?scheme=http&region=here&endpoint_override=127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def handle(self) -> None:
        with suppress(ConnectionError):  # who asked is gone
            super().handle()

    def log_message(self, *words: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._object(with_body=False)

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        if unquote(split.path).strip("/") == BUCKET:
            self._list(parse_qs(split.query).get("prefix", [""])[0])
        else:
            self.server.asked.set()
            self.server.answers.wait()
            self._object(with_body=True)

    def _list(self, prefix: str) -> None:
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size><LastModified>{_DATE}</LastModified></Contents>"
            for name, data in self.server.objects.items()
            if name.startswith(prefix)
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()
        self._send(200, body, {"Content-Type": "application/xml"})

    def _object(self, with_body: bool) -> None:
        name = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")
        data = self.server.objects.get(name)
        if data is None:
            self._send(200 if not name else 404, b"", {})  # the bucket itself is there
            return
        first, last = 0, len(data) - 1
        if wanted := self.headers.get("Range"):
            first, last = (int(end) for end in wanted.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        place = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"} if wanted else {}
        self._send(206 if wanted else 200, part, {**place, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def store_of(folder: Path) -> Iterator[Store]:
    """Run a store with the files of a folder."""
    with Store(folder) as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        try:
            yield store
        finally:
            store.answers.set()
            store.shutdown()
