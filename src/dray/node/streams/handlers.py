"""The node's HTTP handlers of exec, attach and port-forward, with kubelet's paths, parameters and answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qs

from dray.api.document import NamespacedName
from dray.lib.ports import parse_port
from dray.node.agent.pod_manager import PodManager, PodWorker
from dray.node.runtimes.runtime import Runtime, RuntimeFailure
from dray.node.runtimes.streams import ContainerStreams, ForwardedPort
from dray.node.streams.port_forward import (
    PAIRS_MAX,
    PORT_FORWARD_PROTOCOL,
    ChannelPortForward,
    SpdyPortForward,
)
from dray.node.streams.remote_command import run_session
from dray.rpc.remote_command.messages import StreamEnd, StreamOptions, StreamProtocolError
from dray.rpc.remote_command.negotiation import Agreed, agree_on_protocol, agree_on_session, open_session
from dray.rpc.remote_command.websocket_session import CHANNEL_PROTOCOLS, Tunnel
from dray.runtime.http.byte_stream import ByteStream
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, text
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

TUNNEL_PROTOCOL: Final = f"SPDY/3.1+{PORT_FORWARD_PROTOCOL}"
_TRUE: Final = ("1", "true")

Speak = Callable[[ByteStream], Awaitable[None]]


class StreamHandlers:
    """Handles the upgrade requests of the API server for the Pods of this node."""

    def __init__(self, pods: PodManager, runtime: Runtime, streams_max: int) -> None:
        self._pods = pods
        self._runtime = runtime
        # Sessions at the same time; more are refused with 429.
        self._streams_max = streams_max
        self._running = 0

    @property
    def routes(self) -> Mapping[str, Handler]:
        """The handlers by path; all take GET and POST."""
        pod = "{namespace}/{pod}"
        return {
            f"/exec/{pod}/{{container}}": self._exec,
            f"/exec/{pod}/{{uid}}/{{container}}": self._exec,
            f"/attach/{pod}/{{container}}": self._attach,
            f"/attach/{pod}/{{uid}}/{{container}}": self._attach,
            f"/portForward/{pod}": self._port_forward,
            f"/portForward/{pod}/{{uid}}": self._port_forward,
        }

    # --- exec and attach. ---

    async def _exec(self, request: Request) -> Reply:
        command = _parameters(request).get("command", [])
        if not command or any("\0" in word for word in command):
            return text("the command is empty" if not command else "the command contains a NUL byte", 400)

        async def start(container_id: str, options: StreamOptions, _worker: PodWorker) -> ContainerStreams:
            return await self._runtime.exec_stream(container_id, command, options)

        return self._remote_command(request, start, "error executing command in container: ")

    async def _attach(self, request: Request) -> Reply:
        async def start(container_id: str, options: StreamOptions, _worker: PodWorker) -> ContainerStreams:
            return await self._runtime.attach(container_id, options)

        return self._remote_command(request, start, "error attaching to container: ", is_attach=True)

    def _remote_command(
        self,
        request: Request,
        start: Callable[[str, StreamOptions, PodWorker], Awaitable[ContainerStreams]],
        failure_prefix: str,
        *,
        is_attach: bool = False,
    ) -> Reply:
        worker = self._find(request)
        if worker is None:
            return text("pod does not exist", 404)
        container = request.parameters["container"]
        state = worker.machine.containers.by_name.get(container)
        if state is None or state.current is None or state.current.exit is not None:
            return text(f'container not found ("{container}")', 500)
        options = _options(request)
        if is_attach:
            # The terminal is the container's, whatever the client says.
            tty = bool(state.spec.tty)
            options = StreamOptions(options.stdin, options.stdout, options.stderr and not tty, tty)
        if not (options.stdin or options.stdout or options.stderr):
            return text("you must specify at least 1 of stdin, stdout, stderr", 400)
        agreed = agree_on_session(request)
        if isinstance(agreed, Reply):
            return agreed
        container_id = state.current.id

        async def speak(stream: ByteStream) -> None:
            session = open_session(stream, agreed, options)
            await session.start()
            try:
                streams = await start(container_id, options, worker)
            except RuntimeFailure as error:
                await session.finish(StreamEnd(None, str(error)), failure_prefix)
                return
            await run_session(session, streams, failure_prefix)

        return self._accept(agreed, speak, f"{request.parameters['pod']}/{container}")

    # --- port-forward. ---

    async def _port_forward(self, request: Request) -> Reply:
        worker = self._find(request)
        if worker is None:
            return text("pod does not exist", 404)
        channels = (TUNNEL_PROTOCOL, *CHANNEL_PROTOCOLS[1:])
        agreed = agree_on_protocol(request, channels, (PORT_FORWARD_PROTOCOL,), allow_none=False)
        if isinstance(agreed, Reply):
            return agreed
        is_channels = not agreed.is_spdy and agreed.protocol != TUNNEL_PROTOCOL
        ports = _ports(request) if is_channels else ()
        if ports is None:
            return text('query parameter "port" is required and must be a port number', 400)
        metadata = worker.pod.metadata
        describe = f"pod {metadata.name}, uid {worker.uid}"
        uid = worker.uid

        async def speak(stream: ByteStream) -> None:
            if is_channels:
                await ChannelPortForward(stream, ports, lambda port: self._connect(uid, port), describe).run()
                return
            tunnel = None if agreed.is_spdy else Tunnel(stream)
            await SpdyPortForward(tunnel or stream, lambda port: self._connect(uid, port), describe).run()
            if tunnel is not None:
                await tunnel.finish()

        return self._accept(agreed, speak, f"{metadata.name}")

    async def _connect(self, uid: str, port: int) -> ForwardedPort:
        worker = self._pods.workers.get(uid)
        if worker is None:
            raise RuntimeFailure("the pod is gone")
        states = worker.machine.containers.all
        running = [state.current.id for state in states if state.current is not None and state.current.exit is None]
        return await self._runtime.port_forward(uid, running, port)

    # --- Common. ---

    def _find(self, request: Request) -> PodWorker | None:
        parameters = request.parameters
        worker = self._pods.find(NamespacedName(parameters["namespace"], parameters["pod"]))
        uid = parameters.get("uid")
        return worker if worker is not None and uid in (None, worker.uid) else None

    def _accept(self, agreed: Agreed, speak: Speak, about: str) -> Reply:
        """Return the answer that accepts the upgrade, unless there are too many streams."""
        if self._running >= self._streams_max:
            return text("too many streams", 429, (("Retry-After", "60"),))

        async def counted(stream: ByteStream) -> None:
            self._running += 1
            try:
                await speak(stream)
            except (ConnectionError, StreamProtocolError) as error:
                _log.info("stream ended", extra=fields(pod=about, error=str(error)))
            finally:
                self._running -= 1

        return Reply(status=101, headers=agreed.headers, upgrade=counted)


def _parameters(request: Request) -> dict[str, list[str]]:
    return parse_qs(request.target.partition("?")[2], keep_blank_values=True)


def _options(request: Request) -> StreamOptions:
    query = _parameters(request)

    def is_set(name: str) -> bool:
        return query.get(name, [""])[0] in _TRUE

    tty = is_set("tty")
    return StreamOptions(is_set("input"), is_set("output"), is_set("error") and not tty, tty)


def _ports(request: Request) -> tuple[int, ...] | None:
    """Return the ports of the query, None if they are missing or wrong."""
    words = [word for value in _parameters(request).get("port", []) for word in value.split(",")]
    ports = tuple(filter(None, map(parse_port, words[:PAIRS_MAX])))
    return ports if words and len(ports) == len(words) else None
