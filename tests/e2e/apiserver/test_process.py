"""The process: settings it refuses, how it ends, what survives, and who may share its data."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import fork_server
from tests.e2e.apiserver.calls import calling, chunks, events
from tests.servers import Server, running_server, start_server

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
RUN_SECONDS_MAX = 120


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `dray` to its end."""
    return fork_server.run([sys.executable, "-m", "dray", *arguments], env=os.environ | (environment or {}))


# --- settings


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        pytest.param(
            ["--data-dri=x"], {}, "dray up: unknown flag: --data-dri (did you mean --data-dir?)", id="unknown flag"
        ),
        pytest.param(["--zzzzzz=x"], {}, "dray up: unknown flag: --zzzzzz", id="unknown flag like no other"),
        pytest.param(["extra"], {}, 'dray up: unexpected argument "extra"', id="argument"),
        pytest.param(
            ["--port=70000"],
            {},
            'dray up: --port: invalid value "70000": must be a number from 0 to 65535',
            id="port too high",
        ),
        pytest.param(
            ["--port", "http"],
            {},
            'dray up: --port: invalid value "http": must be a number from 0 to 65535',
            id="port is no number",
        ),
        pytest.param(["--port"], {}, "dray up: --port: needs a value", id="no value"),
        pytest.param(
            [], {"DRAY_PORT": "x"}, 'dray up: DRAY_PORT: invalid value "x": must be a number from 0 to 65535', id="env"
        ),
        pytest.param(
            ["--store=mysql"],
            {},
            'dray up: --store: invalid value "mysql": must be one of sqlite, memory, etcd',
            id="unknown store",
        ),
        pytest.param(
            ["--config=/nowhere/settings.yaml"],
            {},
            "dray up: --config: cannot read /nowhere/settings.yaml: No such file or directory",
            id="no such file",
        ),
    ],
)
def test_settings_that_are_refused(arguments: list[str], environment: dict[str, str], message: str) -> None:
    result = run("up", *arguments, environment=environment)
    assert (result.returncode, result.stdout, result.stderr.strip()) == (2, "", message)


def test_unknown_feature_gate() -> None:
    result = run("up", "--feature-gates=DRANothing=true")
    assert result.returncode == 2
    assert "--feature-gates" in result.stderr
    assert "unrecognized feature gate: DRANothing" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("port: [1, 2", "not valid YAML", id="torn YAML"),
        pytest.param("- a\n- b\n", "must be a map of settings", id="a list"),
        pytest.param("prot: 1\n", 'unknown key "prot" (did you mean port?)', id="unknown key"),
        pytest.param("port: many\n", 'port: invalid value "many"', id="bad value"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    result = run("up", f"--config={file}")
    assert result.returncode == 2
    assert str(file) in result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_unknown_command() -> None:
    result = run("upp")
    assert result.returncode == 2
    assert 'unknown command "upp"' in result.stderr


def test_help_lists_the_settings() -> None:
    result = run("up", "--help")
    assert result.returncode == 0
    for flag in ("--data-dir", "--port", "--store", "--feature-gates", "DRAY_DATA_DIR"):
        assert flag in result.stdout


def test_flag_wins_over_environment_wins_over_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"dataDir: {tmp_path}/file\nstore: memory\nport: 0\nloggingFormat: json\n")
    environment = {"DRAY_DATA_DIR": f"{tmp_path}/environment", "DRAY_CONFIG": str(file), "DRAY_LOGGING_FORMAT": "text"}
    with started(environment, f"--data-dir={tmp_path}/flag") as line:
        assert line.endswith(f"kubeconfig {tmp_path}/flag/kubeconfig")
    with started(environment) as line:
        assert line.endswith(f"kubeconfig {tmp_path}/environment/kubeconfig")
    # The file's store was used: nothing is on disk.
    assert not (tmp_path / "environment" / "state.db").exists()


