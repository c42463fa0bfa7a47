"""Pods from templates, their names, and the template hash. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dray.api.codec import to_document
from dray.api.document import Document
from dray.api.schema.load import struct
from dray.api.strict import check_fields
from dray.api.types.core_v1 import Pod, PodSpec, PodTemplateSpec
from dray.api.types.meta_v1 import ObjectMeta
from dray.client.objects import controller_reference
from dray.controllers.pod_control.ownership import Owner

# As in Kubernetes: no vowels, so that no words appear, and no similar characters.
ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH: Final = 5
# To this length the API server cuts a prefix before it adds a suffix.
PREFIX_LENGTH_MAX: Final = 58
_NAME_LENGTH_MAX: Final = 253

_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_MASK: Final = 0xFFFFFFFF


def pod_name_prefix(owner_name: str) -> str:
    """Return the name prefix of the owner's Pods."""
    return f"{owner_name}-" if len(owner_name) < _NAME_LENGTH_MAX else owner_name


def make_pod(owner: Owner, template: PodTemplateSpec, prefix: str = "", *, spec: PodSpec | None = None) -> Pod:
    """Return a Pod of the owner without a name; `spec` replaces the template's."""
    return Pod(
        api_version="v1",
        kind="Pod",
        metadata=ObjectMeta(
            namespace=owner.namespace,
            generate_name=prefix or pod_name_prefix(owner.name),
            labels=template.metadata.labels,
            annotations=template.metadata.annotations,
            finalizers=template.metadata.finalizers,
            owner_references=(controller_reference(owner.kind, owner.metadata),),
        ),
        spec=template.spec if spec is None else spec,
    )


def with_random_name(pod: Pod, rng: random.Random) -> Pod:
    """Return the Pod with a name like the API server's, so that a creation with a lost response can be repeated."""
    prefix = (pod.metadata.generate_name or "")[:PREFIX_LENGTH_MAX]
    suffix = "".join(rng.choice(ALPHABET) for _ in range(SUFFIX_LENGTH))
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name=prefix + suffix))


def with_name(pod: Pod, name: str) -> Pod:
    """Return the Pod with a fixed name under which it may exist already."""
    metadata = msgspec.structs.replace(pod.metadata, name=name, generate_name=None)
    return msgspec.structs.replace(pod, metadata=metadata)


def template_hash(template: PodTemplateSpec, collision_count: int | None) -> str:
    """Return a short hash of the template; the collision count changes it if another template has the same hash."""
    content = msgspec.json.encode(template, order="sorted")
    if collision_count is not None:
        content += collision_count.to_bytes(8, "little")
    return hash_text(content)


def hash_text(content: bytes) -> str:
    """Return a short hash in the alphabet of generated names."""
    return "".join(ALPHABET[ord(digit) % len(ALPHABET)] for digit in str(_fnv32a(content)))


def _fnv32a(content: bytes) -> int:
    value = _FNV_OFFSET
    for byte in content:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def with_labels(template: PodTemplateSpec, labels: Mapping[str, str]) -> PodTemplateSpec:
    """Return the template with additional labels."""
    return _with_metadata(template, labels={**template.metadata.labels, **labels})


def without_label(template: PodTemplateSpec, label: str) -> PodTemplateSpec:
    """Return the template without a label."""
    if label not in template.metadata.labels:
        return template
    return _with_metadata(
        template, labels={key: value for key, value in template.metadata.labels.items() if key != label}
    )


def normal_template(template: PodTemplateSpec) -> Document:
    """Return the template as the API server stores it; templates are semantically equal if these are."""
    document = to_document(template)
    check_fields(document, struct(PodTemplateSpec.schema_name))
    return document


def _with_metadata(template: PodTemplateSpec, **changes: Any) -> PodTemplateSpec:
    metadata = msgspec.structs.replace(template.metadata, **changes)
    return msgspec.structs.replace(template, metadata=metadata)
