"""The diff of two pod specs in the server's error about immutable fields.

The text compares Kubernetes' internal form of the spec, whose names and order differ from the API's; the tables below
have those names. Parts without a table are shown with their API names, first letter in upper case.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.document import Document

_CONTEXT_LINES: Final = 3

# Internal name -> zero value, in internal order; None stands for a nil pointer, list or map.
_Shape = Mapping[str, Any]

_RESOURCES: Final[_Shape] = {"Limits": None, "Requests": None, "Claims": None}
_CONTAINER: Final[_Shape] = {
    "Name": "",
    "Image": "",
    "Command": None,
    "Args": None,
    "WorkingDir": "",
    "Ports": None,
    "EnvFrom": None,
    "Env": None,
    "Resources": _RESOURCES,
    "ResizePolicy": None,
    "RestartPolicy": None,
    "RestartPolicyRules": None,
    "VolumeMounts": None,
    "VolumeDevices": None,
    "LivenessProbe": None,
    "ReadinessProbe": None,
    "StartupProbe": None,
    "Lifecycle": None,
    "TerminationMessagePath": "",
    "TerminationMessagePolicy": "",
    "ImagePullPolicy": "",
    "SecurityContext": None,
    "Stdin": False,
    "StdinOnce": False,
    "TTY": False,
}
_SECURITY_CONTEXT: Final[_Shape] = {
    "HostNetwork": False,
    "HostPID": False,
    "HostIPC": False,
    "ShareProcessNamespace": None,
    "HostUsers": None,
    "SELinuxOptions": None,
    "WindowsOptions": None,
    "RunAsUser": None,
    "RunAsGroup": None,
    "RunAsNonRoot": None,
    "SupplementalGroups": None,
    "SupplementalGroupsPolicy": None,
    "FSGroup": None,
    "FSGroupChangePolicy": None,
    "Sysctls": None,
    "SeccompProfile": None,
    "AppArmorProfile": None,
    "SELinuxChangePolicy": None,
}
_TOLERATION: Final[_Shape] = {"Key": "", "Operator": "", "Value": "", "Effect": "", "TolerationSeconds": None}
_RESOURCE_CLAIM: Final[_Shape] = {"Name": "", "ResourceClaimName": None, "ResourceClaimTemplateName": None}
_SPEC: Final[_Shape] = {
    "Volumes": None,
    "InitContainers": None,
    "Containers": None,
    "EphemeralContainers": None,
    "RestartPolicy": "",
    "TerminationGracePeriodSeconds": None,
    "ActiveDeadlineSeconds": None,
    "DNSPolicy": "",
    "NodeSelector": None,
    "ServiceAccountName": "",
    "AutomountServiceAccountToken": None,
    "NodeName": "",
    "SecurityContext": None,
    "ImagePullSecrets": None,
    "Hostname": "",
    "Subdomain": "",
    "SetHostnameAsFQDN": None,
    "Affinity": None,
    "SchedulerName": "",
    "Tolerations": None,
    "HostAliases": None,
    "PriorityClassName": "",
    "Priority": None,
    "PreemptionPolicy": None,
    "DNSConfig": None,
    "ReadinessGates": None,
    "RuntimeClassName": None,
    "Overhead": None,
    "EnableServiceLinks": None,
    "TopologySpreadConstraints": None,
    "OS": None,
    "SchedulingGates": None,
    "ResourceClaims": None,
    "Resources": None,
    "HostnameOverride": None,
}
_LIST_SHAPES: Final[Mapping[str, _Shape]] = {
    "InitContainers": _CONTAINER,
    "Containers": _CONTAINER,
    "EphemeralContainers": {**_CONTAINER, "TargetContainerName": ""},
    "Tolerations": _TOLERATION,
    "ResourceClaims": _RESOURCE_CLAIM,
}
# The API has these beside the security context, the internal form inside it.
_HOST_FIELDS: Final = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers")
# API names whose internal spelling differs in more than the first letter.
_SPELLINGS: Final = {
    "dnsPolicy": "DNSPolicy",
    "dnsConfig": "DNSConfig",
    "os": "OS",
    "setHostnameAsFQDN": "SetHostnameAsFQDN",
    "tty": "TTY",
    "seLinuxOptions": "SELinuxOptions",
    "seLinuxChangePolicy": "SELinuxChangePolicy",
    "fsGroup": "FSGroup",
    "fsGroupChangePolicy": "FSGroupChangePolicy",
}


def spec_diff(new: Document, old: Document) -> str:
    """Return a unified diff of the two specs without file headers."""
    lines = difflib.unified_diff(_lines(old), _lines(new), lineterm="", n=_CONTEXT_LINES)
    body = [line for line in lines if not line.startswith(("---", "+++"))]
    return "".join(f"{line}\n" for line in body)


def _lines(spec: Document) -> list[str]:
    return json.dumps(_internal_spec(spec), indent=1, ensure_ascii=False).splitlines()


def _internal_spec(spec: Document) -> Document:
    shown = {name: value for name, value in spec.items() if name not in _HOST_FIELDS and name != "serviceAccount"}
    context = dict(spec.get("securityContext") or {})
    context.update({name: spec[name] for name in _HOST_FIELDS if spec.get(name) is not None})
    if spec.get("securityContext") is not None or context:
        shown["securityContext"] = context
    internal = _shaped(shown, _SPEC)
    if "securityContext" in shown:
        internal["SecurityContext"] = _shaped(context, _SECURITY_CONTEXT)
    if shown.get("resources") is not None:
        internal["Resources"] = _shaped(shown["resources"], _RESOURCES)
    for name, shape in _LIST_SHAPES.items():
        items: Sequence[Document] = shown.get(name[0].lower() + name[1:]) or ()
        if items:
            internal[name] = [_shaped(item, shape) for item in items]
    return internal


def _shaped(document: Document, shape: _Shape) -> Document:
    given = {_spelling(name): value for name, value in document.items()}
    result: Document = {}
    for name, unset in shape.items():
        value = given.pop(name, None)
        if isinstance(unset, Mapping):
            result[name] = _shaped(value or {}, unset)
        else:
            result[name] = unset if value is None else _generic(value, name)
    result.update({name: _generic(value, name) for name, value in given.items() if value is not None})
    return result


_PLAIN_MAPS: Final = frozenset({"NodeSelector", "Overhead", "Limits", "Requests", "MatchLabels"})


def _generic(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        if name in _PLAIN_MAPS:
            return dict(sorted(value.items()))
        return {_spelling(key): _generic(item, _spelling(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_generic(item, name) for item in value]
    return value


def _spelling(name: str) -> str:
    return _SPELLINGS.get(name) or name[:1].upper() + name[1:]
