"""What a container is without isolation: a process with the environment of its Pod, its devices and CDI."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from dray.api.cdi import ContainerEdits
from dray.api.device_metadata import FILE_BYTES_MAX
from dray.node.cdi.cache import CdiCache
from dray.node.runtimes.process.limitations import metadata_path, mount_variables, warnings_for
from dray.node.runtimes.runtime import ContainerSpec, ExecResult, RuntimeFailure
from dray.node.runtimes.shim.exec_process import Command
from dray.node.runtimes.shim.program import set_identity
from dray.node.topology.machine import parse_cpus
from dray.node.untrusted_files import remove_tree
from dray.rpc.remote_command.messages import StreamOptions

OUTPUT_BYTES_MAX: Final = 10 * 1024
# The folder with the container's device metadata, which cannot be mounted at its usual path.
METADATA_VARIABLE: Final = "DRAY_DEVICE_METADATA"
_NO_EDITS: Final = ContainerEdits()


class Jobs:
    """Makes the jobs of shims, and the files that containers need beside their folder."""

    def __init__(self, folder: Path, cdi: CdiCache) -> None:
        self._cdi = cdi
        # Outside the private folders of the containers: their users must be able to enter it.
        self._working = folder / "process-work"
        self._metadata = folder / "process-metadata"

    def warnings(self, spec: ContainerSpec) -> tuple[str, ...]:
        """Return what the container does not get."""
        return warnings_for(spec, self._edits(spec))

    def job(self, spec: ContainerSpec, container_id: str) -> dict[str, Any]:
        """Return the command, environment and working directory; raises `RuntimeFailure`."""
        identity = _identity(spec) if os.geteuid() == 0 else {}
        working = self._make_working(container_id, identity)
        directory = spec.working_dir if spec.working_dir and Path(spec.working_dir).is_dir() else str(working)
        job: dict[str, Any] = {
            "argv": [*spec.command, *spec.args],
            "env": list({**self._environment(spec), **self._copy_metadata(spec, container_id)}.items()),
            "directory": directory,
            **identity,
        }
        if spec.limits.cpus:
            job["cpus"] = sorted(parse_cpus(spec.limits.cpus))
        return job

    def _make_working(self, container_id: str, identity: dict[str, Any]) -> Path:
        self._working.mkdir(parents=True, exist_ok=True, mode=0o711)
        working = self._working / container_id
        working.mkdir(mode=0o700)
        if identity:
            os.chown(working, identity["uid"], identity["gid"])
        return working

    def _copy_metadata(self, spec: ContainerSpec, container_id: str) -> dict[str, str]:
        """Copy the device metadata where the container's user can read it; return the variable with its folder."""
        root = self._metadata / container_id
        found = {root / path: mount for mount in self._edits(spec).mounts if (path := metadata_path(mount)) is not None}
        for target, mount in found.items():
            try:
                with open(mount.host_path, "rb") as file:
                    content = file.read(FILE_BYTES_MAX)
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
                target.write_bytes(content)
                target.chmod(0o444)
            except OSError as error:
                raise RuntimeFailure(f"device metadata {mount.container_path}: {error}") from error
        return {METADATA_VARIABLE: str(root)} if found else {}

    def remove(self, container_id: str) -> None:
        """Remove the working directory and the device metadata of a container."""
        remove_tree(self._working / container_id)
        remove_tree(self._metadata / container_id)

    def _environment(self, spec: ContainerSpec) -> dict[str, str]:
        base = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        edits = dict(text.partition("=")[::2] for text in self._edits(spec).env)
        return {**base, "HOSTNAME": spec.sandbox.hostname, **mount_variables(spec.mounts), **dict(spec.env), **edits}

    def _edits(self, spec: ContainerSpec) -> ContainerEdits:
        return self._cdi.edits(spec.cdi_devices) if spec.cdi_devices else _NO_EDITS


async def execute(folder: Path, command: Sequence[str], timeout_seconds: float) -> ExecResult:
    """Run a command with the container's user, environment and working directory."""
    job = orjson.loads((folder / "job.json").read_bytes())
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=job["directory"],
            env=dict(job["env"]),
            # uvloop has no `user`, `group` and `extra_groups`.
            preexec_fn=preparation(job),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return ExecResult(126 if isinstance(error, PermissionError) else 127, f'exec: "{command[0]}": {error.strerror}')
    return await finish(process, timeout_seconds)


def command_of(folder: Path, command: Sequence[str], options: StreamOptions) -> Command:
    """Return a child process with the container's user, environment and working directory."""
    job = orjson.loads((folder / "job.json").read_bytes())
    env = dict(job["env"]) | ({"TERM": "xterm"} if options.tty else {})
    return Command(list(command), job["directory"], env, preparation(job))


def preparation(job: dict[str, Any]) -> Callable[[], None] | None:
    """Return what a command does before it becomes the user of its container; None if the agent is that user.

    With anything to do, Python copies the whole agent for the command instead of using vfork, which takes milliseconds.
    """
    uid, gid, groups = (job.get(name) for name in ("uid", "gid", "groups"))
    own = os.getgid() if gid is None else gid
    others = set(groups) - {own} if groups is not None else None
    if uid in (None, os.getuid()) and own == os.getgid() and others in (None, set(os.getgroups()) - {own}):
        return None
    return partial(set_identity, job)


def _identity(spec: ContainerSpec) -> dict[str, Any]:
    """Return the user and groups; the agent's own groups are never passed on."""
    security = spec.security
    return {"uid": security.user or 0, "gid": security.group or 0, "groups": list(security.supplemental_groups)}


async def finish(process: asyncio.subprocess.Process, timeout_seconds: float) -> ExecResult:
    """Wait for a command and return its output; kill it after the timeout."""
    try:
        async with asyncio.timeout(timeout_seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        _kill(process)
        await process.wait()
        return ExecResult(None, "")
    except asyncio.CancelledError:
        _kill(process)
        raise
    return ExecResult(process.returncode, output[:OUTPUT_BYTES_MAX].decode(errors="replace"))


def _kill(process: asyncio.subprocess.Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
