"""Makes keys and reads certificates for the node agent, in a process of its own.

The cryptography libraries take a sixth of the agent's memory, and are needed a few times a year.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from dray.node.agent.certificate_manager import Validity
from dray.runtime.system import SystemClock


async def read_validity(certificate: bytes) -> Validity:
    """Return when a PEM certificate is valid; raises `OSError` if it cannot be read."""
    answer = await _ask({"certificate": certificate.decode()})
    return Validity(*(datetime.fromisoformat(answer[name]) for name in ("notBefore", "notAfter")))


async def new_node_request(node_name: str, names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a new private key and a signing request for it, both PEM, with the names of a server."""
    answer = await _ask({"node": node_name, "names": list(names)})
    return answer["key"].encode(), answer["request"].encode()


async def new_local_serving(data_dir: str, node_name: str, names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return the key of a new serving certificate and the certificate, both PEM, signed with the cluster's keys."""
    answer = await _ask({"dataDir": data_dir, "node": node_name, "names": list(names)})
    return answer["key"].encode(), answer["certificate"].encode()


async def _ask(question: dict[str, Any]) -> dict[str, str]:
    if "cryptography" in sys.modules:
        return await asyncio.to_thread(answer_to, question)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dray.cmd.certificate_tool",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate(json.dumps(question).encode())
    if process.returncode:
        lines = errors.decode(errors="replace").splitlines()
        raise OSError(lines[-1] if lines else "the certificate tool failed")
    answer: dict[str, str] = json.loads(output)
    return answer


def answer_to(question: dict[str, Any]) -> dict[str, str]:
    """Answer one question."""
    from dray.apiserver.authentication import certificates

    if "certificate" in question:
        begin, end = certificates.validity(question["certificate"].encode())
        return {"notBefore": begin.isoformat(), "notAfter": end.isoformat()}
    if "dataDir" in question:
        from dray.cmd.node_keys import local_serving

        now = SystemClock().now()
        serving = local_serving(Path(question["dataDir"]), question["node"], question["names"], now)
        return {"key": serving.key.decode(), "certificate": serving.certificate.decode()}
    key = certificates.new_private_key()
    identity = certificates.node_identity(question["node"])
    request = certificates.new_request(key, identity, question["names"])
    return {"key": key.decode(), "request": request.decode()}


if __name__ == "__main__":
    json.dump(answer_to(json.load(sys.stdin)), sys.stdout)
