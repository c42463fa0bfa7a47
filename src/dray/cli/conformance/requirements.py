"""What is asked of a driver: one sentence each, by the name that reports and `--only` use."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class UsageError(Exception):
    """The kit cannot begin or go on; the text says what it needs."""


class Section(enum.StrEnum):
    """What a requirement is about; the order is that of the checks."""

    REGISTRATION = "registration"
    SLICES = "slices"
    CLAIMS = "claims"
    CDI = "cdi"
    HEALTH = "health"
    RECOVERY = "recovery"
    DEVICE_PLUGIN = "device plugin"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a driver must do."""

    name: str
    section: Section
    text: str


def _table(*rows: tuple[Section, str, str]) -> dict[str, Requirement]:
    return {name: Requirement(name, section, text) for section, name, text in rows}


_REGISTRATION, _SLICES, _CLAIMS = Section.REGISTRATION, Section.SLICES, Section.CLAIMS
_CDI, _HEALTH, _RECOVERY, _PLUGIN = Section.CDI, Section.HEALTH, Section.RECOVERY, Section.DEVICE_PLUGIN

REQUIREMENTS: Final = _table(
    (
        _REGISTRATION,
        "registration-socket",
        "The driver serves a socket below plugins_registry; its name does not begin with a dot.",
    ),
    (_REGISTRATION, "registration-info", "GetInfo answers within 1 s, with type DRAPlugin."),
    (_REGISTRATION, "registration-name", "GetInfo's name is the driver's: a DNS subdomain of at most 63 characters."),
    (
        _REGISTRATION,
        "registration-versions",
        "GetInfo's supported_versions has v1.DRAPlugin or v1beta1.DRAPlugin, and nothing twice.",
    ),
    (
        _REGISTRATION,
        "registration-endpoint",
        "GetInfo's endpoint is the absolute path of the service's socket; empty means the registration socket.",
    ),
    (
        _REGISTRATION,
        "registration-repeated",
        "GetInfo says the same each time: kubelet asks again after each of its restarts.",
    ),
    (
        _REGISTRATION,
        "registration-refused",
        "NotifyRegistrationStatus with plugin_registered=false is answered, and the driver can be registered "
        "afterwards.",
    ),
    (
        _REGISTRATION,
        "registration-accepted",
        "NotifyRegistrationStatus with plugin_registered=true is answered within 5 s.",
    ),
    (_REGISTRATION, "services-served", "Every service in supported_versions is served at the endpoint."),
    (
        _SLICES,
        "slices-published",
        "The driver publishes its devices as ResourceSlices, under the name it registers with.",
    ),
    (_SLICES, "slices-valid", "Every ResourceSlice is valid."),
    (_SLICES, "slices-node", "A ResourceSlice with a nodeName names the node that the driver runs on."),
    (
        _SLICES,
        "slices-complete",
        "A pool has as many slices of its newest generation as each of them says in resourceSliceCount.",
    ),
    (_SLICES, "slices-current", "No slice of an older generation is left once a pool is complete."),
    (_SLICES, "slices-unique", "A device's name is used once in its pool."),
    (_SLICES, "slices-repaired", "A ResourceSlice that someone deletes is published again."),
    (_SLICES, "slices-monotonic", "The generation of a pool never decreases, also over restarts."),
    (
        _CLAIMS,
        "prepare-answered",
        "NodePrepareResources answers each claim under its UID, and nothing else, without an error.",
    ),
    (
        _CLAIMS,
        "prepare-devices",
        "A prepared device is one of the claim's allocation; its request_names are of requests it was "
        "allocated for, without subrequests.",
    ),
    (_CLAIMS, "prepare-repeated", "A claim that is prepared is answered the same when asked again."),
    (_CLAIMS, "prepare-duplicate", "A claim that is twice in one call is answered without an error."),
    (_CLAIMS, "prepare-concurrent", "Calls for the same claim at the same time are all answered, and the same."),
    (_CLAIMS, "prepare-empty", "Calls without claims succeed with no answers."),
    (_CLAIMS, "prepare-missing", "A claim that does not exist is an error in its own answer, not of the call."),
    (
        _CLAIMS,
        "prepare-replaced",
        "A claim whose object has another UID is an error in its own answer, not of the call.",
    ),
    (_CLAIMS, "prepare-unallocated", "A claim without an allocation is an error in its own answer, not of the call."),
    (_CLAIMS, "prepare-mixed", "A bad claim in a call does not keep the others from being prepared."),
    (
        _CLAIMS,
        "unprepare-answered",
        "NodeUnprepareResources answers each claim under its UID, and nothing else, without an error.",
    ),
    (_CLAIMS, "unprepare-repeated", "Unpreparing a claim again succeeds."),
    (_CLAIMS, "unprepare-unknown", "Unpreparing a claim that was never prepared succeeds."),
    (_CLAIMS, "unprepare-deleted", "A claim whose object is deleted can be unprepared."),
    (_CLAIMS, "prepare-again", "A claim can be prepared again after it was unprepared."),
    (_CLAIMS, "versions-agree", "What was prepared by one version of the service is known to the other."),
    (_CDI, "cdi-qualified", "CDI device ids are full names: vendor/class=name."),
    (_CDI, "cdi-present", "The CDI devices of a prepared claim are in the CDI directories before the call returns."),
    (_CDI, "cdi-valid", "Every CDI spec that the driver writes is valid."),
    (_CDI, "cdi-unique", "A CDI device is in one spec only."),
    (_HEALTH, "health-first", "NodeWatchResources sends its first, complete list at once."),
    (
        _HEALTH,
        "health-devices",
        "The list has published devices, each once, with a time that is not in the future and a timeout that "
        "is not negative.",
    ),
    (_HEALTH, "health-again", "NodeWatchResources can be called again after the stream has ended."),
    (
        _RECOVERY,
        "call-cancelled",
        "A call that is given up, by its deadline or by kubelet, leaves a claim that can be prepared and unprepared.",
    ),
    (
        _RECOVERY,
        "kubelet-restarted",
        "After a restart of kubelet the driver is registered again on the same socket, and prepared claims "
        "are answered as before.",
    ),
    (_RECOVERY, "restart-registered", "After a restart the driver's sockets are made anew, and GetInfo says the same."),
    (
        _RECOVERY,
        "restart-prepared",
        "A claim that was prepared before a restart is answered the same, and can be unprepared.",
    ),
    (
        _RECOVERY,
        "restart-deleted",
        "A claim that was prepared before a restart can be unprepared after its object was deleted.",
    ),
    (
        _RECOVERY,
        "kill-prepare",
        "After being killed in the middle of NodePrepareResources the claim can be prepared, and unprepared.",
    ),
    (
        _RECOVERY,
        "kill-unprepare",
        "After being killed in the middle of NodeUnprepareResources the claim can be unprepared.",
    ),
    (_RECOVERY, "calls-in-time", "Every call is answered before kubelet gives up on it, which is after 45 s."),
    (_PLUGIN, "plugin-register", "The plugin calls Register on kubelet.sock with version v1beta1."),
    (
        _PLUGIN,
        "plugin-resource",
        "Register's resource_name is an extended resource's: of a domain that is not kubernetes.io.",
    ),
    (
        _PLUGIN,
        "plugin-endpoint",
        "Register's endpoint is the name of a socket beside kubelet.sock, at which the plugin serves already.",
    ),
    (_PLUGIN, "plugin-options", "GetDevicePluginOptions says the same as Register's options, where those were given."),
    (_PLUGIN, "plugin-list", "ListAndWatch sends its first list at once, and stays open."),
    (
        _PLUGIN,
        "plugin-devices",
        "Devices have ids of 1 to 63 characters that are used once, the health Healthy or Unhealthy, and NUMA "
        "nodes that are not negative.",
    ),
    (_PLUGIN, "plugin-list-again", "ListAndWatch can be called again after the stream has ended."),
    (
        _PLUGIN,
        "plugin-allocate",
        "Allocate answers each container's request, in order, also when there are several in one call.",
    ),
    (_PLUGIN, "plugin-allocate-repeated", "Allocate of the same devices succeeds again: a container may be restarted."),
    (
        _PLUGIN,
        "plugin-allocate-contents",
        "Allocate's mounts and devices have absolute paths, permissions of r, w and m, and full CDI names.",
    ),
    (
        _PLUGIN,
        "plugin-preferred",
        "GetPreferredAllocation gives as many ids as asked for, all available, those that must be among them, "
        "none twice.",
    ),
    (_PLUGIN, "plugin-pre-start", "PreStartContainer succeeds within 30 s."),
    (_PLUGIN, "plugin-registers-again", "The plugin registers again when kubelet.sock is made anew."),
    (
        _PLUGIN,
        "plugin-socket-again",
        "The plugin makes its socket anew and registers when kubelet clears the folder and restarts.",
    ),
)
