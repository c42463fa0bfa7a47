"""What the tools print for programs agrees with the published schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from dray.api.document import Document
from dray.cli import claims, devices, doctor, explain, plan, rebalance, simulate, top
from dray.cli.migrate import command as migrate
from tests.unit.cli.migrate.test_migrate import GPU, device_class, node, resource_slice
from tests.unit.sim.capacity.test_addition import ONE, TWO, catalogue
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_pod

REFERENCE: Final = Path(__file__).parents[3] / "docs" / "reference"
SCHEMA: Final = json.loads((REFERENCE / "documents.schema.json").read_text())
CLUSTER: Final = gpu_cluster(
    {"a": 2, "b": 2}, gpu_pod("x", 1, "a", [0]), gpu_pod("web", 1, "b", [0]), gpu_pod("big", 2), gpu_pod("big-2", 2)
)
Main = Callable[[Sequence[str]], int]


@pytest.fixture
def dump(tmp_path: Path) -> str:
    return write(tmp_path / "cluster.yaml", [item for items in CLUSTER.documents.values() for item in items])


def write(path: Path, documents: Sequence[Document]) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def is_valid(found: Any, kind: str) -> None:
    """Raise unless this is a document of the kind, and of no other."""
    part = next(item for item in SCHEMA["oneOf"] if f'"const": "{kind}"' in json.dumps(item))
    jsonschema.validate(found, {**part, "$defs": SCHEMA["$defs"]})


@pytest.mark.parametrize(
    ("main", "arguments", "kind"),
    [
        (claims.main, ["-A"], "ClaimList"),
        (devices.main, [], "DeviceList"),
        (devices.main, ["--by=node"], "UsageList"),
        (doctor.main, [], "FindingList"),
        (explain.main, ["pod", "big", "-n", "team"], "ExplanationList"),
        (explain.main, ["pod", "x", "-n", "team"], "ExplanationList"),
        (explain.main, ["claim", "x-gpu", "-n", "team"], "ExplanationList"),
        (rebalance.main, ["plan"], "RebalancePlanList"),
        (simulate.main, [], "SimulationList"),
        (simulate.main, ["--drain=a"], "SimulationList"),
        (top.main, [], "TopList"),
        (top.main, ["classes"], "UsageList"),
        (top.main, ["nodes"], "UsageList"),
        (top.main, ["pools"], "PoolUsageList"),
        (top.main, ["counters"], "CounterUsageList"),
        (top.main, ["namespaces"], "NamespaceUsageList"),
        (top.main, ["fragmentation"], "FragmentationList"),
        (plan.main, ["--remove"], "RemovalPlanList"),
    ],
)
def test_documents(main: Main, arguments: list[str], kind: str, dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*arguments, "-f", dump, "-o", "json"])
    printed = capsys.readouterr().out
    is_valid(json.loads(printed), kind)
    main([*arguments, "-f", dump, "-o", "yaml"])
    assert yaml.safe_load(capsys.readouterr().out).keys() == json.loads(printed).keys()


@pytest.mark.parametrize("joint", [[], ["--joint"]])
def test_plans(joint: list[str], dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = write(tmp_path / "catalogue.yaml", catalogue(ONE, TWO))
    plan.main(["-f", dump, *joint, "--catalogue", shapes, "-o", "json"])
    is_valid(json.loads(capsys.readouterr().out), "PlanList")


def test_counting_and_growing(dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", "namespace": "team"}}
    template = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "shape"},
        "status": {"allocatable": {"pods": "9"}},
    }
    shape = write(tmp_path / "shape.yaml", [template])
    manifest = write(tmp_path / "pod.yaml", [{**pod, "spec": {"containers": [{"name": "c", "image": "i"}]}}])
    for arguments in ([f"--count-fit={manifest}", "--count-max=2"], [f"--node-template={shape}"]):
        simulate.main([*arguments, "-f", dump, "-o", "json"])
        is_valid(json.loads(capsys.readouterr().out), "SimulationList")


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_migration(check: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = write(tmp_path / "cluster.yaml", [node("a", 2), resource_slice("a", 2), device_class()])
    migrate.main(["plan", f"--resource={GPU}", *check, "-f", dump, "-o", "json"])
    is_valid(json.loads(capsys.readouterr().out), "Migration")


def test_fields_are_in_camel_case() -> None:
    for name, part in SCHEMA["$defs"].items():
        assert all(re.fullmatch("[a-z][a-zA-Z0-9]*", field) for field in part.get("properties", ())), name


def test_the_schema_refuses_what_lacks_a_field(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    devices.main(["-f", dump, "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    del found["items"][0]["driver"]
    with pytest.raises(jsonschema.ValidationError, match="'driver' is a required property"):
        is_valid(found, "DeviceList")
