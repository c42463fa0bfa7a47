"""Examples of each command, for the end of its help page: what it is for, and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_JOIN: Final = "dray join https://10.0.0.1:6443 --token=TOKEN --discovery-token-ca-cert-hash=sha256:HASH"
EXAMPLES_TITLE: Final = "Examples:"
EXAMPLES: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "demo": (
        ("nine scenarios on four nodes, then keep running", "dray demo"),
        ("stop what an earlier run left", "dray demo --stop"),
    ),
    "up": (
        ("a cluster in this terminal, in ./.dray", "dray up"),
        ("20 simulated nodes of eight GPUs, in the background", "dray up --nodes=20 --devices=gpu:8xH100 --detach"),
        ("for tests: nothing on disk, any free port", "dray up --store=memory --port=0"),
    ),
    "down": (
        ("stop the cluster in ./.dray", "dray down"),
        ("stop all of them, and remove their data", "dray down --all --delete"),
    ),
    "status": (
        ("the clusters on this machine", "dray status"),
        ("for scripts", "dray status -o json"),
    ),
    "explain": (
        ("why a Pod is pending, and what to do", "dray explain pod train -n ml"),
        ("the reason of each device of a node", "dray explain pod train --node=gpu-a"),
        ("from a file instead of a cluster", "dray explain deployment/web -f cluster.yaml"),
    ),
    "simulate": (
        ("what happens if a node is drained", "dray simulate --drain=gpu-a"),
        ("whether the objects of a file fit", "dray simulate --apply=train.yaml"),
        ("how many more Pods of a file fit", "dray simulate --count-fit=pod.yaml"),
    ),
    "devices": (
        ("all devices, with their state and claims", "dray devices"),
        ("those of one node that are free, again after each change", "dray devices --node=gpu-a --state=free -w"),
    ),
    "claims": (
        ("claims in all namespaces", "dray claims"),
        ("those of one namespace that wait", "dray claims -n ml --state=pending"),
    ),
    "top": (
        ("use by class, node and namespace", "dray top"),
        ("nodes only, again after each change", "dray top nodes -w"),
        ("the last day", "dray top classes --since=24h"),
    ),
    "usage": (
        ("device-hours of the last week", "dray usage --since=7d"),
        ("for a spreadsheet", "dray usage --since=30d -o csv"),
    ),
    "decisions": (
        ("the newest decisions of the scheduler", "dray decisions --limit=20"),
        ("scores and reasons of one Pod", "dray decisions train -n ml"),
    ),
    "doctor": (
        ("what is stuck, orphaned or inconsistent", "dray doctor"),
        ("mend what can be mended safely", "dray doctor --fix"),
        ("from a file instead of a cluster", "dray doctor -f cluster.yaml"),
    ),
    "ui": (
        ("the dashboard of your cluster", "dray ui"),
        ("of another context, on another port", "dray ui --context=staging --port=9000"),
    ),
    "snapshot": (
        ("all that the tools read, without secrets", "dray snapshot -o yaml > cluster.yaml"),
        ("to give to others: without names", "dray snapshot --anonymize=names.json > cluster.json"),
    ),
    "reduce": (
        ("the fewest objects that show why a Pod is pending", "dray reduce pod train -f cluster.yaml"),
        ("to a file", "dray reduce pod train -n ml -f cluster.yaml > small.yaml"),
    ),
    "translate": (
        ("put the names back into an answer", "dray translate names.json answer.txt"),
        ("into what a command prints", "dray explain pod pod-1 -f cluster.yaml | dray translate names.json"),
    ),
    "record": (
        ("until Ctrl-C", "dray record cluster.rec"),
        ("for ten minutes", "dray record cluster.rec --for=10m"),
    ),
    "replay": (
        ("compare placements with those of the default profile", "dray replay cluster.rec"),
        ("with the scheduler's own configuration", "dray replay cluster.rec --scheduler-config=scheduler.yaml"),
    ),
    "rebalance": (
        ("moves that let pending Pods fit; nothing is written", "dray rebalance"),
        ("for one Pod, with at most five moves", "dray rebalance --for=ml/train --max-moves=5"),
        ("carry the plan out", "dray rebalance --apply"),
    ),
    "plan": (
        ("which nodes to add for the pending Pods", "dray plan"),
        (
            "at what price, for Pods that will come",
            "dray plan --catalogue=shapes.yaml --pods=pod.yaml --times=20",
        ),
        ("which nodes can go", "dray plan --remove"),
    ),
    "init": (
        ("a project in ./lamp-driver", "dray init driver lamp.example.com"),
        ("elsewhere", "dray init driver lamp.example.com --directory=src/lamp"),
    ),
    "dev": (
        ("run a driver, and again when a file is saved", "dray dev src/lamp_driver/driver.py"),
        ("keep its cluster", "dray dev driver.py --data-dir=.dray"),
    ),
    "conformance": (
        ("start a driver and check it", "dray conformance --run='python -m lamp_driver.driver' kubelet"),
        ("a report for CI", "dray conformance --run=./driver -o junit kubelet"),
    ),
    "cel": (
        ("which devices of your cluster match", "dray cel 'device.driver == \"gpu.example.com\"'"),
        ("of a file", "kubectl get resourceslices -o yaml | dray cel 'device.driver == \"gpu.example.com\"' -f -"),
    ),
    "migrate": (
        ("the steps from a device plugin to a driver", "dray migrate plan --resource=nvidia.com/gpu"),
        ("whether they were done", "dray migrate plan --resource=nvidia.com/gpu --check"),
    ),
    "node": (
        ("an agent for this machine", "dray node --kubeconfig=kubeconfig --root-dir=/var/lib/dray"),
        ("with another name", "dray node --kubeconfig=kubeconfig --hostname-override=gpu-a"),
    ),
    "node resources": (
        ("what the containers of this node have", "dray node resources"),
        ("what it can allocate", "dray node resources --allocatable -o json"),
    ),
    "join": (
        ("first see what `dray token create --print-join-command` prints", _JOIN),
        ("with a flag of the node agent", f"{_JOIN} --hostname-override=gpu-a"),
    ),
    "token": (
        ("the command for a new machine", "dray token create --print-join-command"),
        ("tokens that are valid", "dray token list"),
    ),
    "apiserver": (
        ("with its data in a directory", "dray apiserver --data-dir=/var/lib/dray"),
        ("on etcd", "dray apiserver --store=etcd --etcd-servers=http://127.0.0.1:2379"),
    ),
    "controller-manager": (
        ("for the cluster of a kubeconfig", "dray controller-manager --kubeconfig=kubeconfig"),
        ("one of several, of which one acts", "dray controller-manager --kubeconfig=kubeconfig --leader-elect"),
    ),
    "scheduler": (
        ("for the cluster of a kubeconfig", "dray scheduler --kubeconfig=kubeconfig"),
        (
            "with a configuration",
            "dray scheduler --kubeconfig=kubeconfig --scheduler-config=scheduler.yaml",
        ),
    ),
    "recover": (
        ("what a damaged database has lost", "dray recover --data-dir=.dray"),
        ("another directory", "dray recover --data-dir=/var/lib/dray"),
    ),
    "completion": (
        ("in this bash", "source <(dray completion bash)"),
        ("for fish, for ever", "dray completion fish > ~/.config/fish/completions/dray.fish"),
    ),
}


def examples_text(command: str) -> str:
    """Return the examples as the end of a help page; empty for commands without."""
    shown = [f"  # {what}\n  {line}" for what, line in EXAMPLES.get(command, ())]
    return "\n".join([EXAMPLES_TITLE, *shown]) if shown else ""
