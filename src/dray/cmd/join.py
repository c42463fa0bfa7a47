"""`dray join`: makes this machine a node of a cluster, by a token.

The machine trusts the cluster's authority only after its public key has the hash that the operator gave, and after the
cluster has shown by a signature that it knows the token. Then it requests a client certificate of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import yaml

from dray.api import bootstrap_tokens
from dray.api.bootstrap_tokens import CLUSTER_INFO, KUBECONFIG, SIGNATURE_PREFIX, Token, parse_token
from dray.api.errors import APIError
from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.certificates import node_identity
from dray.apiserver.authentication.pki import write_kubeconfig
from dray.cli.command import EXIT_FAILURE, EXIT_USAGE, Parser
from dray.client.certificate_requests import CertificateRequestError, obtain_certificate
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Access
from dray.client.resources import CONFIG_MAPS
from dray.controllers.certificates.plan import KUBELET_CLIENT
from dray.lib.clock import Clock
from dray.runtime.settings import DURATION
from dray.runtime.system import SystemClock

# The cluster signs its address within moments of a token's creation, and a certificate within moments of a request.
CERTIFICATE_SECONDS_MAX: Final = 300.0
_LOOK_SECONDS: Final = 0.5
_NOTICE_SECONDS: Final = 5.0
_WAITING: Final = (
    "waiting for the certificate of node {name}; if a Node of this name exists, delete it, or approve the request with "
    "`kubectl certificate approve`"
)


class JoinError(Exception):
    """The machine cannot join; the message says what to do."""


def main(argv: Sequence[str]) -> int:
    """Join, and become the node agent."""
    arguments, rest = _parser().parse_known_args(argv)
    token = parse_token(arguments.token)
    if token is None:
        sys.stderr.write("dray join: --token is not of the form abcdef.0123456789abcdef\n")
        return EXIT_USAGE
    if not arguments.hashes and not arguments.skip_verification:
        sys.stderr.write(
            "dray join: --discovery-token-ca-cert-hash is needed, to recognize the cluster: "
            "`dray token create --print-join-command` prints it\n"
        )
        return EXIT_USAGE
    root = Path(arguments.root_dir).resolve()
    path = root / "kubeconfig"
    if path.exists():
        sys.stderr.write(f"dray join: {path} exists: this machine has joined already\n")
    else:
        try:
            asyncio.run(_join(arguments, token, path))
        except (JoinError, CertificateRequestError, APIError, OSError) as error:
            sys.stderr.write(f"dray join: {error}\n")
            return EXIT_FAILURE
        sys.stderr.write(f"dray join: wrote {path}\n")
    if not arguments.no_start:
        _become_agent(arguments, root, path, rest)
    return 0


def _become_agent(arguments: argparse.Namespace, root: Path, path: Path, rest: Sequence[str]) -> NoReturn:
    name = (f"--hostname-override={arguments.node_name}",) if arguments.node_name else ()
    command = [sys.executable, "-m", "dray", "node", f"--kubeconfig={path}", f"--root-dir={root}", *name, *rest]
    os.execv(sys.executable, command)  # noqa: S606 - becomes the node agent


def duration(text: str) -> float:
    """Return the seconds of a duration; argparse names the function in its messages."""
    seconds: float = DURATION.parse(text)
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = Parser("dray join", "Make this machine a node of a cluster. Further flags are those of `dray node`.")
    parser.add_argument("server", help="URL of the API server")
    parser.add_argument("--token", required=True, help="a token of `dray token create`")
    parser.add_argument(
        "--discovery-token-ca-cert-hash",
        dest="hashes",
        action="append",
        default=[],
        metavar="sha256:HASH",
        help="hash of the public key of the cluster's authority",
    )
    parser.add_argument(
        "--discovery-token-unsafe-skip-ca-verification",
        dest="skip_verification",
        action="store_true",
        help="trust any server that knows the token; anybody who has it can then pretend to be the cluster",
    )
    parser.add_argument(
        "--discovery-timeout",
        dest="discovery_seconds",
        type=duration,
        default=60.0,
        metavar="DURATION",
        help="how long to wait for the cluster's signature of the token, as in 1m",
    )
    parser.add_argument("--hostname-override", dest="node_name", default="", help="name of the Node")
    parser.add_argument("--root-dir", default="/var/lib/kubelet", help="directory of the node agent")
    parser.add_argument("--no-start", action="store_true", help="only write the kubeconfig, do not start the agent")
    return parser


async def _join(arguments: argparse.Namespace, token: Token, path: Path) -> None:
    clock = SystemClock()
    authority = await _discover(arguments, token, clock)
    name = arguments.node_name or socket.gethostname().lower()
    access = Access(arguments.server, authority_data=authority, token=str(token))
    client = http_client(access, clock, user_agent="dray-join")
    try:
        key = certificates.new_private_key()
        certificate = await _request_certificate(client, key, name, clock)
    finally:
        await client.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_kubeconfig(path, server_url=arguments.server, authority=authority, certificate=certificate, key=key)


async def _discover(arguments: argparse.Namespace, token: Token, clock: Clock) -> bytes:
    """Return the cluster's authority (PEM), after it has been verified."""
    untrusted = Access(arguments.server, insecure=True)
    info = await _signed_info(untrusted, token, clock, arguments.discovery_seconds)
    authority = _authority(info)
    found = bootstrap_tokens.public_key_hash(certificates.public_key_info(authority))
    if not arguments.skip_verification and found not in arguments.hashes:
        raise JoinError(f"the authority of {arguments.server} has the hash {found}, which is not the given one")
    # Again, now over a verified connection: what was read before may have come from somebody in between.
    access = Access(arguments.server, authority_data=authority)
    trusted = await _signed_info(access, token, clock, arguments.discovery_seconds)
    if trusted != info:
        raise JoinError("the cluster's address differs between an unverified and a verified connection")
    return authority


