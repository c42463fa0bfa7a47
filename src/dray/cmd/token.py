"""`dray token`: create, list and delete the tokens by which machines join a cluster."""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import secrets
import string
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from dray.api import bootstrap_tokens
from dray.api.bootstrap_tokens import CLUSTER_INFO, StoredToken, Token, parse_token
from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError, APIError
from dray.api.timestamps import format_time
from dray.cli.command import EXIT_FAILURE, EXIT_USAGE, Parser
from dray.client.credentials import load_access
from dray.client.errors import ignore_not_found
from dray.client.http import http_client
from dray.client.interface import Client, ListOptions, unstructured
from dray.client.kubeconfig import Access, KubeconfigError
from dray.client.resources import CONFIG_MAPS, ENDPOINT_SLICES, NAMESPACES, SECRETS
from dray.runtime.settings import DURATION, SettingsError
from dray.runtime.system import SystemClock

_RBAC: Final = GroupVersion("rbac.authorization.k8s.io", "v1")
_ROLES: Final = unstructured(_RBAC, "roles", "Role")
_ROLE_BINDINGS: Final = unstructured(_RBAC, "rolebindings", "RoleBinding")
_READER: Final = "dray:cluster-info"
_ALPHABET: Final = string.ascii_lowercase + string.digits
_ID_LENGTH, _SECRET_LENGTH = 6, 16


def main(argv: Sequence[str]) -> int:
    """Run one of the subcommands."""
    arguments = _parser().parse_args(argv)
    try:
        access = load_access(os.environ, path=arguments.kubeconfig)
        return asyncio.run(_run(arguments, access))
    except (KubeconfigError, APIError, OSError, SettingsError) as error:
        sys.stderr.write(f"dray token: {error}\n")
        return EXIT_FAILURE


def _parser() -> argparse.ArgumentParser:
    parser = Parser("dray token", description="Tokens by which machines join a cluster.")
    parser.add_argument("--kubeconfig", default="", metavar="FILE", help="default: $KUBECONFIG, then ~/.kube/config")
    commands = parser.add_subparsers(dest="command", required=True)
    creating = commands.add_parser("create", help="create a token; prints it, or the command that joins with it")
    creating.add_argument("--ttl", default="24h", help="lifetime, as in 24h; 0 means for ever")
    creating.add_argument("--description", default="", help="what the token is for")
    creating.add_argument("--print-join-command", action="store_true", help="print the command for the new machine")
    commands.add_parser("list", help="list the tokens without their secrets")
    deleting = commands.add_parser("delete", help="delete a token")
    deleting.add_argument("token", help="the token, or its id")
    return parser


async def _run(arguments: argparse.Namespace, access: Access) -> int:
    clock = SystemClock()
    client = http_client(access, clock, user_agent="dray-cli")
    try:
        if arguments.command == "create":
            return await _create(client, access, arguments, clock.now())
        if arguments.command == "delete":
            return await _delete(client, arguments.token)
        return await _list(client)
    finally:
        await client.close()


# --- Creation. ---


async def _create(client: Client, access: Access, arguments: argparse.Namespace, now: datetime) -> int:
    seconds = DURATION.parse(arguments.ttl)
    authority = _authority(access)
    if not authority:
        sys.stderr.write("dray token: the kubeconfig names no certificate authority, which machines need to join\n")
        return EXIT_USAGE
    server = await _reachable_server(client, access.server)
    await _publish(client, server, authority)
    token = Token(_random(_ID_LENGTH), _random(_SECRET_LENGTH))
    expires = now + timedelta(seconds=seconds) if seconds else None
    await client.create(SECRETS.unstructured, bootstrap_tokens.make_secret(token, expires, arguments.description))
    if arguments.print_join_command:
        # Imported here: the cryptography libraries are large.
        from dray.apiserver.authentication.certificates import public_key_info

        digest = bootstrap_tokens.public_key_hash(public_key_info(authority))
        sys.stdout.write(f"dray join {server} --token {token} --discovery-token-ca-cert-hash {digest}\n")
    else:
        sys.stdout.write(f"{token}\n")
    return 0


async def _reachable_server(client: Client, server: str) -> str:
    """Return the URL by which other machines reach the API server, which the kubeconfig of this one may not have."""
    address = urlsplit(server)
    if not _is_loopback(address.hostname or ""):
        return server
    found = await ignore_not_found(client.get(ENDPOINT_SLICES, "kubernetes", "default"))
    for endpoint in (found or {}).get("endpoints") or ():
        host = endpoint["addresses"][0]
        port = next((item.get("port") for item in (found or {}).get("ports") or ()), address.port)
        return f"{address.scheme}://[{host}]:{port}" if ":" in host else f"{address.scheme}://{host}:{port}"
    sys.stderr.write(
        f"dray token: only this machine reaches the API server at {server}: "
        "start it with --bind-address=0.0.0.0, or with --advertise-address\n"
    )
    return server


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _authority(access: Access) -> bytes:
    return access.authority_data or (Path(access.authority_file).read_bytes() if access.authority_file else b"")


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


async def _publish(client: Client, server: str, authority: bytes) -> None:
    """Create the ConfigMap by which machines find the cluster, readable without credentials, unless it exists."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
    metadata = {"name": _READER, "namespace": CLUSTER_INFO.namespace}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [CLUSTER_INFO.name], "verbs": ["get"]}
    subject = {"kind": "User", "apiGroup": _RBAC.group, "name": "system:anonymous"}
    wanted: tuple[tuple[Any, Document], ...] = (
        (NAMESPACES, {"metadata": {"name": CLUSTER_INFO.namespace}}),
        (
            CONFIG_MAPS.unstructured,
            {
                "metadata": {"name": CLUSTER_INFO.name, "namespace": CLUSTER_INFO.namespace},
                "data": {bootstrap_tokens.KUBECONFIG: yaml.safe_dump(config)},
            },
        ),
        (_ROLES, {"metadata": metadata, "rules": [rule]}),
        (
            _ROLE_BINDINGS,
            {
                "metadata": metadata,
                "roleRef": {"apiGroup": _RBAC.group, "kind": "Role", "name": _READER},
                "subjects": [subject],
            },
        ),
    )
    for resource, document in wanted:
        try:
            await client.create(resource, document)
        except AlreadyExistsError:
            continue


# --- The others. ---


async def _delete(client: Client, text: str) -> int:
    token = parse_token(text)
    identifier = token.id if token is not None else text
    name = bootstrap_tokens.NAME_PREFIX + identifier
    await client.delete(SECRETS.unstructured, name, bootstrap_tokens.NAMESPACE)
    sys.stdout.write(f'bootstrap token "{identifier}" deleted\n')
    return 0


async def _list(client: Client) -> int:
    options = ListOptions(field_selector=f"type={bootstrap_tokens.SECRET_TYPE}")
    page = await client.list(SECRETS.unstructured, bootstrap_tokens.NAMESPACE, options)
    tokens = [stored for secret in page.items if (stored := bootstrap_tokens.read_secret(secret)) is not None]
    rows = [("ID", "EXPIRES", "USAGES", "DESCRIPTION"), *map(_row, tokens)]
    widths = [max(len(row[column]) for row in rows) + 3 for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() + "\n")
    return 0


def _row(stored: StoredToken) -> tuple[str, str, str, str]:
    usages = [name for name, has in (("authentication", stored.authenticates), ("signing", stored.signs)) if has]
    expires = format_time(stored.expires) if stored.expires is not None else "<never>"
    return stored.token.id, expires, ",".join(usages) or "<none>", stored.description or "<none>"
