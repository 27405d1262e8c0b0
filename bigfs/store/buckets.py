"""Connections to buckets: credentials, retried requests, readable errors.

Credentials, region and endpoint come from the environment or from ~/.aws and stay inside obstore. A
request that fails, or whose response is cut off, is retried with increasing pauses for up to a
minute; then `StorageError` is raised. A response whose bytes differ from those written is requested
again a few times.
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
BRIEF_RETRY_SECONDS = 3.0
# Prefixes of the environment variables that configure location of and access to buckets.
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT", "HOME")
_most_seconds: ContextVar[float] = ContextVar("bigfs_retry_seconds", default=math.inf)
# Number of corrupted responses after which corruption is no longer considered accidental.
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


def retrying_briefly() -> AbstractContextManager[None]:
    """Give up soon on failing requests of this thread.

    Used while cleaning up, which the next run would do too.
    """
    return set_within(_most_seconds, BRIEF_RETRY_SECONDS)


def server_of(path: ObjectPath) -> tuple[str, str, str | None]:
    """Return a key that identifies a bucket: scheme, name and server."""
    return path.scheme, path.bucket, os.environ.get("AWS_ENDPOINT_URL")


def client(scheme: str, bucket: str) -> Any:
    """Return this process's client of a bucket, configured from the environment."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        endpoint = environment.get(name, "https://").lower()
        if scheme == "s3" and not endpoint.startswith(("http://", "https://")):
            raise InputError(
                f"{name} must begin with http:// or https://. Got {environment[name]!r}. Unset it "
                "for Amazon's own servers."
            )
    return _client(scheme, bucket, _retry_seconds(), frozenset(environment.items()))


