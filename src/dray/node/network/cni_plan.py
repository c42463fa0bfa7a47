"""How the plugins of a CNI configuration list are called. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.node.network.links import INTERFACE

_VERSION: Final = "0.4.0"


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a plugin."""

    plugin: str
    environment: Mapping[str, str]
    base: Mapping[str, Any]

    def configuration(self, previous: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the plugin reads, with the result of the plugin before it."""
        return {**self.base, **({"prevResult": previous} if previous else {})}


def invocations(command: str, uid: str, namespace: str, record: Mapping[str, Any]) -> Sequence[Invocation]:
    """Return the calls for a Pod in order; `record` has its configuration list, name and host ports."""
    settings = record["configuration"]
    pod_namespace, pod_name = record["pod"]
    arguments = {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": pod_namespace,
        "K8S_POD_NAME": pod_name,
        "K8S_POD_INFRA_CONTAINER_ID": uid,
        "K8S_POD_UID": uid,
    }
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": uid,
        "CNI_NETNS": namespace,
        "CNI_IFNAME": INTERFACE,
        "CNI_ARGS": ";".join(f"{key}={value}" for key, value in arguments.items()),
    }
    common = {"cniVersion": settings.get("cniVersion") or _VERSION, "name": settings["name"]}
    capabilities = {"portMappings": record.get("ports") or []}
    found = [
        Invocation(plugin["type"], environment, _plugin_configuration(plugin, common, capabilities))
        for plugin in settings["plugins"]
    ]
    return found[::-1] if command == "DEL" else found


def _plugin_configuration(
    plugin: Mapping[str, Any], common: Mapping[str, Any], capabilities: Mapping[str, Any]
) -> dict[str, Any]:
    wanted = {name for name, is_wanted in (plugin.get("capabilities") or {}).items() if is_wanted}
    runtime = {name: value for name, value in capabilities.items() if name in wanted and value}
    rest = {name: value for name, value in plugin.items() if name != "capabilities"}
    return {**rest, **common, **({"runtimeConfig": runtime} if runtime else {})}


def result_addresses(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses in a result."""
    return tuple(str(item["address"]).partition("/")[0] for item in result.get("ips") or ())
