"""What an admission plugin is: a name, the writes it takes part in, and its two phases."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import msgspec

from dray.api.document import Document, GroupResource
from dray.apiserver.call import Call
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import DeleteOptions, WriteOptions
from dray.apiserver.request import UserInfo

# Reverses what a plugin reserved for a write that was not stored after all.
Undo: TypeAlias = Callable[[], Awaitable[None]]


class Operation(enum.StrEnum):
    """What a write does to its object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    # Opens a stream to an object; nothing is written.
    CONNECT = "CONNECT"


class AdmissionAttributes(msgspec.Struct, frozen=True):
    """One write, as plugins see it.

    `object` is None for a delete and `old_object` for a create. In the mutating phase `object` has the version of the
    request and may be changed in place; in the validating phase it has the storage version and is only read.
    `old_object` is shared and never changed. Texts appended to `warnings` become Warning headers.
    """

    operation: Operation
    user: UserInfo
    # The request verb: create update patch delete deletecollection.
    verb: str
    resource: GroupResource
    version: str
    subresource: str
    namespace: str
    name: str
    object: Document | None
    old_object: Document | None
    options: WriteOptions | DeleteOptions
    warnings: list[str]
    # Annotations of the request's audit events by key; None if the request is not audited.
    audit: dict[str, str] | None = None

    @classmethod
    def of(
        cls,
        call: Call,
        endpoint: Endpoint,
        operation: Operation,
        options: WriteOptions | DeleteOptions,
        new: Document | None = None,
        old: Document | None = None,
    ) -> AdmissionAttributes:
        """Return the attributes of a request."""
        info = call.info
        return cls(
            operation=operation,
            user=call.user,
            verb=info.verb,
            resource=endpoint.resource,
            version=endpoint.version,
            subresource=info.subresource,
            namespace=info.namespace,
            name=info.name,
            object=new,
            old_object=old,
            options=options,
            warnings=call.warnings,
            audit=call.audit,
        )

    def with_objects(self, new: Document | None, old: Document | None = None) -> AdmissionAttributes:
        """Return the same write with other objects."""
        return msgspec.structs.replace(self, object=new, old_object=old)

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be stored."""
        return self.options.dry_run


class FirstRound(msgspec.Struct):
    """What the first round of webhooks did: whether anything changed, and what a second round needs."""

    changed: bool = False
    # Webhooks that are called again if the object has changed since, each with the object as it left it.
    reinvoked: list[tuple[Any, Document]] = msgspec.field(default_factory=list)


class Configuration(Protocol):
    """What is configured for a plugin to act on."""

    # Whether there is nothing. Read for every write, so that it is not a property.
    is_empty: bool


class _BuiltIn:
    """The rules of a plugin that needs no configuration."""

    is_empty = False


_BUILT_IN: Final = _BuiltIn()


class AdmissionPlugin:
    """Base of the plugins; override `admit`, `validate` or both. A plugin refuses a write by raising an `APIError`."""

    # Kubernetes' name, as in --disable-admission-plugins.
    name: ClassVar[str]
    # Whether it validates no writes but those of users in the group of nodes.
    validates_nodes_only: ClassVar[bool] = False
    # What the plugin acts on; it is skipped while there is nothing.
    configuration: Configuration = _BUILT_IN

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Return whether the plugin takes part in such writes; the answer must never change."""
        raise NotImplementedError

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Change the object, or refuse the write. Must be safe to repeat."""

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Refuse the write or let it pass; return how to undo what was reserved for it, if anything was."""


class ReinvokingPlugin(AdmissionPlugin):
    """A plugin that changes objects after all others, in up to two rounds."""

    def is_about(self, attributes: AdmissionAttributes) -> bool:
        """Return whether the plugin may change the object."""
        raise NotImplementedError

    async def first_round(self, attributes: AdmissionAttributes) -> FirstRound:
        """Change the object, or refuse the write."""
        raise NotImplementedError

    async def second_round(self, attributes: AdmissionAttributes, first: FirstRound) -> None:
        """Change the object again, after the other plugins have seen what the first round changed."""
        raise NotImplementedError
