"""A real S3-compatible server for tests, and a proxy before it that makes requests fail."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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


def private_authority(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return the certificate of an authority of our own, and a server's context with one of its."""
    now = datetime.now(UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("ours", "server")
    ]
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    for i, file in enumerate(("authority.pem", "server.pem")):
        content = (
            x509.CertificateBuilder(names[0], names[i], keys[i].public_key())
            .serial_number(i + 1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=i == 0, path_length=None), critical=True)
            .add_extension(address, critical=False)
            .sign(keys[0], hashes.SHA256())
        )
        (folder / file).write_bytes(content.public_bytes(serialization.Encoding.PEM))
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key = keys[1].private_bytes(serialization.Encoding.PEM, *plain)
    (folder / "server.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return folder / "authority.pem", context


class Proxy:
    """Passes requests on to a server and counts them; every so many-th one fails.

    Parameters
    ----------
    target : str
        Address of the server.
    fail_every : int
        0: none fails.
    failures : sequence of str
        How they fail, in turn: a status and perhaps a code, ``cut`` before the request is passed
        on, ``lost`` for an answer that does not come back, ``half`` for one that ends in the
        middle, ``slow`` for one that is late, ``flip`` for one with a bit turned over, each time
        elsewhere in the object.
    context : SSLContext or None, default=None
        By which it speaks https.
    """

    def __init__(
        self,
        target: str,
        fail_every: int = 0,
        failures: Sequence[str] = ("500", "503", "cut"),
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.target = target.removeprefix("http://")
        self.fail_every, self.failures = fail_every, failures
        self.n_requests = self.n_failed = self.n_flipped = 0
        self.is_gone = False
        self.store = ""  # how it takes conditions: "ceph", "ignores" or "none"
        self.gone_after = self.hold = ""  # parts of the requests that end it, or wait
        self.held = threading.Event()
        self.log: list[str] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"_proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.endpoint = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
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

    def conditions(self, headers: Message) -> int:
        """Change the conditions of a write as the store does that is imitated.

        Returns
        -------
        status : int
            Of the answer; 0 where the request is passed on.
        """
        named = [name for name in ("If-Match", "If-None-Match") if name in headers]
        if named and self.store == "none":
            return 501
        if self.store == "ignores":
            for name in named:
                del headers[name]
        if self.store == "ceph" and "If-Match" in headers:
            if '"' in headers["If-Match"]:
                return 412
            headers.replace_header("If-Match", f'"{headers["If-Match"]}"')
        return 0

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
        if failure == "slow":
            time.sleep(0.5)
        if failure == "cut":
            self.close_connection = True
            self.connection.close()
            return
        status, _, code = failure.partition(" ")
        if status.isdigit():
            text = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>" if code else ""
            self._answer(int(status), [], text.encode())
            return
        answer = self._proxy.conditions(self.headers)
        if answer:
            self._answer(answer, [], b"")
            return
        upstream = self._upstream = self._upstream or HTTPConnection(self._proxy.target)
        upstream.request(self.command, self.path, body, dict(self.headers))
        actual = upstream.getresponse()
        content = actual.read()
        if failure == "lost":
            self.close_connection = True
            self.connection.close()
            return
        if failure == "flip" and self.command == "GET" and "list-type" not in self.path and content:
            place = len(content) * (1 + self._proxy.n_flipped % 7) // 8
            content = content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
            self._proxy.n_flipped += 1
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
