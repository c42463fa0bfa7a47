"""Container Device Interface specs: the model, reading with validation, writing; version 0.8.

Pure: a spec is bytes in and bytes out. Names and rules are those of the CDI specification's SPEC.md: a spec
describes devices of one kind (`vendor/class`), a device is known as `vendor/class=name`, and using one edits a
container.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import orjson

from dray.api.document import Document
from dray.api.names import qualified_name

VERSION: Final = "0.8.0"
# Every published version; a reader must accept all of them.
VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0")
ANNOTATIONS_BYTES_MAX: Final = 256 * 1024
HOOKS: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_VENDOR: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_CLASS: Final = _VENDOR
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_PERMISSIONS: Final = re.compile(r"[rwm]*", re.ASCII)
_DEVICE_TYPES: Final = ("", "b", "c", "u", "p")


class CdiError(ValueError):
    """A spec or device name that violates the CDI rules."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """A part of a spec; unknown fields are rejected, as in the CDI schema."""


class DeviceNode(_Part, frozen=True, kw_only=True):
    """A device node to create in the container; unset attributes are taken from the host's device."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Part, frozen=True, kw_only=True):
    """A bind mount of a host file or directory."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Part, frozen=True, kw_only=True):
    """A program that the runtime runs at one stage of the container lifecycle."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(_Part, frozen=True, kw_only=True, rename={
    "clos_id": "closID",
    "l3_cache_schema": "l3CacheSchema",
    "mem_bw_schema": "memBwSchema",
    "enable_cmt": "enableCMT",
    "enable_mbm": "enableMBM",
}):  # fmt: skip
    """Cache and memory bandwidth classes of Intel processors."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    enable_cmt: bool = False
    enable_mbm: bool = False


class ContainerEdits(_Part, frozen=True, kw_only=True):
    """The changes that a device makes to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = msgspec.field(default=(), name="additionalGids")

    @property
    def empty(self) -> bool:
        """Report whether there are no edits."""
        return self == NO_EDITS


NO_EDITS: Final = ContainerEdits()


class CdiDevice(_Part, frozen=True, kw_only=True):
    """One device of a spec."""

    name: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    container_edits: ContainerEdits


class Spec(_Part, frozen=True, kw_only=True):
    """One file: devices of one kind, and edits that apply to all of them."""

    cdi_version: str = msgspec.field(name="cdiVersion")
    kind: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    devices: tuple[CdiDevice, ...] = ()
    container_edits: ContainerEdits = NO_EDITS


@dataclass(frozen=True, slots=True, order=True)
class QualifiedName:
    """A device's full name, `vendor/class=name`."""

    vendor: str
    device_class: str
    name: str

    @property
    def kind(self) -> str:
        """The spec's kind."""
        return f"{self.vendor}/{self.device_class}"

    def __str__(self) -> str:
        return f"{self.kind}={self.name}"

    @classmethod
    def parse(cls, text: str) -> QualifiedName:
        """Parse a qualified name; raises `CdiError`."""
        kind, equals, name = text.partition("=")
        vendor, slash, device_class = kind.partition("/")
        if not (equals and slash):
            raise CdiError(f'unqualified device "{text}", missing vendor, class or device name')
        problems = kind_errors(kind) + _name_problems(name)
        if problems:
            raise CdiError(f'invalid device "{text}": {problems[0]}')
        return cls(vendor, device_class, name)


