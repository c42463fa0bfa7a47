"""Applies CDI container edits to an OCI runtime configuration, in the same order as the CDI library. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.api.cdi import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount
from dray.api.document import Document, copy_document

DEFAULT_PERMISSIONS: Final = "rwm"


def apply_edits(config: Document, edits: ContainerEdits) -> Document:
    """Return the configuration with the edits; device nodes must be complete (see `cache.complete`)."""
    result = copy_document(config)
    _add_environment(result, edits.env)
    for node in edits.device_nodes:
        _add_device(result, node)
    _add_mounts(result, edits.mounts)
    for hook in edits.hooks:
        result.setdefault("hooks", {}).setdefault(hook.hook_name, []).append(_hook(hook))
    if edits.intel_rdt is not None:
        result.setdefault("linux", {})["intelRdt"] = _intel_rdt(edits.intel_rdt)
    _add_groups(result, edits.additional_gids)
    return result


def merge_environment(existing: Iterable[str], added: Iterable[str]) -> list[str]:
    """Merge variables of the form `NAME=value`; an existing one keeps its position and gets the new value."""
    merged = {text.partition("=")[0]: text for text in existing}
    merged.update({text.partition("=")[0]: text for text in added})
    return list(merged.values())


def _add_environment(config: Document, added: Iterable[str]) -> None:
    texts = list(added)
    if texts:
        process = config.setdefault("process", {})
        process["env"] = merge_environment(process.get("env") or (), texts)


def _add_device(config: Document, node: DeviceNode) -> None:
    linux = config.setdefault("linux", {})
    device: Document = {"path": node.path, "type": node.type}
    if node.type != "p":
        device |= {"major": node.major, "minor": node.minor}
    if node.file_mode is not None:
        device["fileMode"] = node.file_mode
    user = (config.get("process") or {}).get("user") or {}
    for name, given in (("uid", node.uid), ("gid", node.gid)):
        # A container that does not run as root must be able to open the device.
        value = given if given is not None else (user.get(name) or None)
        if value is not None:
            device[name] = value
    others = [item for item in linux.get("devices") or () if item["path"] != node.path]
    linux["devices"] = [*others, device]
    if node.type in ("b", "c"):
        rule = {
            "allow": True,
            "type": node.type,
            "major": node.major,
            "minor": node.minor,
            "access": node.permissions or DEFAULT_PERMISSIONS,
        }
        linux.setdefault("resources", {}).setdefault("devices", []).append(rule)


def _add_mounts(config: Document, mounts: Iterable[Mount]) -> None:
    added = list(mounts)
    if not added:
        return
    for mount in added:
        others = [item for item in config.get("mounts") or () if item["destination"] != mount.container_path]
        item: Document = {"destination": mount.container_path, "source": mount.host_path}
        if mount.type:
            item["type"] = mount.type
        if mount.options:
            item["options"] = list(mount.options)
        config["mounts"] = [*others, item]
    # A mount inside another one must come after it.
    config["mounts"].sort(key=lambda item: item["destination"].rstrip("/").count("/"))


def _hook(hook: Hook) -> Document:
    result: Document = {"path": hook.path}
    if hook.args:
        result["args"] = list(hook.args)
    if hook.env:
        result["env"] = list(hook.env)
    if hook.timeout is not None:
        result["timeout"] = hook.timeout
    return result


def _intel_rdt(rdt: IntelRdt) -> Document:
    found: Document = {
        "closID": rdt.clos_id,
        "l3CacheSchema": rdt.l3_cache_schema,
        "memBwSchema": rdt.mem_bw_schema,
        "enableCMT": rdt.enable_cmt,
        "enableMBM": rdt.enable_mbm,
    }
    return {name: value for name, value in found.items() if value}


def _add_groups(config: Document, groups: Iterable[int]) -> None:
    wanted = [group for group in groups if group != 0]
    if wanted:
        user = config.setdefault("process", {}).setdefault("user", {})
        user["additionalGids"] = list(dict.fromkeys([*(user.get("additionalGids") or ()), *wanted]))
