"""The Helm chart, the manifests, the roles and the units: current, and accepted by the API server to the last field."""

from __future__ import annotations

import configparser
import random
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.generate_deploy import CHART, NAMESPACE, ROOT, generated, render, values

from dray.api.document import Document, GroupVersion
from dray.client.in_process import InProcessTransport
from dray.client.interface import WriteOptions
from dray.client.rest import RestClient
from dray.cmd import settings
from dray.cmd.main import PROCESSES
from dray.runtime.settings import declared
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.in_process_server import in_process_server

TEMPLATES = sorted((CHART / "templates").glob("*.yaml"))
EVERYTHING = values(controllers={"enabled": True}, driver={"enabled": True})
NOTHING = {name: {"enabled": False} for name in ("scheduler", "controllers", "dashboard", "driver")}


def _names(flags: Iterable[str]) -> set[str]:
    return {flag.partition("=")[0] for flag in flags}


def _flags_of(command: str) -> set[str]:
    return {f"--{item.flag}" for item in declared(getattr(settings, PROCESSES[command].settings))}


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def rendered() -> list[Document]:
    return [document for path in TEMPLATES for document in documents(render(path, EVERYTHING))]


def test_generated_files_are_current() -> None:
    stale = [path.name for path, text in generated() if not path.exists() or path.read_text() != text]
    assert not stale, "run python -m tools.generate_deploy"


def test_a_part_that_is_disabled_renders_nothing() -> None:
    assert [render(path, values(**NOTHING)) for path in TEMPLATES] == [""] * len(TEMPLATES)


def _created(objects: list[Document]) -> None:
    async def main() -> None:
        clock = LoopClock()
        async with in_process_server(clock, random.Random(1), NAMESPACE) as server:
            client = RestClient(InProcessTransport(server, user="admin", groups=("system:masters",), user_agent="test"))
            served = [item.resource() for item in await client.resources()]
            by_kind = {resource.group_version_kind: resource for resource in served}
            for document in objects:
                kind = GroupVersion.parse(document["apiVersion"]).kind(document["kind"])
                if document["kind"] != "Namespace":
                    resource = by_kind[kind]
                    namespace = "" if document["metadata"].get("namespace") or not resource.namespaced else NAMESPACE
                    options = WriteOptions(field_validation="Strict")
                    await client.create(resource, document, namespace, options)

    run_virtually(main())


def test_the_chart_is_accepted_with_strict_validation() -> None:
    _created(rendered())


@pytest.mark.parametrize("folder", ["manifests", "rbac"])
def test_manifests_are_accepted_with_strict_validation(folder: str) -> None:
    objects = [
        item for path in sorted((ROOT / "deploy" / folder).glob("*.yaml")) for item in documents(path.read_text())
    ]
    assert objects
    _created(objects)


def _containers() -> list[Document]:
    return [
        container
        for document in rendered()
        if document["kind"] in ("Deployment", "DaemonSet")
        for container in document["spec"]["template"]["spec"]["containers"]
    ]


def test_commands_and_flags_exist() -> None:
    commands = [container["args"] for container in _containers() if "args" in container]
    assert sorted(arguments[0] for arguments in commands) == ["controller-manager", "scheduler", "ui"]
    for command, *flags in commands:
        assert not _names(flags) - _flags_of(command), command


def test_what_runs_on_the_control_plane_has_no_privileges() -> None:
    for container in _containers():
        if container["name"] != "driver":
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_scheduler_has_a_lease_and_a_name_of_its_own() -> None:
    config = next(item for item in rendered() if item["kind"] == "ConfigMap")
    found = yaml.safe_load(config["data"]["config.yaml"])
    assert found["leaderElection"]["resourceName"] == "dray-scheduler"
    assert [profile["schedulerName"] for profile in found["profiles"]] == ["dray-scheduler"]


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_units(path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    command, *flags = unit["Service"]["ExecStart"].split()[1:]
    assert not _names(flags) - _flags_of(command)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    unit = tmp_path / path.name
    # The only thing that is missing here is the installed command.
    unit.write_text(path.read_text().replace("/usr/local/bin/dray", shutil.which("true") or "/bin/true"))
    command = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_does_not_run_as_root() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    user: Any = re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE)[-1]
    assert user == ("65532", "65532")
    assert text.rstrip().endswith('ENTRYPOINT ["dray"]')


def test_the_image_is_built_from_the_wheel_alone() -> None:
    folder = ROOT / "deploy"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (folder / "Dockerfile").read_text(), re.MULTILINE)
    sent = [line[1:] for line in (folder / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")]
    assert copied == ["dist/*.whl"]
    assert sent == ["dist", "dist/*.whl"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_pin_their_actions_and_ask_for_few_permissions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert set(workflow["permissions"].values() if workflow["permissions"] else ()) <= {"read"}
    uses = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert uses
    assert [action for action in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    for job in workflow["jobs"].values():
        commands = [step["run"] for step in job["steps"] if "run" in step]
        # An expression in a script can be anything; values come through the environment.
        assert [command for command in commands if "${{" in command] == []


def test_each_step_of_a_release_is_a_target() -> None:
    steps = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "release.mk").read_text(), re.MULTILINE))
    called = set(re.findall(r"\bmake ([a-z-]+)", steps))
    assert {"check-version", "release", "image", "upload", "release-notes"} == called
    assert called <= targets
