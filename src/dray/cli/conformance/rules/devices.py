"""Rules for CDI devices, health reports, and devices of device plugins. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.cdi import CdiError, QualifiedName

ID_LENGTH_MAX: Final = 63
# The tolerance for timestamps of whole seconds.
CLOCK_SECONDS: Final = 2


def unqualified_problems(ids: Iterable[str]) -> Iterator[str]:
    """The runtime finds a device by its qualified name."""
    for name in ids:
        try:
            QualifiedName.parse(name)
        except CdiError as error:
            yield str(error)


def missing_problems(ids: Iterable[str], known: Collection[str], folders: Sequence[str]) -> Iterator[str]:
    """The container is started right after the response."""
    yield from (f"{name} is in no spec in {', '.join(folders)}" for name in ids if name not in known)


def spec_problems(unreadable: Mapping[str, str], before: Collection[str]) -> Iterator[str]:
    """Specs must be valid, apart from those that were invalid before the run."""
    yield from (f"{path}: {text}" for path, text in unreadable.items() if path not in before)


def conflict_problems(conflicts: Mapping[str, Sequence[str]], before: Collection[str]) -> Iterator[str]:
    """A device in two specs of the same priority cannot be used."""
    yield from (f"{path}: {text}" for path, texts in conflicts.items() if path not in before for text in texts)


@dataclass(frozen=True, slots=True)
class Reported:
    """One device of a health report."""

    pool: str
    device: str
    health: int
    updated: int
    timeout: int


def health_problems(reports: Sequence[Reported], published: Collection[tuple[str, str]], now: float) -> Iterator[str]:
    """Kubelet matches reports with devices by pool and name."""
    for (pool, device), times in Counter((item.pool, item.device) for item in reports).items():
        if (pool, device) not in published:
            yield f"{pool}/{device} is not published"
        if times > 1:
            yield f"{pool}/{device} is listed {times} times"
    for item in reports:
        if item.updated > now + CLOCK_SECONDS:
            yield f"{item.pool}/{item.device}: last_updated_time is {item.updated - now:.0f} s in the future"
        if item.timeout < 0:
            yield f"{item.pool}/{item.device}: health_check_timeout_seconds is {item.timeout}"


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device of a plugin's list."""

    id: str
    health: str
    numa_nodes: tuple[int, ...] = ()


def listed_problems(devices: Sequence[ListedDevice]) -> Iterator[str]:
    """Kubelet identifies devices by id."""
    for name, times in Counter(device.id for device in devices).items():
        if not 0 < len(name) <= ID_LENGTH_MAX:
            yield f'id "{name}" has {len(name)} characters'
        if times > 1:
            yield f"id {name} is listed {times} times"
    for device in devices:
        if device.health not in ("Healthy", "Unhealthy"):
            yield f'{device.id}: health is "{device.health}"'
        yield from (f"{device.id}: NUMA node {node}" for node in device.numa_nodes if node < 0)


@dataclass(frozen=True, slots=True)
class Allocated:
    """The response for one container; paths are pairs of container path and host path."""

    mounts: tuple[tuple[str, str], ...] = ()
    devices: tuple[tuple[str, str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()


def allocated_problems(containers: Sequence[Allocated]) -> Iterator[str]:
    """The runtime uses the response unchanged."""
    for container in containers:
        for paths in (*container.mounts, *((inside, outside) for inside, outside, _ in container.devices)):
            yield from (f'"{path}" is not an absolute path' for path in paths if not path.startswith("/"))
        for inside, _, permissions in container.devices:
            if not permissions or set(permissions) - set("rwm"):
                yield f'{inside}: permissions are "{permissions}"'
        yield from unqualified_problems(container.cdi_devices)


def preferred_problems(
    ids: Sequence[str], available: Collection[str], must_include: Collection[str], size: int
) -> Iterator[str]:
    """Kubelet ignores an invalid preference."""
    request = f"{size} of {', '.join(sorted(available))} with {', '.join(sorted(must_include)) or 'none'}: "
    if len(ids) != size:
        yield f"{request}{len(ids)} ids"
    if len(set(ids)) != len(ids):
        yield f"{request}duplicate ids"
    yield from (f"{request}{name} is not available" for name in dict.fromkeys(ids) if name not in available)
    yield from (f"{request}{name} is missing" for name in sorted(must_include) if name not in ids)
