"""Runs the installed kubectl against a server, and parses its output.

`KUBECTL` in the environment names another binary, which is how older and newer ones are tried.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

import pytest

COMMAND_SECONDS_MAX = 120.0
LINE_SECONDS_MAX = 120.0

Document = dict[str, Any]


@functools.cache
def kubectl_path() -> str:
    """The path of kubectl; the bare name, which does not start, if it is not installed."""
    return os.environ.get("KUBECTL") or shutil.which("kubectl") or "kubectl"


@functools.cache
def kubectl_version() -> tuple[int, int]:
    """The version, (0, 0) if kubectl is not installed; a dispatcher may select a version by the server's."""
    try:
        done = subprocess.run(
            [kubectl_path(), "version", "--client", "--output=json"], capture_output=True, check=True, timeout=30
        )
    except OSError:
        return 0, 0
    version = json.loads(done.stdout)["clientVersion"]
    return int(version["major"]), int(re.sub(r"\D", "", version["minor"]))


def needs_kubectl(minor: int) -> pytest.MarkDecorator:
    """Skip tests of commands and flags that older versions do not have."""
    return pytest.mark.skipif(kubectl_version() < (1, minor), reason=f"needs kubectl 1.{minor}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a run."""

    code: int
    out: str
    err: str


class Kubectl:
    """kubectl in one namespace of one server."""

    def __init__(self, environment: Mapping[str, str], namespace: str, flags: tuple[str, ...] = ()) -> None:
        self._environment = environment
        self.namespace = namespace
        self._flags = flags

    def with_flags(self, *flags: str) -> Kubectl:
        """The same tool with more flags for every command."""
        return Kubectl(self._environment, self.namespace, (*self._flags, *flags))

    def with_environment(self, **variables: str) -> Kubectl:
        """The same tool with other environment variables."""
        return Kubectl({**self._environment, **variables}, self.namespace, self._flags)

    def _arguments(self, arguments: tuple[str, ...]) -> list[str]:
        return [kubectl_path(), f"--namespace={self.namespace}", *self._flags, *arguments]

    def run(self, *arguments: str, stdin: str | Document | list[Document] = "") -> Answer:
        """Run it; `stdin` may be documents."""
        done = subprocess.run(
            self._arguments(arguments),
            input=stdin if isinstance(stdin, str) else as_text(stdin),
            capture_output=True,
            check=False,
            text=True,
            env=dict(self._environment),
            timeout=COMMAND_SECONDS_MAX,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments: str, stdin: str | Document | list[Document] = "") -> str:
        """Run it, expect success, and return the output."""
        answer = self.run(*arguments, stdin=stdin)
        assert answer.code == 0, f"{arguments}: {answer}"
        return answer.out

    def error(self, *arguments: str, stdin: str | Document | list[Document] = "", code: int = 1) -> str:
        """Run it, expect failure, and return the error."""
        answer = self.run(*arguments, stdin=stdin)
        assert answer.code == code, f"{arguments}: {answer}"
        return answer.err.strip()

    def get(self, *arguments: str) -> Document:
        """The object or list that `get -o json` shows."""
        found: Document = json.loads(self("get", *arguments, "--output=json"))
        return found

    def field(self, resource: str, path: str) -> str:
        """One field of an object, by JSONPath: `field("pod/p", "spec.nodeName")`."""
        return self("get", resource, f"--output=jsonpath={{.{path}}}")

    def table(self, *arguments: str) -> list[dict[str, str]]:
        """The rows that `get` shows, cell by heading."""
        return rows_of(self("get", *arguments))

    def wait_until_gone(self, resource: str) -> None:
        """Wait until an object is deleted; kubectl before 1.23 fails if it is already deleted."""
        answer = self.run("wait", "--for=delete", resource, "--timeout=20s")
        assert answer.code == 0 or "no matching resources found" in answer.err, answer
        assert "(NotFound)" in self.error("get", resource)

    @contextmanager
    def background(self, *arguments: str) -> Iterator[Lines]:
        """Run it in the background for the time of the block."""
        process = subprocess.Popen(
            self._arguments(arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(self._environment),
        )
        try:
            yield Lines(process)
        finally:
            process.kill()
            process.wait(COMMAND_SECONDS_MAX)


class Lines:
    """The output lines of a running program."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: Queue[str | None] = Queue()
        self.seen: list[str] = []
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, wanted: Callable[[str], bool]) -> str:
        """Wait for a line."""
        while True:
            try:
                line = self._lines.get(timeout=LINE_SECONDS_MAX)
            except Empty:
                raise AssertionError(f"no such line among {self.seen}") from None
            assert line is not None, f"ended after {self.seen}"
            self.seen.append(line)
            if wanted(line):
                return line

    def until_cells(self, *cells: str) -> str:
        """Wait for a line that begins with these cells."""
        return self.until(lambda line: tuple(line.split()[: len(cells)]) == cells)

    def end(self) -> int:
        """Wait for the program to exit and return its exit code."""
        return self._process.wait(COMMAND_SECONDS_MAX)


def as_text(documents: Document | list[Document]) -> str:
    """Documents as input for kubectl: in JSON, because its YAML parser accepts more spellings of booleans."""
    return "\n".join(json.dumps(item) for item in (documents if isinstance(documents, list) else [documents]))


def rows_of(table: str) -> list[dict[str, str]]:
    """The rows of a table by heading; columns are found by the position of their headings."""
    heading, *lines = table.rstrip("\n").split("\n")
    starts = [match.start() for match in re.finditer(r"\S+(?: \S+)*", heading)]
    ends = [*starts[1:], None]
    names = [heading[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return [
        {name: line[start:end].strip() for name, start, end in zip(names, starts, ends, strict=True)} for line in lines
    ]


def create_namespace(url: str, name: str) -> None:
    """Create a namespace without kubectl, which is slow to start."""
    request = Request(
        f"{url}/api/v1/namespaces",
        json.dumps({"metadata": {"name": name}}).encode(),
        {"Authorization": "Bearer admin-token", "Content-Type": "application/json"},
    )
    with urlopen(request, timeout=COMMAND_SECONDS_MAX, context=_unverified()) as answer:
        assert answer.status == 201


@functools.cache
def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def write(path: Path, documents: Document | list[Document]) -> str:
    """Write documents into a file and return its name."""
    path.write_text(as_text(documents))
    return str(path)
