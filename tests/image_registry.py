"""A registry on loopback that serves images from memory, and fails in every way that a registry can."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_of(files: Mapping[str, bytes | None]) -> bytes:
    """A tar archive; a name that ends with a slash is a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            member.mode = 0o755
            if content is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@dataclass
class Registry:
    """What the server has and does."""

    port: int = 0
    # By repository and tag or digest: media type and bytes.
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    # Credentials that are needed, as user:password; with tokens or as basic credentials.
    user: str = ""
    basic: bool = False
    # Statuses to answer with before the real answer.
    failures: list[int] = field(default_factory=list)
    # After so many bytes of a blob the connection breaks, once for each entry.
    breaks: list[int] = field(default_factory=list)
    ranges: bool = True
    # Requests whose path has this text get a part of their answer and then nothing, until the event is set.
    hangs_at: str = ""
    released: threading.Event = field(default_factory=threading.Event)
    # Blobs are served by this address instead.
    redirect: str = ""
    seen_authorizations: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add_image(
        self,
        name: str,
        *layers: bytes,
        tag: str = "latest",
        config: Mapping[str, Any] | None = None,
        compress: Any = gzip.compress,
    ) -> str:
        """Add an image of tar archives; return the manifest's digest."""
        packed = [compress(layer) for layer in layers]
        document = {
            "architecture": "amd64",
            "os": "linux",
            "config": dict(config or {}),
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
        }
        content = json.dumps(document).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": self._add_blob(content, "application/vnd.oci.image.config.v1+json"),
            "layers": [self._add_blob(layer, OCI_LAYER) for layer in packed],
        }
        return self.add_manifest(name, manifest, OCI_MANIFEST, tag)

    def add_manifest(self, name: str, document: Mapping[str, Any], media_type: str, tag: str = "") -> str:
        data = json.dumps(document).encode()
        for version in filter(None, (tag, digest_of(data))):
            self.manifests[name, version] = (media_type, data)
        return digest_of(data)

    def _add_blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        self.blobs[digest_of(data)] = data
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        registry, path = self.registry, urlsplit(self.path).path
        registry.requests.append(self.path)
        if path == "/token":
            self._token()
            return
        registry.seen_authorizations.append(self.headers.get("Authorization", ""))
        if registry.failures:
            self._answer(registry.failures.pop(0), b"{}")
        elif not self._is_authorized():
            self._challenge()
        elif "/manifests/" in path:
            name, _, version = path.removeprefix("/v2/").partition("/manifests/")
            self._manifest(name, version)
        else:
            self._blob(path.rpartition("/")[2])

    def _is_authorized(self) -> bool:
        registry, header = self.registry, self.headers.get("Authorization", "")
        if not registry.user:
            return True
        wanted = f"Basic {base64.b64encode(registry.user.encode()).decode()}" if registry.basic else "Bearer good"
        return header == wanted

    def _challenge(self) -> None:
        name = (
            urlsplit(self.path)
            .path.removeprefix("/v2/")
            .split("/manifests/", maxsplit=1)[0]
            .split("/blobs/", maxsplit=1)[0]
        )
        header = 'Basic realm="registry"'
        if not self.registry.basic:
            header = f'Bearer realm="http://{self.registry.host}/token",service="test",scope="repository:{name}:pull"'
        body = json.dumps({"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}).encode()
        self._answer(401, body, {"WWW-Authenticate": header})

    def _token(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        wanted = f"Basic {base64.b64encode(self.registry.user.encode()).decode()}"
        if self.headers.get("Authorization") != wanted or not query["scope"][0].startswith("repository:"):
            body = json.dumps({"errors": [{"code": "DENIED", "message": "wrong password"}]}).encode()
            self._answer(401, body)
            return
        self._answer(200, json.dumps({"token": "good", "expires_in": 300}).encode())

    def _manifest(self, name: str, version: str) -> None:
        found = self.registry.manifests.get((name, version))
        if found is None:
            body = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}).encode()
            self._answer(404, body)
            return
        media_type, data = found
        self._answer(200, data, {"Content-Type": media_type, "Docker-Content-Digest": digest_of(data)})

    def _blob(self, digest: str) -> None:
        registry = self.registry
        if registry.redirect:
            self._answer(307, b"", {"Location": f"{registry.redirect}{self.path}"})
            return
        data = registry.blobs[digest]
        first = 0
        status = 200
        wanted = self.headers.get("Range", "")
        if wanted and registry.ranges:
            first, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
        if registry.breaks:
            self._break(status, data[first:], registry.breaks.pop(0))
            return
        self._answer(status, data[first:])

    def _break(self, status: int, data: bytes, count: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:count])
        self.close_connection = True

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.registry.hangs_at and self.registry.hangs_at in self.path:
            self.wfile.write(body[:1])
            self.registry.released.wait()
            self.close_connection = True
            return
        self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry for the time of a block."""
    registry = Registry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
