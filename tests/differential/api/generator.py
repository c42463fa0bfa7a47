"""Random requests about one object of each kind, valid and broken; a seed always gives the same."""

from __future__ import annotations

import copy
import enum
import hashlib
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from dray.api.document import Document
from dray.api.schema.model import ListOf, MapOf, StructType, Type
from tests.differential.api.values import Values
from tests.objects_of_kinds import endpoint_of, one_of_each_kind

_MORE: Final = Path(__file__).with_name("more_objects.yaml")
# Kinds whose name, or the server's part in them, makes every request about them special.
_LEFT_OUT: Final = frozenset(
    {
        "cdi.k8s.io/v1alpha1/resourceclaims",
        "cdi.k8s.io/v1alpha1/resourceclasses",
        "apiextensions.k8s.io/v1/customresourcedefinitions",
    }
)
# What most clusters are made of is asked about more often.
_WEIGHTS: Final = {
    "core/v1/pods": 8,
    "core/v1/services": 3,
    "apps/v1/deployments": 3,
    "batch/v1/jobs": 3,
    "resource.k8s.io/v1/resourceclaims": 5,
    "resource.k8s.io/v1/resourceslices": 4,
    "resource.k8s.io/v1/deviceclasses": 2,
    "core/v1/nodes": 2,
    "core/v1/persistentvolumes": 2,
    "core/v1/persistentvolumeclaims": 2,
}
# Objects of these kinds act on others in their namespace.
_OWN_NAMESPACE: Final = frozenset({"ResourceQuota", "LimitRange"})
NAMESPACES: Final = ("default", "limited")

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
JSON: Final = "application/json"


class Level(enum.StrEnum):
    """How much of an object is wrong."""

    VALID = "valid"
    SLIGHTLY = "slightly broken"
    WILDLY = "wildly broken"


@dataclass(frozen=True, slots=True)
class Step:
    """One request; `$VERSION` and `$UID` in its body stand for those of the object as the server last showed it."""

    method: str
    path: str
    body: Any = None
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Case:
    """Requests about one object, and where that object is deleted in the end."""

    kind: str
    level: Level
    path: str
    steps: tuple[Step, ...] = field(default=())


def objects() -> dict[str, Document]:
    """An object of each compared kind, by `group/version/resource`."""
    found = {name: document for name, document in one_of_each_kind().items() if name not in _LEFT_OUT}
    for document in yaml.safe_load_all(_MORE.read_text()):
        endpoint = endpoint_of(document)
        found[f"{endpoint.resource.group or 'core'}/{endpoint.version}/{endpoint.resource.resource}"] = document
    return found


def cases(seed: int, requests: int) -> list[Case]:
    """As many cases as make up the requests."""
    found: list[Case] = []
    documents, total = objects(), 0
    names = [name for name in sorted(documents) for _ in range(_WEIGHTS.get(name, 1))]
    while total < requests:
        number = len(found)
        rng = random.Random(f"{seed}/{number}")
        kind = names[number % len(names)]
        found.append(_Writer(rng, kind, documents[kind], number).case())
        total += len(found[-1].steps)
    return found


def digest(found: Sequence[Case]) -> str:
    """What tells two sets of cases apart."""
    return hashlib.sha256(json.dumps([packed(case) for case in found], sort_keys=True).encode()).hexdigest()


def packed(case: Case) -> list[Any]:
    """The case as JSON."""
    steps = [[step.method, step.path, step.body, step.content_type] for step in case.steps]
    return [case.kind, case.level.value, case.path, steps]


def unpacked(record: Sequence[Any]) -> Case:
    """The case of `packed`."""
    kind, level, path, steps = record
    return Case(kind, Level(level), path, tuple(Step(*step) for step in steps))


