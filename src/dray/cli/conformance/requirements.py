"""The requirements, one sentence each, by the name used in reports and in `--only`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class UsageError(Exception):
    """The run cannot start or continue; the message says what is missing."""


class Section(enum.StrEnum):
    """The sections of requirements, in the order of the checks."""

    REGISTRATION = "registration"
    SLICES = "slices"
    CLAIMS = "claims"
    CDI = "cdi"
    HEALTH = "health"
    RECOVERY = "recovery"
    DEVICE_PLUGIN = "device plugin"
    CLASSIC_CONTROLLER = "classic controller"
    CLASSIC_PLUGIN = "classic plugin"


CLASSIC_SECTIONS: Final = frozenset({Section.CLASSIC_CONTROLLER, Section.CLASSIC_PLUGIN})


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement."""

    name: str
    section: Section
    text: str


def _table(*rows: tuple[Section, str, str]) -> dict[str, Requirement]:
    return {name: Requirement(name, section, text) for section, name, text in rows}


_REGISTRATION, _SLICES, _CLAIMS = Section.REGISTRATION, Section.SLICES, Section.CLAIMS
_CLASSIC, _CLASSIC_PLUGIN = Section.CLASSIC_CONTROLLER, Section.CLASSIC_PLUGIN
_CDI, _HEALTH, _RECOVERY, _PLUGIN = Section.CDI, Section.HEALTH, Section.RECOVERY, Section.DEVICE_PLUGIN

