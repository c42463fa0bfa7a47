"""Write the typed structures of `src/dray/api/types/` from the schema data."""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
from pathlib import Path

from dray.api.document import GroupVersion
from dray.api.schema import load
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "src" / "dray" / "api" / "types"

# Module -> group-version whose kinds it holds.
MODULES = {
    "meta_v1": "",
    "core_v1": "v1",
    "resource_v1": "resource.k8s.io/v1",
    "apps_v1": "apps/v1",
    "batch_v1": "batch/v1",
    "coordination_v1": "coordination.k8s.io/v1",
    "events_v1": "events.k8s.io/v1",
    "policy_v1": "policy/v1",
    "scheduling_v1": "scheduling.k8s.io/v1",
    "scheduling_v1alpha3": "scheduling.k8s.io/v1alpha3",
    "scheduling_v1beta1": "scheduling.k8s.io/v1beta1",
    "rbac_v1": "rbac.authorization.k8s.io/v1",
    "cdi_v1alpha1": "cdi.k8s.io/v1alpha1",
}
# Kinds that components read as documents, if at all.
UNTYPED = frozenset(
    {
        "Endpoints",
        "LimitRange",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "PodTemplate",
        "Service",
    }
)
META_KINDS = ("ObjectMeta", "ListMeta", "Condition", "Status", "DeleteOptions", "OwnerReference", "LabelSelector")
META = "io.k8s.apimachinery.pkg.apis.meta.v1"

SCALARS = {
    Scalar.STRING: "str",
    Scalar.INT32: "int",
    Scalar.INT64: "int",
    Scalar.DOUBLE: "float",
    Scalar.BOOL: "bool",
    Scalar.BYTES: "bytes",
    Scalar.TIME: "datetime",
    Scalar.MICRO_TIME: "datetime",
    Scalar.DURATION: "str",
    Scalar.QUANTITY: "str",
    Scalar.INT_OR_STRING: "int | str",
    Scalar.ANY: "Any",
}
ZEROES = {"str": '""', "int": "0", "float": "0.0", "bool": "False", "bytes": 'b""'}
# Go writes these fields even when they are zero, if they are required.
WRITTEN_ZEROES = {Scalar.STRING, Scalar.BYTES, Scalar.INT32, Scalar.INT64, Scalar.DOUBLE, Scalar.BOOL}
# Server-side bookkeeping, often half of an object: components neither read nor write it, and the server keeps what an
# update omits.
OMITTED = {"managedFields"}
# Attributes that would shadow a name in the annotations of the same class.
SHADOWING = {"int", "bool", "str", "float", "bytes"}


def module_of(struct_type: StructType) -> str:
    """Return the module of a struct."""
    parts = struct_type.name.split(".")
    return f"{parts[-3]}_{parts[-2]}"


def attribute(name: str) -> str:
    """Return the snake_case name of a field: `hostPID` is `host_pid`, `cdiDeviceIDs` is `cdi_device_ids`."""
    name = re.sub(r"(ID|IP|CIDR|URL|WWN)s\b", lambda match: match[1].capitalize() + "s", name)
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    return f"{name}_" if keyword.iskeyword(name) or name in SHADOWING else name


def camel(name: str) -> str:
    """Return the name that msgspec derives from an attribute."""
    head, *tail = name.split("_")
    return "_".join((head + "".join(part.title() for part in tail), *([""] if name.endswith("_") else [])))


def roots() -> list[StructType]:
    """Return the kinds of the modules, and the meta types that code uses directly."""
    versions = {GroupVersion.parse(api_version) for api_version in MODULES.values() if api_version}
    found = [load.struct(f"{META}.{kind}") for kind in META_KINDS]
    for gvk in load.kinds():
        struct_type = load.kind_type(gvk)
        if struct_type is None or gvk.group_version not in versions:
            continue
        if not gvk.kind.endswith("List") and gvk.kind not in UNTYPED:
            found.append(struct_type)
    return [struct_type for struct_type in found if module_of(struct_type) in MODULES]


def members(struct_type: StructType) -> list[Field]:
    """Return the fields that are generated."""
    return [field for field in struct_type.fields.values() if field.name not in OMITTED]


def leaf(kind: Type) -> Type:
    """Return the element type below lists and maps."""
    while isinstance(kind, ListOf | MapOf):
        kind = kind.element
    return kind


