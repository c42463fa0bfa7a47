"""What a kubeconfig says: merging several files, choosing a context, the access that results; no file is opened."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_FILE_KEYS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used."""


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A command that prints credentials as an `ExecCredential`."""

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    install_hint: str = ""
    provide_cluster_info: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one server as one user; data is preferred where a file is named too."""

    server: str
    # Other API servers of the same cluster, which are used when the server cannot be reached.
    fallback_servers: tuple[str, ...] = ()
    namespace: str = "default"
    authority_data: bytes = b""
    authority_file: str = ""
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    certificate_data: bytes = b""
    certificate_file: str = ""
    key_data: bytes = b""
    key_file: str = ""
    token: str = ""
    token_file: str = ""
    username: str = ""
    password: str = ""
    exec_plugin: ExecPlugin | None = None
    impersonate_user: str = ""
    impersonate_uid: str = ""
    impersonate_groups: tuple[str, ...] = ()
    # The cluster entry's own words, for plugins that ask for them.
    cluster: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Merged kubeconfig files."""

    clusters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    current_context: str = ""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What command-line flags choose instead of the files."""

    context: str = ""
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    server: str = ""
    token: str = ""


def default_paths(environ: Mapping[str, str], home: str) -> tuple[str, ...]:
    """The files to read: those of `KUBECONFIG`, else `~/.kube/config`."""
    listed = [path for path in environ.get("KUBECONFIG", "").split(":") if path]
    return tuple(dict.fromkeys(listed)) or (posixpath.join(home, ".kube", "config"),)


def parse(text: str, path: str) -> Kubeconfig:
    """Read one file's text; relative file names in it are relative to its directory."""
    # Imported here: processes that get their access from others do not need the library, which takes a megabyte.
    import yaml

    try:
        document = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # Characters that do not exist, dates and numbers out of range, and nesting are no YAMLErrors.
        raise KubeconfigError(f"error loading config file {path!r}: {_yaml_problem(error)}") from error
    if not isinstance(document, dict):
        raise KubeconfigError(f"error loading config file {path!r}: not a map")
    return Kubeconfig(
        _named(document, "cluster", path),
        _named(document, "user", path),
        _named(document, "context", path),
        str(document.get("current-context") or ""),
    )


