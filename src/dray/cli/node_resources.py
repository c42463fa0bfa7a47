"""`dray node resources`: prints what the PodResources API of a node agent or kubelet answers, as a table."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from dray.api.quantity import Format, Quantity
from dray.cli.command import EXIT_FAILURE, EXIT_USAGE, Parser
from dray.cli.output import FORMATS, Column, render
from dray.node.topology.machine import format_cpus
from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1.api_pb2_grpc import PodResourcesListerStub
from dray.rpc.sockets import code_name, connect
from dray.runtime.logs import wants_colour

PROG: Final = "dray node resources"
SOCKET: Final = "pod-resources/kubelet.sock"
_SECONDS_MAX: Final = 10.0
_HINT: Final = "Is the node agent running, and may you read its socket? See --root-dir; the socket needs root."


@dataclass(frozen=True, slots=True)
class HeldRow:
    """Something that a container holds, or all of it that the node can allocate."""

    namespace: str
    pod: str
    container: str
    # The resource name, `cpu`, the kind of memory, or the name of a claim.
    resource: str
    # Device IDs, CPUs, an amount of memory, or `driver/pool/device`.
    holds: str
    numa: str = ""
    class_name: str = ""
    cdi: str = ""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = _parser().parse_args(argv)
    if arguments.allocatable and arguments.pod:
        sys.stderr.write(f"{PROG}: --allocatable is about the node; leave out the Pod\n")
        return EXIT_USAGE
    socket = Path(arguments.root_dir).resolve() / SOCKET
    try:
        rows = asyncio.run(_read(str(socket), arguments))
    except grpc.aio.AioRpcError as error:
        sys.stderr.write(f"{PROG}: {socket}: {code_name(error.code())}: {error.details()}\n")
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            sys.stderr.write(f"{_HINT}\n")
        return EXIT_FAILURE
    if not rows and arguments.output not in ("json", "yaml"):
        sys.stdout.write("No Pods found.\n")
        return 0
    columns = _columns(allocatable=arguments.allocatable)
    sys.stdout.write(
        render(rows, columns, arguments.output, kind="HeldResourceList", colour=wants_colour(sys.stdout, os.environ))
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROG,
        description="Print the devices, CPUs, memory and claims of this node's containers, from the PodResources API.",
    )
    parser.add_argument("pod", nargs="?", default="", help="only this Pod")
    parser.add_argument("-n", "--namespace", default="default", help="the namespace of the Pod")
    parser.add_argument("--allocatable", action="store_true", help="print what the node can allocate instead")
    parser.add_argument("--root-dir", default="/var/lib/kubelet", help="the node agent's root directory")
    parser.add_argument("-o", "--output", choices=FORMATS, default=FORMATS[0], help="output format")
    return parser


async def _read(socket: str, arguments: argparse.Namespace) -> list[HeldRow]:
    async with connect(socket) as channel:
        stub: Any = PodResourcesListerStub(channel)
        if arguments.allocatable:
            found = await stub.GetAllocatableResources(v1.AllocatableResourcesRequest(), timeout=_SECONDS_MAX)
            return allocatable_rows(found)
        if arguments.pod:
            request = v1.GetPodResourcesRequest(pod_name=arguments.pod, pod_namespace=arguments.namespace)
            answer = await stub.Get(request, timeout=_SECONDS_MAX)
            return pod_rows([answer.pod_resources])
        answer = await stub.List(v1.ListPodResourcesRequest(), timeout=_SECONDS_MAX)
        return pod_rows(answer.pod_resources)


def pod_rows(pods: Iterable[v1.PodResources]) -> list[HeldRow]:
    """Return a row for everything that a container holds, and one for a container that holds nothing."""
    return [
        row
        for pod in pods
        for container in pod.containers
        for row in list(_container_rows(pod, container)) or [HeldRow(pod.namespace, pod.name, container.name, "", "")]
    ]


def _container_rows(pod: v1.PodResources, container: v1.ContainerResources) -> Iterator[HeldRow]:
    place = pod.namespace, pod.name, container.name
    for resource, holds, numa in _amounts(container):
        yield HeldRow(*place, resource, holds, numa)
    for claim in container.dynamic_resources:
        devices = claim.claim_resources
        # The devices of a classic claim have no names.
        names = ((item.driver_name, item.pool_name, item.device_name) for item in devices)
        holds = ",".join("/".join(filter(None, parts)) for parts in names)
        cdi = ",".join(one.name for item in devices for one in item.cdi_devices)
        yield HeldRow(*place, claim.claim_name, holds, class_name=claim.class_name, cdi=cdi)


def allocatable_rows(found: v1.AllocatableResourcesResponse) -> list[HeldRow]:
    """Return a row for each resource and NUMA node."""
    return [HeldRow("", "", "", *amounts) for amounts in _amounts(found)]


def _amounts(message: Any) -> Iterator[tuple[str, str, str]]:
    """Yield resource, what is held of it, and NUMA nodes, for devices, CPUs and memory."""
    # The API repeats a device for each of its NUMA nodes, and a resource for each device.
    nodes: dict[tuple[str, str], list[int]] = {}
    for item in message.devices:
        for device in item.device_ids:
            nodes.setdefault((item.resource_name, device), []).extend(node.id for node in item.topology.nodes)
    groups: dict[tuple[str, str], list[str]] = {}
    for (resource, device), numbers in nodes.items():
        groups.setdefault((resource, format_cpus(numbers)), []).append(device)
    for (resource, numa), devices in sorted(groups.items()):
        yield resource, ",".join(sorted(devices)), numa
    if message.cpu_ids:
        yield "cpu", format_cpus(message.cpu_ids), ""
    for block in message.memory:
        yield block.memory_type, _bytes(block.size), format_cpus(node.id for node in block.topology.nodes)


def _bytes(size: int) -> str:
    return str(Quantity(size * 10**9, Format.BINARY_SI))


def _columns(*, allocatable: bool) -> list[Column[HeldRow]]:
    pod: list[Column[HeldRow]] = [
        Column("NAMESPACE", lambda row: row.namespace),
        Column("POD", lambda row: row.pod),
        Column("CONTAINER", lambda row: row.container),
    ]
    held: list[Column[HeldRow]] = [
        Column("RESOURCE", lambda row: row.resource),
        Column("HOLDS", lambda row: row.holds),
        Column("NUMA", lambda row: row.numa),
    ]
    claim: list[Column[HeldRow]] = [
        Column("CLASS", lambda row: row.class_name, wide=True),
        Column("CDI", lambda row: row.cdi, wide=True),
    ]
    return held if allocatable else pod + held + claim
