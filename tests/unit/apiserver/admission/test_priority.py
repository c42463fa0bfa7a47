"""Priority classes: validation, what they make of Pods, one default, and the classes of the system."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dray.api.document import Document, GroupResource, GroupVersionKind
from dray.api.errors import ForbiddenError
from dray.api.schema.load import kind_type
from dray.api.validation.other_groups import validate_priority_class, validate_priority_class_update
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.admission.priority import Priority
from dray.apiserver.bootstrap import _PRIORITIES
from dray.apiserver.object_cache import PRIORITY_CLASSES
from dray.apiserver.options import DeleteOptions, WriteOptions
from dray.apiserver.registry.priority_classes import PRIORITY_CLASSES as DEFINITION
from dray.apiserver.request import UserInfo

PODS = GroupResource("", "pods")


def priority_class(name: str, value: int, **more: Any) -> Document:
    return {"metadata": {"name": name}, "value": value, **more}


class Classes:
    """Both a cache and a lookup."""

    def __init__(self, *classes: Document) -> None:
        self.priority_classes = {item["metadata"]["name"]: item for item in classes}

    async def priority_class(self, name: str) -> Document | None:
        return self.priority_classes.get(name)


def admit(
    new: Document | None,
    *classes: Document,
    old: Document | None = None,
    operation: Operation = Operation.CREATE,
    resource: GroupResource = PODS,
    name: str = "x",
) -> None:
    known = cast(Any, Classes(*classes))
    plugin = Priority(known, known)
    options = DeleteOptions() if operation is Operation.DELETE else WriteOptions()
    user = UserInfo("alice")
    attributes = AdmissionAttributes(operation, user, "", resource, "v1", "", "", name, new, old, options, [])
    assert plugin.handles(resource, "", operation)

    async def run() -> None:
        await plugin.admit(attributes)
        await plugin.validate(attributes)

    asyncio.run(run())


def spec_of(spec: Document, *classes: Document) -> Document:
    pod: Document = {"metadata": {"name": "p"}, "spec": spec}
    admit(pod, *classes)
    return cast(Document, pod["spec"])


HIGH = priority_class("high", 1000, preemptionPolicy="Never")
USUAL = priority_class("usual", 10, globalDefault=True, preemptionPolicy="PreemptLowerPriority")


@pytest.mark.behaviour("PE-05")
@pytest.mark.parametrize(
    ("given", "classes", "expected"),
    [
        pytest.param("high", [HIGH, USUAL], ("high", 1000, "Never"), id="by name"),
        pytest.param("", [HIGH, USUAL], ("usual", 10, "PreemptLowerPriority"), id="the default class"),
        pytest.param("", [HIGH], (None, 0, "PreemptLowerPriority"), id="no default class"),
        pytest.param("plain", [priority_class("plain", 5)], ("plain", 5, "PreemptLowerPriority"), id="no policy"),
    ],
)
def test_a_new_pod(given: str, classes: list[Document], expected: tuple[Any, ...]) -> None:
    spec = spec_of({"priorityClassName": given} if given else {}, *classes)
    assert (spec.get("priorityClassName"), spec["priority"], spec["preemptionPolicy"]) == expected


@pytest.mark.behaviour("PE-05", "PE-06")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"priorityClassName": "missing"}, 'pods "p" is forbidden: no PriorityClass with name missing was found'),
        (
            {"priorityClassName": "high", "priority": 3},
            'pods "p" is forbidden: the integer value of priority (3) must not be provided in pod spec; priority '
            "admission controller computed 1000 from the given PriorityClass name",
        ),
        (
            {"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"},
            'pods "p" is forbidden: the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided '
            "in pod spec; priority admission controller computed Never from the given PriorityClass name",
        ),
        (
            {"preemptionPolicy": "Never"},
            'pods "p" is forbidden: the string value of PreemptionPolicy (Never) must not be provided in pod spec; '
            "priority admission controller computed PreemptLowerPriority from the given PriorityClass name",
        ),
    ],
)
def test_refused_pods(spec: Document, message: str) -> None:
    with pytest.raises(ForbiddenError) as refused:
        spec_of(spec, HIGH)
    assert str(refused.value) == message


@pytest.mark.behaviour("PE-06")
def test_values_that_agree_are_accepted() -> None:
    given = {"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "Never"}
    assert spec_of(dict(given), HIGH) == given


@pytest.mark.behaviour("PE-07")
@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({}, {"priority": 7, "preemptionPolicy": "Never"}),
        ({"priority": 8}, {"priority": 8, "preemptionPolicy": "Never"}),
    ],
)
def test_an_update_that_leaves_values_out_keeps_them(new: Document, expected: Document) -> None:
    pod: Document = {"metadata": {"name": "p"}, "spec": new}
    old = {"metadata": {"name": "p"}, "spec": {"priority": 7, "preemptionPolicy": "Never"}}
    admit(pod, old=old, operation=Operation.UPDATE)
    assert pod["spec"] == expected
    known = cast(Any, Classes())
    assert not Priority(known, known).handles(PODS, "status", Operation.UPDATE)


@pytest.mark.behaviour("PE-04")
def test_one_default_class() -> None:
    second = priority_class("second", 20, globalDefault=True)
    for operation in (Operation.CREATE, Operation.UPDATE):
        with pytest.raises(ForbiddenError) as refused:
            admit(second, USUAL, operation=operation, resource=PRIORITY_CLASSES)
        assert str(refused.value) == (
            'priorityclasses.scheduling.k8s.io "second" is forbidden: '
            "PriorityClass usual is already marked as default. Only one default can exist"
        )
    admit(USUAL, USUAL, operation=Operation.UPDATE, resource=PRIORITY_CLASSES)
    admit(priority_class("third", 5), USUAL, resource=PRIORITY_CLASSES)
    # A race may have made two.
    assert spec_of({}, second, USUAL)["priority"] == 10


@pytest.mark.behaviour("PE-02")
def test_system_classes() -> None:
    values = {name: value for name, value, _ in _PRIORITIES}
    assert values == {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
    for name in values:
        with pytest.raises(ForbiddenError, match="this is a system priority class and cannot be deleted"):
            admit(None, operation=Operation.DELETE, resource=PRIORITY_CLASSES, name=name)
    admit(None, operation=Operation.DELETE, resource=PRIORITY_CLASSES, name="mine")
    assert validate_priority_class(priority_class("system-mine", 1))
    assert validate_priority_class(priority_class("mine", 1_000_000_001))
    assert not validate_priority_class(priority_class("mine", 1_000_000_000))


@pytest.mark.behaviour("PE-03")
def test_what_may_change_in_a_class() -> None:
    old = priority_class("mine", 5, preemptionPolicy="Never", globalDefault=False)
    for change in ({"value": 6}, {"preemptionPolicy": "PreemptLowerPriority"}):
        assert validate_priority_class_update(old | change, old)
    assert not validate_priority_class_update(old | {"description": "new", "globalDefault": True}, old)
    assert validate_priority_class(priority_class("mine", 5, preemptionPolicy="Sometimes"))


@pytest.mark.behaviour("PE-01")
def test_the_kind() -> None:
    assert (DEFINITION.group, DEFINITION.versions, DEFINITION.namespaced) == ("scheduling.k8s.io", ("v1",), False)
    assert DEFINITION.short_names == ("pc",)
    struct = kind_type(GroupVersionKind("scheduling.k8s.io", "v1", "PriorityClass"))
    assert struct is not None
    assert {name: field.number for name, field in struct.fields.items() if field.number} == {
        "metadata": 1,
        "value": 2,
        "globalDefault": 3,
        "description": 4,
        "preemptionPolicy": 5,
    }
