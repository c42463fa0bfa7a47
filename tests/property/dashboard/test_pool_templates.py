"""Rows from templates equal the rows of pools that are surveyed one by one, whatever changes."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.document import Document
from dray.dashboard.cluster_view import ClusterView
from dray.dashboard.pool_templates import PoolTemplates, projected_devices
from dray.dashboard.summaries import summarize
from dray.sim.devices import DeviceSurvey
from dray.sim.snapshot import kind_key
from tests.unit.sim.cluster import GPU, device_class, resource_slice, taint_rule

NODES = ("a", "b", "c")
# Objects of a cluster before it changes.
CLUSTER_SIZE = 7
NAMES = ("gpu-0", "gpu-1", "gpu-2")
EXPRESSIONS = (
    "true",
    f"device.driver == '{GPU}' && device.attributes['{GPU}'].model == 'large'",
    f"device.attributes['{GPU}'].uuid == 'u1'",
    "has(device.attributes['other.example.com'].version)",
    "'other.example.com' in device.attributes",
    f"cel.bind(own, device.attributes['{GPU}'], own.model == 'small')",
    f"device.capacity['{GPU}'].memory.compareTo(quantity('20Gi')) > 0",
    "no expression",
)

SPECIAL: tuple[Document, ...] = (
    {"capacity": {"memory": {"value": "40Gi"}}},
    {"capacity": {"memory": {"value": "10Gi"}}},
    {"consumesCounters": [{"counterSet": "card-0", "counters": {"memory": {"value": "20Gi"}}}]},
    {"consumesCounters": [{"counterSet": "card-0", "counters": {"memory": {"value": "10Gi"}}}]},
    {"consumesCounters": [{"counterSet": "unknown", "counters": {"memory": {"value": "1"}}}]},
    {"taints": [{"key": "broken", "effect": "NoSchedule"}]},
    {"allowMultipleAllocations": True},
)
attributes = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from([{"string": "large"}, {"string": "small"}, {"int": 1}]),
        f"{GPU}/model": st.just({"string": "large"}),
        "uuid": st.sampled_from([{"string": "u1"}, {"string": "u2"}, {"string": 'a":b'}]),
        # Not a version, and a value of an unknown type: no selector matches such a device.
        "serial": st.sampled_from([{"int": 7}, {"version": "x"}, {"later": 1}, {"string": "s", "later": 1}]),
        "other.example.com/version": st.sampled_from([{"version": "1.2.3"}, {"version": "2.0.0"}]),
    },
)


@st.composite
def devices(draw: st.DrawFn) -> list[Document]:
    """Few devices, so that pools are often equal; most are free of peculiarities."""
    names = draw(st.sampled_from([NAMES[:1], NAMES[:1], NAMES[:2], NAMES[:2], NAMES, ("gpu-0", "gpu-0")]))
    found: list[Document] = [{"name": name, "attributes": draw(attributes)} for name in names]
    special = draw(st.sampled_from([{}] * 4 + [*SPECIAL]))
    for item in found[: draw(st.integers(0, 2))]:
        item.update(special)
    return found


counters = [{"name": "card-0", "counters": {"memory": {"value": "40Gi"}}}]


@st.composite
def slices(draw: st.DrawFn, nodes: tuple[str, ...] = NODES) -> Document:
    node = draw(st.sampled_from(nodes))
    is_usual = draw(st.integers(0, 4)) > 0
    # The pool of the node, or one whose name is used on several nodes.
    pool = {
        "name": node if is_usual else draw(st.sampled_from([node, "common"])),
        "generation": 1 if is_usual else draw(st.integers(1, 2)),
        "resourceSliceCount": 1 if is_usual else draw(st.integers(1, 2)),
    }
    name = f"{node}-{0 if is_usual else 1}"
    shared: dict[str, Any] = {"sharedCounters": counters} if draw(st.booleans()) else {}
    return resource_slice(name, GPU, *draw(devices()), pool=pool, nodeName=node, **shared)


@st.composite
def claims(draw: st.DrawFn) -> Document:
    name = f"claim-{draw(st.integers(0, 3))}"
    results = []
    for device in draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True)):
        result = {"request": "gpu", "driver": GPU, "pool": draw(st.sampled_from((*NODES, "common"))), "device": device}
        results.append(result | draw(st.sampled_from([{}, {}, {"adminAccess": True}])))
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "one"}}]}},
        "status": {"allocation": {"devices": {"results": results}}} if results else {},
    }


@st.composite
def sick_pods(draw: st.DrawFn) -> Document:
    found = {
        "resourceID": f"{GPU}/{draw(st.sampled_from(NODES))}/{draw(st.sampled_from(NAMES))}",
        "health": "Unhealthy",
    }
    statuses = [{"name": "main", "allocatedResourcesStatus": [{"name": "claim:gpu", "resources": [found]}]}]
    name = f"pod-{draw(st.integers(0, 1))}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"nodeName": "a", "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


classes = st.builds(device_class, st.sampled_from(["one", "two"]), st.sampled_from(EXPRESSIONS))
rules = st.builds(
    lambda pool, device: taint_rule("rule", driver=GPU, pool=pool, device=device),
    st.sampled_from(NODES),
    st.sampled_from(NAMES),
)
# A cluster, and then changes: each puts an object, or deletes it.
clusters = st.tuples(classes, classes, *(slices((node,)) for node in NODES), claims(), claims())
changes = st.lists(st.tuples(slices() | claims() | classes | rules | sick_pods(), st.booleans()), max_size=8)


def tables_after(steps: list[tuple[Document, bool]]) -> list[Any]:
    """The tables of the cluster, and after each change of it."""
    view = ClusterView()
    known: dict[tuple[str, str], Document] = {}
    seen = []
    for number, (document, is_kept) in enumerate(steps):
        kind = kind_key(document["kind"], document["apiVersion"].rpartition("/")[0])
        key = kind, document["metadata"]["name"]
        old, new = known.pop(key, None), document if is_kept else None
        if new is not None:
            known[key] = new
        if old is not None or new is not None:
            view.apply(kind, *(None if item is None else summarize(kind, item) for item in (old, new)))
        if number >= CLUSTER_SIZE - 1:
            while view.is_stale:
                view.refresh(3)
            seen.append(_with_shapes(view))
    return seen


def _with_shapes(view: ClusterView) -> dict[str, Any]:
    """The tables; numbers of shapes depend on the order in which pools were computed."""
    shapes = view.tables["shapes"]
    pools = {key: [*row[:4], shapes[str(row[4])], *row[5:]] for key, row in view.tables["pools"].items()}
    return {**view.tables, "pools": pools, "shapes": sorted(map(str, shapes.values()))}


@settings(max_examples=300, deadline=None)
@given(clusters, changes)
def test_templates_give_the_rows_of_single_pools(
    cluster: tuple[Document, ...], later: list[tuple[Document, bool]]
) -> None:
    steps = [*((document, True) for document in cluster), *later]
    with_templates = tables_after(steps)
    with mock.patch.object(PoolTemplates, "find", return_value=None):
        assert tables_after(steps) == with_templates
        with mock.patch.object(DeviceSurvey, "is_plain", return_value=False):
            assert tables_after(steps) == with_templates


def test_attributes_that_nothing_reads_make_no_difference() -> None:
    first, second = (
        b'[{"name":"gpu-0","attributes":{"model":{"string":"x"},"uuid":{"string":"%s"}}}]' % uuid
        for uuid in (b"1", b"2")
    )
    assert projected_devices(first, frozenset({"model"})) == projected_devices(second, frozenset({"model"}))
    assert projected_devices(first, frozenset({"uuid"})) != projected_devices(second, frozenset({"uuid"}))
    assert projected_devices(first, None) != projected_devices(second, None)


def test_an_attribute_with_an_invalid_value_matters_whatever_its_name() -> None:
    valid, invalid = ({"name": "gpu-0", "attributes": {"serial": value}} for value in ({"int": 7}, {"version": "x"}))
    documents = [resource_slice(node, GPU, item, nodeName=node) for node, item in (("a", valid), ("b", invalid))]
    (tables,) = tables_after([(document, True) for document in (*[device_class("one", "true")] * 5, *documents)])
    # The only physical device of the pool, and its classes.
    assert [tables["pools"][f"{GPU}/{node}"][4][0][0][1] for node in ("a", "b")] == [("one",), ()]
