"""`dray snapshot > FILE`: writes what the tools read of a cluster to one file, which they take with -f."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.cli.command import cluster_parser, exit_on_read_error, print_hidden, read_snapshot
from dray.sim.snapshot import PATH_KINDS, Snapshot

PROG: Final = "dray snapshot"


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = cluster_parser(
        PROG,
        "Write the nodes, Pods, workloads, claims, devices, quotas and Events of a cluster to standard output, for "
        "explain, simulate, top and the others with -f. It contains no Secrets and no ConfigMaps; environment "
        "variables in the specs of Pods are left out unless --environment is given.",
        formats=("json", "yaml"),
    )
    parser.add_argument("--environment", action="store_true", help="include the environment variables of containers")
    arguments = parser.parse_args(argv)
    with exit_on_read_error(PROG):
        snapshot = read_snapshot(arguments, PATH_KINDS)
        print_hidden(PROG, snapshot)
    document = {"apiVersion": "v1", "kind": "List", "items": items_of(snapshot, environment=arguments.environment)}
    if arguments.output == "yaml":
        # Imported on use: slow to import, and JSON is the default.
        import yaml

        yaml.safe_dump(document, sys.stdout, sort_keys=False, allow_unicode=True)
    else:
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")
    return 0


def items_of(snapshot: Snapshot, *, environment: bool) -> list[Document]:
    """Return all objects, without what no tool reads."""
    return [reduced(item, environment=environment) for items in snapshot.documents.values() for item in items]


def reduced(document: Document, *, environment: bool) -> Document:
    """Return an object without what no tool reads, and without environment variables unless they are wanted."""
    found = _without_managed_fields(document)
    return found if environment else _without_environment(found)


def _without_managed_fields(document: Document) -> Document:
    metadata = {key: value for key, value in document.get("metadata", {}).items() if key != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations:
        applied = "kubectl.kubernetes.io/last-applied-configuration"
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != applied}
    return {**document, "metadata": metadata}


def _without_environment(document: Document) -> Document:
    """Remove `env` and `envFrom` of the containers of a Pod or of a workload's template."""
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return document
    if document["kind"] == "Pod":
        return {**document, "spec": _without_variables(spec)}
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        changed = {**template, "spec": _without_variables(template["spec"])}
        return {**document, "spec": {**spec, "template": changed}}
    return document


def _without_variables(spec: Document) -> Document:
    kinds = ("initContainers", "containers", "ephemeralContainers")
    changed = {
        kind: [{key: value for key, value in item.items() if key not in ("env", "envFrom")} for item in spec[kind]]
        for kind in kinds
        if spec.get(kind)
    }
    return {**spec, **changed}
