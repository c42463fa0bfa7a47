"""The JSON schema of what the tools print for programs, and the page that lists its kinds."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import msgspec

from dray.cli.migrate.plan import Migration
from dray.cli.node_resources import HeldRow
from dray.cli.output import API_VERSION, camel_case
from dray.cli.top import Top
from dray.cli.usage_over_time import Courses
from dray.cmd.local_clusters import LocalCluster
from dray.sim.capacity.plans import CapacityPlan, JointPlan, RemovalPlan
from dray.sim.claims import ClaimRow
from dray.sim.devices import DeviceRow
from dray.sim.doctor.findings import Finding
from dray.sim.explain.answers import Answer
from dray.sim.headroom import KindHeadroom
from dray.sim.physical_devices import CounterUse
from dray.sim.rebalance.moves import RebalancePlan
from dray.sim.replay import ReplayedPod
from dray.sim.usage import NamespaceRow, PoolRow, UsageRow
from dray.sim.usage_window import ClassCourse, NamespaceCourse, NamespaceHours
from dray.sim.whatif.outcome import Fit, Growth, Outcome

# Kind -> the types of its items, and the commands that print it.
KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "ClaimList": ((ClaimRow,), "dray claims"),
    "ClassCourseList": ((ClassCourse,), "dray top classes --since"),
    "ClusterList": ((LocalCluster,), "dray status"),
    "CounterUsageList": ((CounterUse,), "dray top counters"),
    "CoursesList": ((Courses,), "dray top --since"),
    "DeviceList": ((DeviceRow,), "dray devices"),
    "ExplanationList": ((Answer,), "dray explain"),
    "FindingList": ((Finding,), "dray doctor"),
    "FragmentationList": ((KindHeadroom,), "dray top fragmentation"),
    "HeldResourceList": ((HeldRow,), "dray node resources"),
    "NamespaceCourseList": ((NamespaceCourse,), "dray top namespaces --since"),
    "NamespaceHoursList": ((NamespaceHours,), "dray usage"),
    "NamespaceUsageList": ((NamespaceRow,), "dray top namespaces"),
    "PlanList": ((CapacityPlan, JointPlan), "dray plan"),
    "PoolUsageList": ((PoolRow,), "dray top pools, dray top --request"),
    "RebalancePlanList": ((RebalancePlan,), "dray rebalance plan"),
    "RemovalPlanList": ((RemovalPlan,), "dray plan --remove"),
    "ReplayedPodList": ((ReplayedPod,), "dray replay"),
    "SimulationList": ((Outcome, Fit, Growth), "dray simulate"),
    "TopList": ((Top,), "dray top"),
    "UsageList": ((UsageRow,), "dray top classes, dray top nodes, dray devices --by"),
}
# Documents without items: their fields are beside `kind`.
SINGLE: Final = {"Migration": (Migration, "dray migrate plan")}
# Recorded by the scheduler, whose types are its own.
UNTYPED: Final = {"DecisionList": "dray decisions, dray explain --at-decision"}
PATH: Final = "#/$defs/{name}"


def schema() -> str:
    """Return the JSON schema of all documents."""
    types = [kind for kinds, _ in KINDS.values() for kind in kinds] + [kind for kind, _ in SINGLE.values()]
    for name in sorted({name for kind in types for name in _modules_of(kind)}):
        _import_for_types(sys.modules[name])
    _, components = msgspec.json.schema_components(types, ref_template=PATH)
    definitions = {name: _in_camel_case(part) for name, part in sorted(components.items())}
    documents = [_document(kind, _any_of(kinds)) for kind, (kinds, _) in KINDS.items()]
    documents += [_document(kind, {"type": "object"}) for kind in UNTYPED]
    documents += [
        {"allOf": [_head(kind), {"$ref": PATH.format(name=item.__name__)}]} for kind, (item, _) in SINGLE.items()
    ]
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Documents of Dray's tools, {API_VERSION}",
        "oneOf": documents,
        "$defs": definitions,
    }
    return json.dumps(found, indent=1) + "\n"


def documents_page() -> str:
    """Return the page that lists the kinds."""
    rows = [(kind, command) for kind, (_, command) in KINDS.items()]
    rows += [(kind, command) for kind, (_, command) in SINGLE.items()]
    rows += UNTYPED.items()
    lines = [
        "# Documents of the tools",
        "",
        f"With `-o json` and `-o yaml` the tools print an object with `apiVersion` (`{API_VERSION}`), `kind` and",
        "`items`; `Migration` has its fields beside them. [documents.schema.json](documents.schema.json) is their JSON",
        "schema. Fields are added, not renamed; see [stability](../stability.md).",
        "",
        "| kind | printed by |",
        "|---|---|",
        *(f"| `{kind}` | {', '.join(f'`{part}`' for part in command.split(', '))} |" for kind, command in sorted(rows)),
    ]
    return "\n".join(lines) + "\n"


def _modules_of(kind: type) -> list[str]:
    """Return the module of a type, and those of Dray from which it imports."""
    own = sys.modules[kind.__module__]
    found = {getattr(value, "__module__", None) or "" for value in vars(own).values()}
    return [own.__name__, *(name for name in found if name.startswith("dray."))]


def _import_for_types(module: ModuleType) -> None:
    """Import what a module imports for type checkers only, so that its annotations can be read."""
    for block in ast.parse(inspect.getsource(module)).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            exec(compile(ast.Module(block.body, []), module.__name__, "exec"), vars(module))


def _document(kind: str, items: Mapping[str, Any]) -> Mapping[str, Any]:
    head = _head(kind)
    properties = {**head["properties"], "items": {"type": "array", "items": items}}
    return {**head, "properties": properties, "required": [*head["required"], "items"]}


def _head(kind: str) -> dict[str, Any]:
    properties = {"apiVersion": {"const": API_VERSION}, "kind": {"const": kind}}
    return {"type": "object", "properties": properties, "required": [*properties]}


def _any_of(kinds: tuple[type, ...]) -> Mapping[str, Any]:
    references = [{"$ref": PATH.format(name=kind.__name__)} for kind in kinds]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _in_camel_case(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a structure with its names as they are printed; all fields are."""
    if "properties" not in part:
        return part
    properties = {camel_case(name): item for name, item in part["properties"].items()}
    return {**part, "properties": properties, "required": [*properties]}
