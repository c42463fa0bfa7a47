"""The interface between the generic request handlers and the rules of one resource.

A strategy works on documents in the group's hub (storage) version; the handlers decode, default and convert before they
call one, and encode afterwards. Strategies are pure: they change only the document they are given, and everything else
that they need is in the `WriteContext`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from dray.api.document import Document, GroupVersionKind, metadata_of
from dray.api.features import FeatureGates
from dray.api.field_errors import FieldErrors
from dray.apiserver.request import UserInfo

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
# The verbs of a part of an object.
PART_VERBS: Final = ("get", "patch", "update")


class WriteContext(msgspec.Struct, frozen=True):
    """The context of a write."""

    now: datetime
    gates: FeatureGates
    user: UserInfo
    # The Namespace object of a namespaced write, None for cluster-scoped ones.
    namespace: Document | None = None
    # Reports whether the caller has another permission (RBAC escalation, SP-35): verb, attributes.
    allowed: Callable[..., bool] = lambda **_: True
    # The verb of the request: create, update or patch.
    verb: str = "update"
    # Texts of `Warning` headers that the preparation of the object adds.
    warnings: list[str] = msgspec.field(default_factory=list)
    # The address that the user's connection comes from, if it is known.
    client_address: str = ""


class Strategy:
    """The default strategy, which resources override as needed.

    Metadata (names, labels, annotations, owner references, finalizers) is handled by the request handlers.
    """

    # PUT to a name that does not exist creates the object.
    allow_create_on_update: bool = False
    # PUT without a resourceVersion overwrites the stored object.
    allow_unconditional_update: bool = True
    # "" for subdomain names (the default), or a key of `dray.api.names.NAME_RULES`.
    name_rule: str = ""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset what a creator may not set (status), drop disabled fields, set `metadata.generation`."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Return the validation errors of a new object."""
        return []

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore what this endpoint may not change, and increment the generation when the spec changed."""

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Return the validation errors of an update."""
        return []

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Return the texts of `Warning` headers; `old` is None on create."""
        return ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; priority 1 is shown with `-o wide` only. `cell` gets the document and the time."""

    name: str
    type: str
    description: str
    cell: Callable[[Document, datetime], Any]
    format: str = ""
    priority: int = 0


class Content(enum.Enum):
    """What a subresource takes and returns."""

    OBJECT = enum.auto()
    # It returns text.
    TEXT = enum.auto()
    # Its request has options, and then bytes are passed on in both directions.
    CONNECTION = enum.auto()


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource; discovery, OpenAPI, reviews, roles and handlers follow from it."""

    name: str
    # The kind of its object or options; None for the kind of the resource.
    kind: GroupVersionKind | None = None
    verbs: tuple[str, ...] = PART_VERBS
    # Its rules, if it is a part of the object, as status is. Others have a handler in `dray.apiserver.server`.
    strategy: Strategy | None = None
    content: Content = Content.OBJECT
    # The path on the node, if it is a stream to a container.
    stream_path: str = ""


SCALE: Final = Subresource("scale", GroupVersionKind("autoscaling", "v1", "Scale"))
PROXY_VERBS: Final = ("create", "delete", "get", "patch", "update")


def proxy_of(kind: str) -> Subresource:
    """Return the subresource proxy of a kind."""
    return Subresource(
        "proxy", GroupVersionKind("", "v1", f"{kind}ProxyOptions"), PROXY_VERBS, content=Content.CONNECTION
    )


@dataclass(frozen=True, slots=True)
class ResourceDefinition:
    """A served resource: its names, versions and rules."""

    group: str
    resource: str
    singular: str
    kind: str
    namespaced: bool
    # Served versions in order of preference; documents are stored in `storage_version`.
    versions: tuple[str, ...]
    storage_version: str
    strategy: Strategy
    # Rules of the `status` subresource; None when there is none.
    status_strategy: Strategy | None = None
    # Further subresources.
    subresources: tuple[Subresource, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    # Field selectors beside metadata.name and metadata.namespace: label -> value getter.
    selectable_fields: Mapping[str, Callable[[Document], str]] = field(default_factory=dict)
    verbs: tuple[str, ...] = ALL_VERBS
    # Objects are deleted with a grace period (Pods).
    graceful_deletion: bool = False
    # Versions in which an update needs a resourceVersion and a delete returns a Status, other than in the rest.
    conditional_versions: tuple[str, ...] = ()
    # The kind of lists; empty for the default.
    own_list_kind: str = ""

    @property
    def list_kind(self) -> str:
        """Return the kind of lists."""
        return self.own_list_kind or f"{self.kind}List"

    def all_subresources(self) -> Iterator[Subresource]:
        """Yield the subresources, `status` first."""
        if self.status_strategy is not None:
            yield Subresource("status", strategy=self.status_strategy)
        yield from self.subresources


def restore(obj: Document, old: Document, *fields: str) -> None:
    """Restore top-level fields from the stored object."""
    for name in fields:
        if name in old:
            obj[name] = old[name]
        else:
            obj.pop(name, None)


def restore_metadata(obj: Document, old: Document, *fields: str) -> None:
    """Restore metadata fields from the stored object."""
    restore(obj.setdefault("metadata", {}), old.get("metadata") or {}, *fields)


def start_generation(obj: Document) -> None:
    """Set the generation of a new object, whatever the client sent."""
    metadata_of(obj)["generation"] = 1


def carry_generation(obj: Document, old: Document, *, changed: bool) -> None:
    """Restore the generation, incremented when the object changed."""
    generation = ((old.get("metadata") or {}).get("generation") or 0) + changed
    if generation:
        metadata_of(obj)["generation"] = generation
    else:
        metadata_of(obj).pop("generation", None)


def spec_changed(obj: Document, old: Document) -> bool:
    """Report whether the spec differs."""
    return (obj.get("spec") or {}) != (old.get("spec") or {})
