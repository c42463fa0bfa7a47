"""`dray conformance` with the example drivers: real processes, killed and restarted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dray.cmd.conformance import main
from tests import fork_server
from tests.e2e.driver.cluster import short_folder

EXAMPLES = Path(__file__).parents[3] / "examples"


def conformance(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dray", "conformance", str(folder / "k"), f"--cdi-dir={folder / 'cdi'}", *flags]
    environment = {**os.environ, "NO_COLOR": "1", "GPUS": "4"}
    return fork_server.run(command, timeout=160, env=environment)


def example(name: str, *arguments: str) -> str:
    return " ".join([sys.executable, str(EXAMPLES / name), *arguments])


def run(*flags: str) -> tuple[int, dict[str, Any]]:
    with short_folder() as folder:
        done = conformance(folder, "-o", "json", *flags)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def verdicts(report: dict[str, Any], verdict: str) -> list[str]:
    return sorted({item["name"] for item in report["findings"] if item["verdict"] == verdict})


HEALTH = ["health-again", "health-devices", "health-first"]


@pytest.mark.parametrize(
    ("command", "flags", "skipped"),
    [
        (["env-driver/driver.py"], ["--skip=slices-repaired"], HEALTH),
        (["gpu-driver/driver.py"], [], []),
        (["host-devices/driver.py", "/dev/null", "/dev/zero", "--"], ["--skip=slices-repaired,recovery"], HEALTH),
    ],
)
def test_the_example_drivers_conform(command: Sequence[str], flags: list[str], skipped: list[str]) -> None:
    code, report = run("--run", example(*command), *flags)
    assert verdicts(report, "failed") == [], report
    assert verdicts(report, "skipped") == skipped
    assert (code, report["conforms"]) == (0, True)


def test_the_example_device_plugin_conforms() -> None:
    words = ("--resource", "example.com/null", "--pattern", "/dev/null", "--folder", "{root}/device-plugins")
    code, report = run("--device-plugin", "--run", example("device-plugin/host_devices.py", *words))
    assert verdicts(report, "failed") == [], report
    assert verdicts(report, "skipped") == ["plugin-pre-start", "plugin-preferred"]
    assert (code, report["subject"]) == (0, "example.com/null")


FABRIC = f"--claim={EXAMPLES / 'classic' / 'fabric' / 'claim.yaml'}"


def test_the_example_of_a_classic_driver_conforms() -> None:
    node = example("classic/fabric/driver.py", "node", "--node-name={node}", "--root-dir={root}", "--cdi-dir={cdi}")
    controller = example("classic/fabric/driver.py", "controller", "--leader-elect=false")
    code, report = run("--classic", FABRIC, "--run", node, "--run-controller", controller)
    assert verdicts(report, "failed") == [], report
    assert verdicts(report, "skipped") == []
    assert (code, report["subject"]) == (0, "fabric.example.com")


def test_a_classic_driver_that_does_not_run() -> None:
    only = "--only=classic-immediate,classic-unsuitable,classic-other-driver,classic-controller-restarted"
    code, report = run("--classic", FABRIC, only, "--call-timeout=0.2")
    assert code == 1
    reasons = {item["name"]: (item["verdict"], item["reason"]) for item in report["findings"]}
    assert reasons == {
        "classic-immediate": ("failed", "the driver did not allocate the claim within 0.2 s"),
        "classic-unsuitable": ("failed", "the driver did not report unsuitable nodes within 0.2 s"),
        "classic-other-driver": ("failed", "the driver did not report unsuitable nodes within 0.2 s"),
        "classic-controller-restarted": ("failed", "the driver did not report unsuitable nodes within 0.2 s"),
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--classic"], "--classic needs --claim"),
        (["--classic", "--device-plugin"], "exclude each other"),
        (["--run-controller=true"], "--run-controller needs --classic"),
    ],
)
def test_flags_that_do_not_fit(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["somewhere", *flags])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_claim_given_with_a_flag(tmp_path: Path) -> None:
    """The claim's parameters reach the driver, which rejects them: the check fails."""
    good = EXAMPLES / "env-driver" / "claim.yaml"
    (tmp_path / "bad.yaml").write_text(good.read_text().replace("env:\n              TARGET: world", "env: 5"))
    flags = ("--run", example("env-driver/driver.py"), "--only", "prepare-answered")
    code, report = run("--claim", str(good), *flags)
    assert (code, verdicts(report, "passed")) == (0, ["prepare-answered", "registration-socket"])
    code, report = run("--claim", str(tmp_path / "bad.yaml"), *flags)
    assert (code, report["conforms"]) == (1, False)
    (reason, _) = [item["reason"] for item in report["findings"] if item["name"] == "prepare-answered"]
    assert reason.endswith('parameter env must be a map of texts"')


def test_text_and_junit_reports() -> None:
    with short_folder() as folder:
        text = conformance(folder, "--timeout=0.2", "--only=registration")
    assert text.returncode == 1
    head = text.stdout.splitlines()
    assert head[:3] == [
        "registration",
        "  failed  registration-socket",
        "          required: The driver serves a socket below plugins_registry; its name does not begin with a dot.",
    ]
    assert head[3].startswith("          found:    no socket appeared within 0.2 s in ")
    assert head[-1] == "the driver does not conform: 0 passed, 1 failed, 8 skipped"
    with short_folder() as folder:
        junit = conformance(folder, "--timeout=0.2", "--only=registration", "-o", "junit")
    suite = ElementTree.fromstring(junit.stdout)
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("9", "1", "8")


def test_temporary_server_and_restart_command(tmp_path: Path) -> None:
    """A script starts and restarts the driver."""
    with short_folder() as folder:
        kubeconfig, pid = folder / "kubeconfig", folder / "pid"
        driver = (
            f"NODE_NAME=conformance DRAY_ROOT_DIR={folder}/k DRAY_CDI_DIR={folder}/cdi KUBECONFIG={kubeconfig} "
            f"{example('env-driver/driver.py')} >/dev/null 2>&1 & echo $! >{pid}"
        )
        kill = f"test ! -e {pid} || kill -9 $(cat {pid})"
        process = subprocess.Popen(
            ["sh", "-c", f"while test ! -s {kubeconfig}; do sleep 0.05; done; {driver}"], start_new_session=True
        )
        try:
            done = conformance(
                folder,
                f"--kubeconfig-out={kubeconfig}",
                f"--restart-command={kill}; {driver}",
                "--only=restart-prepared,restart-registered",
                "-o",
                "json",
            )
        finally:
            subprocess.run(["sh", "-c", kill], check=False)
            process.wait(10)
    assert done.returncode == 0, done.stderr
    assert verdicts(json.loads(done.stdout), "passed") == [
        "registration-socket",
        "restart-prepared",
        "restart-registered",
    ]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--only=nonsense"], 'dray conformance: unknown requirement or section "nonsense"; --list prints all\n'),
        (["--claim=/nowhere"], "dray conformance: [Errno 2] No such file or directory: '/nowhere'\n"),
    ],
)
def test_usage_errors(flags: list[str], text: str) -> None:
    with short_folder() as folder:
        done = conformance(folder, *flags)
    assert (done.returncode, done.stderr, done.stdout) == (2, text, "")


def test_the_list_of_requirements() -> None:
    from dray.cli.conformance.requirements import REQUIREMENTS

    done = subprocess.run(
        [sys.executable, "-m", "dray", "conformance", "--list"], capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(REQUIREMENTS)
