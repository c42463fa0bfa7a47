"""Chooses what runs the containers of a node: a CRI runtime that answers, or else processes of the agent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import grpc
import grpc.aio

from dray.cmd.settings import CONTAINERD, CRI_O, NodeSettings
from dray.rpc.pb.cri.v1 import api_pb2 as pb
from dray.rpc.pb.cri.v1.api_pb2_grpc import RuntimeServiceStub
from dray.rpc.sockets import connect
from dray.runtime.logs import fields
from dray.runtime.settings import SettingsError

_log = logging.getLogger(__name__)

# A runtime that is there answers within milliseconds, on a loaded machine within a few seconds.
ANSWER_SECONDS_MAX: Final = 10.0
INSTALL: Final = "install containerd or CRI-O (Debian and Ubuntu: apt install containerd) and start it"


async def choose_runtime(
    settings: NodeSettings, is_root: Callable[[], bool] = lambda: os.geteuid() == 0
) -> NodeSettings:
    """Return the settings with the runtime that `auto` means here, and log which it is; raises `SettingsError`."""
    if settings.runtime not in ("auto", "cri"):
        return settings
    endpoints = _endpoints(settings)
    for endpoint in endpoints:
        found = await _version(endpoint)
        if found:
            _log.info("containers run by the CRI runtime", extra=fields(runtime=found, endpoint=endpoint))
            return replace(settings, runtime="cri", container_runtime_endpoint=endpoint)
    where = " and ".join(endpoints)
    if settings.runtime == "cri":
        raise SettingsError(f"--runtime=cri: no CRI runtime answers at {where}: {INSTALL}")
    if is_root():
        _log.warning(
            f"no CRI runtime answers at {where}: containers run as processes, without images and isolation; "
            f"for those, {INSTALL}"
        )
    else:
        _log.info("containers run as processes: no CRI runtime answers", extra=fields(endpoints=where))
    return replace(settings, runtime="process")


def _endpoints(settings: NodeSettings) -> Sequence[str]:
    own = settings.container_runtime_endpoint
    return (CONTAINERD, CRI_O) if own == CONTAINERD else (own,)


async def _version(endpoint: str) -> str:
    """Return name and version of the runtime at an endpoint; empty if none answers, or one without CRI."""
    path = endpoint.removeprefix("unix://")
    async with connect(path) as channel:
        try:
            answer = await RuntimeServiceStub(channel).Version(
                pb.VersionRequest(version="v1"), timeout=ANSWER_SECONDS_MAX
            )
        except grpc.aio.AioRpcError:
            return ""
    return f"{answer.runtime_name} {answer.runtime_version}"
