"""`dray complete WORDS…`: prints what can follow on a command line, for shell completion; errors print nothing.

The exit code is 1 if the word may be anything, such as the name of a file.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Final

# The shell waits for the answer.
SECONDS_MAX: Final = 2.0
LIMIT: Final = 500
_KINDS: Final[Mapping[str, str]] = {
    "pod": "Pod",
    "pods": "Pod",
    "po": "Pod",
    "claim": "ResourceClaim",
    "claims": "ResourceClaim",
    "resourceclaim": "ResourceClaim",
    "deployment": "Deployment",
    "deploy": "Deployment",
    "replicaset": "ReplicaSet",
    "rs": "ReplicaSet",
    "daemonset": "DaemonSet",
    "ds": "DaemonSet",
    "statefulset": "StatefulSet",
    "sts": "StatefulSet",
    "job": "Job",
    "podgroup": "PodGroup",
    "workload": "Workload",
}
# Flags whose values are names of a kind.
_FLAGS: Final[Mapping[str, str]] = {
    "-n": "Namespace",
    "--namespace": "Namespace",
    "--node": "Node",
    "--drain": "Node",
    "--remove-node": "Node",
    "--class": "DeviceClass",
}
_EXPLAINED: Final = (
    "pod",
    "claim",
    "deployment",
    "replicaset",
    "daemonset",
    "statefulset",
    "job",
    "podgroup",
    "workload",
)


def main(argv: Sequence[str]) -> int:
    """Print one candidate a line; the last argument is the word to complete, which may be empty."""
    found = candidates(list(argv) or [""])
    sys.stdout.write("".join(f"{item}\n" for item in found or ()))
    return int(found is None)


def candidates(words: Sequence[str]) -> list[str] | None:
    """Return what the last word can be; None if that is not known."""
    # Bash makes three words of `--node=a`; zsh and fish make one.
    *before, current = [word for word in words[:-1] if word != "="] + ["" if words[-1] == "=" else words[-1]]
    flag, equals, _ = current.partition("=")
    if equals and flag in _FLAGS:
        return [f"{flag}={name}" for name in _names(_FLAGS[flag], before)]
    if before and before[-1] in _FLAGS:
        return _matching(_names(_FLAGS[before[-1]], before), current)
    plain = [word for word in before if not word.startswith("-")]
    if current.startswith("-") or not plain:
        return []
    if plain[0] == "explain":
        found = _explained(plain, before, current)
    elif plain == ["decisions"]:
        found = _matching(_names("Pod", before), current)
    else:
        return None
    # The word may be the value of a flag.
    return None if not found and before[-1].startswith("-") else found


def _explained(plain: Sequence[str], before: Sequence[str], current: str) -> list[str]:
    """Return the kinds or names that can follow `dray explain`."""
    kind, slash, _ = current.partition("/")
    if slash and kind in _KINDS:
        return _matching([f"{kind}/{name}" for name in _names(_KINDS[kind], before)], current)
    if len(plain) == 1:
        return _matching(list(_EXPLAINED), current)
    return _matching(_names(_KINDS[plain[1]], before), current) if plain[1] in _KINDS else []


def _matching(names: Sequence[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)][:LIMIT]


def _names(kind: str, words: Sequence[str]) -> list[str]:
    try:
        return asyncio.run(_read(kind, namespace_of(words), words))
    except Exception:  # noqa: BLE001 - a message would appear in the middle of the user's command line
        return []


async def _read(kind: str, namespace: str, words: Sequence[str]) -> list[str]:
    # Imported on use, as the commands do.
    from dray.cli.cluster import connect
    from dray.client.interface import ListOptions
    from dray.sim.cluster_reader import best_resources

    async with (
        asyncio.timeout(SECONDS_MAX),
        connect(_value(words, "--kubeconfig"), _value(words, "--context")) as client,
    ):
        resource = best_resources(await client.resources())[kind]
        scope = namespace if resource.namespaced else ""
        page = await client.list(resource, scope, options=ListOptions(limit=LIMIT))
        return sorted(item["metadata"]["name"] for item in page.items)


def namespace_of(words: Sequence[str]) -> str:
    """Return the namespace of the command line or, as for the commands, that of the kubeconfig context."""
    # Imported on use, as the commands do.
    from dray.cli.cluster import load_user_access

    given = _value(words, "-n", "--namespace")
    return given or load_user_access(_value(words, "--kubeconfig"), _value(words, "--context")).namespace


def _value(words: Sequence[str], *flags: str) -> str:
    """Return the value of a flag that was typed before."""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            return value if equals else next(iter(words[position + 1 : position + 2]), "")
    return ""
