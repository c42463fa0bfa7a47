"""Kubeconfigs: merging, contexts, overrides, exec plugins, and what is refused."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dray.client import kubeconfig
from dray.client.credentials import Credentials, in_cluster, load_access, tls_context
from dray.client.kubeconfig import Access, Credential, Kubeconfig, KubeconfigError, Overrides

ONE = """
apiVersion: v1
kind: Config
current-context: first
clusters:
- name: c
  cluster: {server: "https://one:6443/", certificate-authority: pki/ca.crt, tls-server-name: kubernetes}
contexts:
- name: first
  context: {cluster: c, user: u, namespace: team}
users:
- name: u
  user: {client-certificate-data: Q0VSVA==, client-key-data: S0VZ, as: jane, as-groups: [dev]}
"""
TWO = """
current-context: second
clusters:
- name: c
  cluster: {server: "https://two"}
- name: d
  cluster: {server: "http://three", insecure-skip-tls-verify: true, proxy-url: "http://proxy:3128"}
contexts:
- name: second
  context: {cluster: d, user: v}
users:
- name: v
  user: {username: bob, password: secret}
"""


def merged() -> Kubeconfig:
    return kubeconfig.merge([kubeconfig.parse(ONE, "/home/me/one"), kubeconfig.parse(TWO, "/home/me/two")])


def test_the_first_file_wins() -> None:
    access = kubeconfig.resolve(merged())
    assert (access.server, access.namespace) == ("https://one:6443", "team")
    assert access.authority_file == "/home/me/pki/ca.crt"
    assert (access.certificate_data, access.key_data) == (b"CERT", b"KEY")
    assert access.tls_server_name == "kubernetes"
    assert (access.impersonate_user, access.impersonate_groups) == ("jane", ("dev",))


def test_flags_choose_otherwise() -> None:
    access = kubeconfig.resolve(merged(), Overrides(context="second", namespace="x"))
    assert (access.server, access.namespace, access.insecure) == ("http://three", "x", True)
    assert (access.username, access.password, access.proxy_url) == ("bob", "secret", "http://proxy:3128")
    access = kubeconfig.resolve(merged(), Overrides(server="https://elsewhere", token="t"))
    assert (access.server, access.token) == ("https://elsewhere", "t")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (Overrides(context="nope"), 'context "nope" does not exist'),
        (Overrides(cluster="nope"), 'cluster "nope" does not exist'),
        (Overrides(user="nope"), 'auth info "nope" does not exist'),
    ],
)
def test_names_that_do_not_exist(overrides: Overrides, message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        kubeconfig.resolve(merged(), overrides)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "- 1",
        "users: [{name: u, user: {exec: {apiVersion: v9, command: x}}}]\n"
        "contexts: [{name: c, context: {user: u, cluster: k}}]\nclusters: [{name: k, cluster: {server: http://s}}]\n"
        "current-context: c",
        "clusters: [{name: k, cluster: {server: http://s, certificate-authority-data: '!'}}]\n"
        "contexts: [{name: c, context: {cluster: k}}]\ncurrent-context: c",
        "",
    ],
    ids=["not yaml", "not a map", "unknown plugin version", "bad base64", "no server"],
)
def test_what_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(KubeconfigError):
        kubeconfig.resolve(kubeconfig.parse(text, "/f"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("clusters: 3", "clusters is not a list"),
        ("users: [a]", r"users\[0\] is not a map with a user"),
        ("contexts: [{name: c, context: x}]", r"contexts\[0\] is not a map with a context"),
    ],
)
def test_a_part_of_the_wrong_type_is_named_with_its_file(text: str, problem: str) -> None:
    with pytest.raises(KubeconfigError, match=f"^error loading config file '/f': {problem}$"):
        kubeconfig.parse(text, "/f")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\x95\xff")
    with pytest.raises(KubeconfigError, match=f"^error loading config file '{path}': not a text file"):
        load_access({}, path=str(path))


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        (Access("https://s", authority_data=b"x"), "certificate-authority-data: not a PEM certificate"),
        (Access("https://s", authority_file="/nope"), "certificate-authority /nope: No such file or directory"),
        (
            Access("https://s", insecure=True, certificate_data=b"x", key_data=b"y"),
            "client-certificate-data and client-key-data: not a PEM certificate and its private key",
        ),
        (Access("https://s", insecure=True, certificate_file="/nope"), "/nope: No such file or directory"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(access: Access, problem: str) -> None:
    credential = Credential(certificate_data=access.certificate_data, key_data=access.key_data)
    with pytest.raises(KubeconfigError, match=f"^{problem}$"):
        tls_context(access, credential)


def test_where_kubeconfigs_are() -> None:
    assert kubeconfig.default_paths({"KUBECONFIG": "/a::/b:/a"}, "/home/me") == ("/a", "/b")
    assert kubeconfig.default_paths({}, "/home/me") == ("/home/me/.kube/config",)


def test_files_are_read_and_missing_ones_skipped(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(ONE)
    access = load_access({"KUBECONFIG": f"{tmp_path}/missing:{tmp_path}/one"})
    assert access.authority_file == f"{tmp_path}/pki/ca.crt"
    with pytest.raises(KubeconfigError, match="no such file"):
        load_access({}, path=f"{tmp_path}/missing")


def test_the_environment_names_a_server_for_configuration_without_one(tmp_path: Path) -> None:
    """As the message says that asks for a configuration; like kubectl, a kubeconfig with a server comes first."""
    (tmp_path / "one").write_text(ONE)
    master = {"KUBERNETES_MASTER": "https://master:6443/"}
    with pytest.raises(KubeconfigError, match="try setting KUBERNETES_MASTER environment variable"):
        load_access({"KUBECONFIG": f"{tmp_path}/missing"})
    assert load_access({"KUBECONFIG": f"{tmp_path}/missing", **master}).server == "https://master:6443"
    assert load_access({"KUBECONFIG": f"{tmp_path}/one", **master}).server == "https://one:6443"


class FixedClock:
    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        self.elapsed += seconds


async def test_a_pod_s_token_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "namespace").write_text("team")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = in_cluster(environ, str(tmp_path))
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "team")
    clock = FixedClock()
    credentials = Credentials(access, clock)
    assert (await credentials.current()).token == "one"
    (tmp_path / "token").write_text("two")
    assert (await credentials.current()).token == "one"
    clock.elapsed = 60
    assert (await credentials.current()).token == "two"
    (tmp_path / "token").unlink()
    clock.elapsed = 120
    assert (await credentials.current()).token == "two"
    with pytest.raises(KubeconfigError, match="KUBERNETES_SERVICE_HOST"):
        in_cluster({}, str(tmp_path))


PLUGIN = """
import json, os, sys
counter = sys.argv[1]
with open(counter, "a") as file: file.write("x")
count = len(open(counter).read())
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert info["spec"]["cluster"]["server"] == "https://s", info
status = {"token": f"{os.environ['PREFIX']}-{count}", "expirationTimestamp": "2026-01-01T00:10:00Z"}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def with_plugin(tmp_path: Path, script: str, version: str = "v1") -> kubeconfig.Access:
    (tmp_path / "plugin.py").write_text(script)
    plugin = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": sys.executable,
        "args": [str(tmp_path / "plugin.py"), str(tmp_path / "counter")],
        "env": [{"name": "PREFIX", "value": "token"}],
        "provideClusterInfo": True,
    }
    document = {
        "clusters": [{"name": "k", "cluster": {"server": "https://s"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "current-context": "c",
    }
    return kubeconfig.resolve(kubeconfig.parse(json.dumps(document), "/f"))


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_plugin_s_credential_is_kept_until_it_expires_or_is_refused(tmp_path: Path, version: str) -> None:
    clock = FixedClock()
    credentials = Credentials(with_plugin(tmp_path, PLUGIN, version), clock)
    assert (await credentials.current()).token == "token-1"
    assert (await credentials.current()).token == "token-1"
    assert credentials.refused()
    assert (await credentials.current()).token == "token-2"
    clock.elapsed = 595
    assert (await credentials.current()).token == "token-3"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("print('hello')", "did not print an ExecCredential"),
        ("print('{}')", "plugin returned version None"),
    ],
)
async def test_plugins_that_fail_say_how(tmp_path: Path, script: str, message: str) -> None:
    credentials = Credentials(with_plugin(tmp_path, script), FixedClock())
    with pytest.raises(Exception, match=message):
        await credentials.current()


def test_a_plugin_must_return_certificate_and_key_together() -> None:
    plugin = kubeconfig.ExecPlugin("x", (), {}, "client.authentication.k8s.io/v1")
    answer = {"kind": "ExecCredential", "apiVersion": plugin.api_version}
    pair = {"clientCertificateData": "C", "clientKeyData": "K"}
    assert kubeconfig.read_credential(plugin, {**answer, "status": pair}).key_data == b"K"
    for status in ({"clientCertificateData": "C"}, {}, {"token": ""}):
        with pytest.raises(KubeconfigError):
            kubeconfig.read_credential(plugin, {**answer, "status": status})


def test_data_is_decoded() -> None:
    text = ONE.replace("Q0VSVA==", base64.b64encode(b"other").decode())
    assert kubeconfig.resolve(kubeconfig.parse(text, "/f")).certificate_data == b"other"