def collect() -> dict[str, list[StructType]]:
    """Return all structs by module, each after the ones whose instances are its defaults."""
    ordered: dict[str, StructType] = {}
    seen: set[str] = set()

    def visit(struct_type: StructType) -> None:
        if struct_type.name in seen:
            return
        seen.add(struct_type.name)
        for field in members(struct_type):
            if is_default_instance(field):
                assert isinstance(field.type, StructType)
                visit(field.type)
        ordered[struct_type.name] = struct_type
        for field in members(struct_type):
            below = leaf(field.type)
            if isinstance(below, StructType):
                visit(below)

    for root in sorted(roots(), key=lambda struct_type: struct_type.name):
        visit(root)
    by_module: dict[str, list[StructType]] = {module: [] for module in MODULES}
    for struct_type in ordered.values():
        by_module[module_of(struct_type)].append(struct_type)
    return by_module


def is_default_instance(field: Field) -> bool:
    """Report whether the struct is present even when unset."""
    return isinstance(field.type, StructType) and (field.always or field.required or field.name == "metadata")


def annotation(kind: Type, module: str) -> str:
    """Return the Python type of a schema type."""
    if isinstance(kind, Scalar):
        return SCALARS[kind]
    if isinstance(kind, ListOf):
        return f"tuple[{annotation(kind.element, module)}, ...]"
    if isinstance(kind, MapOf):
        return f"Mapping[str, {annotation(kind.element, module)}]"
    name = kind.name.rpartition(".")[2]
    return name if module_of(kind) == module else f"{module_of(kind)}.{name}"


def member(field: Field, module: str) -> str:
    """Return one line of a class."""
    name = attribute(field.name)
    kind = annotation(field.type, module)
    odd = "" if camel(name) == field.name else f', name="{field.name}"'
    if isinstance(field.type, MapOf):
        return f"    {name}: {kind} = msgspec.field(default_factory=dict{odd})"
    if field.required and field.type in WRITTEN_ZEROES:
        # `omit_defaults` omits default values, but not those of a factory.
        return f"    {name}: {kind} = msgspec.field(default_factory={kind}{odd})"
    if isinstance(field.type, ListOf):
        default = "()"
    elif is_default_instance(field):
        default = f"{kind}()"
    elif field.required and kind in ZEROES:
        default = ZEROES[kind]
    else:
        default = "None"
        kind = kind if kind == "Any" else f"{kind} | None"
    return f"    {name}: {kind} = " + (f"msgspec.field(default={default}{odd})" if odd else default)


def class_text(struct_type: StructType, module: str) -> str:
    """Return a struct as a class."""
    name = struct_type.name.rpartition(".")[2]
    lines = [
        f"class {name}(Message, frozen=True, kw_only=True):",
        f'    schema_name: ClassVar[str] = "{struct_type.name}"',
    ]
    ordered = sorted(members(struct_type), key=lambda field: FIRST.get(field.name, len(FIRST)))
    return "\n".join(lines + [member(field, module) for field in ordered])


FIRST = {name: position for position, name in enumerate(("apiVersion", "kind", "metadata", "name", "spec", "status"))}


def module_text(module: str, structs: list[StructType]) -> str:
    """Return the text of a module."""
    body = "\n\n\n".join(class_text(struct_type, module) for struct_type in structs)
    others = sorted(set(re.findall(r"\b(\w+_v1\w*)\.[A-Z]", body)) - {module})
    imports = ["from typing import Any, ClassVar" if "Any" in body else "from typing import ClassVar"]
    if "Mapping[" in body:
        imports.insert(0, "from collections.abc import Mapping")
    if "datetime" in body:
        imports.insert(-1, "from datetime import datetime")
    own = f"from dray.api.types import {', '.join(['Message', *others])}"
    msgspec = ["", "import msgspec"] if "msgspec." in body else []
    head = [
        f'"""Generated by tools/generate_types.py from the schema of {module}; never edited."""',
        "",
        "from __future__ import annotations",
        "",
        *imports,
        *msgspec,
        "",
        own,
    ]
    return "\n".join(head) + "\n\n\n" + body + "\n"


def main() -> None:
    """Write every module."""
    for module, structs in collect().items():
        (OUTPUT / f"{module}.py").write_text(module_text(module, structs))
        print(f"{module}: {len(structs)} classes")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--no-force-exclude", "-q", str(OUTPUT)], check=True)


if __name__ == "__main__":
    main()
