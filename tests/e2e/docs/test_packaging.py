"""What installs Dray elsewhere, step by step in clean environments: the GitHub Action, and a project of `dray init`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.e2e.docs.harness import ROOT, processes_below

SECONDS_MAX = 300
# Installs everything anew, which takes minutes: once in continuous integration is enough.
pytestmark = [
    pytest.mark.skipif("DRAY_TEST_WHEEL" not in os.environ, reason="only if DRAY_TEST_WHEEL is set"),
    pytest.mark.timeout(2 * SECONDS_MAX),
]
ACTION = ROOT / "deploy" / "github-action" / "action.yaml"
_INPUT = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", folder, ROOT], check=True, timeout=SECONDS_MAX)
    (found,) = folder.glob("dray-*.whl")
    return found


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> dict[str, str]:
    """An environment in which pip finds the wheel as `dray`, and nothing of this checkout."""
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"dray @ file://{wheel}\n")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DRAY", "KUBE"))}
    home = tmp_path / "home"
    home.mkdir()
    pip = {"PIP_CONSTRAINT": str(constraints), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}
    # Most of the time of an installation is compilation, of which hardly a module is needed.
    pip |= {"PIP_NO_COMPILE": "1"}
    return own | pip | {"HOME": str(home)}


def shell(script: str, environment: Mapping[str, str], folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], env=environment, cwd=folder, check=False,
        capture_output=True, text=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


class Runner:
    """Runs the steps of a composite action as a job of GitHub does."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.folder = folder
        self.environment = environment | {"RUNNER_TEMP": str(folder / "temp")}
        (folder / "temp").mkdir()
        for name in ("GITHUB_PATH", "GITHUB_ENV", "GITHUB_OUTPUT"):
            (folder / name).touch()
            self.environment[name] = str(folder / name)

    def run(self, action: Path, inputs: Mapping[str, str]) -> None:
        document = yaml.safe_load(action.read_text())
        given = {name: str(item.get("default", "")) for name, item in document["inputs"].items()} | dict(inputs)
        for step in document["runs"]["steps"]:
            assert step["shell"] == "bash"
            assert "${{" not in step["run"], "an expression in a script can be anything"
            values = {name: _INPUT.sub(lambda found: given[found[1]], text) for name, text in step["env"].items()}
            shell(step["run"], self.environment | values, self.folder)
            self._apply_files()

    def _apply_files(self) -> None:
        for line in (self.folder / "GITHUB_PATH").read_text().splitlines():
            self.environment["PATH"] = f"{line}:{self.environment['PATH']}"
        for line in (self.folder / "GITHUB_ENV").read_text().splitlines():
            name, _, value = line.partition("=")
            self.environment[name] = value


@pytest.fixture
def runner(environment: dict[str, str], tmp_path: Path) -> Iterator[Runner]:
    folder = tmp_path / "job"
    folder.mkdir()
    found = Runner(environment, folder)
    # The interpreter of the job, as actions/setup-python provides it.
    found.environment["PATH"] = f"{Path(sys.executable).parent}:{found.environment['PATH']}"
    yield found
    shell("dray down --data-dir=$RUNNER_TEMP/dray-cluster --delete", found.environment, folder)
    assert not processes_below(folder)


def test_the_github_action_starts_a_cluster_for_the_later_steps(runner: Runner, wheel: Path) -> None:
    runner.run(
        ACTION, {"version": str(wheel), "nodes": "3", "devices": "gpu:2xA100,mig\nnic:1xcx7\n", "flags": "--v=2"}
    )
    shown = shell("which dray; dray top classes --no-headers || dray top classes", runner.environment, runner.folder)
    assert shown.startswith(f"{runner.folder}/temp/dray/bin/dray\n"), "the dray of the action is the first on PATH"
    assert [line.split()[:2] for line in shown.splitlines()[-3:]] == [["gpu", "6"], ["mig", "6"], ["nic", "3"]]
    output = (runner.folder / "GITHUB_OUTPUT").read_text()
    assert output == f"kubeconfig={runner.folder}/temp/dray-cluster/kubeconfig\n"


def test_every_step_of_a_driver_project(environment: dict[str, str], wheel: Path, tmp_path: Path) -> None:
    """Install, test, check against kubelet's protocol, build as the Dockerfile does, apply the manifests."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    environment = environment | {"PATH": f"{home}/bin:{environment['PATH']}"}
    shell(f"pip install {wheel} && dray init driver lamp.example.com", environment, tmp_path)
    project = tmp_path / "lamp-driver"
    steps = yaml.safe_load((project / ".github/workflows/test.yaml").read_text())["jobs"]["test"]["steps"]
    outputs = [shell(step["run"], environment, project) for step in steps if "run" in step]
    assert "3 passed" in outputs[1]
    assert "conforms" in outputs[2]
    # The Dockerfile: its RUN instruction in a clean folder, and its entry point.
    dockerfile = (project / "Dockerfile").read_text()
    (build,) = re.findall(r"^RUN (.*)$", dockerfile, re.MULTILINE)
    (entry,) = re.findall(r'^ENTRYPOINT \["(.*)"\]$', dockerfile, re.MULTILINE)
    built = tmp_path / "opt" / "driver"
    shell(build.replace("/opt/driver", str(built)), environment, project)
    assert "--node-name" in shell(f"{built}/bin/{entry} --help", environment, project)
    # The manifests, with every field known, in the order of `kubectl apply -f deploy`.
    shell("dray up --data-dir=cluster --port=0 --nodes=1 --detach", environment, tmp_path)
    try:
        cluster = environment | {"KUBECONFIG": str(tmp_path / "cluster" / "kubeconfig")}
        shell("kubectl apply --validate=strict -f deploy", cluster, project)
        shell("kubectl rollout status -n lamp-driver daemonset/lamp-driver --timeout=60s", cluster, project)
        allowed = shell(
            "kubectl auth can-i create resourceslices --as=system:serviceaccount:lamp-driver:lamp-driver",
            cluster,
            project,
        )
        assert allowed == "yes\n"
    finally:
        shell("dray down --data-dir=cluster --delete", environment, tmp_path)
    assert not processes_below(tmp_path / "cluster")
