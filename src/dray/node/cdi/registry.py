"""Resolves CDI device names with the spec files of all directories. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dray.api.cdi import CdiDevice, CdiError, ContainerEdits, QualifiedName, Spec


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A spec with its path and priority; later directories have the higher priority."""

    path: str
    priority: int
    spec: Spec


@dataclass(frozen=True, slots=True)
class Found:
    """A device and its spec."""

    file: SpecFile
    device: CdiDevice


@dataclass(frozen=True, slots=True)
class Registry:
    """All usable devices, and what is wrong with files."""

    devices: Mapping[str, Found] = field(default_factory=dict)
    # By path, as the next: files that cannot be read are skipped.
    unreadable: Mapping[str, str] = field(default_factory=dict)
    # Devices that files of the same priority define; the other devices of the files can be used.
    conflicts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def paths_with_problems(self) -> frozenset[str]:
        """Return the files that cannot be read or have conflicts."""
        return frozenset((*self.unreadable, *self.conflicts))

    def edits(self, names: Iterable[str]) -> ContainerEdits:
        """Return the container edits of the devices; a spec's own edits come once, before those of its first device."""
        unknown = [name for name in dict.fromkeys(names) if name not in self.devices]
        if unknown:
            raise CdiError(f"unresolvable CDI devices {', '.join(unknown)}")
        parts: list[ContainerEdits] = []
        seen: set[str] = set()
        for name in dict.fromkeys(names):
            found = self.devices[name]
            if found.file.path not in seen:
                seen.add(found.file.path)
                parts.append(found.file.spec.container_edits)
            parts.append(found.device.container_edits)
        return combine(parts)


def build(files: Sequence[SpecFile], unreadable: Mapping[str, str]) -> Registry:
    """Build the registry: the highest priority wins, and a conflict of equal priorities makes the device unusable."""
    conflicts: dict[str, list[str]] = {}
    candidates: dict[str, list[Found]] = {}
    for file in files:
        vendor, _, device_class = file.spec.kind.partition("/")
        for device in file.spec.devices:
            name = str(QualifiedName(vendor, device_class, device.name))
            candidates.setdefault(name, []).append(Found(file, device))
    devices: dict[str, Found] = {}
    for name, found in candidates.items():
        highest = max(item.file.priority for item in found)
        best = [item for item in found if item.file.priority == highest]
        if len(best) == 1:
            devices[name] = best[0]
            continue
        paths = ", ".join(item.file.path for item in best)
        for item in best:
            conflicts.setdefault(item.file.path, []).append(f'conflicting device "{name}" (specs {paths})')
    return Registry(devices, unreadable, conflicts)


def combine(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """Concatenate edits."""
    result = ContainerEdits()
    for part in parts:
        result = ContainerEdits(
            env=(*result.env, *part.env),
            device_nodes=(*result.device_nodes, *part.device_nodes),
            mounts=(*result.mounts, *part.mounts),
            hooks=(*result.hooks, *part.hooks),
            intel_rdt=part.intel_rdt if part.intel_rdt is not None else result.intel_rdt,
            additional_gids=(*result.additional_gids, *part.additional_gids),
        )
    return result
