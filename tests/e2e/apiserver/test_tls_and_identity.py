"""Authentication: mutual TLS, tokens, anonymous requests, and file modes."""

from __future__ import annotations

import http.client
import ssl
import stat
import threading
from pathlib import Path

import pytest

from tests.e2e.apiserver.calls import Caller, caller, calling, read_kubeconfig, tls_context
from tests.servers import Server, running_server

OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version", "/readyz?verbose")
CLOSED_PATHS = (
    "/",
    "/livez/ping",
    "/api",
    "/apis",
    "/api/v1",
    "/api/v1/namespaces",
    "/api/v1/namespaces/default/secrets",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/.well-known/openid-configuration",
    "/openid/v1/jwks",
    "/logs",
    "/debug/pprof",
)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, bytes]:
    """Authority, certificate and key of another cluster's administrator."""
    with running_server(tmp_path_factory.mktemp("stranger")) as other:
        _, authority, certificate, key = read_kubeconfig(other.kubeconfig)
    return authority, certificate, key


def test_server_certificate_is_verified_by_the_kubeconfig(server: Server, admin: Caller) -> None:
    assert admin.tls.verify_mode is ssl.CERT_REQUIRED
    assert admin.tls.check_hostname
    assert admin.get("/version").status == 200
    by_name = Caller(server.url.replace("127.0.0.1", "localhost"), admin.tls)
    assert by_name.get("/version").status == 200
    by_name.close()


def test_wrong_authority_is_refused(server: Server, stranger: tuple[bytes, bytes, bytes]) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Caller(server.url, tls_context(stranger[0])).get("/version")


def test_certificate_of_another_authority_is_refused(server: Server, stranger: tuple[bytes, bytes, bytes]) -> None:
    _, authority, _, _ = read_kubeconfig(server.kubeconfig)
    found = Caller(server.url, tls_context(authority, stranger[1], stranger[2]))
    # In TLS 1.3 the client learns of it when it reads.
    with pytest.raises((ssl.SSLError, ConnectionError)):
        found.get("/version")
    found.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_versions(server: Server, version: ssl.TLSVersion) -> None:
    found = caller(server)
    found.tls.minimum_version = found.tls.maximum_version = version
    assert found.get("/api/v1/namespaces/default").status == 200
    found.close()


def test_plain_http_is_not_served(server: Server) -> None:
    port = int(server.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/healthz")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.getresponse()
    connection.close()


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_anonymous_requests_may_read_health_and_version(anonymous: Caller, path: str) -> None:
    assert anonymous.get(path).status == 200


@pytest.mark.parametrize("path", CLOSED_PATHS)
def test_anonymous_requests_may_read_nothing_else(anonymous: Caller, path: str) -> None:
    answer = anonymous.get(path)
    assert answer.status == 403, answer.body
    assert 'User "system:anonymous" cannot' in answer.message


def test_anonymous_requests_may_not_write(anonymous: Caller) -> None:
    answer = anonymous.call("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}})
    assert answer.status == 403
    assert (
        answer.message
        == 'namespaces is forbidden: User "system:anonymous" cannot create resource "namespaces" in API group "" at the cluster scope'  # noqa: E501
    )


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer a.b.c", "bearer  wrong", "Bearer eyJhbGciOiJub25lIn0.e30."])
def test_bad_token(anonymous: Caller, header: str) -> None:
    # An invalid token is refused, even where anonymous requests are allowed.
    for path in ("/api/v1/namespaces", "/version"):
        answer = anonymous.get(path, Authorization=header)
        assert answer.status == 401, answer.body
        assert answer.json()["reason"] == "Unauthorized"


def test_other_authentication_schemes_are_anonymous(anonymous: Caller) -> None:
    assert anonymous.get("/api/v1/namespaces", Authorization="Basic YTpi").status == 403


def test_no_anonymous_requests_when_switched_off(tmp_path: Path) -> None:
    with running_server(tmp_path, "--anonymous-auth=false") as server, calling(server, "anonymous") as anonymous:
        assert anonymous.get("/version").status == 401
        assert anonymous.get("/version", Authorization="Bearer admin-token").status == 200


def test_token_of_a_user_without_rights(alice: Caller) -> None:
    answer = alice.get("/api/v1/namespaces/default/secrets")
    assert answer.status == 403
    assert 'User "alice" cannot list resource "secrets" in API group "" in the namespace "default"' in answer.message
    # Signed-in users may look around.
    assert alice.get("/apis").status == 200


def test_modes_of_the_data_directory(server: Server, tmp_path: Path) -> None:
    # `tmp_path` exists already; the server makes what is below.
    with running_server(tmp_path / "fresh") as other:
        other.stop()
    for root in (server.data_dir, tmp_path / "fresh"):
        secret = [path for path in root.rglob("*") if path.suffix in (".key", ".db", ".db-wal")]
        secret.append(root / "kubeconfig")
        assert len(secret) >= 6
        for path in secret:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE((root / "pki").stat().st_mode) == 0o700


def test_many_handshakes_at_once(server: Server) -> None:
    statuses: list[int] = []

    def ask() -> None:
        with calling(server) as found:
            statuses.append(found.get("/api/v1/namespaces/default").status)

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 40
