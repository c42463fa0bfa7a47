"""`pytest --dray`, run by pytest in pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[3] / "docs"
MANUAL = "".join((DOCS / name).read_text() for name in ("writing-a-driver.md", "driver-sdk.md"))
INI = """
[pytest]
addopts = --strict-markers
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""


def manual(name: str) -> str:
    """A file from the documentation: a code block that begins with its name."""
    (text,) = re.findall(rf"^```python\n# {re.escape(name)}\n(.*?)^```", MANUAL, re.DOTALL | re.MULTILINE)
    return str(text)


def test_the_example_of_the_manual(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(**{"lamps": manual("lamps.py"), "test_lamps": manual("test_lamps.py")})
    result = pytester.runpytest_subprocess("--dray", "-p", "no:rerunfailures", "--timeout=120")
    result.assert_outcomes(passed=manual("test_lamps.py").count("def test_"))


def test_without_the_flag_the_fixture_does_not_exist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_loaded():
            heavy = {"grpc", "httptools", "dray.cmd.testing", "dray.apiserver", "dray.node", "yaml"}
            assert heavy.isdisjoint(sys.modules), heavy & set(sys.modules)
            assert "dray.cmd.pytest_plugin" in sys.modules
        """
    )
    flags = [f"-pno:{name}" for name in ("rerunfailures", "asyncio", "anyio", "xdist", "hypothesispytest")]
    result = pytester.runpytest_subprocess(*flags)
    result.assert_outcomes(passed=1)
    pytester.makepyfile("def test_cluster(cluster): pass")
    result = pytester.runpytest_subprocess(*flags)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'cluster' not found*"])


def test_help_of_the_flag_and_the_marker(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess("--help").stdout.fnmatch_lines(["Dray: Kubernetes device allocation:", "*--dray *"])
    pytester.runpytest_subprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.dray(store='memory', *"])
    pytester.runpytest_subprocess("--dray", "--fixtures").stdout.fnmatch_lines(["cluster -- *", "*real sockets*"])


def test_async_tests_of_anyio_and_a_cluster_for_a_module(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="module")
        def cluster(dray_clusters):
            with dray_clusters(node=False) as running:
                yield running

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        async def test_apply(cluster):
            await cluster.aio.apply("apiVersion: v1\\nkind: ConfigMap\\nmetadata: {name: a}")

        def test_shared(cluster):
            assert cluster.get("configmap/a")["metadata"]["namespace"] == "default"

        def test_needs_kubectl(cluster, monkeypatch):
            monkeypatch.setenv("PATH", "/nowhere")
            cluster.kubectl("version")
        """
    )
    result = pytester.runpytest_subprocess("--dray", "-p", "no:rerunfailures", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*needs kubectl*"])


def test_a_failed_wait_shows_no_traceback_of_dray(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_wait(cluster):
            cluster.wait_for("pod/nothing", "Running", timeout=0.1)
        """
    )
    result = pytester.runpytest_subprocess("--dray", "-p", "no:rerunfailures")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E  *WaitError: pod/nothing did not become Running within 0.1 s", "E  *it does not exist", "E  *no events"]
    )
    result.stdout.no_fnmatch_line("*concurrent/futures*")


def test_a_cluster_starts_in_less_than_a_second() -> None:
    """In a separate process: the first start is measured without the imports."""
    script = (
        "import time\n"
        "from dray.cmd.testing.cluster import running_cluster\n"
        "seconds = []\n"
        "for _ in range(5):\n"
        "    started = time.process_time()\n"
        "    with running_cluster():\n"
        "        seconds.append(time.process_time() - started)\n"
        "print(min(seconds))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)
    # Processor time, as the machine may be busy with other things; some 0.1 s on an ordinary one.
    assert float(done.stdout) < 1.0
