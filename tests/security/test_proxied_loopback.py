"""Attacks that make the API server connect to itself: loopback and such as the address of a Pod, Service or Node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from dray.api.document import Document
from dray.lib.ip_addresses import is_special, parse_address
from dray.runtime.http.client import HttpClient
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import AddressNotAllowedError, HttpError
from dray.runtime.http.urls import Origin
from tests.e2e.apiserver.calls import Caller, calling
from tests.servers import running_server

PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    folder = tmp_path_factory.mktemp("server")
    flags = ("--store=memory", "--disable-admission-plugins=ServiceAccount")
    with running_server(folder, *flags, command="apiserver") as server, calling(server) as found:
        yield found


@pytest.fixture
def victim() -> Iterator[socket.socket]:
    """A server that listens on every address of this machine, for its own programs only."""
    with socket.create_server(("", 0)) as listening:
        listening.setblocking(False)
        yield listening


def assert_refused(admin: Caller, path: str, victim: socket.socket) -> None:
    answer = admin.get(path)
    assert (answer.status, answer.message) == (400, "address not allowed"), answer.body
    with pytest.raises(BlockingIOError):
        victim.accept()


def create(admin: Caller, path: str, body: Document) -> Any:
    answer = admin.call("POST", path, body)
    assert answer.status == 201, answer.body
    return answer.json()


@pytest.mark.behaviour("EX-45")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.169.254"])
def test_a_pods_status_does_not_lead_to_the_api_servers_machine(
    admin: Caller, victim: socket.socket, address: str
) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    pod = create(admin, PODS, {"metadata": {"generateName": "p-"}, "spec": spec})["metadata"]["name"]
    status = {"podIP": address, "podIPs": [{"ip": address}]}
    assert admin.call("PATCH", f"{PODS}/{pod}/status", {"status": status}, content_type=MERGE).status == 200
    assert_refused(admin, f"{PODS}/{pod}:{victim.getsockname()[1]}/proxy/", victim)


@pytest.mark.behaviour("EX-45")
def test_a_name_in_an_endpoint_slice_does_not_lead_to_the_api_servers_machine(
    admin: Caller, victim: socket.socket
) -> None:
    port = victim.getsockname()[1]
    create(admin, SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    endpoint_slice = {
        "metadata": {"name": "s-1", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "FQDN",
        "endpoints": [{"addresses": ["localhost"]}],
        "ports": [{"name": "", "port": port}],
    }
    create(admin, SLICES, endpoint_slice)
    assert_refused(admin, f"{SERVICES}/s:80/proxy/", victim)


@pytest.mark.behaviour("EX-45")
@pytest.mark.parametrize("address", ["", "127.0.0.1", "::ffff:7f00:1"])
def test_a_node_does_not_lead_to_other_ports_of_the_api_servers_machine(
    admin: Caller, victim: socket.socket, address: str
) -> None:
    """Without an address, its name is resolved."""
    status = {"addresses": [{"type": "InternalIP", "address": address}]} if address else {}
    create(admin, "/api/v1/nodes", {"metadata": {"name": "localhost"}, "status": status})
    try:
        assert_refused(admin, f"/api/v1/nodes/localhost:{victim.getsockname()[1]}/proxy/", victim)
    finally:
        admin.call("DELETE", "/api/v1/nodes/localhost")


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_an_endpoint_slice_cannot_have_a_loopback_address(admin: Caller, address: str) -> None:
    endpoint_slice = {
        "metadata": {"name": "mapped"},
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address]}],
    }
    answer = admin.call("POST", SLICES, endpoint_slice)
    assert answer.status == 422
    assert "may not be in the loopback range" in answer.message


class Resolver:
    """Answers each question for a name with the next of its answers."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self.answers = list(answers)
        self.questions = 0

    async def __call__(self, _host: str, port: int, **_: Any) -> list[Any]:
        self.questions += 1
        answer = self.answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]


async def test_a_name_is_resolved_once_so_that_its_second_answer_is_never_used(
    victim: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first address belongs to nobody (RFC 5737); whether it can be reached does not matter.
    resolver = Resolver(("192.0.2.255",), ("127.0.0.1",), ("127.0.0.1",))
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver)
    route = Route(Origin("http", "rebinding.example", victim.getsockname()[1]), refuses_special=True)
    with suppress(HttpError):
        await HttpClient(route, keep=False).send("POST", "/", timeout_seconds=0.2)
    assert resolver.questions == 1
    with pytest.raises(BlockingIOError):
        victim.accept()


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("203.0.113.7", "127.0.0.1"), ("0.0.0.0",)])
async def test_a_name_with_any_forbidden_address_is_refused(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", Resolver(addresses))
    route = Route(Origin("http", "mixed.example", 80), refuses_special=True)
    with pytest.raises(AddressNotAllowedError):
        await HttpClient(route, keep=False).send("GET", "/", timeout_seconds=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:0:0", True),
        ("0.0.0.0", True),
        ("::", True),
        ("169.254.169.254", True),
        ("fe80::1", True),
        ("224.0.0.1", True),
        ("255.255.255.255", True),
        # Loopback and the metadata service behind translators and tunnels.
        ("::127.0.0.1", True),
        ("::ffff:0:127.0.0.1", True),
        ("64:ff9b::127.0.0.1", True),
        ("64:ff9b::a9fe:a9fe", True),
        ("2002:7f00:1::", True),
        ("64:ff9b::192.0.2.1", False),
        ("2002:c000:201::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("2001:db8::1", False),
    ],
)
def test_special_addresses(text: str, expected: bool) -> None:
    address = parse_address(text)
    assert address is not None
    assert is_special(address) is expected


@pytest.mark.parametrize("text", ["127.1", "0x7f.0.0.1", "2130706433", "::1%lo", "fe80::1%\n1.2.3.4 kubernetes", ""])
def test_texts_that_are_no_addresses(text: str) -> None:
    """The resolver knows more forms; what it makes of them is checked."""
    assert parse_address(text) is None


ALIASES = [
    {"ip": "fe80::1%x\n192.0.2.6 kubernetes", "hostnames": ["a"]},
    {"ip": "192.0.2.7", "hostnames": ["a\n192.0.2.6 kubernetes"]},
    {"ip": "192.0.2.7", "hostnames": ["a\n"]},
    {"ip": "192.0.2.7", "hostnames": ["a b"]},
]


@pytest.mark.parametrize("alias", ALIASES)
def test_a_host_alias_adds_no_lines_to_the_hosts_file(admin: Caller, alias: Document) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}], "hostAliases": [alias]}
    answer = admin.call("POST", PODS, {"metadata": {"generateName": "p-"}, "spec": spec})
    assert answer.status == 422
    assert "spec.hostAliases[0]" in answer.message
