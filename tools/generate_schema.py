"""Write the schema of the served kinds to `src/dray/api/schema/data/`, then their types with `generate_types`.

Reads the OpenAPI definitions in the `kubernetes-validate` package and, from `tools/data/go_fields.json`, the protobuf
number of every field and whether Go declares it as a pointer or as a struct value. Writes names, types, numbers and
merge rules only, never a description.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TOOLS_DATA = ROOT / "tools" / "data"
OUTPUT = ROOT / "src" / "dray" / "api" / "schema" / "data"
OPENAPI = "kubernetes-json-schema/v1.37.0-local/_definitions.json"

META = "io.k8s.apimachinery.pkg.apis.meta.v1"
APIEXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
AGGREGATOR = "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1"

DRA = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
# Definition prefix -> kinds; the List of each kind is added when there is one.
SERVED: dict[str, tuple[str, ...]] = {
    "io.k8s.api.core.v1": (
        "Namespace",
        "Node",
        "Pod",
        "Event",
        "ConfigMap",
        "Secret",
        "ServiceAccount",
        "ResourceQuota",
        "Binding",
        "Endpoints",
        "LimitRange",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "PodTemplate",
        "ReplicationController",
        "Service",
    ),
    "io.k8s.api.admissionregistration.v1": (
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    ),
    "io.k8s.api.apps.v1": ("Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "ControllerRevision"),
    "io.k8s.api.batch.v1": ("CronJob", "Job"),
    "io.k8s.api.certificates.v1": ("CertificateSigningRequest", "PodCertificateRequest"),
    "io.k8s.api.discovery.v1": ("EndpointSlice",),
    "io.k8s.api.flowcontrol.v1": ("FlowSchema", "PriorityLevelConfiguration"),
    "io.k8s.api.networking.v1": ("IPAddress", "Ingress", "IngressClass", "NetworkPolicy", "ServiceCIDR"),
    "io.k8s.api.node.v1": ("RuntimeClass",),
    "io.k8s.api.storage.v1": (
        "CSIDriver",
        "CSINode",
        "CSIStorageCapacity",
        "StorageClass",
        "VolumeAttachment",
        "VolumeAttributesClass",
    ),
    "io.k8s.api.storagemigration.v1": ("StorageVersionMigration",),
    AGGREGATOR: ("APIService",),
    "io.k8s.api.coordination.v1": ("Lease",),
    "io.k8s.api.events.v1": ("Event",),
    "io.k8s.api.rbac.v1": ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"),
    "io.k8s.api.authentication.v1": ("TokenReview", "SelfSubjectReview", "TokenRequest"),
    "io.k8s.api.authorization.v1": (
        "SubjectAccessReview",
        "SelfSubjectAccessReview",
        "SelfSubjectRulesReview",
        "LocalSubjectAccessReview",
    ),
    APIEXTENSIONS: ("CustomResourceDefinition",),
    "io.k8s.api.scheduling.v1": ("PriorityClass",),
    "io.k8s.api.scheduling.v1beta1": ("PodGroup", "Workload"),
    "io.k8s.api.policy.v1": ("Eviction", "PodDisruptionBudget"),
    "io.k8s.api.autoscaling.v1": ("HorizontalPodAutoscaler", "Scale"),
    "io.k8s.api.autoscaling.v2": ("HorizontalPodAutoscaler",),
    "io.k8s.api.resource.v1": (*DRA, "DeviceTaintRule"),
    "io.k8s.api.resource.v1beta2": (*DRA, "DeviceTaintRule"),
    "io.k8s.api.resource.v1beta1": DRA,
    "io.k8s.api.resource.v1alpha3": ("DeviceTaintRule", "ResourcePoolStatusRequest"),
    META: (
        "DeleteOptions",
        "Status",
        "WatchEvent",
        "APIGroup",
        "APIGroupList",
        "APIResourceList",
        "APIVersions",
        "Condition",
    ),
}
GROUPS = {
    "io.k8s.api.core.v1": "",
    "io.k8s.api.admissionregistration.v1": "admissionregistration.k8s.io",
    "io.k8s.api.certificates.v1": "certificates.k8s.io",
    "io.k8s.api.discovery.v1": "discovery.k8s.io",
    "io.k8s.api.flowcontrol.v1": "flowcontrol.apiserver.k8s.io",
    "io.k8s.api.networking.v1": "networking.k8s.io",
    "io.k8s.api.node.v1": "node.k8s.io",
    "io.k8s.api.rbac.v1": "rbac.authorization.k8s.io",
    "io.k8s.api.storage.v1": "storage.k8s.io",
    "io.k8s.api.storagemigration.v1": "storagemigration.k8s.io",
    "io.k8s.api.coordination.v1": "coordination.k8s.io",
    "io.k8s.api.events.v1": "events.k8s.io",
    "io.k8s.api.authentication.v1": "authentication.k8s.io",
    "io.k8s.api.authorization.v1": "authorization.k8s.io",
    "io.k8s.api.scheduling.v1": "scheduling.k8s.io",
    "io.k8s.api.scheduling.v1beta1": "scheduling.k8s.io",
    "io.k8s.api.resource.v1": "resource.k8s.io",
    "io.k8s.api.resource.v1beta2": "resource.k8s.io",
    "io.k8s.api.resource.v1beta1": "resource.k8s.io",
    "io.k8s.api.resource.v1alpha3": "resource.k8s.io",
    APIEXTENSIONS: "apiextensions.k8s.io",
    AGGREGATOR: "apiregistration.k8s.io",
    META: "",
}

# Definitions that are not messages of fields: our scalar, and the message that carries it in protobuf.
LEAVES: dict[str, tuple[str, str]] = {
    f"{META}.Time": ("time", ""),
    f"{META}.MicroTime": ("micro-time", ""),
    f"{META}.Duration": ("duration", ""),
    f"{META}.FieldsV1": ("any", "raw"),
    "io.k8s.apimachinery.pkg.api.resource.Quantity": ("quantity", ""),
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": ("int-or-string", ""),
    "io.k8s.apimachinery.pkg.runtime.RawExtension": ("any", "raw"),
    f"{APIEXTENSIONS}.JSON": ("any", "raw"),
    f"{APIEXTENSIONS}.JSONSchemaPropsOrArray": ("any", "schema-or-array"),
    f"{APIEXTENSIONS}.JSONSchemaPropsOrBool": ("any", "schema-or-bool"),
    f"{APIEXTENSIONS}.JSONSchemaPropsOrStringArray": ("any", "schema-or-strings"),
}
# Protobuf messages around a plain list of strings.
STRING_LISTS = frozenset({"AttestationValue", "ExtraValue", "Verbs"})

# `+default` markers that server-side apply needs for list map keys; OpenAPI v2 does not carry them.
DEFAULTS: dict[tuple[str, str], Any] = {
    ("io.k8s.api.core.v1.ContainerPort", "protocol"): "TCP",
    ("io.k8s.api.core.v1.ServicePort", "protocol"): "TCP",
    ("io.k8s.api.core.v1.LocalObjectReference", "name"): "",
    ("io.k8s.api.core.v1.SecretKeySelector", "name"): "",
    ("io.k8s.api.core.v1.ConfigMapKeySelector", "name"): "",
    ("io.k8s.api.core.v1.ConfigMapEnvSource", "name"): "",
    ("io.k8s.api.core.v1.SecretEnvSource", "name"): "",
    ("io.k8s.api.core.v1.ConfigMapProjection", "name"): "",
    ("io.k8s.api.core.v1.SecretProjection", "name"): "",
    ("io.k8s.api.core.v1.ConfigMapVolumeSource", "name"): "",
}

# Fields that 1.37 calls optional in OpenAPI, and that Go still writes when they are zero or empty.
WRITTEN_WHEN_ZERO = frozenset(
    {("io.k8s.api.apps.v1.ControllerRevision", "revision")}
    | {
        (f"io.k8s.api.apps.v1.{kind}Condition", field)
        for kind in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
        for field in ("status", "type")
    }
    | {
        (f"io.k8s.api.resource.{version}.{struct}", "spec")
        for version in ("v1", "v1beta1", "v1beta2")
        for struct in ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceClaimTemplateSpec")
    }
)


class GoField(NamedTuple):
    """Facts about a field that OpenAPI does not have."""

    number: int = 0
    type: str = ""
    # "pointer" for a scalar that keeps a set zero value, "value" for a struct that is always present.
    declaration: str = ""
    # The numbers of the embedded messages that hold the field, outermost first.
    via: tuple[int, ...] = ()


def definitions() -> dict[str, Any]:
    """Return the OpenAPI definitions, by name."""
    spec = importlib.util.find_spec("kubernetes_validate")
    if spec is None or spec.origin is None:
        sys.exit("kubernetes-validate is not installed; install the `generate` extra")
    document = json.loads((Path(spec.origin).parent / OPENAPI).read_text())
    found: dict[str, Any] = document["$defs"]
    return found


class Generator:
    """Collects structs, starting at the served kinds."""

    def __init__(self) -> None:
        self.definitions = definitions()
        self.go_fields = json.loads((TOOLS_DATA / "go_fields.json").read_text())
        self.extra = json.loads((TOOLS_DATA / "extra_types.json").read_text())
        self.structs: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}

    def run(self) -> None:
        """Collect every served kind and what it reaches, and write the files."""
        for prefix, kinds in SERVED.items():
            for kind in kinds:
                self.add_kind(prefix, kind)
                if f"{prefix}.{kind}List" in self.definitions:
                    self.add_kind(prefix, f"{kind}List")
        for name, spec in self.extra.items():
            self.structs[name] = self._extra_struct(name, spec)
            if spec.get("kind"):
                self._register(*name.rsplit(".", 1))
        self._write()

    def add_kind(self, prefix: str, kind: str) -> None:
        """Collect a kind and register its group, version and kind."""
        self.add_struct(f"{prefix}.{kind}")
        self._register(prefix, kind)

    def _register(self, prefix: str, kind: str) -> None:
        group = GROUPS.get(prefix, prefix.split(".")[-2])
        version = prefix.rsplit(".", 1)[1]
        self.kinds[f"{group}/{version}/{kind}" if group else f"{version}/{kind}"] = f"{prefix}.{kind}"

    def add_struct(self, name: str) -> None:
        """Collect a definition and everything it refers to."""
        if name in self.structs:
            return
        definition = self.definitions[name]
        struct: dict[str, Any] = {"fields": {}}
        if definition.get("x-kubernetes-map-type") == "atomic":
            struct["atomic"] = True
        self.structs[name] = struct
        required = set(definition.get("required", ()))
        go_fields = self._go_fields(name)
        for field, schema in definition.get("properties", {}).items():
            go_field = go_fields.get(_fold(field), GoField())
            unlisted = (name, field) in WRITTEN_WHEN_ZERO
            entry = self._field(schema, go_field, required=unlisted or field in required)
            if unlisted:
                entry["unlisted"] = True
            if (name, field) in DEFAULTS:
                entry["default"] = DEFAULTS[name, field]
            struct["fields"][field] = entry | _declaration(go_field)

    def _field(self, schema: dict[str, Any], go_field: GoField, *, required: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": self._type(schema)}
        wire = self._wire(schema)
        if go_field.type.rstrip(">").split(" ")[-1] in STRING_LISTS:
            wire = "string-list"
        if go_field.number:
            entry["number"] = go_field.number
        if go_field.via:
            entry["via"] = list(go_field.via)
        if wire:
            entry["wire"] = wire
        if required:
            entry["required"] = True
        return entry | _merge_rules(schema)

    def _go_fields(self, name: str) -> dict[str, GoField]:
        package, _, message = name.rpartition(".")
        messages = self.go_fields.get(re.sub(r"^io\.k8s\.", "k8s.io.", package).replace("-", "_"), {})
        properties = {_fold(field) for field in self.definitions.get(name, {}).get("properties", ())}
        return _flattened(messages, message, properties, ())

    def _type(self, schema: dict[str, Any]) -> Any:
        if "$ref" in schema:
            return self._reference(schema["$ref"].rsplit("/", 1)[1])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0]
        if kind == "array":
            return _list_type(self._type(schema["items"]), schema)
        if kind == "object":
            element = self._type(schema["additionalProperties"]) if "additionalProperties" in schema else "any"
            return ["map", element, "atomic"] if schema.get("x-kubernetes-map-type") == "atomic" else ["map", element]
        return _scalar(kind, schema.get("format", ""))

    def _reference(self, target: str) -> str:
        if target in LEAVES:
            return LEAVES[target][0]
        self.add_struct(target)
        return f"#{target}"

    def _wire(self, schema: dict[str, Any]) -> str:
        while "$ref" not in schema:
            inner = schema.get("items") or schema.get("additionalProperties")
            if not isinstance(inner, dict):
                return ""
            schema = inner
        return LEAVES.get(schema["$ref"].rsplit("/", 1)[1], ("", ""))[1]

    def _extra_struct(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        go_fields = self._go_fields(name)
        required = set(spec.get("required", ()))
        fields: dict[str, Any] = {}
        if spec.get("kind"):
            fields |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
        for field, kind in spec["fields"].items():
            entry: dict[str, Any] = {"type": kind}
            go_field = go_fields.get(_fold(field), GoField())
            if go_field.number:
                entry["number"] = go_field.number
            if kind in ("any", ["list", "any"]) and "number" in entry:
                entry["wire"] = "raw"
            if field in required:
                entry["required"] = True
            fields[field] = entry | _declaration(go_field)
        return {"fields": fields}

    def _write(self) -> None:
        files: dict[str, dict[str, Any]] = {}
        for name, struct in self.structs.items():
            files.setdefault(module_of(name), {})[name] = struct
        for module, structs in files.items():
            _dump(OUTPUT / f"{module}.json", structs)
        _dump(OUTPUT / "kinds.json", self.kinds)
        self._report()

    def _report(self) -> None:
        for name, field in self._unnumbered():
            print(f"no protobuf number: {name}.{field}")
        fields = sum(len(struct["fields"]) for struct in self.structs.values())
        print(f"{len(self.structs)} structs, {fields} fields, {len(self.kinds)} kinds")

    def _unnumbered(self) -> Iterator[tuple[str, str]]:
        for name, struct in self.structs.items():
            for field, entry in struct["fields"].items():
                if "number" not in entry and field not in ("apiVersion", "kind") and ".Table" not in name:
                    yield name, field


def _flattened(
    messages: dict[str, Any], message: str, properties: set[str], via: tuple[int, ...]
) -> dict[str, GoField]:
    """Return the fields of a message by JSON name; those of embedded structs are fields of the outer one in JSON."""
    found: dict[str, GoField] = {}
    for number, field, *rest in messages.get(message, ()):
        go_field = found[_fold(field)] = GoField(number, *rest)._replace(via=via)
        # Not a property: an embedded struct, or a field of a later release.
        if properties and _fold(field) not in properties and go_field.type in messages:
            found |= _flattened(messages, go_field.type, properties, (*via, number))
    return found


def _declaration(go_field: GoField) -> dict[str, Any]:
    keys = {"pointer": "pointer", "value": "always"}
    return {keys[go_field.declaration]: True} if go_field.declaration else {}


def module_of(name: str) -> str:
    """Return the data file of a definition: `io.k8s.api.core.v1.Pod` is in `core_v1`."""
    parts = name.split(".")
    return f"{parts[-3]}_{parts[-2]}"


def _fold(name: str) -> str:
    """Normalize a field name: protobuf and JSON spell it the same except for case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _list_type(element: Any, schema: dict[str, Any]) -> list[Any]:
    kind = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys", [])
    if kind is None and schema.get("x-kubernetes-patch-strategy") in ("merge", "merge,retainKeys"):
        # Server-side apply falls back to the strategic merge rules for lists without a type of their own.
        merge_key = schema.get("x-kubernetes-patch-merge-key")
        kind, keys = ("map", [merge_key]) if merge_key else ("set", [])
    if kind in (None, "atomic"):
        return ["list", element]
    return ["list", element, kind, *keys]


def _merge_rules(schema: dict[str, Any]) -> dict[str, Any]:
    rules = {}
    if strategy := schema.get("x-kubernetes-patch-strategy"):
        rules["patch_strategies"] = strategy.split(",")
    if merge_key := schema.get("x-kubernetes-patch-merge-key"):
        rules["patch_merge_key"] = merge_key
    return rules


def _scalar(kind: Any, form: str) -> str:
    table = {
        ("string", ""): "string",
        ("string", "byte"): "bytes",
        ("string", "date-time"): "time",
        ("boolean", ""): "bool",
        ("integer", "int32"): "int32",
        ("integer", "int64"): "int64",
        ("number", "double"): "double",
    }
    return table[kind, form]


def _dump(path: Path, content: dict[str, Any]) -> None:
    """Write one struct or kind per line, which keeps the files compact and their diffs readable."""
    lines = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in sorted(content.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    Generator().run()
    # In a process of its own: the types are read from the new data.
    subprocess.run([sys.executable, str(ROOT / "tools" / "generate_types.py")], check=True)
