"""Reads the files of a model's folder in an object store or on an HTTP server, by ranges. Nothing here is on disk.

Credentials are found as obstore finds them: the variables of the environment that the stores' own tools read
(`AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT_KEY`, `AZURE_STORAGE_ACCOUNT_KEY` and so on), else the identity of the
workload. Three variables are ours: `INFLIGHT_MODEL_ENDPOINT`, the URL of a private store, `INFLIGHT_MODEL_CA_FILE`,
certificates in PEM that are trusted as well as the system's, and `INFLIGHT_MODEL_AUTHORIZATION`, the header with which
an HTTP server is asked.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from inflight_engine.models.checkpoints.source import ModelSourceError, first_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECTIONS = 16
"""Requests to a store at once. Object stores give one connection some 100 MB/s."""

PIECE = 8 << 20
"""Most bytes of one request: long against its latency, short to read again after a cut."""

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_GIVE_UP_SECONDS = 60.0
"""Time for which a request that fails is tried again: stores limit rates, and connections break."""
_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 5.0

_MAX_SMALL_BYTES = 256 << 20
"""Largest configuration or tokenizer: those of today's models are below 40 MB."""

_PROBED = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json", "modules.json", "1_Pooling/config.json", INDEX, SINGLE),
)
"""Names that are tried on an HTTP server, which lists no folder."""

_STATUS = re.compile(r"status(?: code)?:? (\d{3})")
_TRIED_AGAIN = (408, 425, 429)
"""Statuses from 400 to 499 that may be another one later."""
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CAUSE = re.compile(r'error sending request\n.*?(?:error|message): "([^"]+)"', re.DOTALL)
_QUERY = re.compile(r"\?[^\s\"')]*")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in one version.

    Attributes:
        name: path below the model's folder.
        size: bytes.
        etag: changes with the content; None: the server has none.
    """

    name: str
    size: int
    etag: str | None


class Store:
    """The folder of one model.

    Args:
        source: `s3://BUCKET/FOLDER`, `gs://BUCKET/FOLDER`, `az://CONTAINER/FOLDER` or `https://HOST/FOLDER`.

    Raises:
        ModelSourceError: the URL or a setting is wrong.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._lists = not source.startswith("http")
        scheme, place, folder = _parts(source)
        try:
            self._store = _open(scheme, place, folder)
        except Exception as error:  # obstore's own have only this in common
            raise ModelSourceError(
                f"model source {source} cannot be opened: {_public_line(error)}: check the credentials, the endpoint "
                "and the certificates"
            ) from error

    def files(self) -> dict[str, RemoteFile]:
        """Find the files of the model: configuration, tokenizer and weights.

        Raises:
            ModelSourceError: the store refuses, or cannot be reached.
        """
        found = self._listed() if self._lists else self._heads(_PROBED)
        return {file.name: file for file in found if is_small(file.name) or _is_weights(file.name)}

    def add_shards(self, files: dict[str, RemoteFile], index: bytes) -> None:
        """Add the files that an index names, where the server lists none."""
        if not self._lists:
            names = {name for name in shards_of(self.source, index) if _is_weights(name)} - files.keys()
            files.update((file.name, file) for file in self._heads(sorted(names)))

    def read(self, file: RemoteFile, start: int, end: int) -> memoryview:
        """Read bytes `start` to `end` of a file, in the version that was found.

        Raises:
            ModelSourceError: the file has changed, the store refuses, or it does not answer for a minute.
        """
        if start == end:
            return memoryview(b"")
        import obstore

        options: dict[str, Any] = {"range": (start, end)}
        if file.etag is not None and not file.etag.startswith("W/"):  # by RFC 9110 no weak one ever matches
            options["if_match"] = file.etag

        def get() -> memoryview:
            result = obstore.get(self._store, file.name, options=options)  # type: ignore[arg-type]
            if (_quoted(result.meta["e_tag"]), result.meta["size"]) != (file.etag, file.size):
                raise ModelSourceError(self._changed(file.name))
            data = memoryview(result.bytes())
            if len(data) != end - start:
                raise OSError(f"{len(data)} of {end - start} bytes came")
            return data

        return self._persist(file.name, get)

    def small(self, file: RemoteFile) -> bytes:
        """Read a configuration or tokenizer. Raises ModelSourceError as `read`, or when it is too large to be one."""
        if file.size > _MAX_SMALL_BYTES:
            raise ModelSourceError(
                f"model source {self.source}: {file.name} has {file.size} bytes, more than a configuration or a "
                "tokenizer may have"
            )
        return bytes(self.read(file, 0, file.size))

    def _listed(self) -> list[RemoteFile]:
        import obstore

        def collect() -> list[RemoteFile]:
            return [
                RemoteFile(each["path"], each["size"], _quoted(each["e_tag"]))
                for batch in obstore.list(self._store)
                for each in batch
            ]

        return self._persist("its files", collect)

    def _heads(self, names: Iterable[str]) -> list[RemoteFile]:
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            return [file for file in pool.map(self._head, names) if file is not None]

    def _head(self, name: str) -> RemoteFile | None:
        import obstore.exceptions

        def head() -> RemoteFile | None:
            try:
                meta = obstore.head(self._store, name)
            except FileNotFoundError:
                return None
            except obstore.exceptions.PermissionDeniedError:
                if name == "config.json":
                    raise
                return None  # what a bucket that may not be listed says of a file that it has not
            return RemoteFile(name, meta["size"], _quoted(meta["e_tag"]))

        return self._persist(name, head)

    def _persist(self, what: str, call: Callable[[], _Result]) -> _Result:
        """Call until it succeeds, fails for good, or has failed for too long."""
        started, wait = time.monotonic(), _FIRST_WAIT_SECONDS
        while True:
            try:
                return call()
            except ModelSourceError:
                raise
            except Exception as error:  # obstore's own, which have only Exception in common
                if (final := self._final(what, error)) is not None:
                    raise final from error
                if time.monotonic() - started > _GIVE_UP_SECONDS:
                    raise ModelSourceError(
                        f"model source {self.source}: {what} cannot be read ({_public_line(error)}): check the "
                        "network, the endpoint and the credentials"
                    ) from error
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    def _final(self, what: str, error: Exception) -> ModelSourceError | None:
        """Return the sentence for an error that stays; None: it may pass."""
        source, status = f"model source {self.source}", _status(error)
        if status == 404:
            return ModelSourceError(f"{source}: the store cannot find {what} (404): check bucket, folder and endpoint")
        if status == 401:
            return ModelSourceError(f"{source}: the store does not accept the credentials for {what} (401): check them")
        if status == 403:
            may = "list and read the folder" if self._lists else "read it"
            return ModelSourceError(
                f"{source}: the store refuses {what} (403): check the credentials, and that they may {may}"
            )
        if status == 412:
            return ModelSourceError(self._changed(what))
        if status is not None and 400 <= status < 500 and status not in _TRIED_AGAIN:
            return ModelSourceError(f"{source}: the store refuses {what}: {_public_line(error)}")
        if (found := _CERTIFICATE.search(str(error))) is not None:
            return ModelSourceError(
                f"{source}: the certificate of the store is refused ({found[1]}): check the name of its host, and name "
                "a private authority in model.caConfigMap or INFLIGHT_MODEL_CA_FILE"
            )
        if "NotPartial" in str(error) or "RangeNotSupported" in str(error):
            return ModelSourceError(f"{source}: the server does not answer requests for ranges of {what}")
        return None

    def _changed(self, name: str) -> str:
        return (
            f"model source {self.source}: {name} has changed since this server first looked at it; weights of two "
            "versions are never mixed: start it again, and publish versions in folders of their own"
        )


