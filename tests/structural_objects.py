"""Random structural schemas, and objects of them with much that is wrong."""

from __future__ import annotations

import random
from typing import Any, Final

from dray.api.document import Document

NAMES: Final = ("a", "b", "c", "d")
SCALARS: Final = ("string", "integer", "number", "boolean")
WORDS: Final = ("", "x", "yes", "long words", "2020-01-01T00:00:00Z", "1")
NUMBERS: Final = (0, 1, -1, 7, 2**31, 2**40)
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"
DEPTH_MAX: Final = 3


class Schemas:
    """Makes structural schemas."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._objects = Objects(rng, noise=0)

    def root(self) -> Document:
        """The schema of a kind, with a spec and a status."""
        spec, status = self._object(1), self._object(2)
        for part in (spec, status):
            part.pop("x-kubernetes-map-type", None)
        return {"type": "object", "properties": {"spec": self._adorned(spec, 1), "status": status}}

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def schema(self, depth: int) -> Document:
        """The schema of a field."""
        kinds = [*SCALARS, "int-or-string", "object", "object", "array", "array", "any", "embedded"]
        kind = self._rng.choice(kinds if depth < DEPTH_MAX else kinds[:5])
        if kind == "int-or-string":
            schema: Document = {"x-kubernetes-int-or-string": True}
        elif kind == "object":
            schema = self._object(depth)
        elif kind == "array":
            schema = self._array(depth)
        elif kind == "any":
            schema = {PRESERVE: True}
        elif kind == "embedded":
            schema = {"type": "object", EMBEDDED: True} | self._rng.choice(({PRESERVE: True}, {"properties": {}}))
            if "properties" in schema:
                schema["properties"] = {"spec": self._object(depth + 1)}
        else:
            schema = self._scalar(kind)
        return self._adorned(schema, depth)

    def _adorned(self, schema: Document, _depth: int) -> Document:
        if self._chance(0.25):
            schema["nullable"] = True
        if self._chance(0.3):
            schema["default"] = self._objects.value(schema)
        return schema

    def _scalar(self, kind: str) -> Document:
        schema: Document = {"type": kind}
        if kind == "string" and self._chance(0.3):
            schema |= self._rng.choice(
                (
                    {"enum": ["x", "yes"]},
                    {"maxLength": 3},
                    {"minLength": 1},
                    {"pattern": "^[a-z]*$"},
                    {"format": "date-time"},
                )
            )
        if kind in ("integer", "number") and self._chance(0.3):
            schema |= self._rng.choice(({"minimum": 0}, {"maximum": 5}, {"format": "int32"}, {"multipleOf": 7}))
        return schema

    def _object(self, depth: int) -> Document:
        schema: Document = {"type": "object"}
        if self._chance(0.3) and depth > 1:
            schema["additionalProperties"] = self.schema(depth + 1)
            if self._chance(0.3):
                schema["maxProperties"] = 1
        else:
            names = self._rng.sample(NAMES, self._rng.randint(1, len(NAMES)))
            schema["properties"] = {name: self.schema(depth + 1) for name in names}
            if self._chance(0.3):
                schema["required"] = [self._rng.choice(names)]
            if self._chance(0.15):
                schema[PRESERVE] = True
        if self._chance(0.15):
            schema["x-kubernetes-map-type"] = self._rng.choice(("atomic", "granular"))
        return schema

    def _array(self, depth: int) -> Document:
        kind = self._rng.choice(("", "atomic", "set", "map"))
        schema: Document = {"type": "array"}
        if kind:
            schema["x-kubernetes-list-type"] = kind
        if kind == "set":
            schema["items"] = {"type": self._rng.choice(SCALARS[:2])}
        elif kind == "map":
            keys = self._rng.sample(NAMES, self._rng.randint(1, 2))
            properties = {name: {"type": "string"} for name in keys} | {"e": self.schema(depth + 1)}
            schema["items"] = {"type": "object", "properties": properties, "required": keys}
            schema["x-kubernetes-list-map-keys"] = keys
            if self._chance(0.4):
                # A key with a default need not be given.
                properties[keys[0]]["default"] = "x"
                schema["items"]["required"] = keys[1:]
                if not schema["items"]["required"]:
                    del schema["items"]["required"]
        else:
            schema["items"] = self.schema(depth + 1)
        if self._chance(0.2):
            schema |= self._rng.choice(({"maxItems": 1}, {"minItems": 1}))
        return schema


class Objects:
    """Makes values of schemas; `noise` is the probability of each place to have what does not belong there."""

    def __init__(self, rng: random.Random, noise: float) -> None:
        self._rng = rng
        self._noise = noise

    def one(self, schema: Document) -> Document:
        """The spec and status of an object."""
        found = {}
        for name, inner in schema["properties"].items():
            if name == "spec" or self._rng.random() < 0.5:
                found[name] = self.value(inner)
        return found

    def variant(self, parts: Document, schema: Document) -> Document:
        """The spec and status of an object with other values in a few places."""
        return {name: self.changed(value, schema["properties"][name]) for name, value in parts.items()}

    def changed(self, value: Any, schema: Document) -> Any:
        """A value with other values in a few places."""
        rng = self._rng
        if rng.random() < 0.2:
            return self.value(schema)
        if isinstance(value, dict):
            changed = {}
            for name, item in value.items():
                inner = self._member(schema, name)
                if rng.random() < 0.1:
                    continue
                changed[name] = self.changed(item, inner) if inner and rng.random() < 0.5 else item
            return changed
        if isinstance(value, list) and rng.random() < 0.5:
            return [*value, *value[:1]]
        return value

    @staticmethod
    def _member(schema: Document, name: str) -> Document | None:
        additional = schema.get("additionalProperties")
        found = (schema.get("properties") or {}).get(name, additional)
        return found if isinstance(found, dict) else None

    def value(self, schema: Document) -> Any:
        """A value of the schema, mostly."""
        if self._rng.random() < self._noise:
            return self._rng.choice((None, None, None, "", "text", 0, 3.5, True, [], {}, [None], {"a": None}, {"u": 1}))
        kind = schema.get("type") or ("any" if schema.get(PRESERVE) else "int-or-string")
        if schema.get(EMBEDDED):
            return self._embedded(schema)
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "any":
            return self._rng.choice((1, "x", {"a": None, "b": {"c": None}}, [1, None], {}))
        return self._scalar(schema, kind)

    def _scalar(self, schema: Document, kind: str) -> Any:
        rng = self._rng
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if kind == "string":
            if "format" in schema:
                return WORDS[4]
            return rng.choice(WORDS) if self._noise else "x"
        if kind == "boolean":
            return rng.random() < 0.5
        numbers: tuple[float, ...] = NUMBERS if self._noise else (0,)
        if kind == "number" and self._noise:
            numbers = (*NUMBERS, 0.5, -2.25, 1e21)
        return rng.choice(numbers) if kind != "int-or-string" else rng.choice((*numbers, "x"))

    def _object(self, schema: Document) -> Document:
        rng, found = self._rng, {}
        if isinstance(schema.get("additionalProperties"), dict):
            for name in rng.sample(("k", "l"), rng.randint(0, 1 if "maxProperties" in schema else 2)):
                found[name] = self.value(schema["additionalProperties"])
        for name, inner in (schema.get("properties") or {}).items():
            if name in schema.get("required", ()) or rng.random() < 0.6:
                found[name] = self.value(inner)
        if rng.random() < self._noise:
            found["unknown"] = rng.choice((None, 1, {"x": None}))
        for name in list(found):
            if rng.random() < self._noise / 2:
                del found[name]
        return found

    def _array(self, schema: Document) -> list[Any]:
        rng = self._rng
        low, high = schema.get("minItems", 0), schema.get("maxItems", 2)
        items = [self.value(schema["items"]) for _ in range(rng.randint(low, high))]
        if not self._noise and schema.get("x-kubernetes-list-type") in ("set", "map"):
            return items[:1]
        return items

    def _embedded(self, schema: Document) -> Document:
        rng = self._rng
        found: Document = {"apiVersion": "v1", "kind": "ConfigMap"}
        if rng.random() < 0.7:
            found["metadata"] = {"name": "x"}
        if self._noise:
            if rng.random() < 0.3:
                found["apiVersion"] = rng.choice(("", "a/b/c", None, 1, "apps/v1"))
            # One that cannot be decoded is refused alone, and Kubernetes chooses which.
            elif rng.random() < 0.3:
                found["kind"] = rng.choice(("", "no kind", None, 1, "Pod"))
            if rng.random() < 0.5:
                found["metadata"] = rng.choice(METADATA)
            if rng.random() < 0.2:
                del found[rng.choice(("apiVersion", "kind"))]
        for name, inner in (schema.get("properties") or {}).items():
            found[name] = self.value(inner)
        return found


METADATA: Final[tuple[Any, ...]] = (
    None,
    {},
    {"name": "Upper Case"},
    {"name": "x", "labels": None, "annotations": {}},
    {"labels": {"bad key!": "x"}},
    {"labels": {"a": 1}},
    {"name": "x", "unknown": 1},
    {"name": "x", "creationTimestamp": None},
    {"creationTimestamp": "2020-01-01T00:00:00Z"},
    {"name": 1},
    "text",
    {"finalizers": ["x", "a.b/c"]},
    {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]},
    {"managedFields": [{"manager": "x"}]},
    {"namespace": "x y"},
)