class _Writer:
    """Writes the requests of one case."""

    def __init__(self, rng: random.Random, kind: str, document: Document, number: int) -> None:
        self._rng = rng
        self._kind = kind
        endpoint = endpoint_of(document)
        definition, version = endpoint.definition, endpoint.version
        self._definition = definition
        self._struct = endpoint.struct
        self._level = rng.choices(list(Level), (4, 4, 2))[0]
        self._base: Document = copy.deepcopy(document)
        root = f"/apis/{definition.group}/{version}" if definition.group else f"/api/{version}"
        if definition.namespaced:
            namespace = NAMESPACES[definition.kind in _OWN_NAMESPACE]
            self._base["metadata"]["namespace"] = namespace
            root += f"/namespaces/{namespace}"
        name = f"10.9.{number // 200 % 200}.{number % 200 + 1}" if definition.kind == "IPAddress" else f"case{number}"
        self._base["metadata"]["name"] = name
        self._collection = f"{root}/{definition.resource}"
        self._path = f"{self._collection}/{name}"
        broken = {Level.VALID: 0.0, Level.SLIGHTLY: 0.3, Level.WILDLY: 0.5}[self._level]
        self._values = Values(rng, broken, definition.group)

    def case(self) -> Case:
        return Case(self._kind, self._level, self._path, tuple(self._steps()))

    def _steps(self) -> Iterator[Step]:
        rng = self._rng
        if rng.random() < 0.5:
            document = self._changed(self._base)
            yield Step("POST", self._collection + self._query(), document)
            if rng.random() < 0.5:
                return
            self._base = document
        else:
            yield Step("POST", self._collection, self._base)
        writers = [self._update, self._merge, self._strategic, self._json_patch, self._apply, self._delete]
        if self._definition.status_strategy is not None:
            writers += [self._status, self._status_patch]
        for writer in rng.choices(writers, k=rng.randint(1, 3)):
            yield writer()

    def _update(self) -> Step:
        document = self._changed(self._base)
        if isinstance(document.get("metadata"), dict):
            document["metadata"] |= {"resourceVersion": "$VERSION"}
        return Step("PUT", self._path + self._query(), document)

    def _merge(self, subresource: str = "") -> Step:
        return Step("PATCH", f"{self._path}{subresource}{self._query()}", self._difference(subresource), MERGE)

    def _strategic(self) -> Step:
        return Step("PATCH", self._path + self._query(), self._difference(), STRATEGIC)

    def _json_patch(self) -> Step:
        operations = []
        for _ in range(self._rng.randint(1, 3)):
            path, value = self._edit(copy.deepcopy(self._base))
            pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
            name = self._rng.choices(("add", "replace", "remove", "test"), (5, 3, 2, 1))[0]
            operations.append({"op": name, "path": pointer} | ({"value": value} if name not in ("remove",) else {}))
        return Step("PATCH", self._path + self._query(), operations, JSON_PATCH)

    def _apply(self) -> Step:
        force = self._rng.choice(("", "&force=true"))
        query = f"?fieldManager={self._rng.choice(('one', 'two'))}{force}"
        return Step("PATCH", self._path + query, self._changed(self._base), APPLY)

    def _status(self) -> Step:
        document = copy.deepcopy(self._base)
        document["metadata"]["resourceVersion"] = "$VERSION"
        status = self._struct.fields["status"].type
        document["status"] = self._values.of("status", status, 0)
        return Step("PUT", f"{self._path}/status{self._query()}", document)

    def _status_patch(self) -> Step:
        status = self._struct.fields["status"].type
        body = {"status": self._values.of("status", status, 0)}
        return Step("PATCH", f"{self._path}/status{self._query()}", body, MERGE)

    def _delete(self) -> Step:
        options: Document = {"apiVersion": "v1", "kind": "DeleteOptions"}
        rng = self._rng
        if rng.random() < 0.4:
            options["gracePeriodSeconds"] = rng.choice((0, 0, 1, 30, -1))
        if rng.random() < 0.4:
            options["propagationPolicy"] = rng.choice(("Background", "Foreground", "Orphan", "Other"))
        if rng.random() < 0.2:
            options["orphanDependents"] = rng.choice((True, False))
        if rng.random() < 0.3:
            options["dryRun"] = rng.choice((["All"], ["all"], []))
        if rng.random() < 0.3:
            options["preconditions"] = {"uid": rng.choice(("$UID", "other"))}
        return Step("DELETE", self._path, options)

    def _query(self) -> str:
        rng = self._rng
        parts = []
        wrong = rng.random() < 0.04
        if rng.random() < 0.1:
            parts.append("dryRun=All" if not wrong else "dryRun=all")
        if rng.random() < 0.3:
            parts.append("fieldValidation=" + ("strict" if wrong else rng.choice(("Strict", "Warn", "Ignore"))))
        if wrong and rng.random() < 0.5:
            parts.append("fieldManager=" + rng.choice(("three", "a" * 129, "a%0a")))
        return "?" + "&".join(parts) if parts else ""

    def _edits(self) -> int:
        return {Level.VALID: self._rng.randint(1, 3), Level.SLIGHTLY: 1, Level.WILDLY: self._rng.randint(2, 6)}[
            self._level
        ]

    def _changed(self, document: Document) -> Document:
        changed = copy.deepcopy(document)
        for _ in range(self._edits()):
            path, value = self._edit(changed)
            _put(changed, path, value)
            if self._level is not Level.VALID and self._rng.random() < 0.15:
                _remove(changed, path)
        if self._level is not Level.VALID and self._rng.random() < 0.1:
            changed[self._rng.choice(("unknown", "Metadata", "spc"))] = 1
        return changed

    def _difference(self, subresource: str = "") -> Any:
        """A patch of some edits; what stands in a list is given with the whole list."""
        patch: Document = {}
        document = copy.deepcopy(self._base)
        for _ in range(self._edits()):
            path, value = self._edit(document)
            _put(document, path, value)
            names = [*path]
            for depth, part in enumerate(path):
                if isinstance(part, int):
                    names = [*path[:depth]]
                    value = _get(document, names)
                    break
            if self._rng.random() < 0.2:
                value = None
            if names:
                _put(patch, names, copy.deepcopy(value))
        return patch

    def _edit(self, document: Document) -> tuple[list[str | int], Any]:
        """A place in the document, and a value for it."""
        path: list[str | int] = []
        name = ""
        kind: Type = self._struct
        value: Any = document
        while True:
            step = self._step(path, name, kind, value)
            if step is None:
                break
            name = str(step[0]) if isinstance(kind, StructType) else name
            part, kind = step
            path.append(part)
            below = _below(value, part)
            if below is None and isinstance(part, int) and value and self._repeats():
                return path, copy.deepcopy(value[0])
            value = below
            if value is None or (isinstance(value, dict | list) and len(path) > 1 and self._rng.random() < 0.1):
                break
        if self._level is Level.WILDLY and self._rng.random() < 0.2:
            return path, self._rng.choice((None, "text", 5, True, [], {}, [None], [{}], -1.5))
        return path, self._values.of(name, kind, 1)

    def _repeats(self) -> bool:
        return self._level is not Level.VALID and self._rng.random() < 0.3

    def _step(self, path: list[str | int], name: str, kind: Type, value: Any) -> tuple[str | int, Type] | None:
        """One step further into the document: the member or element, and its type."""
        rng = self._rng
        if isinstance(kind, StructType) and isinstance(value, dict) and kind.fields:
            names = [each for each in kind.fields if path or each not in ("apiVersion", "kind", "status")]
            if not path:
                names = [each for each in names if each != "metadata"] * 8 + ["metadata"]
            present = [each for each in names if isinstance(value.get(each), dict | list)]
            chosen = rng.choice(present if present and rng.random() < 0.65 else names)
            if path == ["metadata"] and chosen == "name":
                chosen = "labels"
            return chosen, kind.fields[chosen].type
        if isinstance(kind, ListOf) and isinstance(value, list):
            return rng.randrange(len(value) + 1), kind.element
        if isinstance(kind, MapOf) and isinstance(value, dict):
            return rng.choice([*value, self._values.key(name)]), kind.element
        return None


def _below(value: Any, part: str | int) -> Any:
    if isinstance(part, int):
        return value[part] if part < len(value) else None
    return value.get(part)


def _put(document: Any, path: Sequence[str | int], value: Any) -> None:
    for part, below in itertools.pairwise(path):
        if isinstance(document, list):
            if part >= len(document):  # type: ignore[operator]
                return
            document = document[part]  # type: ignore[index]
        elif isinstance(document, dict):
            if not isinstance(document.get(part), dict | list):
                document[part] = [] if isinstance(below, int) else {}
            document = document[part]
        else:
            return
    last = path[-1]
    if isinstance(document, list):
        if isinstance(last, int):
            document[last : last + 1] = [value]
    elif isinstance(document, dict):
        document[last] = value


def _get(document: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        document = document[part]
    return document


def _remove(document: Any, path: Sequence[str | int]) -> None:
    try:
        above = _get(document, path[:-1])
        del above[path[-1]]
    except (KeyError, IndexError, TypeError):
        return
