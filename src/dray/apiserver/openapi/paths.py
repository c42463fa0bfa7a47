"""The operations of served resources: paths, parameters and responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.apiserver.openapi.schemas import PATCH, Dialect

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
STATUS: Final = f"{_META}.Status"
DELETE_OPTIONS: Final = f"{_META}.DeleteOptions"

_BODIES: Final = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_STREAMS: Final = ("application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)

# Query parameters: name -> type, description.
_QUERY: Final = {
    "pretty": ("string", "Whether the answer is indented for reading."),
    "dryRun": ("string", "All goes through every step but stores nothing."),
    "fieldManager": ("string", "Who is recorded as the manager of the fields that this request sets."),
    "fieldValidation": ("string", "What unknown and duplicate fields cause: Ignore, Warn (the default) or Strict."),
    "force": ("boolean", "Whether to take fields over from other managers when they conflict; for apply only."),
    "gracePeriodSeconds": ("integer", "How long the object may take to end; 0 is at once."),
    "orphanDependents": ("boolean", "Old form of propagationPolicy: whether dependents are left alone."),
    "propagationPolicy": ("string", "What happens to dependents: Orphan, Background or Foreground."),
    "ignoreStoreReadErrorWithClusterBreakingPotential": ("boolean", "Delete even what cannot be read any more."),
    "allowWatchBookmarks": ("boolean", "Whether watches may send bookmarks."),
    "continue": ("string", "The token of an earlier answer, to go on from there."),
    "fieldSelector": ("string", "Only objects with these values of fields."),
    "labelSelector": ("string", "Only objects with these labels."),
    "limit": ("integer", "How many objects to answer at most; the rest follows with continue."),
    "resourceVersion": ("string", "The version to read, or to start watching from."),
    "resourceVersionMatch": ("string", "How resourceVersion is meant: Exact or NotOlderThan."),
    "sendInitialEvents": ("boolean", "Whether a watch begins with what exists, closed by a bookmark."),
    "timeoutSeconds": ("integer", "When to end the call, whatever happens."),
    "watch": ("boolean", "Whether to stream the changes instead of listing."),
}
_LISTING: Final = (
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
)
_WRITING: Final = ("pretty", "dryRun", "fieldManager", "fieldValidation")
_DELETING: Final = (
    "pretty",
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
)
# Verb -> HTTP method, x-kubernetes-action, word in operationId, query parameters.
_ACTIONS: Final[dict[str, tuple[str, str, str, tuple[str, ...]]]] = {
    "get": ("get", "get", "read", ("pretty",)),
    "list": ("get", "list", "list", ("pretty", *_LISTING)),
    "create": ("post", "post", "create", _WRITING),
    "update": ("put", "put", "replace", _WRITING),
    "patch": ("patch", "patch", "patch", (*_WRITING, "force")),
    "delete": ("delete", "delete", "delete", _DELETING),
    "deletecollection": (
        "delete",
        "deletecollection",
        "deleteCollection",
        (*_DELETING, *(name for name in _LISTING if name not in ("allowWatchBookmarks", "watch"))),
    ),
}
_ON_COLLECTION: Final = ("list", "create", "deletecollection")
_ON_ITEM: Final = ("get", "update", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource, or one of its subresources, for its operations."""

    # The group-version that serves it; a subresource's kind may be of another group.
    group_version: GroupVersion
    gvk: GroupVersionKind
    # Path below the group-version: `pods` or, for a subresource, `pods/{name}/status`.
    resource: str
    namespaced: bool
    verbs: tuple[str, ...]
    definition: str
    list_definition: str = ""
    subresource: str = ""
    custom: bool = False
    # Of a subresource: the kind in the names of the operations.
    parent_kind: str = ""