def shards_of(source: str, index: bytes) -> list[str]:
    """Names of the files that an index of weights lists, sorted.

    Raises:
        ModelSourceError: it is no such index.
    """
    try:
        return sorted(set(map(str, json.loads(index)["weight_map"].values())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelSourceError(f"model source {source}: {INDEX} is no index of weights: {error}") from error


def is_small(name: str) -> bool:
    """Return whether a file is configuration or tokenizer, at the top of the folder or one below."""
    return (
        name.endswith((".json", ".jinja"))
        and name.count("/") <= 1
        and not any(part.startswith(".") for part in name.split("/"))
    )


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name


def _parts(source: str) -> tuple[str, str, str]:
    """Return the scheme of a source, its bucket or host, and the folder, without a slash at its end.

    Raises:
        ModelSourceError: it has another form.
    """
    scheme, _, rest = source.partition("://")
    place, _, folder = rest.partition("/")
    if (
        not place
        or "?" in rest
        or "#" in rest
        or (folder and any(part in ("", ".", "..") for part in folder.rstrip("/").split("/")))
    ):
        raise ModelSourceError(
            f"model source {source} cannot be opened: it must be SCHEME://BUCKET/FOLDER or https://HOST/FOLDER, "
            "without ?, # and empty parts"
        )
    return scheme, place, folder.rstrip("/")


def _open(scheme: str, place: str, folder: str) -> ObjectStore:
    from obstore import store as stores

    url, prefix = f"{scheme}://{place}/{folder}".rstrip("/"), folder or None
    endpoint = os.environ.get("INFLIGHT_MODEL_ENDPOINT", "").rstrip("/")
    client: dict[str, Any] = {
        "connect_timeout": "10s",
        "read_timeout": "30s",
        "timeout": "300s",
        "user_agent": "inflight-engine",
    }
    if (url if scheme in ("http", "https") else endpoint).startswith("http://"):
        client["allow_http"] = True
    if ca_file := os.environ.get("INFLIGHT_MODEL_CA_FILE"):
        client["root_certificate"] = Path(ca_file).read_bytes()
    # `_persist` tries again: it knows which file, for how long, and what to say.
    options: dict[str, Any] = {
        "client_options": client,
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=0)},
    }
    if scheme in ("http", "https"):
        if authorization := os.environ.get("INFLIGHT_MODEL_AUTHORIZATION"):
            client["default_headers"] = {"authorization": authorization}
        return stores.HTTPStore(url, **options)
    if endpoint:
        options["base_url" if scheme == "gs" else "endpoint"] = endpoint
    if scheme == "s3":
        return stores.S3Store(place, prefix=prefix, **options)
    if scheme == "gs":
        return stores.GCSStore(place, prefix=prefix, **options)
    return stores.AzureStore(place, prefix=prefix, **options)


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error of obstore, which has exceptions for some and a text for the others."""
    from obstore import exceptions

    for kind, status in (
        (FileNotFoundError, 404),
        (exceptions.UnauthenticatedError, 401),
        (exceptions.PermissionDeniedError, 403),
        (exceptions.PreconditionError, 412),
    ):
        if isinstance(error, kind):
            return status
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


def _quoted(etag: str | None) -> str | None:
    """Return an etag as HTTP has it: Azure's listings have them without quotes."""
    return etag if etag is None or etag.startswith(('"', "W/")) else f'"{etag}"'


def _public_line(error: BaseException) -> str:
    """Return the first line of a message, with why no request could be sent, and without the query of a URL, which may
    hold a signature."""
    cause = _CAUSE.search(str(error))
    said = first_line(error)[:300].rstrip(".") + (f": {cause[1][:300]}" if cause else "")
    return _QUERY.sub("", said)