def _retry_seconds() -> float:
    """Return the number of seconds for which a request of this thread is retried."""
    given = os.environ.get(_RETRY, str(RETRY_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{_RETRY} must be a number of seconds, such as 300. Got {given!r}.")
    return min(seconds, _most_seconds.get())


@lru_cache(maxsize=16)
def _client(
    scheme: str, bucket: str, seconds: float, environment: frozenset[tuple[str, str]]
) -> Any:
    """Open a bucket, once per process and environment."""
    obstore = obstore_package()
    options: dict[str, Any] = {
        # Requests are unencrypted only if the endpoint is given as http://.
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
        reason = _reason(error, scheme)
        raise InputError(f"{scheme}://{bucket} cannot be opened: {reason}.") from None


def _authority() -> dict[str, str]:
    """Return the certificates to trust in addition to those of the system."""
    file = os.environ.get("AWS_CA_BUNDLE")
    with refusing("AWS_CA_BUNDLE cannot be read", OSError, ValueError, cure=""):
        return {"root_certificate": Path(file).read_text()} if file else {}


def _has_profile() -> bool:
    """Return True if the credentials are those of ~/.aws; the environment takes precedence."""
    named = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if any(os.environ.get(name) for name in named):
        return False
    files = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
    places = [Path(os.environ.get(name, f"~/.aws/{end}")) for name, end in files.items()]
    return "AWS_PROFILE" in os.environ or any(place.expanduser().exists() for place in places)


def _profile() -> dict[str, Any]:
    """Return options with which obstore gets credentials and region from ~/.aws."""
    what = "reading the credentials in ~/.aws needs boto3"
    with installed(what, "'bigfs[s3]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    cure = "Correct AWS_PROFILE, or ~/.aws."
    with refusing("The credentials in ~/.aws cannot be used", Exception, cure=cure):
        session = boto3.Session()
        if session.get_credentials() is None:
            return {}
    region = {"region": session.region_name} if session.region_name else {}
    return {"credential_provider": Boto3CredentialProvider(session), **region}


class DamagedError(OSError):
    """A response whose bytes differ from those that were written."""


def again(path: ObjectPath, verb: str, action: Callable[[], T]) -> T:
    """Make a request and retry it if the response is cut off or damaged.

    Other failures are retried by obstore.

    Raises
    ------
    FileNotFoundError, StorageError
        See `requests`.
    """
    deadline = time.monotonic() + _retry_seconds()
    pause, n_damaged = 0.1, 0
    with requests(path, verb):
        while True:
            try:
                return action()
            except Exception as error:
                is_damaged = isinstance(error, DamagedError)
                n_damaged += is_damaged
                is_cut = isinstance(error, obstore_package().exceptions.BaseError) and any(
                    part in str(error) for part in ("response body", "invalid list response")
                )
                is_tried = (is_damaged and n_damaged < _DAMAGED_ANSWERS) or is_cut
                if not is_tried or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(5.0, 2 * pause)


def sealed(content: bytes) -> bytes:
    """Return bytes followed by their CRC-32C."""
    return content + _crc(content)


def unsealed(content: bytes) -> bytes:
    """Return the bytes before a trailing CRC-32C, after checking it.

    Raises
    ------
    DamagedError
        If the checksum does not match.
    """
    if _crc(content[:-_CHECKSUM_BYTES]) != content[-_CHECKSUM_BYTES:]:
        raise DamagedError("checksums of its content do not match")
    return content[:-_CHECKSUM_BYTES]


def _crc(content: bytes) -> bytes:
    from google_crc32c import value

    return int(value(content)).to_bytes(_CHECKSUM_BYTES, "little")


def check_answer(content: bytes, e_tag: str | None, former: set[str]) -> None:
    """Raise DamagedError if the bytes of an object are shown to differ from those written.

    Bytes are verified by a CRC-32C at their end, or by an entity tag that is their MD5. Buckets
    that encrypt with keys of their users have tags of the same form that are not the MD5, so two
    equal responses are accepted as well. Entity tags of other forms allow no check.

    Parameters
    ----------
    content : bytes
    e_tag : str or None
    former : set of str
        Digests of the former responses to the same request; the digest of a mismatch is added.
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
    """Convert exceptions of obstore into ours, without the secrets its messages may contain.

    Raises
    ------
    FileNotFoundError
        If there is no such object or bucket.
    StorageError
        If the request is refused, or still fails after all attempts.
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
        reason = _reason(error, path.scheme)
        when = "after that" if ": " in reason else "when the storage answers"
        raise StorageError(
            f"Cannot {verb} {path}: {reason}. Finished stages are kept: run again {when}."
        ) from None


# Remedies for the error codes of S3 and Azure.
_KEY = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws, here and on every worker"
_KEYS = {
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS here and on every worker",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY here and on every worker",
}
_TOKEN = "the session token has expired: get a new one, for example with 'aws sso login'"
_REGION = "the bucket is in another region: set AWS_REGION"
_CURES = {
    "InvalidAccessKeyId": f"there is no such key: {_KEY}",
    "SignatureDoesNotMatch": f"the secret does not belong to the key: {_KEY}",
    "AccessDenied": f"the key lacks the permission: grant it, or {_KEY}",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it",
    "ExpiredToken": _TOKEN,
    "InvalidToken": _TOKEN,
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "AuthenticationFailed": "the key or the clock of this machine is wrong",
    # Responses without a body, such as those to HEAD.
    "403 Forbidden": f"access is denied: {_KEY}, and the clock of this machine",
    "401 Unauthorized": f"access is denied: {_KEY}",
    "400 Bad Request": f"often {_TOKEN}; or {_REGION}",
    "301 Moved Permanently": _REGION,
}


def _reason(error: Exception, scheme: str) -> str:
    """Return a message on why a request failed and what to do, without addresses."""
    return _reason_on_s3(error).replace(_KEY, _KEYS.get(scheme, _KEY))


def _reason_on_s3(error: Exception) -> str:
    """Return the message with the advice for keys of S3."""
    if isinstance(error, DamagedError):
        return (
            f"{error}, {_DAMAGED_ANSWERS} times. Use https://, which protects responses; results "
            "that were stored damaged are computed again with --fresh"
        )
    text = str(error)
    if "169.254.1" in text:  # metadata service with the credentials of a machine or container
        return f"there are no credentials: {_KEY}"
    if "Account must be specified" in text:
        return f"there is no account: {_KEY}"
    if "InvalidCertificate" in text:
        return (
            "the certificate of the server is not trusted: set AWS_CA_BUNDLE or SSL_CERT_FILE to "
            "the certificate file of its authority"
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