def parse(body: bytes) -> Spec:
    """Parse and validate the JSON of a spec."""
    try:
        spec = msgspec.json.decode(body, type=Spec)
    except RecursionError:
        raise CdiError("not a CDI spec: nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CdiError(f"not a CDI spec: {error}") from error
    problems = validate(spec)
    if problems:
        raise CdiError("; ".join(problems))
    return spec


def from_document(document: Document) -> Spec:
    """Parse and validate a decoded spec, for example from YAML."""
    return parse(orjson.dumps(document))


def render(spec: Spec) -> bytes:
    """Return the spec as indented JSON; raises `CdiError` when it is invalid."""
    problems = validate(spec)
    if problems:
        raise CdiError("; ".join(problems))
    # `devices` and a device's `containerEdits` are required, even when empty.
    document: dict[str, Any] = msgspec.to_builtins(spec)
    document.setdefault("devices", [])
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def validate(spec: Spec) -> list[str]:
    """Return the validation errors of a spec."""
    problems = [] if spec.cdi_version in VERSIONS else [f'invalid CDI version "{spec.cdi_version}"']
    problems += kind_errors(spec.kind)
    problems += _annotation_problems(spec.annotations, spec.kind)
    problems += _edits_problems(spec.container_edits, spec.kind)
    if not spec.devices:
        problems.append("invalid spec, no devices")
    seen: set[str] = set()
    for device in spec.devices:
        if device.name in seen:
            problems.append(f'invalid spec, multiple device "{device.name}"')
        seen.add(device.name)
        problems += _device_problems(device)
    return problems


def minimum_version(spec: Spec) -> str:
    """Return the oldest version that has everything the spec uses, for older runtimes."""
    everything = (spec.container_edits, *(device.container_edits for device in spec.devices))
    if any(edits.intel_rdt is not None or edits.additional_gids for edits in everything):
        return "0.7.0"
    annotated = bool(spec.annotations) or any(device.annotations for device in spec.devices)
    if annotated or "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    with_host_path = any(node.host_path for edits in everything for node in edits.device_nodes)
    if with_host_path or any(device.name[:1].isdigit() for device in spec.devices):
        return "0.5.0"
    return "0.4.0" if any(mount.type for edits in everything for mount in edits.mounts) else "0.3.0"


def kind_errors(kind: str) -> list[str]:
    """Return the validation errors of a `vendor/class`."""
    vendor, slash, device_class = kind.partition("/")
    if not slash:
        return [f'invalid kind "{kind}", must be vendor/class']
    problems = [] if _VENDOR.fullmatch(vendor) else [f'invalid vendor "{vendor}"']
    if not _CLASS.fullmatch(device_class):
        problems.append(f'invalid class "{device_class}"')
    return problems


def _name_problems(name: str) -> list[str]:
    return [] if _NAME.fullmatch(name) else [f'invalid device name "{name}"']


def _device_problems(device: CdiDevice) -> list[str]:
    problems = _name_problems(device.name)
    problems += _annotation_problems(device.annotations, device.name)
    if device.container_edits.empty:
        problems.append(f'invalid device "{device.name}", empty device edits')
    return problems + _edits_problems(device.container_edits, device.name)


def _annotation_problems(annotations: Mapping[str, str], where: str) -> list[str]:
    problems = [
        f'{where}: invalid annotation key "{key}": {text}'
        for key in annotations
        # The key may have upper-case letters; otherwise the rule is that of Kubernetes' qualified names.
        for text in qualified_name(key.lower())
    ]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > ANNOTATIONS_BYTES_MAX:
        problems.append(f"{where}: annotations size {size} is larger than limit {ANNOTATIONS_BYTES_MAX}")
    return problems


def _edits_problems(edits: ContainerEdits, where: str) -> list[str]:
    problems = [
        f'{where}: invalid environment variable "{text}"'
        for text in edits.env
        if not text.partition("=")[0] or "=" not in text
    ]
    for node in edits.device_nodes:
        problems += _node_problems(node, where)
    problems += [
        f"{where}: invalid mount, empty {part} path"
        for mount in edits.mounts
        for part, path in (("host", mount.host_path), ("container", mount.container_path))
        if not path
    ]
    for hook in edits.hooks:
        if hook.hook_name not in HOOKS:
            problems.append(f'{where}: invalid hook name "{hook.hook_name}"')
        if not hook.path:
            problems.append(f'{where}: invalid hook "{hook.hook_name}" with empty path')
        problems += [f'{where}: invalid hook env "{text}"' for text in hook.env if "=" not in text]
    return problems


def _node_problems(node: DeviceNode, where: str) -> list[str]:
    problems = [] if node.path else [f"{where}: invalid (empty) device path"]
    if node.type not in _DEVICE_TYPES:
        problems.append(f'{where}: device "{node.path}": invalid type "{node.type}"')
    if not _PERMISSIONS.fullmatch(node.permissions):
        problems.append(f'{where}: device "{node.path}": invalid permissions "{node.permissions}"')
    return problems


def spec_name(*parts: str) -> str:
    """Return a file name (without directory) made of parts, e.g. vendor, class and a claim's UID."""
    return "-".join(part.replace("/", "_").replace(":", "_") for part in parts) + ".json"


def environment(values: Mapping[str, str]) -> Sequence[str]:
    """Return environment variables in the form of edits, sorted by name."""
    return [f"{name}={values[name]}" for name in sorted(values)]