@contextmanager
def started(environment: dict[str, str], *arguments: str) -> Iterator[str]:
    """A server started with a bare command line; gives its ready line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dray", "apiserver", *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        assert process.wait(RUN_SECONDS_MAX) == 0
        process.stdout.close()


def test_port_in_use(tmp_path: Path) -> None:
    with running_server(tmp_path / "first") as server:
        port = server.url.rpartition(":")[2]
        result = run("apiserver", f"--data-dir={tmp_path / 'second'}", f"--port={port}")
    assert result.returncode == 1
    assert "address already in use" in result.stderr.lower()
    assert "Traceback" not in result.stderr


def test_logs_as_json(tmp_path: Path) -> None:
    with running_server(tmp_path, "--logging-format=json", "-v=4") as server, calling(server) as admin:
        admin.get("/version")
        server.stop()
    lines = server.log.read_text().splitlines()
    assert lines
    for line in lines:
        record = json.loads(line)
        assert {"ts", "level", "logger", "msg"} <= set(record)
    assert any("SIGTERM" in json.loads(line)["msg"] for line in lines)


def test_log_lines_for_people(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        server.stop()
    assert re.search(r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} .*stopping on SIGTERM$", server.log.read_text(), re.MULTILINE)


# --- the data directory


def test_two_servers_on_one_directory(tmp_path: Path) -> None:
    with running_server(tmp_path):
        result = run("up", f"--data-dir={tmp_path}", "--port=0")
        assert result.returncode == 1
        assert "state.db is in use by another process" in result.stderr
        assert "Traceback" not in result.stderr


def damage_start(data: bytes) -> bytes:
    return b"garbage!" * 64 + data[512:]


def damage_pages(data: bytes) -> bytes:
    return data[:4096] + bytes(255 - byte for byte in data[4096:])


def damage_cut(data: bytes) -> bytes:
    return data[: len(data) // 2 + 100]


def damage_empty(_data: bytes) -> bytes:
    return b""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with some objects in it."""
    folder = tmp_path_factory.mktemp("whole")
    with running_server(folder, command="apiserver") as server, calling(server) as admin:
        for number in range(20):
            admin.call("POST", MAPS, {"metadata": {"name": f"settings-{number}"}, "data": {"a": "x" * 2000}})
        server.stop()
    return (folder / "state.db").read_bytes()


