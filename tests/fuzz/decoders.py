"""Targets without an API server: frames of streams, answers of webhooks, messages of resolvers, requests and files."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import ExtensionOID, NameOID
from hypothesis import strategies as st

from dray.api.document import UID, NamespacedName
from dray.api.errors import APIError
from dray.api.strict import DecodeError
from dray.apiserver.admission import webhook_review
from dray.apiserver.custom import conversion_review
from dray.apiserver.patch import json_patch
from dray.client import kubeconfig
from dray.cmd.cluster_authority import ClusterAuthority
from dray.node.devices import checkpoint as device_checkpoint
from dray.node.dns import messages as dns
from dray.node.dra import checkpoint as claim_checkpoint
from dray.node.dra.claims import ClaimInfo, Device
from dray.node.runtimes.image_references import parse_reference, read_keyring
from dray.node.runtimes.runtime import RuntimeFailure
from dray.node.runtimes.streams import ForwardedPort
from dray.node.streams.port_forward import ChannelPortForward, SpdyPortForward
from dray.node.topology import state_file
from dray.rpc.remote_command.messages import StreamOptions, StreamProtocolError
from dray.rpc.remote_command.spdy_session import SpdySession
from dray.rpc.remote_command.websocket_session import CHANNEL_PROTOCOLS, ChannelSession
from dray.runtime.http.spdy import SpdyConnection, data_frame, ping_frame, reset_frame
from dray.runtime.http.websocket import Opcode, encode
from dray.sim.recording import read_recording
from dray.sim.snapshot import SnapshotError
from tests.fuzz import inputs
from tests.fuzz.target import FuzzedServer, Sent, Target

_UID, _NAME = "6f1c", "default/a"
_COMMAND = StreamOptions(stdin=True, stdout=True, tty=True)


def _target(strategy: st.SearchStrategy[bytes], run: Callable[[bytes], Awaitable[None] | None]) -> Target:
    async def call(_server: FuzzedServer, sent: Sent) -> None:
        waiting = run(sent.body)
        if waiting is not None:
            await waiting

    return Target(strategy.map(lambda body: Sent("", "", body, "")), call)


# --- Frames of streams. ---


class Replayed:
    """A client that sends some bytes and leaves; implements `Duplex`."""

    def __init__(self, data: bytes) -> None:
        step = max(1, len(data) // 5)
        self._pieces = [data[start : start + step] for start in range(0, len(data), step)][::-1]

    async def read(self) -> bytes:
        return self._pieces.pop() if self._pieces else b""

    async def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """Nothing is held."""


async def _no_port(_port: int) -> ForwardedPort:
    raise RuntimeFailure("nothing listens")


async def _websocket(data: bytes) -> None:
    for protocol in CHANNEL_PROTOCOLS:
        session = ChannelSession(Replayed(data), protocol, _COMMAND)
        while await session.receive() is not None:
            pass
    await ChannelPortForward(Replayed(data), [80], _no_port, "a Pod").run()


async def _spdy(data: bytes) -> None:
    session = SpdySession(Replayed(data), "v4.channel.k8s.io", _COMMAND)
    try:
        await session.start()
        while await session.receive() is not None:
            pass
    except (ConnectionError, StreamProtocolError):
        pass
    await SpdyPortForward(Replayed(data), _no_port, "a Pod").run()


_SIZES = st.sampled_from(
    (b'{"Width":80,"Height":24}', b"[" * 3000, b"9" * 5000, b'{"Width":1e999,"Height":true}', b'{"', b"\xff\xfe")
)
_DATA = st.one_of(st.binary(max_size=60), _SIZES)
_CHANNELS = st.sampled_from((b"\0", b"\1", b"\4", b"\xff", b"0", b"4", b""))
_FRAMES = st.lists(st.tuples(st.sampled_from(tuple(Opcode)), _CHANNELS, _DATA), max_size=6)


def _websocket_frames(frames: Iterable[tuple[Opcode, bytes, bytes]]) -> bytes:
    return b"".join(encode(opcode, channel + data, b"mask") for opcode, channel, data in frames)


_TYPES = st.sampled_from(("stdin", "stdout", "stderr", "error", "resize", "data", "x"))
_OPENED = st.lists(
    st.fixed_dictionaries(
        {"streamtype": _TYPES},
        optional={"port": st.sampled_from(("80", "0", "9" * 5000, "-1")), "requestid": st.sampled_from(("0", "1", ""))},
    ),
    max_size=8,
)


def _spdy_frames(parts: tuple[list[dict[str, str]], list[tuple[int, bytes]]]) -> bytes:
    opened, data = parts
    connection = SpdyConnection(is_client=True)
    frames = [connection.open_stream({"streamtype": "error"})[1], *(connection.open_stream(item)[1] for item in opened)]
    frames += [data_frame(number, piece[:100_000], fin=number % 2 == 0) for number, piece in data]
    return b"".join((*frames, ping_frame(1), reset_frame(3)))


# --- Answers of webhooks. ---


def _webhook_answer(body: bytes) -> None:
    for version in ("v1", "v1beta1"):
        for mutating in (True, False):
            try:
                answer = webhook_review.parse_answer(body, _UID, version, mutating=mutating)
            except webhook_review.InvalidAnswerError:
                continue
            denied = webhook_review.denial("hook.example.com", answer.status)
            assert 400 <= denied.code <= 599
            orjson.dumps(denied.message)
            if answer.patch is not None:
                try:
                    json_patch.apply({"metadata": {"name": "a"}, "spec": {"x": [1]}}, json_patch.decode(answer.patch))
                except (APIError, DecodeError):
                    continue


def _conversion_answer(body: bytes) -> None:
    old = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "default"}}
    for version in ("v1", "v1beta1"):
        try:
            conversion_review.parse_review(body, _UID, "example.com/v2", [old], version)
        except conversion_review.InvalidReviewError:
            continue


_PATCHES = st.one_of(inputs.values, st.lists(inputs.values, max_size=2).map(lambda operations: operations * 20))
_STATUS = st.one_of(
    inputs.values,
    st.fixed_dictionaries(
        {},
        optional={"code": inputs.scalars, "message": inputs.texts, "reason": inputs.texts, "details": inputs.values},
    ),
)
_RESPONSES = st.fixed_dictionaries(
    {"uid": st.just(_UID)},
    optional={
        "allowed": inputs.scalars,
        "patch": st.one_of(
            inputs.scalars, _PATCHES.map(lambda patch: base64.b64encode(inputs.as_json(patch)).decode("latin-1"))
        ),
        "patchType": st.sampled_from(("JSONPatch", "x", None, 1)),
        "status": _STATUS,
        "warnings": inputs.values,
        "auditAnnotations": inputs.values,
    },
)
_REVIEWS = st.tuples(st.sampled_from(("v1", "v1beta1")), _RESPONSES).map(
    lambda pair: inputs.as_json(
        {"apiVersion": f"admission.k8s.io/{pair[0]}", "kind": "AdmissionReview", "response": pair[1]}
    )
)
_CONVERTED = st.fixed_dictionaries(
    {"apiVersion": st.just("example.com/v2"), "kind": st.just("Thing")},
    optional={
        "metadata": st.one_of(
            inputs.values,
            st.fixed_dictionaries(
                {"name": st.just("a"), "namespace": st.just("default")},
                optional={"labels": inputs.values, "annotations": inputs.values, "uid": inputs.scalars},
            ),
        ),
        "spec": inputs.values,
    },
)
_CONVERSIONS = st.fixed_dictionaries(
    {"uid": st.just(_UID), "result": st.one_of(st.just({"status": "Success"}), inputs.values)},
    optional={"convertedObjects": st.one_of(inputs.values, st.lists(_CONVERTED, max_size=2))},
).map(
    lambda response: inputs.as_json(
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}
    )
)


# --- Certificate requests, in DER. ---


def _certificate_request(der: bytes) -> None:
    text = base64.encodebytes(der)
    pem = b"-----BEGIN CERTIFICATE REQUEST-----\n" + text + b"-----END CERTIFICATE REQUEST-----\n"
    try:
        ClusterAuthority({}).subject(pem)
    except ValueError:
        return


def _request(parts: tuple[Sequence[tuple[x509.ObjectIdentifier, str]], bytes]) -> bytes:
    subject, sans = parts
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
    extension = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, sans)
    builder = x509.CertificateSigningRequestBuilder().subject_name(name).add_extension(extension, critical=False)
    signed = builder.sign(ed25519.Ed25519PrivateKey.from_private_bytes(b"k" * 32), None)
    return signed.public_bytes(serialization.Encoding.DER)


_OIDS = st.sampled_from((NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.EMAIL_ADDRESS))
_GENERAL_NAMES = st.lists(st.tuples(st.integers(0x80, 0x88), st.binary(max_size=16)), max_size=6).map(
    lambda names: _sequence(b"".join(bytes((tag, len(value))) + value for tag, value in names))
)
_REQUESTS = st.tuples(
    st.lists(st.tuples(_OIDS, st.sampled_from(("system:nodes", "system:node:a", "a\0b", "\u00e4"))), max_size=4),
    st.one_of(_GENERAL_NAMES, st.binary(max_size=20)),
).map(_request)


def _sequence(content: bytes) -> bytes:
    return bytes((0x30, len(content))) + content


# --- Messages of resolvers. ---


def _dns(data: bytes) -> None:
    for read in (dns.parse_query, lambda message: dns.parse_addresses(message, "a")):
        try:
            found = read(data)
            if isinstance(found, dns.Query):
                dns.encode_response(found, dns.Response(), 512)
        except dns.MessageError:
            dns.error_response(data, dns.SERVER_FAILURE)
    dns.response_code(data)
    dns.is_truncated(data)


_LABELS = st.lists(
    st.one_of(st.binary(max_size=70).map(lambda label: bytes((len(label) & 0xFF,)) + label), st.just(b"\xc0\x0c")),
    max_size=5,
)
_RECORD = st.tuples(_LABELS, st.sampled_from((1, 28, 5, 41, 6)), st.integers(0, 2**32 - 1), st.binary(max_size=20)).map(
    lambda parts: b"".join(parts[0]) + b"\0" + struct.pack("!2HIH", parts[1], 1, parts[2], len(parts[3])) + parts[3]
)
_DNS = st.tuples(
    st.sampled_from((0, 0x0100, 0x8180)),
    st.integers(0, 3),
    st.integers(0, 65535),
    _LABELS,
    st.lists(_RECORD, max_size=4),
).map(
    lambda parts: (
        struct.pack("!6H", 7, parts[0], parts[1], parts[2], 0, 1)
        + b"".join(parts[3])
        + b"\0"
        + struct.pack("!2H", 1, 1)
        + b"".join(parts[4])
    )
)


# --- Files. ---


def _checkpoint(data: bytes) -> None:
    """Decode the file, and what the file would be if its checksum were right."""
    quoted = orjson.dumps({"Data": data.decode("utf-8", "replace"), "Checksum": 0})
    checksum = zlib.crc32(orjson.loads(quoted)["Data"].encode())
    claims = orjson.dumps({**orjson.loads(quoted), "Checksum": checksum})
    _expect(claim_checkpoint.CheckpointError, claim_checkpoint.decode, data, claims)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = None
    ordered = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    devices = orjson.dumps({"Data": value, "Checksum": zlib.crc32(ordered)})
    _expect(device_checkpoint.CheckpointError, device_checkpoint.decode, data, devices)
    state = orjson.dumps({**value, "checksum": zlib.crc32(ordered)}) if isinstance(value, dict) else b"{}"
    _expect(state_file.StateError, lambda content: state_file.decode(content, "static", "cpu", "f"), data, state)


def _expect(error: type[Exception], decode: Callable[[bytes], Any], *contents: bytes) -> None:
    for content in contents:
        try:
            decode(content)
        except error:
            continue


def _encoded_claims() -> bytes:
    device = Device("pool", "gpu-0", None, ("r",), ("vendor.com/gpu=0",))
    info = ClaimInfo(UID("u"), NamespacedName("default", "a"), {"gpu.example.com": (device,)}, frozenset({UID("p")}))
    return orjson.loads(claim_checkpoint.encode([info]))["Data"].encode()  # type: ignore[no-any-return]


_DEVICES = (
    b'{"PodDeviceEntries":[{"PodUID":"p","ContainerName":"c","ResourceName":"example.com/a","DeviceIDs":{"-1":["x"]},'
    b'"AllocResp":"YQ=="}],"RegisteredDevices":{"example.com/a":["x","y"]}}'
)
_STATES = (
    b'{"policyName":"static","defaultCpuSet":"0-3","entries":{"p":{"c":"1"}}}',
    b'{"policyName":"Static","machineState":{"0":{"memoryMap":{"memory":{"total":1}}}},"entries":{}}',
)


def _kubeconfig(data: bytes) -> None:
    try:
        found = kubeconfig.parse(data.decode("utf-8", "replace"), "/home/alice/.kube/config")
        kubeconfig.resolve(kubeconfig.merge([found, found]))
    except kubeconfig.KubeconfigError:
        return


_ENTRIES = st.one_of(
    inputs.values,
    st.lists(
        st.fixed_dictionaries(
            {"name": st.just("a")},
            optional={
                "cluster": st.one_of(
                    inputs.values,
                    st.fixed_dictionaries(
                        {"server": st.one_of(inputs.scalars, st.just("https://127.0.0.1:6443"))},
                        optional={"certificate-authority-data": inputs.scalars, "proxy-url": inputs.scalars},
                    ),
                ),
                "user": st.fixed_dictionaries(
                    {},
                    optional={
                        "exec": st.one_of(
                            inputs.values,
                            st.fixed_dictionaries(
                                {"command": st.just("x"), "apiVersion": st.just("client.authentication.k8s.io/v1")},
                                optional={
                                    "args": inputs.values,
                                    "env": inputs.values,
                                    "interactiveMode": inputs.scalars,
                                },
                            ),
                        ),
                        "client-key-data": inputs.scalars,
                        "token": inputs.scalars,
                    },
                ),
                "context": st.one_of(inputs.values, st.just({"cluster": "a", "user": "a"})),
            },
        ),
        max_size=3,
    ),
)
_KUBECONFIGS = st.fixed_dictionaries(
    {"current-context": st.one_of(st.just("a"), inputs.scalars)},
    optional={"clusters": _ENTRIES, "users": _ENTRIES, "contexts": _ENTRIES},
)


def _docker_config(data: bytes) -> None:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    keyring = read_keyring([document] if isinstance(document, dict) else [])
    for image in ("busybox", "registry.example.com:5000/team/app@sha256:" + "a" * 64):
        for found in keyring.lookup(parse_reference(image)):
            found.fingerprint("registry.example.com")


_DOCKER_ENTRIES = st.dictionaries(
    st.one_of(st.sampled_from(("https://index.docker.io/v1/", "*.example.com:5000", "[", "a/" * 50)), inputs.texts),
    st.one_of(
        inputs.values,
        st.fixed_dictionaries(
            {}, optional={"auth": inputs.texts, "username": inputs.scalars, "password": inputs.scalars}
        ),
        st.sampled_from(("YTpi", "w6Q6", "/w==")).map(lambda text: {"auth": text}),
    ),
    max_size=3,
)


def _recording(data: bytes) -> None:
    try:
        found = read_recording(data.decode("utf-8", "replace").splitlines(keepends=True))
        found.snapshot()
        found.documents_at(found.seconds)
    except SnapshotError:
        return


_CHANGES = st.lists(
    st.fixed_dictionaries(
        {
            "seconds": st.one_of(st.floats(0, 100), inputs.scalars),
            "type": st.sampled_from(("INITIAL", "ADDED", "MODIFIED", "DELETED", "x")),
            "object": st.one_of(
                inputs.values,
                st.fixed_dictionaries(
                    {
                        "apiVersion": st.sampled_from(("v1", "resource.k8s.io/v1", "resource.k8s.io/v1beta1", "x/y/z")),
                        "kind": st.sampled_from(("Pod", "Node", "ResourceSlice", "ResourceClaim")),
                        "metadata": st.one_of(inputs.values, st.just({"name": "a", "namespace": "default"})),
                    },
                    optional={"spec": inputs.values, "status": inputs.values},
                ),
            ),
        }
    ),
    max_size=4,
)
_RECORDINGS = st.tuples(st.one_of(st.just("2026-01-01T00:00:00.000000Z"), inputs.scalars), _CHANGES).map(
    lambda pair: (
        b"\n".join(
            inputs.as_json(line)
            for line in ({"apiVersion": "dray.dev/v1", "kind": "Recording", "start": pair[0]}, *pair[1])
        )
        + b"\n"
    )
)


def _as_json(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return strategy.map(inputs.as_json)


DECODERS: dict[str, Target] = {
    "websocket": _target(_FRAMES.map(_websocket_frames), _websocket),
    "spdy": _target(
        st.tuples(_OPENED, st.lists(st.tuples(st.integers(0, 9), _DATA), max_size=6)).map(_spdy_frames), _spdy
    ),
    "webhook-answer": _target(_REVIEWS, _webhook_answer),
    "conversion-answer": _target(_CONVERSIONS, _conversion_answer),
    "certificate-request": _target(_REQUESTS, _certificate_request),
    "dns": _target(_DNS, _dns),
    "checkpoint": _target(
        st.one_of(st.sampled_from((_encoded_claims(), _DEVICES, *_STATES)), _as_json(inputs.values)), _checkpoint
    ),
    "kubeconfig": _target(_KUBECONFIGS.map(inputs.as_yaml), _kubeconfig),
    "docker-config": _target(
        _as_json(st.one_of(_DOCKER_ENTRIES, st.fixed_dictionaries({"auths": _DOCKER_ENTRIES}))), _docker_config
    ),
    "recording": _target(_RECORDINGS, _recording),
}