class Operations:
    """Builds the path items of resources in one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect: Final = dialect

    def paths(self, resource: Resource) -> Document:
        """Return every path of a resource with its operations."""
        root = _root(resource.group_version)
        scope = f"{root}/namespaces/{{namespace}}" if resource.namespaced else root
        if resource.subresource:
            return {f"{scope}/{resource.resource}": self._item(resource, resource.verbs)}
        found: Document = {}
        if on_collection := [verb for verb in resource.verbs if verb in _ON_COLLECTION]:
            found[f"{scope}/{resource.resource}"] = self._item(resource, tuple(on_collection))
        if on_item := [verb for verb in resource.verbs if verb in _ON_ITEM]:
            found[f"{scope}/{resource.resource}/{{name}}"] = self._item(resource, tuple(on_item), named=True)
        if resource.namespaced and "list" in resource.verbs:
            found[f"{root}/{resource.resource}"] = self._item(resource, ("list",), all_namespaces=True)
        return found

    def _item(
        self, resource: Resource, verbs: tuple[str, ...], *, named: bool = False, all_namespaces: bool = False
    ) -> Document:
        named = named or bool(resource.subresource)
        item: Document = {}
        for verb in verbs:
            if verb in _ACTIONS:
                method = _ACTIONS[verb][0]
                item[method] = self._operation(resource, verb, all_namespaces=all_namespaces)
        parameters = []
        if named:
            parameters.append(
                self._path_parameter("name", f"The name of the {resource.parent_kind or resource.gvk.kind}.")
            )
        if resource.namespaced and not all_namespaces:
            parameters.append(self._path_parameter("namespace", "The namespace of the object."))
        if parameters:
            item["parameters"] = parameters
        return item

    def _operation(self, resource: Resource, verb: str, *, all_namespaces: bool) -> Document:
        _, action, word, query = _ACTIONS[verb]
        gvk = resource.gvk
        operation: Document = {
            "tags": [_tag(resource.group_version)],
            "description": _sentence(resource, verb),
            "operationId": _operation_id(resource, word, all_namespaces=all_namespaces),
            "parameters": [self._query_parameter(name) for name in query],
        }
        answer = resource.list_definition if verb == "list" else resource.definition
        if verb in ("delete", "deletecollection"):
            answer = STATUS
        self._add_body(operation, resource, verb)
        operation["responses"] = self._responses(resource, verb, answer)
        operation["x-kubernetes-action"] = action
        operation["x-kubernetes-group-version-kind"] = {"group": gvk.group, "version": gvk.version, "kind": gvk.kind}
        if not self._dialect.v3:
            operation |= {
                "consumes": list(_consumes(resource, verb)),
                "produces": _produces(resource, verb),
                "schemes": ["https"],
            }
        return operation

    def _add_body(self, operation: Document, resource: Resource, verb: str) -> None:
        target = {
            "create": resource.definition,
            "update": resource.definition,
            "patch": PATCH,
            "delete": DELETE_OPTIONS,
            "deletecollection": DELETE_OPTIONS,
        }.get(verb)
        if target is None:
            return
        schema = self._dialect.reference(target)
        required = verb in ("create", "update", "patch")
        if self._dialect.v3:
            content = {media: {"schema": schema} for media in _consumes(resource, verb)}
            operation["requestBody"] = {"content": content} | ({"required": True} if required else {})
        else:
            operation["parameters"].append(
                {"name": "body", "in": "body", "schema": schema} | ({"required": True} if required else {})
            )

    def _responses(self, resource: Resource, verb: str, answer: str) -> Document:
        codes = {"200": "OK"}
        if verb in ("create", "update", "patch"):
            codes["201"] = "Created"
        if verb in ("create", "delete"):
            codes["202"] = "Accepted"
        schema = self._dialect.reference(answer)
        responses: Document = {}
        for code, text in codes.items():
            if self._dialect.v3:
                content = {media: {"schema": schema} for media in _produces(resource, verb)}
                responses[code] = {"description": text, "content": content}
            else:
                responses[code] = {"description": text, "schema": schema}
        return responses | {"401": {"description": "Unauthorized"}}

    def _query_parameter(self, name: str) -> Document:
        kind, text = _QUERY[name]
        made: Document = {"name": name, "in": "query", "description": text}
        schema = {"type": kind, "uniqueItems": True}
        return made | ({"schema": schema} if self._dialect.v3 else schema)

    def _path_parameter(self, name: str, text: str) -> Document:
        made: Document = {"name": name, "in": "path", "description": text, "required": True}
        schema = {"type": "string", "uniqueItems": True}
        return made | ({"schema": schema} if self._dialect.v3 else schema)


def _consumes(resource: Resource, verb: str) -> tuple[str, ...]:
    if verb != "patch":
        return ("*/*",)
    # Custom resources do not support strategic merge patch.
    return tuple(media for media in _PATCHES if not (resource.custom and "strategic" in media))


def _produces(resource: Resource, verb: str) -> list[str]:
    media: list[Any] = [*_BODIES, *(_STREAMS if verb == "list" else ())]
    return [name for name in media if not (resource.custom and "protobuf" in name)]


def _root(where: GroupVersion) -> str:
    return f"/apis/{where.api_version}" if where.group else f"/api/{where.version}"


def _tag(where: GroupVersion) -> str:
    return f"{_group_word(where).lower()}_{where.version}"


def _group_word(where: GroupVersion) -> str:
    """Return the word for a group: `Core` for the core group, `RbacAuthorization` for rbac.authorization.k8s.io."""
    group = where.group.removesuffix(".k8s.io") or "core"
    return "".join(part.capitalize() for part in group.split("."))


def _operation_id(resource: Resource, word: str, *, all_namespaces: bool) -> str:
    where = resource.group_version
    scope = "Namespaced" if resource.namespaced and not all_namespaces else ""
    tail = "ForAllNamespaces" if all_namespaces else ""
    kind = resource.parent_kind or resource.gvk.kind
    below = resource.subresource.capitalize()
    return f"{word}{_group_word(where)}{where.version.capitalize()}{scope}{kind}{below}{tail}"


def _sentence(resource: Resource, verb: str) -> str:
    kind = f"{resource.subresource} of the {resource.parent_kind}" if resource.subresource else resource.gvk.kind
    return {
        "get": f"read the specified {kind}",
        "list": f"list or watch objects of kind {kind}",
        "create": f"create a {kind}",
        "update": f"replace the specified {kind}",
        "patch": f"partially update the specified {kind}",
        "delete": f"delete a {kind}",
        "deletecollection": f"delete a collection of {kind}",
    }[verb]