REQUIREMENTS: Final = _table(
    (
        _REGISTRATION,
        "registration-socket",
        "The driver serves a socket below plugins_registry; its name does not begin with a dot.",
    ),
    (_REGISTRATION, "registration-info", "GetInfo responds within 1 s, with type DRAPlugin."),
    (_REGISTRATION, "registration-name", "GetInfo's name is the driver's: a DNS subdomain of at most 63 characters."),
    (
        _REGISTRATION,
        "registration-versions",
        "GetInfo's supported_versions contains v1.DRAPlugin or v1beta1.DRAPlugin, and no duplicates.",
    ),
    (
        _REGISTRATION,
        "registration-endpoint",
        "GetInfo's endpoint is the absolute path of the service's socket; empty means the registration socket.",
    ),
    (
        _REGISTRATION,
        "registration-repeated",
        "GetInfo responds the same each time: kubelet calls it again after every restart.",
    ),
    (
        _REGISTRATION,
        "registration-refused",
        "NotifyRegistrationStatus with plugin_registered=false succeeds, and the driver can be registered afterwards.",
    ),
    (
        _REGISTRATION,
        "registration-accepted",
        "NotifyRegistrationStatus with plugin_registered=true succeeds within 5 s.",
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
        "A pool has as many slices of its latest generation as resourceSliceCount says.",
    ),
    (_SLICES, "slices-current", "No slice of an older generation remains once a pool is complete."),
    (_SLICES, "slices-unique", "Device names are unique within a pool."),
    (_SLICES, "slices-repaired", "A ResourceSlice that was deleted by another client is published again."),
    (_SLICES, "slices-monotonic", "The generation of a pool never decreases, also over restarts."),
    (
        _CLAIMS,
        "prepare-answered",
        "The response of NodePrepareResources has an entry without error for the UID of each claim, and no others.",
    ),
    (
        _CLAIMS,
        "prepare-devices",
        "Prepared devices are from the claim's allocation; their request_names are the requests they were "
        "allocated for, without subrequests.",
    ),
    (_CLAIMS, "prepare-repeated", "Preparing a prepared claim again returns the same response."),
    (_CLAIMS, "prepare-duplicate", "A claim that is listed twice in one call is prepared without an error."),
    (_CLAIMS, "prepare-concurrent", "Concurrent calls for the same claim all return the same response."),
    (_CLAIMS, "prepare-empty", "Calls without claims succeed with an empty response."),
    (
        _CLAIMS,
        "prepare-missing",
        "A claim that does not exist is an error in its entry of the response; the call succeeds.",
    ),
    (
        _CLAIMS,
        "prepare-replaced",
        "A claim whose object has another UID is an error in its entry of the response; the call succeeds.",
    ),
    (
        _CLAIMS,
        "prepare-unallocated",
        "A claim without an allocation is an error in its entry of the response; the call succeeds.",
    ),
    (_CLAIMS, "prepare-mixed", "An invalid claim in a call does not prevent the other claims from being prepared."),
    (
        _CLAIMS,
        "unprepare-answered",
        "The response of NodeUnprepareResources has an entry without error for the UID of each claim, and no others.",
    ),
    (_CLAIMS, "unprepare-repeated", "Unpreparing a claim again succeeds."),
    (_CLAIMS, "unprepare-unknown", "Unpreparing a claim that was never prepared succeeds."),
    (_CLAIMS, "unprepare-deleted", "A claim whose object is deleted can be unprepared."),
    (_CLAIMS, "prepare-again", "A claim can be prepared again after it was unprepared."),
    (_CLAIMS, "versions-agree", "A claim prepared with one version of the service can be unprepared with another."),
    (_CDI, "cdi-qualified", "CDI device ids are fully qualified: vendor/class=name."),
    (_CDI, "cdi-present", "The CDI devices of a prepared claim are in the CDI directories before the call returns."),
    (_CDI, "cdi-valid", "Every CDI spec that the driver writes is valid."),
    (_CDI, "cdi-unique", "A CDI device is in one spec only."),
    (_HEALTH, "health-first", "NodeWatchResources sends its first, complete list immediately."),
    (
        _HEALTH,
        "health-devices",
        "The list contains published devices without duplicates, with last_updated_time not in the future and a "
        "timeout that is not negative.",
    ),
    (_HEALTH, "health-again", "NodeWatchResources can be called again after the stream has ended."),
    (
        _RECOVERY,
        "call-cancelled",
        "After a call was cancelled, or its deadline exceeded, the claim can be prepared and unprepared.",
    ),
    (
        _RECOVERY,
        "kubelet-restarted",
        "After a restart of kubelet the driver can be registered again on the same socket, and preparing prepared "
        "claims returns the same response.",
    ),
    (
        _RECOVERY,
        "restart-registered",
        "After a restart the driver recreates its sockets, and GetInfo responds the same.",
    ),
    (
        _RECOVERY,
        "restart-prepared",
        "Preparing a claim that was prepared before a restart returns the same response; it can be unprepared.",
    ),
    (
        _RECOVERY,
        "restart-deleted",
        "A claim that was prepared before a restart can be unprepared after its object was deleted.",
    ),
    (
        _RECOVERY,
        "kill-prepare",
        "After the driver was killed during NodePrepareResources, the claim can be prepared and unprepared.",
    ),
    (
        _RECOVERY,
        "kill-unprepare",
        "After the driver was killed during NodeUnprepareResources, the claim can be unprepared.",
    ),
    (_RECOVERY, "calls-in-time", "Every call returns within kubelet's timeout of 45 s."),
    (_PLUGIN, "plugin-register", "The plugin calls Register on kubelet.sock with version v1beta1."),
    (
        _PLUGIN,
        "plugin-resource",
        "Register's resource_name is an extended resource: its domain is not kubernetes.io.",
    ),
    (
        _PLUGIN,
        "plugin-endpoint",
        "Register's endpoint is the name of a socket in the directory of kubelet.sock, which the plugin serves.",
    ),
    (_PLUGIN, "plugin-options", "GetDevicePluginOptions returns the same as Register's options, if those are set."),
    (_PLUGIN, "plugin-list", "ListAndWatch sends its first list immediately and stays open."),
    (
        _PLUGIN,
        "plugin-devices",
        "Devices have unique ids of 1 to 63 characters, the health Healthy or Unhealthy, and NUMA nodes that are not "
        "negative.",
    ),
    (_PLUGIN, "plugin-list-again", "ListAndWatch can be called again after the stream has ended."),
    (
        _PLUGIN,
        "plugin-allocate",
        "Allocate returns one response per container request, in order.",
    ),
    (
        _PLUGIN,
        "plugin-allocate-repeated",
        "Allocate succeeds again for the same devices: a container may be restarted.",
    ),
    (
        _PLUGIN,
        "plugin-allocate-contents",
        "Allocate's mounts and devices have absolute paths, permissions of r, w and m, and qualified CDI names.",
    ),
    (
        _PLUGIN,
        "plugin-preferred",
        "GetPreferredAllocation returns the requested number of distinct available ids, including all of "
        "must_include_device_ids.",
    ),
    (_PLUGIN, "plugin-pre-start", "PreStartContainer succeeds within 30 s."),
    (_PLUGIN, "plugin-registers-again", "The plugin registers again when kubelet.sock is recreated."),
    (
        _PLUGIN,
        "plugin-socket-again",
        "The plugin recreates its socket and registers when kubelet clears the directory and restarts.",
    ),
    (_CLASSIC, "classic-immediate", "A claim with allocationMode Immediate is allocated without a Pod."),
    (
        _CLASSIC,
        "classic-allocated",
        "An allocated claim has the phase Allocated, the driver's name and finalizer, a userLimit that is -1 or "
        "positive, and no selectedNode, potentialNodes or unsuitableNodes.",
    ),
    (_CLASSIC, "classic-delayed", "A Delayed claim is not allocated before a node is selected."),
    (
        _CLASSIC,
        "classic-unsuitable",
        "When the scheduler sets potentialNodes, the driver reports which of them are unsuitable, if only none.",
    ),
    (
        _CLASSIC,
        "classic-selected",
        "For a selected node the claim is allocated, available on that node; or the driver clears selectedNode and "
        "reports the node as unsuitable.",
    ),
    (_CLASSIC, "classic-reallocate", "A claim in phase Reallocate is deallocated and becomes pending."),
    (_CLASSIC, "classic-in-use", "A deleted claim keeps its finalizer while it is reserved for a Pod."),
    (_CLASSIC, "classic-deleted", "A deleted claim is deallocated, and its finalizer removed."),
    (_CLASSIC, "classic-other-driver", "Claims whose class names another driver are left alone."),
    (
        _CLASSIC,
        "classic-controller-restarted",
        "Claims that were created or deleted while the controller was down are allocated and deallocated after it.",
    ),
    (
        _CLASSIC_PLUGIN,
        "classic-socket",
        "The plugin serves a registration socket; GetInfo responds with type ResourcePlugin and version v1alpha1.",
    ),
    (
        _CLASSIC_PLUGIN,
        "classic-prepare",
        "NodePrepareResource succeeds for an allocated claim; the CDI devices it returns are qualified and exist.",
    ),
    (_CLASSIC_PLUGIN, "classic-prepare-repeated", "Preparing a prepared claim again returns the same CDI devices."),
    (_CLASSIC_PLUGIN, "classic-prepare-unallocated", "Preparing a claim that is not allocated fails."),
    (_CLASSIC_PLUGIN, "classic-prepare-unknown", "Preparing a claim that does not exist fails."),
    (_CLASSIC_PLUGIN, "classic-unprepare", "A prepared claim can be unprepared, again and again, and prepared again."),
    (_CLASSIC_PLUGIN, "classic-unprepare-unknown", "Unpreparing a claim that was never prepared succeeds."),
    (_CLASSIC_PLUGIN, "classic-unprepare-deleted", "A claim whose object is deleted can be unprepared."),
    (
        _CLASSIC_PLUGIN,
        "classic-plugin-restarted",
        "Preparing a claim that was prepared before a restart returns the same; it can be unprepared.",
    ),
)
