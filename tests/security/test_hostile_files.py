"""Files and streams that break naive decoders: each is refused with its own error, which its reader expects."""

from __future__ import annotations

import json

import pytest

from dray.client import kubeconfig
from dray.client.kubeconfig import KubeconfigError
from dray.node.runtimes.image_references import parse_reference, read_keyring
from dray.rpc.remote_command.messages import ResizeReader, StreamProtocolError
from dray.sim.recording import read_recording
from dray.sim.snapshot import SnapshotError

DEPTH = 100_000
KUBECONFIGS = {
    "a character that does not exist": 'current-context: "\\U1e999900"',
    "a character beyond integers": 'current-context: "\\U800FBC31"',
    "a date that does not exist": "current-context: 2026-02-30",
    "nesting": "contexts: " + "[" * 5000,
}


@pytest.mark.parametrize("kind", KUBECONFIGS)
def test_a_kubeconfig_that_yaml_cannot_read_is_refused_with_its_name(kind: str) -> None:
    with pytest.raises(KubeconfigError, match="error loading config file '/home/alice/config'"):
        kubeconfig.parse(KUBECONFIGS[kind], "/home/alice/config")


HEADER = '{"apiVersion":"dray.dev/v1","kind":"Recording","start":"2026-01-01T00:00:00Z"}\n'
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
CHANGES = {
    "no metadata": json.dumps({"seconds": 1, "type": "ADDED", "object": {**POD, "metadata": []}}),
    "no object": json.dumps({"seconds": 1, "type": "ADDED", "object": 5}),
    "a time that is no number": '{"seconds":NaN,"type":"ADDED","object":' + json.dumps(POD) + "}",
    "no end": '{"seconds":1e999,"type":"ADDED","object":' + json.dumps(POD) + "}",
    "a number that is no float": '{"seconds":1' + "0" * 400 + ',"type":"ADDED","object":' + json.dumps(POD) + "}",
    "nesting": "[" * DEPTH,
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_recording_with_a_line_that_is_no_change_is_refused_with_its_number(kind: str) -> None:
    with pytest.raises(SnapshotError, match="line 2"):
        read_recording([HEADER, CHANGES[kind] + "\n"])


@pytest.mark.parametrize("header", ["[" * DEPTH, "[]", "5", '{"apiVersion":1,"kind":1,"start":5}', '"x"'])
def test_what_is_no_recording_is_refused(header: str) -> None:
    with pytest.raises(SnapshotError):
        read_recording([header + "\n"])


@pytest.mark.parametrize("auth", ["\u00e4", "=", "////", "\ud800"])
def test_a_pull_secret_that_is_not_base64_hides_no_other_one(auth: str) -> None:
    found = read_keyring([{"auths": {"bad.example.com": {"auth": auth}, "example.com": {"auth": "YTpi"}}}])
    assert [(host, entry.username) for host, entry in found.entries] == [("example.com", "a")]


@pytest.mark.parametrize(
    "image",
    [
        "registry.example.com.evil.example/team/app",
        "evil-registry.example.com/team/app",
        "evil.example/registry.example.com/team/app",
        "registry.example.com:5000/team/app",
        "registry.example.com/teams/app",
        "registry.example.com/app",
        "registryxexample.com/team/app",
        "a.b.internal.example.com/app",
        "team/app",
    ],
)
def test_a_registry_gets_no_credentials_of_another(image: str) -> None:
    keys = ("https://registry.example.com/team", "http://registry.example.com/team/v1/", "*.internal.example.com")
    keyring = read_keyring([{"auths": {key: {"auth": "YTpi"} for key in keys}}])
    assert keyring.lookup(parse_reference(image)) == []
    assert keyring.lookup(parse_reference("registry.example.com/team/app"))


@pytest.mark.parametrize("data", [b"[" * 3000, b'{"Width":' * 1500])
def test_a_terminal_size_that_is_nested_ends_the_stream_and_not_the_agent(data: bytes) -> None:
    with pytest.raises(StreamProtocolError, match="a terminal size cannot be read"):
        list(ResizeReader().feed(data))
