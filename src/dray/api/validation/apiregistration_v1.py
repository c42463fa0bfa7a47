"""APIServices."""

from __future__ import annotations

import json
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, required
from dray.api.names import dns1035_label, dns1123_subdomain
from dray.api.validation.meta_v1 import METADATA

_SPEC: Final = Path("spec")
_GROUP_PRIORITY_MAX: Final = 20_000
_VERSION_PRIORITY_MAX: Final = 1000
_PORT_MAX: Final = 65535


def validate_api_service(service: Document) -> FieldErrors:
    """Validate an APIService, whose name is that of its group version."""
    spec = service.get("spec") or {}
    group, version = spec.get("group") or "", spec.get("version") or ""
    errors: FieldErrors = []
    name = (service.get("metadata") or {}).get("name") or ""
    wanted = f"{version}.{group}"
    if name != wanted:
        text = f'must be `spec.version+"."+spec.group`: {json.dumps(wanted)}'
        errors.append(invalid(METADATA.child("name"), name, text))
    if group:
        errors += [invalid(_SPEC.child("group"), group, problem) for problem in dns1123_subdomain(group)]
    elif version != "v1":
        text = "only v1 may have an empty group and it better be legacy kube"
        errors.append(required(_SPEC.child("group"), text))
    errors += [invalid(_SPEC.child("version"), version, problem) for problem in dns1035_label(version)]
    for field, bound in (("groupPriorityMinimum", _GROUP_PRIORITY_MAX), ("versionPriority", _VERSION_PRIORITY_MAX)):
        value = spec.get(field) or 0
        if not 0 < value <= bound:
            errors.append(invalid(_SPEC.child(field), value, f"must be positive and less than {bound}"))
    return errors + _validate_target(spec)


def _validate_target(spec: Document) -> FieldErrors:
    service, bundle = spec.get("service"), spec.get("caBundle") or ""
    is_insecure, errors = bool(spec.get("insecureSkipTLSVerify")), FieldErrors()
    insecure_path = _SPEC.child("insecureSkipTLSVerify")
    if service is None:
        if bundle:
            text = "local APIServices may not have a caBundle"
            errors.append(invalid(_SPEC.child("caBundle"), f"{len(bundle)} bytes", text))
        if is_insecure:
            text = "local APIServices may not have insecureSkipTLSVerify"
            errors.append(invalid(insecure_path, is_insecure, text))
        return errors
    path = _SPEC.child("service")
    errors += [required(path.child(field)) for field in ("namespace", "name") if not service.get(field)]
    port = service.get("port") or 0
    if not 0 < port <= _PORT_MAX:
        text = f"port is not valid: must be between 1 and {_PORT_MAX}, inclusive"
        errors.append(invalid(path.child("port"), port, text))
    if is_insecure and bundle:
        errors.append(invalid(insecure_path, is_insecure, "may not be true if caBundle is present"))
    return errors
