"""The JSON form of a Kubernetes object, and the identifiers of objects and kinds.

The API server stores objects as JSON documents, so that nothing a client wrote is lost; components read
them as the typed structures of `dray.api.types`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NewType, TypeAlias

from dray.lib.processor_time import ticking

# A JSON object with Kubernetes' camelCase keys: str, int, float, bool, None, list and dict only.
Document: TypeAlias = dict[str, Any]

UID = NewType("UID", str)

# The names below are tuples: they are keys of nearly every index, and a tuple hashes and compares several times faster
# than a dataclass.


class NamespacedName(NamedTuple):
    """An object's namespace and name; the namespace of cluster-scoped objects is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class GroupVersion(NamedTuple):
    """An API group and version; the core group is the empty string."""

    group: str
    version: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` string."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @classmethod
    def parse(cls, api_version: str) -> GroupVersion:
        """Split an `apiVersion` string; no slash means the core group."""
        group, _, version = api_version.rpartition("/")
        return cls(group, version)

    def kind(self, kind: str) -> GroupVersionKind:
        """Return a kind of this group and version."""
        return GroupVersionKind(self.group, self.version, kind)


class GroupVersionKind(NamedTuple):
    """A kind at one version."""

    group: str
    version: str
    kind: str

    @property
    def group_version(self) -> GroupVersion:
        """The kind's group and version."""
        return GroupVersion(self.group, self.version)

    @property
    def api_version(self) -> str:
        """The `apiVersion` string."""
        return self.group_version.api_version

    def __str__(self) -> str:
        return f"{self.api_version}, Kind={self.kind}"


class GroupResource(NamedTuple):
    """A resource (plural, lower case) of a group, as error messages name it."""

    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


def metadata_of(document: Document) -> Document:
    """Return the object's metadata, which is created when missing."""
    metadata: Document = document.setdefault("metadata", {})
    return metadata


def key_of(document: Document) -> NamespacedName:
    """The object's namespace and name."""
    metadata = document.get("metadata") or {}
    return NamespacedName(metadata.get("namespace", ""), metadata.get("name", ""))


# Of so few items, none is checked: most lists are short.
_SHORT: Final = 32


def copy_document(document: Document) -> Document:
    """Return a deep copy; limited to JSON values and therefore much faster than `copy.deepcopy`."""
    # Most values are strings.
    return {name: value if value.__class__ is str else copy_value(value) for name, value in document.items()}


def copy_value(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        members = value.items() if len(value) <= _SHORT else ticking(value.items())
        return {name: item if item.__class__ is str else copy_value(item) for name, item in members}
    if isinstance(value, list):
        items = value if len(value) <= _SHORT else ticking(value)
        return [item if item.__class__ is str else copy_value(item) for item in items]
    return value
