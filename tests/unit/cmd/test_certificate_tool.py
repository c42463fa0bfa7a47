"""Serving certificates that a node on the machine with the cluster's keys signs for itself."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.pki import ensure_pki
from dray.cmd.certificate_tool import new_local_serving
from dray.runtime.system import SystemClock


@pytest.mark.behaviour("CS-10", "CS-12")
async def test_a_local_node_renews_its_serving_certificate_without_a_request(tmp_path: Path) -> None:
    now = SystemClock().now()
    pki = ensure_pki(tmp_path, hostname="", now=now)
    key, certificate = await new_local_serving(str(tmp_path), "n1", ("n1", "127.0.0.1"))
    issued = x509.load_pem_x509_certificate(certificate)
    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(pki.kubelet_serving.certificate))
    assert certificates.is_pair(certificates.KeyPair(certificate, key))
    assert certificates.server_names(certificate) == {"n1", "127.0.0.1"}
    assert certificates.identity_of(issued) == certificates.node_identity("n1")
    assert issued.not_valid_after_utc < now + timedelta(days=7, minutes=5)
