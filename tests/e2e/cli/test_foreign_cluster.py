"""The tools on a dump of a cluster that kube-scheduler and kubelets run, with much that Dray does not have."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.fork_server import run

DUMP = Path(__file__).parents[2] / "data" / "kube-scheduler-cluster.yaml"
LATER = "fields that this version does not know are not evaluated: Pod spec.fieldOfALaterRelease"
OTHER_VERSION = "Workload of scheduling.k8s.io/v1alpha1 (version not known): 1 not evaluated"
LIMITS = (
    "pod ml/train: volume claim data: only the node affinity of its volume is evaluated, "
    "not how many volumes of ebs.csi.aws.com a node can have"
)
UNBOUND = "pod ml/db-0: volume claim db-0 is not bound: where ebs.csi.aws.com can provision a volume is not evaluated"
EPHEMERAL = "pod ml/db-0: its volume claim db-0-scratch is not in the snapshot, and is not evaluated"
FOREIGN = "Pods of the scheduler volcano are evaluated with the default profile"


CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders: [{urlPrefix: "https://extender.example.com"}]
profiles:
- {schedulerName: volcano, plugins: {multiPoint: {enabled: [{name: Coscheduling}]}}}
"""


def dray(*arguments: str, code: int = 0) -> tuple[str, list[str]]:
    """Return the output of a command on the dump, and its notes on standard error."""
    done = run([sys.executable, "-m", "dray", *arguments, "-f", str(DUMP)])
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("pod", "verdict", "notes"),
    [
        ("train", "pod ml/train is running on gpu-dra", [LATER, OTHER_VERSION, LIMITS]),
        ("render", "pod ml/render has no image render for container main on gpu-plugin", [LATER, OTHER_VERSION]),
        ("ranks-0", "pod ml/ranks-0 is pending, 0 of 3 nodes fit", [LATER, OTHER_VERSION, FOREIGN]),
        (
            "db-0",
            "pod ml/db-0 is pending, 0 of 3 nodes fit: gpu-dra: its only device is in use",
            [LATER, OTHER_VERSION, UNBOUND, EPHEMERAL],
        ),
        ("done", "pod ml/done has succeeded", [LATER, OTHER_VERSION]),
    ],
)
def test_explain(pod: str, verdict: str, notes: list[str]) -> None:
    """A Pod with a node is never pending, and what is not built is a note behind the answer."""
    text, errors = dray("explain", "pod", pod, "-n", "ml")
    assert text.startswith(verdict)
    assert [line.removeprefix("Note: ") for line in text.splitlines() if line.startswith("Note: ")] == notes
    assert errors == []


def test_simulate() -> None:
    """Nothing changes by itself: placed Pods stay where they are."""
    text, errors = dray("simulate", "-o", "json")
    (result,) = json.loads(text)["items"]
    assert {f"{item['namespace']}/{item['name']}" for item in result["pending"]} == {"ml/db-0", "ml/ranks-0"}
    assert (result["placed"], result["moved"], result["lost"], result["unchanged"]) == ([], [], [], 3)
    assert result["notes"] == [UNBOUND, EPHEMERAL, FOREIGN]
    assert errors == [f"dray simulate: note: {note}" for note in (LATER, OTHER_VERSION)]


def test_the_configuration_of_the_scheduler(tmp_path: Path) -> None:
    """A profile that the file names is evaluated; extenders and plugins that are not built are notes."""
    path = tmp_path / "scheduler.yaml"
    path.write_text(CONFIGURATION)
    text, _ = dray("explain", "pod", "ranks-0", "-n", "ml", "--scheduler-config", str(path))
    assert text.startswith("pod ml/ranks-0 is pending, 0 of 3 nodes fit")
    assert [line for line in text.splitlines() if line.startswith("Note: Kube")] == [
        "Note: KubeSchedulerConfiguration: the extender https://extender.example.com is not asked",
        "Note: KubeSchedulerConfiguration: the plugin Coscheduling is not evaluated",
    ]
    assert FOREIGN not in text


def test_top() -> None:
    """Devices of claims and of device plugins are counted, also those of a Pod that has not started."""
    text, errors = dray("top", "nodes", "-o", "csv")
    rows = [line.split(",")[:4] for line in text.splitlines()[1:]]
    assert rows == [["gpu-dra", "1", "1", "0"], ["gpu-plugin", "2", "1", "1"]]
    assert errors == [f"dray top: note: {note}" for note in (LATER, OTHER_VERSION)]


def test_doctor() -> None:
    """Only the two Pods without a node wait; what other projects store is no problem."""
    text, _ = dray("doctor", "-o", "json", code=1)
    found = [(item["rule"], item["subject"]) for item in json.loads(text)["items"]]
    assert found == [("missing-image", "pod ml/render"), ("long-wait", "pod ml/db-0"), ("long-wait", "pod ml/ranks-0")]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: 5}\n",
            "a Pod has the name 5, which is not a string: put it in quotes",
        ),
        ("apiVersion: v1\nkind: Namespace\nmetadata: {name: 2024}\n", "a Namespace has the name 2024, which is no"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: [b]}\n", "a Pod has the namespace ['b'], which"),
        ("apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: {}}\n", "a Thing has no name"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: text\n", "a ConfigMap has no metadata: it needs a name"),
        ("apiVersion: v1\nkind: PodList\nitems: [5]\n", "an item of a PodList is not an object: 5"),
        ("apiVersion: v1\nkind: List\nitems: [{kind: 5, apiVersion: v1}]\n", "an object has no apiVersion or no kind"),
        (
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: a}\nspec: [1]\n",
            "PersistentVolume a: json: cannot unmarshal array into Go struct field PersistentVolume.spec",
        ),
    ],
)
@pytest.mark.parametrize("command", ["doctor", "simulate"])
def test_objects_that_are_none(command: str, document: str, message: str, tmp_path: Path) -> None:
    """What no API server wrote is one clear line, never a traceback."""
    path = tmp_path / "bad.yaml"
    path.write_text(document)
    done = run([sys.executable, "-m", "dray", command, "-f", str(path)])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"dray {command}: {message}")
    assert len(done.stderr.splitlines()) == 1
