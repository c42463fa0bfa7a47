"""Secrets that are planted in every field of every kind: a snapshot has only those in fields that a tool reads."""

from __future__ import annotations

import json
import os
import random
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dray.api.document import Document, GroupVersionKind
from dray.api.schema.load import kind_type
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type
from dray.cli.snapshot import open_private
from dray.sim.anonymize import anonymized
from dray.sim.kept_fields import ANNOTATIONS, FieldFilter, Options
from dray.sim.name_table import NameTable
from dray.sim.snapshot import KINDS, PATH_KINDS, VERSIONS

# Where types contain themselves.
DEPTH_MAX: Final = 14
KEPT: Final = Path(__file__).with_name("kept_secrets.txt")
PLANTED: Final = re.compile(r"secret-\d+-")
NOTE: Final = "example.com/note"
ANNOTATION: Final = "private"
# Parts of paths whose content users write for containers and drivers, and never for a tool.
PRIVATE: Final = frozenset(
    {
        *("command", "args", "env", "envFrom", "workingDir", "exec", "httpGet", "httpHeaders", "lifecycle"),
        *("livenessProbe", "readinessProbe", "startupProbe", "localhostProfile", "hostAliases", "dnsConfig"),
        *("imagePullSecrets", "configMap", "secret", "projected", "downwardAPI", "volumeAttributes", "flexVolume"),
        *("parameters", "parametersRef", "data", "networkData", "mountOptions", "managedFields", ANNOTATION),
    }
)


class Planter:
    """Makes objects in which every text is a secret of its own."""

    def __init__(self) -> None:
        self.planted = 0

    def document(self, kind: str) -> Document:
        group = KINDS[kind][0]
        gvk = GroupVersionKind(group, VERSIONS[group][0], kind.partition(".")[0])
        struct = kind_type(gvk)
        if struct is None:
            gvk = GroupVersionKind(group, next(v for v in VERSIONS[group] if has_type(group, v, kind)), kind)
            struct = kind_type(gvk)
        assert struct is not None
        document = self._value(struct, 0)
        annotations = dict.fromkeys(ANNOTATIONS, "") | {ANNOTATION: self._secret()}
        return {
            **document,
            "apiVersion": gvk.api_version,
            "kind": gvk.kind,
            "metadata": {**document["metadata"], "annotations": annotations},
        }

    def _value(self, kind: Type, depth: int) -> Any:
        if isinstance(kind, StructType):
            fields = kind.fields.values() if depth < DEPTH_MAX else ()
            return {item.name: self._value(item.type, depth + 1) for item in fields}
        if isinstance(kind, ListOf):
            return [self._value(kind.element, depth)]
        if isinstance(kind, MapOf):
            return {NOTE: self._value(kind.element, depth)}
        if kind is Scalar.ANY:
            return {"password": self._secret()}
        if kind in (Scalar.INT32, Scalar.INT64, Scalar.DOUBLE):
            return 7
        return True if kind is Scalar.BOOL else self._secret()

    def _secret(self) -> str:
        self.planted += 1
        return f"secret-{self.planted}-"


def has_type(group: str, version: str, kind: str) -> bool:
    return kind_type(GroupVersionKind(group, version, kind)) is not None


