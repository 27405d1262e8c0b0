"""A real S3-compatible server for tests, and a proxy before it that makes requests fail."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY, SECRET = "AKIABIGFSTESTKEY0000", "bigfs/test/secret/never/shown"


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which every process finds the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "BIGFS_STORAGE_RETRY_SECONDS": "20",
    }


_PROGRAM = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
running.start()
print("http://{}:{}".format(*running.get_host_and_port()), flush=True)
sys.stdin.read()
"""


@contextmanager
def server() -> Iterator[str]:
    """Run moto's server in a process of its own, which ends with this one; give its address."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdin is not None and running.stdout is not None
        yield running.stdout.readline().strip()
        running.stdin.close()


def create_bucket(endpoint: str, name: str) -> None:
    """Create a bucket: one request, which moto takes unsigned."""
    connection = HTTPConnection(endpoint.removeprefix("http://"), timeout=60)
    connection.request("PUT", f"/{name}", headers={"Host": "s3.amazonaws.com"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, answer.status


class Proxy:
    """Passes requests on to a server and counts them; every so many-th one fails.

    Parameters
    ----------
    target : str
        Address of the server.
    fail_every : int
        0: none fails.
    failures : sequence of str
        How they fail, in turn: a status, ``cut`` before the request is passed on, ``lost`` for
        an answer that does not come back, ``half`` for one that ends in the middle.
    """

    def __init__(
        self, target: str, fail_every: int = 0, failures: Sequence[str] = ("500", "503", "cut")
    ) -> None:
        self.target = target.removeprefix("http://")
        self.fail_every, self.failures = fail_every, failures
        self.n_requests = self.n_failed = 0
        self.is_gone = False
        self.gone_after = self.hold = ""  # parts of the requests that end it, or wait
        self.held = threading.Event()
        self.log: list[str] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"_proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def _next(self, request: str) -> str:
        with self._lock:
            self.n_requests += 1
            self.log.append(request)
            if self.gone_after and self.gone_after in request:
                self.is_gone = True
            if self.is_gone:
                return "cut"
            if self.fail_every and self.n_requests % self.fail_every == 0:
                self.n_failed += 1
                return self.failures[self.n_failed % len(self.failures)]
            return ""

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=60)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    _upstream: HTTPConnection | None = None
    _proxy: Proxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{self.command} {self.path}"
        failure = self._proxy._next(request)
        while self._proxy.hold and self._proxy.hold in request:
            self._proxy.held.set()
            time.sleep(0.01)
        if failure == "cut":
            self.close_connection = True
            self.connection.close()
            return
        if failure.isdigit():
            self._answer(int(failure), [], b"")
            return
        upstream = self._upstream = self._upstream or HTTPConnection(self._proxy.target)
        upstream.request(self.command, self.path, body, dict(self.headers))
        actual = upstream.getresponse()
        content = actual.read()
        if failure == "lost":
            self.close_connection = True
            self.connection.close()
            return
        self._answer(actual.status, actual.getheaders(), content, failure == "half")

    def finish(self) -> None:
        super().finish()
        if self._upstream is not None:
            self._upstream.close()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, half: bool = False
    ) -> None:
        self.send_response(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("content-length", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            self.wfile.flush()
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def log_message(self, *_: Any) -> None:
        pass
