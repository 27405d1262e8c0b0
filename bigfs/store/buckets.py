"""Connections to buckets: credentials, requests that are made again, errors in words.

Credentials, region and endpoint come from the environment or from ~/.aws and stay inside
obstore. A request that fails is made again, with growing pauses, for up to a minute, and so is
one whose answer is cut off; then it is a `StorageError`. An answer whose bytes are not those that
were written is asked for again, a few times.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bigfs.core.errors import InputError, StorageError
from bigfs.core.threads import set_within
from bigfs.store.values import installed, refusing

if TYPE_CHECKING:
    from bigfs.store.objects import ObjectPath

RETRY_SECONDS = 60.0
_RETRY = "BIGFS_STORAGE_RETRY_SECONDS"
HURRIED_SECONDS = 3.0
# Beginnings of the variables that say where a bucket is, and with what rights.
_TOLD_BY = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT", "HOME")
_patience: ContextVar[float] = ContextVar("bigfs_patience", default=math.inf)
# Answers with other bytes than those that were written, before it is no accident.
_DAMAGED_ANSWERS = 5
_CHECKSUM_BYTES = 4
T = TypeVar("T")


def obstore_package() -> Any:
    """Return the obstore package, which is an extra."""
    with installed("s3://, gs:// and az:// need obstore", "'bigfs[s3]'"):
        import obstore
        import obstore.exceptions
        import obstore.store
    return obstore


def hurried() -> AbstractContextManager[None]:
    """Give up on requests of this thread soon: it cleans up, and the next run would, too."""
    return set_within(_patience, HURRIED_SECONDS)


def server_of(path: ObjectPath) -> tuple[str, str, str | None]:
    """Return what tells buckets apart: their names, and the server."""
    return path.scheme, path.bucket, os.environ.get("AWS_ENDPOINT_URL")


def client(scheme: str, bucket: str) -> Any:
    """Return the client of a bucket in this process, with what the environment says."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_TOLD_BY)}
    return _client(scheme, bucket, _patience_seconds(), frozenset(environment.items()))