def found_at(value: Any, path: str = "") -> Iterator[str]:
    """The paths of planted secrets."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from found_at(item, f"{path}/{name}")
    elif isinstance(value, list):
        for item in value:
            yield from found_at(item, path)
    elif isinstance(value, str) and PLANTED.search(value):
        yield path


def kept_paths(options: Options) -> list[str]:
    planter = Planter()
    kept = FieldFilter(options)
    found = [
        f"{kind}{path}" for kind in PATH_KINDS for path in sorted(set(found_at(kept.reduced(planter.document(kind)))))
    ]
    assert planter.planted > 5000
    return found


def test_only_listed_fields_are_kept() -> None:
    """Each line of the file is a field that a tool reads; a new line needs a reason."""
    found = {merged(path) for path in kept_paths(Options(b"key"))}
    assert sorted(found) == KEPT.read_text().splitlines()


def merged(path: str) -> str:
    """One path for what all kinds, all templates of Pods and all containers have in common."""
    for pattern, one in (
        (r"^\w+/spec/template/spec/", "Pod/spec/"),
        (r"^[\w.]+/metadata/", "*/metadata/"),
        (r"/(initC|ephemeralC)ontainer", "/container"),
        (r"(compositePodGroupTemplates/)+", "compositePodGroupTemplates/"),
    ):
        path = re.sub(pattern, one, path)
    return path


def test_nothing_is_kept_that_users_write_for_containers_and_drivers() -> None:
    for path in kept_paths(Options(b"key")):
        assert not PRIVATE & set(path.split("/")), path


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (Options(b"key", environment=True), {"env", "envFrom"}),
        (Options(b"key", parameters=True), {"parameters"}),
    ],
)
def test_what_is_asked_for_is_kept_and_nothing_else(options: Options, more: set[str]) -> None:
    added = set(kept_paths(options)) - set(kept_paths(Options(b"key")))
    assert added
    assert all(more & set(path.split("/")) for path in added)


def template(**container: Any) -> Document:
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i", **container}]}}


def deployment(pod_template: Document, kind: str = "Deployment") -> Document:
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "a"}, "spec": {"template": pod_template}}


def test_templates_differ_after_as_before_and_nothing_can_be_guessed_from_that() -> None:
    """Or a replica of the cluster would roll a Deployment back to the ReplicaSet of another revision."""
    first, second = template(command=["password-1"]), template(command=["password-2"])
    labelled = {**first, "metadata": {"labels": {"app": "a", "pod-template-hash": "x"}}}

    def digest(document: Document, key: bytes = b"key") -> str:
        reduced = FieldFilter(Options(key)).reduced(document)
        found: str = reduced["spec"]["template"]["metadata"]["annotations"]["dray.dev/template-digest"]
        return found

    assert digest(deployment(first)) == digest(deployment(labelled, "ReplicaSet"))
    assert digest(deployment(first)) != digest(deployment(second))
    assert digest(deployment(first)) != digest(deployment(first), b"other")
    assert "password" not in json.dumps(FieldFilter(Options(b"key")).reduced(deployment(first)))


# What kubelet and the agent write about hooks and probes, with what these and the containers contain.
QUOTES: Final = {
    "Unhealthy": (
        "Liveness probe failed: HTTP probe failed with statuscode: 500",
        "Readiness probe failed: password=hunter2",
        'Startup probe failed: Get "http://10.0.0.1:80/?token=hunter2": context deadline exceeded',
        "Readiness probe errored: rpc error: exec hunter2",
        "hunter2",
    ),
    "ProbeWarning": ("Liveness probe warning: Probe terminated redirects, Response body: hunter2",),
    "FailedPostStartHook": (
        "PostStartHook failed",
        'Exec lifecycle hook ([sh -c curl -u a:hunter2]) for Container "c" failed - error: hunter2',
    ),
    "FailedPreStopHook": ("PreStopHook failed: command 'sh -c hunter2' exited with 1: hunter2",),
}


@pytest.mark.parametrize(("reason", "message"), [(reason, text) for reason, texts in QUOTES.items() for text in texts])
def test_events_do_not_quote_hooks_probes_and_their_output(reason: str, message: str) -> None:
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": reason, "message": message}
    kept = FieldFilter(Options(b"key")).reduced(event)
    assert kept["reason"] == reason
    assert message.startswith(kept["message"])
    assert "hunter2" not in kept["message"]
    assert bool(kept["message"]) == message.startswith(("Liveness", "Readiness", "Startup", "PostStart", "PreStop"))
    assert FieldFilter(Options(b"key")).reduced({**event, "reason": "FailedMount"})["message"] == message


@pytest.mark.parametrize("state", ["state", "lastState"])
def test_a_container_that_waits_for_its_hook_does_not_quote_it(state: str) -> None:
    def kept(reason: str) -> Document:
        waiting = {"reason": reason, "message": "hunter2"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "status": {"containerStatuses": [{"name": "c", state: {"waiting": waiting}}]},
        }
        found: Document = FieldFilter(Options(b"key")).reduced(pod)["status"]["containerStatuses"][0][state]["waiting"]
        return found

    assert kept("PostStartHookError") == {"reason": "PostStartHookError"}
    assert kept("ErrImagePull") == {"reason": "ErrImagePull", "message": "hunter2"}


def test_an_anonymized_snapshot_has_no_text_of_the_original() -> None:
    planter = Planter()
    kept = FieldFilter(Options(b"key", environment=True, parameters=True))
    documents = [kept.reduced(planter.document(kind)) for kind in PATH_KINDS]
    assert sum(1 for document in documents for _ in found_at(document)) > 500
    table = NameTable(b"key", random.Random(1))
    assert [path for document in anonymized(documents, table) for path in found_at(document)] == []


@pytest.mark.parametrize(
    "text",
    [
        "acme",
        "Acme-7",
        "10.24.7.19",
        "2001:db8::17",
        "registry.acme.example:5000/team/app@sha256:77ab12",
        "jane.doe@acme.example",
        "acme_corp.internal/x",
        "4711081500",
        "node-role.kubernetes.io/acme",
        "GPU-2f81aa90-77cd-4a3b-9b1c-5f0e2d4c6b8a",
    ],
)
def test_names_of_all_forms_are_replaced_everywhere(text: str) -> None:
    pod: Document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": text, "namespace": text, "labels": {text: text}, "uid": text},
        "spec": {"nodeName": text, "containers": [{"name": "c", "image": text}]},
        "status": {"message": f"waits for {text}: '{text}' (in {text})", "reason": text},
    }
    other: Document = {"apiVersion": f"{text}/v1", "kind": text, "metadata": {"name": text}, "spec": {text: [text]}}
    table = NameTable(b"key", random.Random(1))
    found = anonymized([pod, other], table)
    assert text not in json.dumps(found)
    assert json.loads(table.translated(json.dumps(found))) == [pod, other]


# --- Files.


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_recording_is_readable_only_by_its_user(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_private(tmp_path / "new") as file:
            file.write("x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o600


def test_a_recording_replaces_a_file_that_others_have_open(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text("old")
    path.chmod(0o666)
    with path.open() as other:
        with open_private(path) as file:
            file.write("secret")
        assert other.read() == "old"
    assert (mode(path), path.read_text()) == (0o600, "secret")


def test_a_recording_does_not_follow_a_planted_link(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    path.symlink_to(target)
    with open_private(path) as file:
        file.write("secret")
    assert (target.read_text(), mode(path), path.is_symlink()) == ("old", 0o600, False)


def test_a_recording_can_go_to_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open_private(tmp_path / "pipe") as file:
        file.write("x")
    assert os.read(reader, 10) == b"x"
    os.close(reader)