async def _signed_info(access: Access, token: Token, clock: Clock, seconds_max: float) -> str:
    """Return the kubeconfig in the ConfigMap, once it has a signature of the token: a new one takes a moment."""
    client = http_client(access, clock, user_agent="dray-join")
    deadline = clock.monotonic() + seconds_max
    missing = f'could not find a JWS signature in the cluster-info ConfigMap for token ID "{token.id}"'
    is_first = True
    try:
        while True:
            info = await client.get(CONFIG_MAPS.unstructured, CLUSTER_INFO.name, CLUSTER_INFO.namespace)
            data = info.get("data") or {}
            content, signature = data.get(KUBECONFIG) or "", data.get(SIGNATURE_PREFIX + token.id)
            if signature is not None:
                if not bootstrap_tokens.is_signed(content, signature, token):
                    raise JoinError("the cluster does not know the token: its signature is wrong")
                return content
            if clock.monotonic() >= deadline:
                raise JoinError(
                    f"{missing}: the cluster has no such token, or it has expired; create one with `dray token create`"
                )
            if is_first:
                sys.stderr.write(f"dray join: {missing}, trying again for {seconds_max:g} s\n")
                is_first = False
            await clock.sleep(_LOOK_SECONDS)
    finally:
        await client.close()


def _authority(content: str) -> bytes:
    try:
        cluster = yaml.safe_load(content)["clusters"][0]["cluster"]
        return base64.b64decode(cluster["certificate-authority-data"])
    except (yaml.YAMLError, KeyError, IndexError, TypeError, ValueError) as error:
        raise JoinError(f"{CLUSTER_INFO} has no certificate authority") from error


async def _request_certificate(client: Client, key: bytes, name: str, clock: Clock) -> bytes:
    """Request a client certificate for the node, and wait for it."""
    request = certificates.new_request(key, node_identity(name))
    usages = ("digital signature", "client auth")
    hint = f"dray join: {_WAITING.format(name=name)}\n"
    notice = asyncio.get_running_loop().call_later(_NOTICE_SECONDS, sys.stderr.write, hint)
    try:
        return await obtain_certificate(client, clock, request, KUBELET_CLIENT, usages, CERTIFICATE_SECONDS_MAX)
    finally:
        notice.cancel()
