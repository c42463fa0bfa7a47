"""A client of OCI registries: tokens, manifests and blobs, verified while they arrive."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlencode

import msgspec

from dray.lib.clock import Clock
from dray.node.runtimes.images import manifests
from dray.node.runtimes.images.manifests import Descriptor
from dray.node.runtimes.images.model import ImageError
from dray.node.runtimes.images.references import (
    ANONYMOUS,
    Credentials,
    Keyring,
    Reference,
    parse_challenge,
    read_keyring,
)
from dray.runtime.http.client import HttpClient
from dray.runtime.http.connection import ClientResponse
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import HttpError
from dray.runtime.http.proxy import Proxy, parse_proxy
from dray.runtime.http.urls import Origin, basic, parse_url, redirected

# A download that makes no progress for so long fails.
STALL_SECONDS_MAX: Final = 60.0
_HEAD_SECONDS_MAX: Final = 30.0
_REDIRECTS_MAX: Final = 5
_ATTEMPTS_MAX: Final = 4
_PAUSES_SECONDS: Final = (0.5, 1.0, 2.0)
_TOKEN_SECONDS: Final = 60.0
_OK, _PARTIAL, _UNAUTHORIZED, _TOO_MANY, _SERVER_ERROR = 200, 206, 401, 429, 500
_ERROR_BYTES_MAX: Final = 64 * 1024
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class UnavailableError(ImageError):
    """The registry cannot be reached."""


class RegistrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach one registry."""

    mirrors: tuple[str, ...] = ()
    # Plain HTTP; loopback registries need no setting.
    insecure: bool = False
    # A file with certificate authorities.
    ca: str = ""


DEFAULT_SETTINGS: Final = RegistrySettings()


def read_settings(document: Any) -> dict[str, RegistrySettings]:
    """Parse the file of `--registries`: for each host `mirrors`, `insecure` and `ca`; raises ValueError."""
    try:
        found = msgspec.convert(document, dict[str, RegistrySettings])
    except msgspec.ValidationError as error:
        raise ValueError(f"registries: {error}") from error
    for settings in found.values():
        for mirror in settings.mirrors:
            parse_url(mirror)
    return found


def load_settings(path: str) -> dict[str, RegistrySettings]:
    """Read the file of `--registries`; an empty path means no settings. Raises ValueError and OSError."""
    return read_settings(_load_yaml(path)) if path else {}


def load_keyring(path: str) -> Keyring:
    """Read a Docker configuration file; an empty path means no credentials. Raises ValueError and OSError."""
    document = _load_yaml(path) if path else {}
    if not isinstance(document, Mapping):
        raise ValueError(f"{path}: not a Docker configuration file")  # noqa: TRY004 - wrong content, not a wrong type
    return read_keyring([document])


def _load_yaml(path: str) -> Any:
    # Slow to import; most nodes have no such file.
    import yaml

    with Path(path).open(encoding="utf-8") as file:
        try:
            return yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: {error}") from error


class _Verified:
    """A blob that is being written: its size is bounded while it arrives, and its digest computed."""

    def __init__(self, blob: Descriptor, file: IO[bytes]) -> None:
        self.blob = blob
        self.size = 0
        self._file = file
        self._algorithm = blob.digest.partition(":")[0]
        self._hash = hashlib.new(self._algorithm)

    def write(self, piece: bytes) -> None:
        if self.size + len(piece) > self.blob.size:
            raise ImageError(f"failed size validation: more than {self.blob.size} bytes")
        self._file.write(piece)
        self._hash.update(piece)
        self.size += len(piece)

    def check(self) -> None:
        self._file.flush()
        if self.size != self.blob.size:
            raise ImageError(f"failed size validation: {self.size} != {self.blob.size}")
        found = f"{self._algorithm}:{self._hash.hexdigest()}"
        if found != self.blob.digest:
            raise ImageError(f"unexpected digest {found}, expected {self.blob.digest}")


