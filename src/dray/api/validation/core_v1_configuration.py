"""Secrets and ConfigMaps: keys, size, well-known types and immutability."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldError, FieldErrors, Path, forbidden, invalid, required, too_long
from dray.api.names import config_map_key
from dray.api.validation.core_v1_namespace import validate_kube_finalizers
from dray.api.validation.meta_v1 import METADATA, validate_immutable
from dray.api.validation.resource_fields import byte_length
from dray.lib.processor_time import ticking

SIZE_MAX: Final = 1024 * 1024
SERVICE_ACCOUNT_ANNOTATION: Final = "kubernetes.io/service-account.name"
SERVICE_ACCOUNT_TYPE: Final = "kubernetes.io/service-account-token"
_FROZEN: Final = "field is immutable when `immutable` is set"
_DATA: Final = Path("data")
# The server's name for the ConfigMap as a whole.
_WHOLE: Final = Path("[]")


def _decoded_length(text: str) -> int:
    return len(text) * 3 // 4 - text.count("=", -2)


def validate_config_map(config_map: Document) -> FieldErrors:
    """Validate the keys and the size of a ConfigMap."""
    errors = validate_kube_finalizers(config_map)
    data, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    for key in ticking(data):
        errors += [invalid(_DATA.key(key), key, problem) for problem in config_map_key(key)]
        if key in binary:
            errors.append(invalid(_DATA.key(key), key, "duplicate of key present in binaryData"))
    for key in ticking(binary):
        errors += [invalid(Path("binaryData").key(key), key, problem) for problem in config_map_key(key)]
    size = sum(map(byte_length, data.values())) + sum(map(_decoded_length, binary.values()))
    if size > SIZE_MAX:
        errors.append(too_long(_WHOLE, SIZE_MAX))
    return errors


def validate_config_map_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed ConfigMap; an immutable one keeps its content and stays immutable."""
    return _validate_frozen(new, old, ("data", "binaryData")) + validate_config_map(new)


def _validate_frozen(new: Document, old: Document, fields: tuple[str, ...]) -> FieldErrors:
    if not old.get("immutable"):
        return []
    errors = [] if new.get("immutable") else [forbidden(Path("immutable"), _FROZEN)]
    errors += [forbidden(Path(field), _FROZEN) for field in fields if (new.get(field) or {}) != (old.get(field) or {})]
    return errors


def validate_secret(secret: Document) -> FieldErrors:
    """Validate the keys and the size of a Secret, and the data that its type requires."""
    errors = validate_kube_finalizers(secret)
    data = secret.get("data") or {}
    for key in ticking(data):
        errors += [invalid(_DATA.key(key), key, problem) for problem in config_map_key(key)]
    if sum(map(_decoded_length, data.values())) > SIZE_MAX:
        errors.append(too_long(_DATA, SIZE_MAX))
    return errors + _validate_secret_type(secret, data)


_REQUIRED_KEYS: Final = {
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_JSON_KEYS: Final = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}


def _validate_secret_type(secret: Document, data: Document) -> FieldErrors:
    kind = secret.get("type") or ""
    if kind == SERVICE_ACCOUNT_TYPE:
        annotations = (secret.get("metadata") or {}).get("annotations") or {}
        path = METADATA.child("annotations").key(SERVICE_ACCOUNT_ANNOTATION)
        return [] if annotations.get(SERVICE_ACCOUNT_ANNOTATION) else [required(path)]
    if kind == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        return [required(_DATA.key("username")), required(_DATA.key("password"))]
    if kind in _JSON_KEYS:
        return _validate_json_key(data, _JSON_KEYS[kind])
    return [required(_DATA.key(key)) for key in _REQUIRED_KEYS.get(kind, ()) if key not in data]


def _validate_json_key(data: Document, key: str) -> FieldErrors:
    if key not in data:
        return [required(_DATA.key(key))]
    error: FieldError | None = None
    try:
        json.loads(base64.b64decode(data[key]))
    except (ValueError, binascii.Error) as problem:
        error = invalid(_DATA.key(key), "<secret contents redacted>", str(problem))
    return [error] if error else []


def validate_secret_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed Secret; the type is immutable, and so is the data of an immutable one."""
    errors = validate_immutable(new.get("type"), old.get("type"), Path("type"))
    return errors + _validate_frozen(new, old, ("data",)) + validate_secret(new)
