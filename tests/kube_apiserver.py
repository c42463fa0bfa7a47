"""Starts a real kube-apiserver, with an etcd and keys as `dray apiserver` creates them.

`KUBE_APISERVER` in the environment names its binary, of any version; without it the tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.apiserver.authentication.pki import PKI, ensure_pki, kubelet_tls, write_kubeconfig
from dray.runtime.system import SystemClock
from tests.servers import Server
from tests.shared_etcd import running_etcd

START_SECONDS_MAX = 120.0
LOOK_SECONDS = 0.1
BINARY = os.environ.get("KUBE_APISERVER", "")

needs_kube_apiserver = pytest.mark.skipif(not BINARY, reason="KUBE_APISERVER names no binary")


@contextlib.contextmanager
def running_kube_apiserver(folder: Path, *flags: str) -> Iterator[Server]:
    """A kube-apiserver on loopback whose keys `dray node --data-dir` can use; of repeated flags the last counts."""
    now = SystemClock().now()
    pki = ensure_pki(folder, hostname="", now=now)
    kubelet_tls(pki, now)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, log, admin = f"https://127.0.0.1:{port}", folder / "kube-apiserver.log", pki.clients["admin"]
    kubeconfig = folder / "kubeconfig"
    write_kubeconfig(
        kubeconfig,
        server_url=url,
        authority=pki.authority.certificate,
        certificate=admin.certificate,
        key=admin.key,
    )
    with running_etcd(folder / "etcd") as etcd, log.open("w") as output:
        process = subprocess.Popen([*_command(pki, port, etcd), *flags], stdout=output, stderr=output, text=True)
        try:
            _wait_ready(process, pki, url, log)
            yield Server(process, url, kubeconfig, folder, log)
        finally:
            process.kill()
            process.wait()


def _command(pki: PKI, port: int, etcd: str) -> list[str]:
    keys = pki.directory
    return [
        BINARY,
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        # It has no Service on loopback.
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--tls-cert-file={keys}/apiserver.crt",
        f"--tls-private-key-file={keys}/apiserver.key",
        f"--client-ca-file={keys}/ca.crt",
        f"--kubelet-client-certificate={keys}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={keys}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={keys}/apiserver.crt",
        f"--service-account-signing-key-file={keys}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged",
        # No controller creates service accounts here.
        "--disable-admission-plugins=ServiceAccount",
    ]


def _wait_ready(process: subprocess.Popen[str], pki: PKI, url: str, log: Path) -> None:
    tls = ssl.create_default_context(cadata=pki.authority.certificate.decode())
    tls.load_cert_chain(pki.directory / "admin.crt", pki.directory / "admin.key")
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/readyz", context=tls, timeout=5).close()
            return
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"kube-apiserver did not become ready:\n{log.read_text()[-5000:]}")