def _patience_seconds() -> float:
    """Return how long a request of this thread is tried again."""
    given = os.environ.get(_RETRY, str(RETRY_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{_RETRY} must be a number of seconds, such as 300. Got {given!r}.")
    return min(seconds, _patience.get())


@lru_cache(maxsize=16)
def _client(
    scheme: str, bucket: str, seconds: float, environment: frozenset[tuple[str, str]]
) -> Any:
    """Open a bucket once per process for the same environment."""
    obstore = obstore_package()
    options: dict[str, Any] = {
        # Only an endpoint that is spelled http:// is asked without encryption.
        "client_options": {
            "allow_http": True,
            "connect_timeout": "10s",
            "read_timeout": "60s",
            "timeout": "300s",
            **_authority(),
        },
        "retry_config": {
            "max_retries": 20,
            "retry_timeout": timedelta(seconds=seconds),
            "backoff": {"max_backoff": timedelta(seconds=5)},
        },
    }
    if scheme == "s3" and _has_profile():
        options |= _profile()
    try:
        return obstore.store.from_url(f"{scheme}://{bucket}", **options)
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise InputError(f"{scheme}://{bucket} cannot be opened: {_reason(error)}.") from None


def _authority() -> dict[str, str]:
    """Return the certificates that are trusted beside those of the system."""
    file = os.environ.get("AWS_CA_BUNDLE")
    with refusing("AWS_CA_BUNDLE cannot be read", OSError, ValueError, cure=""):
        return {"root_certificate": Path(file).read_text()} if file else {}


def _has_profile() -> bool:
    """Say whether the credentials are those of ~/.aws: the environment comes first."""
    named = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if any(os.environ.get(name) for name in named):
        return False
    files = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
    places = [Path(os.environ.get(name, f"~/.aws/{end}")) for name, end in files.items()]
    return "AWS_PROFILE" in os.environ or any(place.expanduser().exists() for place in places)


def _profile() -> dict[str, Any]:
    """Return how obstore gets the credentials and the region of ~/.aws."""
    what = "the credentials in ~/.aws are read by boto3"
    with installed(what, "'bigfs[s3]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    region = {"region": session.region_name} if session.region_name else {}
    return {"credential_provider": Boto3CredentialProvider(session), **region}


class DamagedError(OSError):
    """An answer whose bytes are not those that were written."""


def again(path: ObjectPath, verb: str, action: Callable[[], T]) -> T:
    """Make a request, again if its answer is cut off or damaged; obstore repeats the others.

    Raises
    ------
    FileNotFoundError, StorageError
        See `requests`.
    """
    deadline = time.monotonic() + _patience_seconds()
    pause, n_damaged = 0.1, 0
    with requests(path, verb):
        while True:
            try:
                return action()
            except Exception as error:
                n_damaged += isinstance(error, DamagedError)
                is_cut = isinstance(error, obstore_package().exceptions.BaseError) and any(
                    part in str(error) for part in ("response body", "invalid list response")
                )
                is_tried = 0 < n_damaged < _DAMAGED_ANSWERS or is_cut
                if not is_tried or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(5.0, 2 * pause)


def sealed(content: bytes) -> bytes:
    """Return bytes with their CRC-32C behind them."""
    return content + _crc(content)


def unsealed(content: bytes) -> bytes:
    """Return bytes without the CRC-32C behind them.

    Raises
    ------
    DamagedError
        If they are not those that were written.
    """
    if _crc(content[:-_CHECKSUM_BYTES]) != content[-_CHECKSUM_BYTES:]:
        raise DamagedError("checksums of its content do not match")
    return content[:-_CHECKSUM_BYTES]


def _crc(content: bytes) -> bytes:
    from google_crc32c import value

    return int(value(content)).to_bytes(_CHECKSUM_BYTES, "little")


def check_answer(content: bytes, e_tag: str | None, former: set[str]) -> None:
    """Raise DamagedError unless the bytes of an object are proved to be those that were written.

    A CRC-32C at their end proves it, or an entity tag that is their MD5. Buckets that encrypt with
    keys of their users have other tags of that form: two answers have to agree. Entity tags of
    other forms prove nothing.

    Parameters
    ----------
    content : bytes
    e_tag : str or None
    former : set of str
        Digests of the former answers of the same request, which this one joins.
    """
    if _crc(content[:-_CHECKSUM_BYTES]) == content[-_CHECKSUM_BYTES:]:
        return
    tag = re.fullmatch('"?([0-9a-f]{32})"?', e_tag or "")
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if tag is not None and tag[1] != digest and digest not in former:
        former.add(digest)
        raise DamagedError("checksums of its content do not match")


@contextmanager
def requests(path: ObjectPath, verb: str) -> Iterator[None]:
    """Turn the failures of obstore into ours, without what may be in its own messages.

    Raises
    ------
    FileNotFoundError
        If there is no such object.
    StorageError
        If the bucket refuses, or still fails after all attempts.
    """
    errors = obstore_package().exceptions
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(2, "No such object", str(path)) from None
    except (errors.AlreadyExistsError, errors.PreconditionError):
        raise
    except (errors.BaseError, OSError) as error:
        if "404 Not Found" in str(error):
            raise FileNotFoundError(2, "No such bucket", str(path)) from None
        reason = _reason(error)
        when = "after that" if ": " in reason else "when the storage answers"
        raise StorageError(
            f"Cannot {verb} {path}: {reason}. Finished stages are kept: run again {when}."
        ) from None


# What S3 and Azure call their refusals, and what helps.
_KEY = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws, here and on every worker"
_TOKEN = "the session token has expired: get another one, such as by 'aws sso login'"
_REGION = "the bucket is in another region: set AWS_REGION"
_CURES = {
    "InvalidAccessKeyId": f"there is no such key: {_KEY}",
    "SignatureDoesNotMatch": f"the secret is not that of the key: {_KEY}",
    "AccessDenied": f"the key may not do this: give it the right, or {_KEY}",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it",
    "ExpiredToken": _TOKEN,
    "InvalidToken": _TOKEN,
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "AuthenticationFailed": "the key or the clock of this machine is wrong",
    # Answers without a text, such as those of HEAD.
    "403 Forbidden": f"access is denied: {_KEY}, and the clock of this machine",
    "401 Unauthorized": f"access is denied: {_KEY}",
    "400 Bad Request": f"often {_TOKEN}; or {_REGION}",
    "301 Moved Permanently": _REGION,
}


def _reason(error: Exception) -> str:
    """Return why a request failed and what to do, in words and without addresses."""
    if isinstance(error, DamagedError):
        return (
            f"{error}, {_DAMAGED_ANSWERS} times. Use https://, which protects answers; what was "
            "written damaged is done again with --fresh"
        )
    text = str(error)
    if "169.254.1" in text:  # where the credentials of a machine or a container are asked for
        return f"there are no credentials: {_KEY}"
    if "InvalidCertificate" in text:
        return (
            "the certificate of the server is not trusted: name the file of its authority in "
            "AWS_CA_BUNDLE or SSL_CERT_FILE"
        )
    status = re.search(r"status code: (\d+(?: [A-Z][\w-]*)+)", text)
    if status is not None:
        code = re.search(r"<Code>(\w{3,60})</Code>", text)
        name = code[1] if code else status[1]
        cure = _CURES.get(name, _CURES.get(status[1], "")) if status[1][0] != "5" else ""
        shown = f"{status[1]}, {name}" if code else name
        return f"the server answers {shown}{': ' * bool(cure)}{cure}"
    if "error sending request" in text or "HTTP error" in text:
        return "the server does not answer"
    first = re.sub(r"\w+://\S+", "...", text.partition("\n")[0])
    return first.rstrip(". ")[:200]
