"""The names of Services, and the messages that carry them."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest

from dray.node.dns.messages import (
    AAAA,
    CNAME,
    NAME_ERROR,
    NO_ERROR,
    PTR,
    SERVER_FAILURE,
    SRV,
    TXT,
    A,
    MessageError,
    Query,
    Record,
    Response,
    encode_name,
    encode_query,
    encode_response,
    error_response,
    is_truncated,
    parse_addresses,
    parse_query,
    response_code,
    with_id,
)
from dray.node.dns.server import DnsServer
from dray.node.dns.zone import Zone
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks

SERVICES: list[dict[str, Any]] = [
    {
        "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"name": "http", "port": 80}]},
    },
    {"metadata": {"name": "db", "namespace": "ns"}, "spec": {"clusterIP": "None", "clusterIPs": ["None"]}},
    {"metadata": {"name": "idle", "namespace": "ns"}, "spec": {"clusterIP": "None"}},
    {"metadata": {"name": "out", "namespace": "ns"}, "spec": {"type": "ExternalName", "externalName": "example.com"}},
]
SLICES: list[dict[str, Any]] = [
    {
        "metadata": {"name": "db-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4",
        "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": ["10.244.0.2"], "hostname": "db-0"},
            {"addresses": ["10.244.0.3"], "conditions": {"ready": True}},
            {"addresses": ["10.244.0.4"], "conditions": {"ready": False}},
        ],
    }
]


def of(namespace: str, name: str) -> list[dict[str, Any]]:
    return [
        item
        for item in SLICES
        if (item["metadata"]["namespace"], item["metadata"]["labels"]["kubernetes.io/service-name"])
        == (namespace, name)
    ]


ZONE = Zone(
    service=lambda namespace, name: next(
        (item for item in SERVICES if item["metadata"] == {"name": name, "namespace": namespace}), None
    ),
    slices=of,
    services=lambda: SERVICES,
    all_slices=lambda: SLICES,
    random=random.Random(1),
)


def values(name: str, kind: int) -> list[str] | int:
    found = ZONE.lookup(f"{name}.cluster.local", kind)
    return sorted(record.value for record in found.answers) or found.code


@pytest.mark.behaviour("SV-31")
@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("web.ns.svc", A, ["10.96.0.7"]),
        ("WEB.ns.SVC", A, ["10.96.0.7"]),
        ("web.ns.svc", AAAA, 0),
        ("web.ns.svc", TXT, 0),
        ("none.ns.svc", A, NAME_ERROR),
        ("web.other.svc", A, NAME_ERROR),
        ("ns.svc", A, 0),
        ("other.svc", A, NAME_ERROR),
        ("svc", A, 0),
        ("db.ns.svc", A, ["10.244.0.2", "10.244.0.3"]),
        ("idle.ns.svc", A, NAME_ERROR),
        ("db-0.db.ns.svc", A, ["10.244.0.2"]),
        ("10-244-0-3.db.ns.svc", A, ["10.244.0.3"]),
        ("db-9.db.ns.svc", A, NAME_ERROR),
        ("_http._tcp.web.ns.svc", SRV, ["0 100 80 web.ns.svc.cluster.local"]),
        ("_http._tcp.web.ns.svc", A, 0),
        ("_http._udp.web.ns.svc", SRV, NAME_ERROR),
        (
            "_sql._tcp.db.ns.svc",
            SRV,
            ["0 50 5432 10-244-0-3.db.ns.svc.cluster.local", "0 50 5432 db-0.db.ns.svc.cluster.local"],
        ),
        ("out.ns.svc", A, ["example.com"]),
        ("10-244-0-9.ns.pod", A, ["10.244.0.9"]),
        ("nothing", A, NAME_ERROR),
    ],
)
def test_names(name: str, kind: int, expected: list[str] | int) -> None:
    assert values(name, kind) == expected


@pytest.mark.behaviour("SV-31")
def test_times_aliases_and_what_says_that_a_name_is_missing() -> None:
    (service,) = ZONE.lookup("web.ns.svc.cluster.local", A).answers
    assert (service.name, service.seconds) == ("web.ns.svc.cluster.local", 30)
    assert ZONE.lookup("db-0.db.ns.svc.cluster.local", A).answers[0].seconds == 5
    assert ZONE.lookup("out.ns.svc.cluster.local", A).answers[0].type == CNAME
    missing = ZONE.lookup("no.ns.svc.cluster.local", A)
    assert missing.authority[0].value.startswith("ns.dns.cluster.local hostmaster.cluster.local")
    extra = ZONE.lookup("_sql._tcp.db.ns.svc.cluster.local", SRV).additional
    assert {(record.name, record.value) for record in extra} == {
        ("db-0.db.ns.svc.cluster.local", "10.244.0.2"),
        ("10-244-0-3.db.ns.svc.cluster.local", "10.244.0.3"),
    }


@pytest.mark.behaviour("SV-31")
def test_names_of_addresses() -> None:
    def reverse(name: str) -> str | None:
        found = ZONE.reverse(name)
        return found.answers[0].value if found is not None else None

    assert reverse("7.0.96.10.in-addr.arpa") == "web.ns.svc.cluster.local"
    assert reverse("2.0.244.10.in-addr.arpa") == "db-0.db.ns.svc.cluster.local"
    assert reverse("9.9.9.9.in-addr.arpa") is None
    assert reverse("x.in-addr.arpa") is None
    assert reverse("example.com") is None


def test_which_names_are_the_clusters() -> None:
    assert ZONE.is_own("A.Cluster.Local")
    assert ZONE.is_own("cluster.local")
    assert not ZONE.is_own("xcluster.local")
    assert not ZONE.is_own("example.com")


# --- Messages. ---


def ask(name: str, kind: int, *, edns: int = 0) -> bytes:
    query = encode_query(7, name, kind)
    if edns:
        query = query[:10] + b"\0\1" + query[12:] + struct.pack("!BHHIH", 0, 41, edns, 0, 0)
    return query


@pytest.mark.behaviour("SV-31")
def test_a_query_is_answered_with_the_name_as_it_was_asked() -> None:
    query = parse_query(ask("Web.ns.svc.cluster.local", A))
    assert query == Query(7, "Web.ns.svc.cluster.local", A, 0x0100)
    answer = encode_response(query, ZONE.lookup(query.name, A), 512)
    number, flags, questions, answers, authority, additional = struct.unpack_from("!6H", answer)
    assert (number, questions, answers, authority, additional) == (7, 1, 1, 0, 0)
    assert flags == 0x8000 | 0x0400 | 0x0100 | 0x0080
    assert encode_name("Web.ns.svc.cluster.local") in answer
    assert parse_addresses(answer, "x") == [Record("x", A, 30, "10.96.0.7")]
    assert answer.endswith(b"\xc0\x0c\0\1\0\1\0\0\0\x1e\0\4" + bytes([10, 96, 0, 7]))


@pytest.mark.behaviour("SV-31")
def test_a_long_answer_is_cut_by_udp() -> None:
    records = tuple(Record("a.b", A, 5, f"10.0.0.{number}") for number in range(100))
    query = parse_query(ask("a.b", A))
    short = encode_response(query, Response(answers=records), query.udp_bytes)
    assert is_truncated(short)
    assert len(short) <= 512
    whole = encode_response(query, Response(answers=records), 65535)
    assert not is_truncated(whole)
    assert len(parse_addresses(whole, "a.b")) == 100
    assert parse_query(ask("a.b", A, edns=4096)).udp_bytes == 1232
    assert parse_query(ask("a.b", A, edns=100)).udp_bytes == 512


def test_records_of_every_kind_are_written() -> None:
    records = (
        Record("x.y", AAAA, 5, "fd00::1"),
        Record("x.y", CNAME, 5, "other.example"),
        Record("x.y", PTR, 5, "web.ns.svc.cluster.local"),
        Record("x.y", SRV, 5, "0 50 5432 db-0.db"),
    )
    answer = encode_response(parse_query(ask("x.y", A)), Response(answers=records), 512)
    assert parse_addresses(answer, "n") == [Record("n", AAAA, 5, "fd00::1")]
    assert encode_name("other.example") in answer
    assert struct.pack("!3H", 0, 50, 5432) + encode_name("db-0.db") in answer
    assert with_id(answer, 9)[:2] == b"\0\x09"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 11,
        ask("a.b", A)[:-1],
        ask("a.b", A)[:14],
        struct.pack("!6H", 7, 0x8000, 1, 0, 0, 0) + b"\0\0\1\0\1",
        struct.pack("!6H", 7, 0, 2, 0, 0, 0) + b"\0\0\1\0\1",
        struct.pack("!6H", 7, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1",
        struct.pack("!6H", 7, 0, 1, 0, 0, 0) + b"\x3f" * 300,
    ],
)
def test_bytes_that_are_no_query(data: bytes) -> None:
    with pytest.raises(MessageError):
        parse_query(data)


def test_the_answer_to_a_bad_query() -> None:
    assert error_response(b"abc", 1) is None
    assert error_response(struct.pack("!6H", 7, 0x8000, 0, 0, 0, 0), 1) is None
    assert error_response(struct.pack("!6H", 7, 0, 9, 0, 0, 0), 1) == struct.pack("!6H", 7, 0x8001, 0, 0, 0, 0)
    with pytest.raises(MessageError):
        encode_name("x" * 64)
    with pytest.raises(MessageError):
        encode_name(".".join(["x" * 60] * 5))


# --- Other names. ---


class Resolver(asyncio.DatagramProtocol):
    """Answers every query with one address."""

    def __init__(self) -> None:
        self.asked = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.asked += 1
        query = parse_query(data)
        answer = Response(NO_ERROR, (Record(query.name, A, 20, "192.0.2.7"),), is_authoritative=False)
        self.transport.sendto(encode_response(query, answer, 512), addr)


@pytest.mark.behaviour("SV-32")
async def test_other_names_are_asked_for_elsewhere_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, resolver = asyncio.get_running_loop(), Resolver()
    transport, _ = await loop.create_datagram_endpoint(lambda: resolver, local_addr=("127.0.0.1", 0))
    monkeypatch.setattr("dray.node.dns.server.PORT", transport.get_extra_info("sockname")[1])
    resolvers = ["127.0.0.1"]
    server = DnsServer(ZONE, lambda: resolvers, SystemClock(), ChildTasks("dns"))
    try:
        for number in (7, 8):
            answer = await server.answer(encode_query(number, "example.com", A), is_tcp=False)
            assert answer is not None
            assert answer[:2] == struct.pack("!H", number)
            assert parse_addresses(answer, "x") == [Record("x", A, 20, "192.0.2.7")]
        assert resolver.asked == 1
        # Names of the cluster are never asked for elsewhere.
        await server.answer(encode_query(9, "none.ns.svc.cluster.local", A), is_tcp=False)
        assert resolver.asked == 1
        resolvers.clear()
        failed = await server.answer(encode_query(10, "other.example", A), is_tcp=False)
        assert failed is not None
        assert response_code(failed) == SERVER_FAILURE
    finally:
        transport.close()