@pytest.mark.parametrize("damage", [damage_start, damage_pages, damage_cut, damage_empty])
def test_damaged_database_is_refused(tmp_path: Path, whole: bytes, damage: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "state.db"
    damaged = damage(whole)
    file.write_bytes(damaged)
    result = run("up", f"--data-dir={tmp_path}", "--port=0")
    assert result.returncode == 1
    assert f"{file} cannot be trusted" in result.stderr
    assert "Restore the file from a backup" in result.stderr
    assert "Traceback" not in result.stderr
    # Nothing was "repaired" away.
    assert file.read_bytes() == damaged


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("up", f"--data-dir={tmp_path / 'file' / 'below'}", "--port=0")
    assert result.returncode == 1
    assert str(tmp_path / "file") in result.stderr
    assert "Traceback" not in result.stderr


# --- what the ready line promises


def test_a_ready_server_accepts_pods_at_once(tmp_path: Path) -> None:
    """Its account is there; the scheduler, which is loaded after the server, places it."""
    with running_server(tmp_path, "--nodes=1") as server, calling(server) as admin:
        pod = {"metadata": {"name": "first"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        answer = admin.call("POST", PODS, pod)
        assert answer.status == 201, answer.message
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while not admin.get(f"{PODS}/first").json()["spec"].get("nodeName"):
            assert time.monotonic() < deadline


def test_a_signal_right_after_ready_ends_it_in_order(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


def test_a_wrong_scheduler_configuration_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders: [{}]\n")
    done = run("up", f"--data-dir={tmp_path / 'data'}", f"--scheduler-config={file}", "--port=0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"dray up: {file}: extenders: not supported\n"
    assert not (tmp_path / "data").exists()


# --- how it ends, and what survives


class Writer(threading.Thread):
    """Creates objects one after the other until the server is gone; remembers what was acknowledged."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__()
        self._server, self._name = server, name
        self.acknowledged: list[str] = []
        self.many = threading.Event()

    def run(self) -> None:
        with calling(self._server) as admin:
            for number in range(100_000):
                name = f"{self._name}-{number}"
                try:
                    answer = admin.call("POST", MAPS, {"metadata": {"name": name}, "data": {"n": str(number)}})
                except Exception:  # noqa: BLE001 - however the connection ends
                    return
                if answer.status != 201:
                    return
                self.acknowledged.append(name)
                if number == 30:
                    self.many.set()


def names_on(server: Server) -> set[str]:
    with calling(server) as admin:
        return {item["metadata"]["name"] for item in admin.get(MAPS).json()["items"]}


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_what_was_acknowledged_survives(tmp_path: Path, ending: signal.Signals) -> None:
    server = start_server(tmp_path)
    assert server.process.stdout is not None
    with ExitStack() as stack:
        stack.callback(server.process.stdout.close)
        writers = [Writer(server, f"writer-{number}") for number in range(4)]
        watches = []
        with calling(server) as admin:
            for _ in range(50):
                answer = stack.enter_context(admin.stream(f"{MAPS}?watch=true&labelSelector=none"))
                assert answer.status == 200
                watches.append(answer)
        for writer in writers:
            writer.start()
        for writer in writers:
            assert writer.many.wait(20)
        started_at = time.monotonic()
        server.process.send_signal(ending)
        code = server.process.wait(20)
        seconds = time.monotonic() - started_at
        for writer in writers:
            writer.join()
        if ending is not signal.SIGKILL:
            assert code == 0
            assert seconds < 2
            # Every watch ends as a stream should, not by a torn connection.
            for answer in watches:
                assert b"".join(chunks(answer)) == b""
    acknowledged = {name for writer in writers for name in writer.acknowledged}
    assert len(acknowledged) > 120
    with running_server(tmp_path) as again:
        assert acknowledged <= names_on(again)


def test_kubeconfig_and_tokens_after_a_restart_on_another_port(tmp_path: Path) -> None:
    with running_server(tmp_path) as first:
        with calling(first) as admin:
            admin.call("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
            path = "/api/v1/namespaces/default/serviceaccounts/robot/token"
            token = admin.call("POST", path, {"spec": {"expirationSeconds": 3600}}).json()["status"]["token"]
            version = int(admin.get(MAPS).json()["metadata"]["resourceVersion"])
            uid = admin.get("/api/v1/namespaces/default").json()["metadata"]["uid"]
        old = first.kubeconfig.read_text()
    with running_server(tmp_path) as second:
        assert second.kubeconfig == first.kubeconfig
        assert second.url in second.kubeconfig.read_text()
        # Only the address is new: who has copied the file needs to change no key.
        assert second.kubeconfig.read_text().replace(second.url, first.url) == old
        result = subprocess.run(
            ["kubectl", "get", "namespace", "default", "-o", "jsonpath={.metadata.uid}"],
            env=second.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout == uid
        with calling(second, token) as robot:
            review = robot.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
            assert review.json()["status"]["userInfo"]["username"] == "system:serviceaccount:default:robot"
        with calling(second) as admin:
            assert int(admin.get(MAPS).json()["metadata"]["resourceVersion"]) >= version


def test_a_watch_goes_on_after_a_restart(tmp_path: Path) -> None:
    """What a client saw last is still known to the next process, so that it need not list again."""
    with running_server(tmp_path, command="apiserver") as first, calling(first) as admin:
        version = admin.get(MAPS).json()["metadata"]["resourceVersion"]
        for number in range(5):
            admin.call("POST", MAPS, {"metadata": {"name": f"settings-{number}"}})
        first.kill()
    path = f"{MAPS}?watch=true&resourceVersion={version}&timeoutSeconds=20"
    with (
        running_server(tmp_path, command="apiserver") as second,
        calling(second) as admin,
        admin.stream(path) as answer,
    ):
        found = events(answer)
        seen = [(kind, item["metadata"].get("name")) for kind, item in (next(found) for _ in range(5))]
    assert seen == [("ADDED", f"settings-{number}") for number in range(5)]


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    assert server.process.stdout is not None
    with calling(server) as admin:
        # A request that would hold the shutdown up.
        connection = admin.connect()
        connection.request("GET", f"{MAPS}?resourceVersion=999999999&resourceVersionMatch=NotOlderThan")
        admin.get("/version")
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        code = server.process.wait(RUN_SECONDS_MAX)
        connection.close()
    server.process.stdout.close()
    # The kernel may deliver both signals before the first is handled: either way it is over.
    assert code in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)