def _yaml_problem(error: Any) -> str:
    """Return what is wrong with a YAML text, and where, on one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _named(document: Mapping[str, Any], key: str, path: str) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    entries, folder = document.get(f"{key}s") or (), posixpath.dirname(path)
    if not isinstance(entries, list | tuple):
        raise KubeconfigError(f"error loading config file {path!r}: {key}s is not a list")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get(key) or {}, dict):
            raise KubeconfigError(f"error loading config file {path!r}: {key}s[{index}] is not a map with a {key}")
        body = dict(entry.get(key) or {})
        for name in _FILE_KEYS:
            if body.get(name):
                body[name] = posixpath.join(folder, str(body[name]))
        # The first entry of a name is the one that counts, within a file as between files.
        found.setdefault(str(entry.get("name") or ""), body)
    return found


def merge(configs: Sequence[Kubeconfig]) -> Kubeconfig:
    """The first file to say something about a name, or the current context, wins."""
    newest_last = list(reversed(configs))
    return Kubeconfig(
        {name: body for config in newest_last for name, body in config.clusters.items()},
        {name: body for config in newest_last for name, body in config.users.items()},
        {name: body for config in newest_last for name, body in config.contexts.items()},
        next((config.current_context for config in configs if config.current_context), ""),
    )


def resolve(config: Kubeconfig, overrides: Overrides | None = None, default_server: str = "") -> Access:
    """The access of the chosen context; without a cluster, to the default server."""
    chosen = overrides or Overrides()
    context = _context(config, chosen)
    cluster = _entry(config.clusters, chosen.cluster or str(context.get("cluster") or ""), "cluster")
    user = _entry(config.users, chosen.user or str(context.get("user") or ""), "auth info")
    server = chosen.server or str(cluster.get("server") or "") or default_server
    if not server:
        raise KubeconfigError("no configuration has been provided, try setting KUBERNETES_MASTER environment variable")
    return Access(
        server=server.rstrip("/"),
        namespace=chosen.namespace or str(context.get("namespace") or "default"),
        authority_data=_decoded(cluster, "certificate-authority-data"),
        authority_file=str(cluster.get("certificate-authority") or ""),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=str(cluster.get("tls-server-name") or ""),
        proxy_url=str(cluster.get("proxy-url") or ""),
        certificate_data=_decoded(user, "client-certificate-data"),
        certificate_file=str(user.get("client-certificate") or ""),
        key_data=_decoded(user, "client-key-data"),
        key_file=str(user.get("client-key") or ""),
        token=chosen.token or str(user.get("token") or ""),
        token_file="" if chosen.token else str(user.get("tokenFile") or ""),
        username=str(user.get("username") or ""),
        password=str(user.get("password") or ""),
        exec_plugin=None if chosen.token else _exec_plugin(user.get("exec")),
        impersonate_user=str(user.get("as") or ""),
        impersonate_uid=str(user.get("as-uid") or ""),
        impersonate_groups=tuple(user.get("as-groups") or ()),
        cluster=cluster,
    )


def with_client_certificate(text: str, certificate: bytes, key: bytes) -> str:
    """Return a kubeconfig whose current user has another client certificate and key, embedded."""
    import yaml

    document = yaml.safe_load(text)
    context = next(item for item in document["contexts"] if item["name"] == document["current-context"])
    for entry in document["users"]:
        if entry["name"] == context["context"]["user"]:
            for name, value in (("client-certificate", certificate), ("client-key", key)):
                entry["user"].pop(name, None)
                entry["user"][f"{name}-data"] = base64.b64encode(value).decode()
    return str(yaml.safe_dump(document, sort_keys=False))


def _context(config: Kubeconfig, chosen: Overrides) -> Mapping[str, Any]:
    name = chosen.context or config.current_context
    if not name:
        return {}
    if name not in config.contexts:
        raise KubeconfigError(f'context "{name}" does not exist')
    return config.contexts[name]


def _entry(entries: Mapping[str, Mapping[str, Any]], name: str, what: str) -> Mapping[str, Any]:
    if not name:
        return {}
    if name not in entries:
        raise KubeconfigError(f'{what} "{name}" does not exist')
    return entries[name]


def _decoded(entry: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(str(entry.get(key) or ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise KubeconfigError(f"{key}: not valid base64: {error}") from error


_EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


def _exec_plugin(entry: Mapping[str, Any] | None) -> ExecPlugin | None:
    if not entry:
        return None
    api_version = str(entry.get("apiVersion") or "")
    if api_version not in _EXEC_VERSIONS:
        raise KubeconfigError(f'exec plugin: invalid apiVersion "{api_version}"')
    return ExecPlugin(
        str(entry.get("command") or ""),
        tuple(str(item) for item in entry.get("args") or ()),
        {str(item["name"]): str(item.get("value") or "") for item in entry.get("env") or ()},
        api_version,
        str(entry.get("installHint") or ""),
        bool(entry.get("provideClusterInfo")),
    )


def exec_info(plugin: ExecPlugin, access: Access) -> dict[str, Any]:
    """The `ExecCredential` that the plugin finds in KUBERNETES_EXEC_INFO."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
        spec["cluster"] = {name: access.cluster[name] for name in names if access.cluster.get(name)}
    return {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}


@dataclass(frozen=True, slots=True)
class Credential:
    """What an exec plugin answered; `expires` is RFC 3339 text, empty for as long as the process lives."""

    token: str = ""
    certificate_data: bytes = b""
    key_data: bytes = b""
    expires: str = ""


def read_credential(plugin: ExecPlugin, document: Mapping[str, Any]) -> Credential:
    """Check and read an exec plugin's answer."""
    if document.get("kind") != "ExecCredential" or document.get("apiVersion") != plugin.api_version:
        raise KubeconfigError(
            f"exec plugin is configured to use API version {plugin.api_version}, "
            f"plugin returned version {document.get('apiVersion')}"
        )
    status = document.get("status")
    if not status:
        raise KubeconfigError("exec plugin didn't return a status field")
    certificate, key = status.get("clientCertificateData") or "", status.get("clientKeyData") or ""
    if bool(certificate) != bool(key):
        raise KubeconfigError("exec plugin returned only certificate or key, not both")
    if not (status.get("token") or certificate):
        raise KubeconfigError("exec plugin didn't return a token or cert/key pair")
    return Credential(
        str(status.get("token") or ""),
        certificate.encode(),
        key.encode(),
        str(status.get("expirationTimestamp") or ""),
    )


def in_cluster_access(environ: Mapping[str, str], folder: str, namespace: str) -> Access:
    """The access of a Pod's service account, whose files are in `folder`."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise KubeconfigError(
            "unable to load in-cluster configuration, "
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
        )
    address = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{address}:{port}",
        namespace=namespace or "default",
        authority_file=posixpath.join(folder, "ca.crt"),
        token_file=posixpath.join(folder, "token"),
    )
