"""Runs containers with runc, each under a shim, from the node's image store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from dray.api.cdi import ContainerEdits, DeviceNode
from dray.api.document import Document
from dray.lib.clock import Clock
from dray.node.cdi.cache import CdiCache, complete
from dray.node.cdi.edits import apply_edits
from dray.node.network.commands import connect_inside
from dray.node.network.pod_network import NodeNetwork, PodNetwork
from dray.node.resource_manager import HostDevice
from dray.node.runtimes.images.garbage_collector import ImageGarbageCollector
from dray.node.runtimes.images.model import ImageError, StoredImage
from dray.node.runtimes.images.puller import ImagePuller
from dray.node.runtimes.pod_cgroup import CGROUPS, pod_group, remove_group, write_group
from dray.node.runtimes.process.runtime import finish
from dray.node.runtimes.runc.oci_config import (
    SUPPORTED_FIELDS,
    capability_set,
    cgroup_path,
    default_bind_types,
    oci_config,
)
from dray.node.runtimes.runc.pause_processes import PauseProcesses
from dray.node.runtimes.runc.seccomp import default_profile
from dray.node.runtimes.runtime import (
    BindMount,
    ContainerRecord,
    ContainerSpec,
    ExecResult,
    Image,
    ImageRequest,
    NodeImage,
    Propagation,
    RuntimeFailure,
    Sandbox,
    Security,
    Started,
    ignored_fields,
)
from dray.node.runtimes.shim.exec_process import Command
from dray.node.runtimes.shim.runtime import ShimRuntime, TrackedContainer
from dray.node.runtimes.streams import ForwardedPort
from dray.node.runtimes.usage import Usage
from dray.node.runtimes.usage_reader import read_group
from dray.node.streams.listening_ports import SocketPort
from dray.node.untrusted_files import write_private
from dray.rpc.remote_command.messages import StreamEnd, StreamOptions

COMMAND_SECONDS_MAX: Final = 30.0
_APP_ARMOR: Final = Path("/sys/module/apparmor/parameters/enabled")


class RuncRuntime(ShimRuntime):
    """Implements `Runtime` with runc; needs root."""

    def __init__(
        self, folder: Path, clock: Clock, cdi: CdiCache, images: ImagePuller, network: PodNetwork | None = None
    ) -> None:
        super().__init__(folder / "runc", clock)
        self._network: PodNetwork = network or NodeNetwork()
        self._state = folder / "runc-state"
        # As kubelet's, beside the folder of the runtimes.
        self._seccomp_folder = folder.parent / "seccomp"
        self._pauses = PauseProcesses(folder / "runc-pauses")
        self._cdi = cdi
        self._puller = images
        self._images = images.store
        self._binary = shutil.which("runc") or "/usr/sbin/runc"
        self._version = ""
        self._bounding = _bounding_set()
        self._oom_least = int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))

    @property
    def name(self) -> str:
        """The scheme of container IDs."""
        return "runc"

    @property
    def version(self) -> str:
        """The version that runc reports."""
        if not self._version:
            done = subprocess.run([self._binary, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
            self._version = done.stdout.split()[2]
        return self._version

    async def images(self) -> Sequence[NodeImage]:
        """Return the stored images."""
        stored = await asyncio.to_thread(self._images.all)
        return [NodeImage(image.names, image.size) for image in stored]

    async def collect_images(self, warn: Callable[[str, str], None]) -> None:
        """Remove unused images while the disk is nearly full, until cancelled."""
        collector = ImageGarbageCollector(self._images, self._clock, warn)
        await collector.run(lambda: {record.image_id for record in self.records()})

    def read_usage(self, record: ContainerRecord) -> Usage | None:
        """Return the usage of the container's cgroup, or of its processes if the machine does not count it."""
        group = f"{pod_group(record.pod_uid)}/{record.id}"
        return read_group(group, CGROUPS) or super().read_usage(record)

    async def ensure_image(self, request: ImageRequest) -> Image:
        """Return the image, pulled if the policy says so; raises `ImageFailure`."""
        return await self._puller.ensure(request)

    async def ensure_sandbox(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Create the Pod's cgroup, its network, and its pause process if it needs one."""
        await asyncio.to_thread(write_group, sandbox.uid, sandbox.limits)
        if _has_pause(sandbox):
            await self._pauses.ensure(sandbox.uid)
        return await self._network.add(sandbox)

    async def run(self, spec: ContainerSpec) -> Started:
        """Start a container."""
        if _has_pause(spec.sandbox):
            # It may have been killed, and with it every process of the Pod.
            await self._pauses.ensure(spec.sandbox.uid)
        return await self.run_shim(spec, self._image(spec).reference, ignored_fields(spec, "runc", SUPPORTED_FIELDS))

    def job(self, spec: ContainerSpec, folder: Path, container_id: str) -> dict[str, Any]:
        """Create the bundle, and return how to mount and run it."""
        image = self._image(spec)
        subpaths = [mount for mount in spec.mounts if mount.root]
        targets = {mount: str(folder / "subpaths" / str(number)) for number, mount in enumerate(subpaths)}
        shared = [mount for mount in spec.mounts if mount.propagation is Propagation.BIDIRECTIONAL and not mount.root]
        for number, mount in enumerate(shared):
            targets[mount] = _shared_target(mount, folder / "shared" / str(number))
        mounts = tuple(replace(mount, host_path=targets.get(mount, mount.host_path)) for mount in spec.mounts)
        config = self._config(replace(spec, mounts=mounts), image, folder)
        path = cgroup_path(spec, container_id)
        config["linux"]["cgroupsPath"] = path
        write_private(folder / "config.json", orjson.dumps(config, option=orjson.OPT_INDENT_2))
        for name in ("rootfs", "upper", "work", "subpaths", "shared"):
            (folder / name).mkdir(mode=0o755)
        self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
        return {
            "runc": {"binary": self._binary, "root": str(self._state), "id": container_id},
            "overlay": {
                "lowers": [str(folder) for folder in self._images.folders(image)],
                "upper": str(folder / "upper"),
                "work": str(folder / "work"),
                "target": str(folder / "rootfs"),
            },
            "subpaths": [_subpath(mount, targets[mount], spec.name) for mount in subpaths],
            "shared": [{"source": mount.host_path, "target": targets[mount]} for mount in shared],
            "slaves": [mount.host_path for mount in spec.mounts if mount.propagation is Propagation.HOST_TO_CONTAINER],
            "memoryEvents": [f"{CGROUPS}/memory{path}/memory.oom_control", f"{CGROUPS}{path}/memory.events"],
        }

    def _image(self, spec: ContainerSpec) -> StoredImage:
        image = self._images.find(spec.image)
        if image is None:
            raise RuntimeFailure(f'image "{spec.image}" is gone')
        return image

    def _config(self, spec: ContainerSpec, image: StoredImage, folder: Path) -> Document:
        argv = image.config.argv(spec.command, spec.args)
        if not argv:
            raise RuntimeFailure("no command specified")
        user = self._user(spec, image)
        if spec.security.must_not_be_root and user[0] == 0:
            raise RuntimeFailure("container has runAsNonRoot and image will run as root")
        if spec.security.app_armor not in ("", "Unconfined") and not _has_app_armor():
            raise RuntimeFailure("Cannot enforce AppArmor: AppArmor is not enabled on the host")
        config = oci_config(
            spec,
            argv=argv,
            image_env=image.config.env,
            working_dir=image.config.working_dir,
            user=user,
            bounding=self._bounding,
            # Without CAP_SYS_RESOURCE it cannot be lower than the agent's.
            oom_score_adj=max(spec.limits.oom_score_adj, self._oom_least),
            etc=_etc_files(spec, folder),
            process_namespace=self._process_namespace(spec),
            seccomp=self._seccomp(spec.security),
            network_namespace=self._network.namespace(spec.sandbox),
        )
        if spec.security.privileged:
            config = apply_edits(config, ContainerEdits(device_nodes=_host_devices()))
        config = apply_edits(config, ContainerEdits(device_nodes=tuple(_node(item) for item in spec.devices)))
        if spec.cdi_devices:
            config = apply_edits(config, self._cdi.edits(spec.cdi_devices))
        return default_bind_types(config)

    def _seccomp(self, security: Security) -> Document | None:
        """Return the seccomp profile of a container; None if it has none, as privileged ones."""
        if security.privileged or security.seccomp in ("", "Unconfined"):
            return None
        if security.seccomp == "RuntimeDefault":
            return default_profile(capability_set(security, self._bounding), os.uname().machine)
        return _local_profile(self._seccomp_folder, security.seccomp_localhost)

    def _process_namespace(self, spec: ContainerSpec) -> str:
        """Return the path of the process namespace that the container joins; empty for one of its own."""
        if spec.target_id and not spec.sandbox.host_pid:
            return f"/proc/{self.first_process(spec.target_id)}/ns/pid"
        return self._pauses.namespace(spec.sandbox.uid) if _has_pause(spec.sandbox) else ""

    def _user(self, spec: ContainerSpec, image: StoredImage) -> tuple[int, int]:
        try:
            uid, gid = self._images.user(image)
        except ImageError as error:
            raise RuntimeFailure(str(error)) from error
        if spec.security.user is not None:
            uid, gid = spec.security.user, gid if spec.security.user == uid else 0
        return uid, spec.security.group if spec.security.group is not None else gid

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Update the container's cpuset with runc."""
        self.running(container_id)
        process = await asyncio.create_subprocess_exec(
            self._binary,
            "--root",
            str(self._state),
            "update",
            "--cpuset-cpus",
            cpus,
            container_id,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        done = await finish(process, COMMAND_SECONDS_MAX)
        if done.code != 0:
            raise RuntimeFailure(f"runc update: {done.output.strip()}")

    async def execute(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Run a command in the container's namespaces."""
        item = self.running(container_id)
        process = await asyncio.create_subprocess_exec(
            self._binary,
            "--root",
            str(self._state),
            "exec",
            container_id,
            *command,
            cwd=item.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        return await finish(process, timeout_seconds)

    def command(self, item: TrackedContainer, command: Sequence[str], options: StreamOptions) -> Command:
        """Return a call of `runc exec`, which has the settings of the container's own process."""
        pid_file, log = (item.folder / f"exec-{secrets.token_hex(8)}{end}" for end in (".pid", ".log"))
        settings = ["--root", str(self._state), "--log", str(log), "--log-format", "json"]
        terminal = ["--tty", "--env", "TERM=xterm"] if options.tty else []
        argv = [self._binary, *settings, "exec", "--pid-file", str(pid_file), *terminal, item.record.id, *command]

        def explain(_code: int) -> StreamEnd | None:
            return None if pid_file.exists() else _not_started(log)

        def clean_up() -> None:
            pid_file.unlink(missing_ok=True)
            log.unlink(missing_ok=True)

        return Command(argv, item.folder, explain=explain, clean_up=clean_up)

    async def lost(self, container_id: str, folder: Path) -> None:
        """Delete what runc still has of the container."""
        process = await asyncio.create_subprocess_exec(
            self._binary,
            "--root",
            str(self._state),
            "delete",
            "--force",
            container_id,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            await process.wait()

    async def port_forward(self, pod_uid: str, container_ids: Sequence[str], port: int) -> ForwardedPort:
        """Connect to a port of the Pod's own network, or of its processes in the node's."""
        namespace = self._network.namespace_of(pod_uid)
        if not namespace:
            return await super().port_forward(pod_uid, container_ids, port)
        try:
            connection = await connect_inside(Path(namespace), port)
        except ConnectionRefusedError as error:
            text = f"failed to connect to localhost:{port} inside namespace: connection refused"
            raise ConnectionRefusedError(text) from error
        return SocketPort(*await asyncio.open_connection(sock=connection))

    async def remove_sandbox(self, pod_uid: str) -> None:
        """Kill the Pod's pause process, and remove its network and its cgroups."""
        self._pauses.remove(pod_uid)
        await self._network.remove(pod_uid)
        await asyncio.to_thread(remove_group, pod_uid)


def _has_pause(sandbox: Sandbox) -> bool:
    return sandbox.share_process_namespace and not sandbox.host_pid


def _not_started(log: Path) -> StreamEnd:
    """Return the end of a command that runc could not start, with the codes of shells and runc's words."""
    try:
        messages = [orjson.loads(line)["msg"] for line in log.read_bytes().splitlines()]
    except (OSError, ValueError, KeyError):
        messages = []
    message = str(messages[-1]) if messages else "runc gave no reason"
    is_missing = "not found" in message or "no such file" in message
    return StreamEnd(127 if is_missing else 126, message)


def _subpath(mount: BindMount, target: str, container: str) -> dict[str, str]:
    """Return what the shim mounts; runc would resolve the path again, and follow a link planted meanwhile."""
    error = f'failed to prepare subPath for volumeMount "{mount.volume}" of container "{container}"'
    path = os.path.relpath(mount.host_path, mount.root)
    return {"root": mount.root, "path": path, "target": target, "error": error}


def _shared_target(mount: BindMount, folder: Path) -> str:
    """Return where the shim mounts a shared tree: over itself if it has the cgroups, which runc would find twice."""
    return mount.host_path if CGROUPS.is_relative_to(mount.host_path) and mount.host_path != "/" else str(folder)


def _local_profile(folder: Path, name: str) -> Document:
    """Return a profile of this node; raises `RuntimeFailure`."""
    if ".." in Path(name).parts or name.startswith("/"):
        raise RuntimeFailure(f'cannot load seccomp profile "{name}": it must be below {folder}')
    try:
        profile = orjson.loads((folder / name).read_bytes())
    except (OSError, ValueError) as error:
        raise RuntimeFailure(f'cannot load seccomp profile "{folder / name}": {error}') from error
    if not isinstance(profile, dict):
        raise RuntimeFailure(f'cannot load seccomp profile "{folder / name}": not an object')
    return profile


def _etc_files(spec: ContainerSpec, folder: Path) -> list[BindMount]:
    """Create /etc/hostname and resolv.conf of a container, and return their mounts; the agent writes /etc/hosts."""
    hostname, resolv = folder / "hostname", Path("/etc/resolv.conf")
    hostname.write_text(f"{spec.sandbox.hostname}\n", encoding="utf-8")
    found = [BindMount(str(hostname), "/etc/hostname", volume="etc-hosts")]
    if spec.sandbox.dns is not None:
        own = folder / "resolv.conf"
        own.write_text(spec.sandbox.dns.to_file(), encoding="utf-8")
        found.append(BindMount(str(own), str(resolv), volume="etc-hosts"))
    elif resolv.exists():
        found.append(BindMount(str(resolv), str(resolv), read_only=True, volume="etc-hosts"))
    return found


def _node(device: HostDevice) -> DeviceNode:
    return complete(DeviceNode(path=device.container_path, host_path=device.host_path, permissions=device.permissions))


def _host_devices() -> tuple[DeviceNode, ...]:
    """Return the host's devices except terminals, for privileged containers."""
    found = []
    for path in sorted(Path("/dev").rglob("*")):
        if path.is_symlink() or path.parts[2] in ("pts", "shm", "mqueue", "console", "ptmx"):
            continue
        with contextlib.suppress(OSError):
            info = path.stat()
            if stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                node = complete(DeviceNode(path=str(path)))
                found.append(
                    DeviceNode(
                        path=node.path,
                        host_path=node.host_path,
                        type=node.type,
                        major=node.major,
                        minor=node.minor,
                        file_mode=stat.S_IMODE(info.st_mode),
                        uid=info.st_uid,
                        gid=info.st_gid,
                    )
                )
    return tuple(found)


# In the order of their bits.
_CAPABILITY_NAMES: Final = tuple(
    """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
    SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
    MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
    """.split()  # noqa: SIM905 - a table that can be read
)


def _bounding_set() -> tuple[str, ...]:
    """Return the capability bounding set of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapBnd:"):
            mask = int(line.split()[1], 16)
            return tuple(f"CAP_{name}" for bit, name in enumerate(_CAPABILITY_NAMES) if mask >> bit & 1)
    return ()


def _has_app_armor() -> bool:
    try:
        return _APP_ARMOR.read_text(encoding="ascii").startswith("Y")
    except OSError:
        return False


def usable(binary: str = "") -> bool:
    """Whether this process can run containers with runc."""
    return os.geteuid() == 0 and bool(binary or shutil.which("runc"))
