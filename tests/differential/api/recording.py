"""What a kube-apiserver answered to random requests, as a file: the requests, the answers, and what made them.

`KUBE_APISERVER=path python -m tests.differential.api.recording` writes it anew.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.differential.api.answers import answers, prepare
from tests.differential.api.generator import Case, cases, digest, packed, unpacked
from tests.differential.api.servers import REAL_FLAGS
from tests.e2e.apiserver.calls import calling
from tests.kube_apiserver import BINARY, running_kube_apiserver

FILE: Final = Path(__file__).with_name("kube-apiserver-1.37.0-rc.1.json.xz")
SEED: Final = 37
REQUESTS: Final = 5000


@dataclass(frozen=True, slots=True)
class Recording:
    """Cases with the answers to their requests; `digest` is that of the cases."""

    version: str
    seed: int
    digest: str
    cases: list[Case]
    answers: list[list[Any]]


def read(path: Path = FILE) -> Recording:
    """Read a recording."""
    document = json.loads(lzma.decompress(path.read_bytes()))
    found = [unpacked(record) for record in document["cases"]]
    return Recording(document["version"], document["seed"], document["digest"], found, document["answers"])


def record(seed: int, requests: int, path: Path) -> None:
    """Ask a new kube-apiserver, and write what it answers."""
    version = subprocess.run([BINARY, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    found = cases(seed, requests)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_kube_apiserver(Path(folder), *REAL_FLAGS) as server,
        calling(server) as caller,
    ):
        prepare(caller)
        answered = [answers(caller, case) for case in found]
    document = {
        "version": version,
        "seed": seed,
        "digest": digest(found),
        "cases": [packed(case) for case in found],
        "answers": answered,
    }
    path.write_bytes(lzma.compress(json.dumps(document, separators=(",", ":")).encode(), preset=9))


if __name__ == "__main__":
    record(SEED, REQUESTS, FILE)