@dataclass(slots=True)
class RegistryClient:
    """Fetches from one repository with one set of credentials; close it after use."""

    reference: Reference
    clock: Clock
    credentials: Credentials = ANONYMOUS
    settings: RegistrySettings = DEFAULT_SETTINGS
    proxy_for: Callable[[Origin], str] = lambda _origin: ""
    _clients: dict[Origin, HttpClient] = field(default_factory=dict)
    # Authorization headers by origin, with the time at which they end.
    _authorizations: dict[Origin, tuple[str, float]] = field(default_factory=dict)

    async def __aenter__(self) -> RegistryClient:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()

    # --- Content. ---

    async def manifest(self, version: str) -> tuple[bytes, str, str]:
        """Return a manifest by tag or digest: its bytes, media type and digest; verified."""
        path = f"manifests/{version}"
        response = await self._get(path, {"Accept": manifests.ACCEPT})
        with response:
            data = await self._read(response, manifests.DOCUMENT_BYTES_MAX + 1)
        if len(data) > manifests.DOCUMENT_BYTES_MAX:
            raise ImageError(f"the manifest is larger than {manifests.DOCUMENT_BYTES_MAX} bytes")
        digest = version if ":" in version else response.header("Docker-Content-Digest")
        if digest:
            manifests.check_digest(data, digest)
        else:
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        return data, response.header("Content-Type"), digest

    async def small_blob(self, blob: Descriptor) -> bytes:
        """Return a configuration; verified."""
        if blob.size > manifests.DOCUMENT_BYTES_MAX:
            raise ImageError(f"the configuration is larger than {manifests.DOCUMENT_BYTES_MAX} bytes")
        response = await self._get(f"blobs/{blob.digest}", {})
        with response:
            data = await self._read(response, blob.size + 1)
        if len(data) != blob.size:
            raise ImageError(f"failed size validation: {len(data)} != {blob.size}")
        manifests.check_digest(data, blob.digest)
        return data

    async def download(self, blob: Descriptor, file: IO[bytes]) -> None:
        """Write a blob to a file and verify it; a download that breaks off continues where it stopped."""
        target = _Verified(blob, file)
        for attempt in range(_ATTEMPTS_MAX):
            try:
                await self._append(target)
            except (HttpError, TimeoutError) as error:
                if attempt + 1 == _ATTEMPTS_MAX:
                    raise UnavailableError(f"the download of {blob.digest} broke off: {_why(error)}") from error
                await self.clock.sleep(_PAUSES_SECONDS[attempt])
                continue
            break
        target.check()

    async def _append(self, target: _Verified) -> None:
        """Fetch what is missing of a blob."""
        headers = {"Range": f"bytes={target.size}-"} if target.size else {}
        response = await self._get(f"blobs/{target.blob.digest}", headers)
        with response:
            # A registry that does not continue downloads sends everything again.
            skip = target.size if response.status != _PARTIAL else 0
            while True:
                async with asyncio.timeout(STALL_SECONDS_MAX):
                    piece = await response.more()
                if not piece:
                    return
                dropped = min(skip, len(piece))
                skip -= dropped
                await asyncio.to_thread(target.write, piece[dropped:])

    # --- Requests. ---

    async def _get(self, path: str, headers: Mapping[str, str]) -> ClientResponse:
        """Request from the mirrors, then from the registry itself."""
        failures: list[str] = []
        for base in (*self.settings.mirrors, self._own_url()):
            try:
                return await self._request(f"{base.rstrip('/')}/v2/{self.reference.path}/{path}", headers)
            except ImageError as error:
                if base == self._own_url():
                    raise type(error)("; ".join((*failures, str(error)))) from error
                failures.append(f"mirror {base}: {error}")
        raise AssertionError("the registry itself is the last")

    def _own_url(self) -> str:
        host = self.reference.api_host
        name = host.rpartition(":")[0] or host
        is_plain = self.settings.insecure or name.strip("[]") in _LOOPBACK
        return f"{'http' if is_plain else 'https'}://{host}"

    async def _request(self, url: str, headers: Mapping[str, str]) -> ClientResponse:
        """Send a request; retry while the registry is overloaded, and follow redirects."""
        for attempt in range(_ATTEMPTS_MAX):
            response = await self._follow(url, headers)
            if response.status in (_OK, _PARTIAL):
                return response
            with response:
                body = await self._read(response, _ERROR_BYTES_MAX)
            if response.status != _TOO_MANY and response.status < _SERVER_ERROR:
                raise ImageError(manifests.error_text(response.status, body))
            if attempt + 1 < _ATTEMPTS_MAX:
                await self.clock.sleep(_PAUSES_SECONDS[attempt])
        raise UnavailableError(manifests.error_text(response.status, body))

    async def _follow(self, url: str, headers: Mapping[str, str]) -> ClientResponse:
        origin = parse_url(url).origin
        for _ in range(_REDIRECTS_MAX + 1):
            # Another host must not see the credentials.
            is_own = parse_url(url).origin == origin
            response = await self._send(url, headers, self._authorization(origin) if is_own else "")
            if response.status == _UNAUTHORIZED and is_own:
                challenge = response.header("WWW-Authenticate")
                with response:
                    body = await self._read(response, _ERROR_BYTES_MAX)
                authorization = await self._authorize(origin, challenge)
                if not authorization:
                    raise ImageError(manifests.error_text(_UNAUTHORIZED, body))
                response = await self._send(url, headers, authorization)
            following = redirected(url, response.status, response.header("Location"))
            if not following:
                return response
            response.close()
            url = following
        raise ImageError("too many redirects")

    async def _send(self, url: str, headers: Mapping[str, str], authorization: str) -> ClientResponse:
        address = parse_url(url)
        sent = [*headers.items(), *([("Authorization", authorization)] if authorization else ())]
        try:
            async with asyncio.timeout(_HEAD_SECONDS_MAX):
                return await self._client(address.origin).send("GET", address.target, sent)
        except (HttpError, TimeoutError) as error:
            raise UnavailableError(f"{address.origin.address}: {_why(error)}") from error

    async def _read(self, response: ClientResponse, bytes_max: int) -> bytes:
        """Return a small body; a registry that does not send it is not available."""
        try:
            async with asyncio.timeout(STALL_SECONDS_MAX):
                return await response.read(bytes_max)
        except (HttpError, TimeoutError) as error:
            raise UnavailableError(f"{self.reference.api_host}: reading the response: {_why(error)}") from error

    def _client(self, origin: Origin) -> HttpClient:
        if origin not in self._clients:
            tls = ssl.create_default_context(cafile=self.settings.ca or None) if origin.is_secure else None
            url = self.proxy_for(origin)
            proxy: Proxy | None = parse_proxy(url) if url else None
            self._clients[origin] = HttpClient(Route(origin, tls, proxy=proxy))
        return self._clients[origin]

    # --- Authorization. ---

    def _authorization(self, origin: Origin) -> str:
        header, ends = self._authorizations.get(origin, ("", 0.0))
        return header if self.clock.monotonic() < ends else ""

    async def _authorize(self, origin: Origin, header: str) -> str:
        """Answer a challenge; return the Authorization header, empty if there is none to send."""
        challenge = parse_challenge(header)
        if challenge.scheme == "basic":
            if not self.credentials.username:
                return ""
            found, seconds = basic(self.credentials.username, self.credentials.password), float("inf")
        elif challenge.scheme == "bearer":
            token, seconds = await self._token(challenge.parameters)
            found = f"Bearer {token}"
        else:
            return ""
        self._authorizations[origin] = (found, self.clock.monotonic() + seconds)
        return found

    async def _token(self, parameters: Mapping[str, str]) -> tuple[str, float]:
        realm = parameters.get("realm", "")
        query = {"service": parameters.get("service", ""), "scope": f"repository:{self.reference.path}:pull"}
        address = parse_url(realm)
        credentials = self.credentials
        method, body, headers = "GET", None, []
        target = f"{address.target}{'&' if '?' in address.target else '?'}{urlencode(query)}"
        if credentials.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token, "client_id": "dray"}
            method, body, target = "POST", urlencode({**query, **form}).encode(), address.target
            headers.append(("Content-Type", "application/x-www-form-urlencoded"))
        elif credentials.username:
            headers.append(("Authorization", basic(credentials.username, credentials.password)))
        try:
            async with asyncio.timeout(_HEAD_SECONDS_MAX), AsyncExitStack() as stack:
                response = stack.enter_context(await self._client(address.origin).send(method, target, headers, body))
                data = await response.read(_ERROR_BYTES_MAX)
        except (HttpError, TimeoutError) as error:
            raise UnavailableError(f"{address.origin.address}: {_why(error)}") from error
        if response.status != _OK:
            raise ImageError(f"failed to fetch a token: {manifests.error_text(response.status, data)}")
        document = manifests.parse_document(data)
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token.isprintable():
            raise ImageError("the registry's token service returned no token")
        expires = document.get("expires_in")
        return token, float(expires) if isinstance(expires, int | float) and expires > 0 else _TOKEN_SECONDS


def _why(error: BaseException) -> str:
    return "timed out" if isinstance(error, TimeoutError) else str(error)


def environment_proxy(origin: Origin) -> str:
    """Return the proxy for a server by the environment variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
    # Slow to import, and needed only when something is pulled.
    from urllib.request import getproxies, proxy_bypass

    if proxy_bypass(origin.host):
        return ""
    return getproxies().get(origin.scheme, "")
