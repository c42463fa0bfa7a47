"""Debian's registry on loopback, and images pushed to it from folders."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from tests.conformance.store.conftest import reserved_ports

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
START_SECONDS_MAX = 120.0
CONFIG = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: 127.0.0.1:{port}}}
"""

needs_docker_registry = pytest.mark.skipif(not shutil.which("docker-registry"), reason="needs docker-registry")


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def request(method: str, url: str, body: bytes = b"", media_type: str = "application/octet-stream") -> Any:
    headers = {"Content-Type": media_type}
    return urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=10)


@contextmanager
def docker_registry(folder: Path) -> Iterator[str]:
    """Run the registry for the time of the block, and return its address."""
    (port,) = reserved_ports(1)
    (folder / "config.yml").write_text(CONFIG.format(folder=folder / "data", port=port))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                request("GET", f"http://127.0.0.1:{port}/v2/").close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline, (folder / "log").read_text()
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def push_blob(registry: str, name: str, data: bytes, media_type: str) -> Document:
    with request("POST", f"http://{registry}/v2/{name}/blobs/uploads/") as answer:
        location = answer.headers["Location"]
    mark = "&" if "?" in location else "?"
    request("PUT", f"{location}{mark}digest={digest_of(data)}", data).close()
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def push(registry: str, name: str, tag: str, root: Path, config: Document) -> str:
    """Push a folder as an image of one layer; return the manifest's digest."""
    archive = root.parent / f"{root.name}.tar"
    with tarfile.open(archive, "w") as file:
        file.add(root, ".")
    plain = archive.read_bytes()
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": push_blob(registry, name, json.dumps(document).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [push_blob(registry, name, gzip.compress(plain, 1), OCI_LAYER)],
    }
    data = json.dumps(manifest).encode()
    request("PUT", f"http://{registry}/v2/{name}/manifests/{tag}", data, OCI_MANIFEST).close()
    return digest_of(data)
