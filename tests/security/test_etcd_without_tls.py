"""Secrets do not leave the machine in plain text: etcd without TLS is on this machine, or asked for by name."""

from __future__ import annotations

import re

import pytest

from dray.cmd.apiserver import check_plain_etcd
from dray.cmd.settings import APIServerSettings
from dray.runtime.settings import SettingsError


def settings(*servers: str, insecure: bool = False) -> APIServerSettings:
    return APIServerSettings(store="etcd", etcd_servers=servers, etcd_insecure=insecure)


@pytest.mark.parametrize(
    "server",
    [
        "http://127.0.0.1:2379",
        "127.0.0.1:2379",
        "http://127.8.9.1:2379",
        "http://localhost:2379",
        "http://[::1]:2379",
        "[::ffff:127.0.0.1]:2379",
        "unix:/run/etcd.sock",
    ],
)
def test_etcd_on_this_machine_needs_no_tls(server: str) -> None:
    check_plain_etcd(settings(server))


@pytest.mark.parametrize(
    "server",
    [
        "http://10.0.0.1:2379",
        "etcd-1:2379",
        "http://etcd-1:2379",
        "http://localhost.example.com:2379",
        "http://127.0.0.1:2379@etcd-1:2379",
        "http://127.0.0.1.example.com:2379",
        "http://[fd00::1]:2379",
        "http://0.0.0.0:2379",
        "dns:///etcd-1:2379",
        "ipv4:10.0.0.1:2379",
        "http://[::1",
    ],
)
def test_etcd_on_another_machine_without_tls_is_refused(server: str) -> None:
    """Also if it is the last of several; the message says what is at risk and what to do."""
    with pytest.raises(SettingsError, match=re.escape(server)) as caught:
        check_plain_etcd(settings("http://127.0.0.1:2379", server))
    assert "can read and change all objects, Secrets included" in str(caught.value)
    assert "--etcd-insecure" in str(caught.value)
    check_plain_etcd(settings(server, insecure=True))


@pytest.mark.parametrize("insecure", [False, True])
def test_https_without_an_authority_is_refused_and_not_reached_in_plain_text(insecure: bool) -> None:
    with pytest.raises(SettingsError, match="needs --etcd-cafile"):
        check_plain_etcd(settings("https://etcd-1:2379", insecure=insecure))
