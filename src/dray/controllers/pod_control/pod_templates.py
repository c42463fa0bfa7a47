"""Pods made from templates, their names, and the hash that tells templates apart; pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dray.api.types.core_v1 import Pod, PodSpec, PodTemplateSpec
from dray.api.types.meta_v1 import ObjectMeta
from dray.controllers.pod_control.ownership import Owner, controller_reference

# No vowels and nothing that looks like another: names stay harmless and legible.
ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH: Final = 5
# What the server leaves of a prefix before it adds a suffix.
PREFIX_LENGTH_MAX: Final = 58
_NAME_LENGTH_MAX: Final = 253

_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_MASK: Final = 0xFFFFFFFF


def pod_name_prefix(owner_name: str) -> str:
    """What the names of the owner's Pods begin with."""
    return f"{owner_name}-" if len(owner_name) < _NAME_LENGTH_MAX else owner_name


def make_pod(owner: Owner, template: PodTemplateSpec, prefix: str = "", *, spec: PodSpec | None = None) -> Pod:
    """A Pod of the owner, not named yet; `spec` replaces the template's."""
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


def named(pod: Pod, rng: random.Random) -> Pod:
    """The Pod with a name as the server would make it, so that a lost answer can be asked for again by name."""
    prefix = (pod.metadata.generate_name or "")[:PREFIX_LENGTH_MAX]
    suffix = "".join(rng.choice(ALPHABET) for _ in range(SUFFIX_LENGTH))
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name=prefix + suffix))


def renamed(pod: Pod, name: str) -> Pod:
    """The Pod under a name it may exist under already; without a prefix no server makes up another one."""
    metadata = msgspec.structs.replace(pod.metadata, name=name, generate_name=None)
    return msgspec.structs.replace(pod, metadata=metadata)


def template_hash(template: PodTemplateSpec, collision_count: int | None) -> str:
    """A short name for a template's content; the count makes another when the first is taken by other content."""
    content = msgspec.json.encode(template, order="sorted")
    if collision_count is not None:
        content += collision_count.to_bytes(8, "little")
    return "".join(ALPHABET[ord(digit) % len(ALPHABET)] for digit in str(_fnv32a(content)))


def _fnv32a(content: bytes) -> int:
    value = _FNV_OFFSET
    for byte in content:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def with_labels(template: PodTemplateSpec, labels: Mapping[str, str]) -> PodTemplateSpec:
    """The template with more labels."""
    return _with_metadata(template, labels={**template.metadata.labels, **labels})


def without_label(template: PodTemplateSpec, label: str) -> PodTemplateSpec:
    """The template without a label."""
    if label not in template.metadata.labels:
        return template
    return _with_metadata(
        template, labels={key: value for key, value in template.metadata.labels.items() if key != label}
    )


def _with_metadata(template: PodTemplateSpec, **changes: Any) -> PodTemplateSpec:
    metadata = msgspec.structs.replace(template.metadata, **changes)
    return msgspec.structs.replace(template, metadata=metadata)
