"""Shortcuts of decoding and validation answer as the whole way does."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api import strict
from dray.api.document import Document, GroupVersionKind
from dray.api.field_errors import FieldErrors
from dray.api.schema import load
from dray.api.spec_cache import SpecCache
from dray.api.strict import DecodeError, check_changed_fields, check_fields
from dray.api.validation.core_v1_pod import validate_pod_create
from dray.api.validation.valid_specs import ValidSpecs
from dray.apiserver.patch import merge_patch
from dray.client.codec import copy_json, encode
from dray.client.resources import PODS
from dray.lib.lru import LRUSet

POD = load.kind_type(GroupVersionKind("", "v1", "Pod"))
VALUES = st.sampled_from([None, "", "x", 0, 1, True, False, 1.5, [], {}, [None], ["x"], {"x": "y"}, {"name": ""}])
NAMES = st.sampled_from(
    ["kind", "metadata", "spec", "status", "labels", "nodeName", "hostNetwork", "containers", "phase", "conditions"]
)
PATCHES = st.recursive(VALUES, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=8).filter(
    lambda patch: isinstance(patch, dict)
)


def stored_pod() -> Document:
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "pod", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "stdin": False}], "hostNetwork": False},
        "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False", "reason": ""}]},
    }
    assert POD is not None
    check_fields(pod, POD)
    return pod


def outcome(check: Callable[[], list[str]], document: Document) -> Any:
    try:
        return check(), document
    except DecodeError as error:
        return str(error)


@settings(deadline=None)
@given(PATCHES)
def test_only_changed_fields_of_a_patched_object_need_to_be_checked(patch: Document) -> None:
    assert POD is not None
    stored = stored_pod()
    patched = merge_patch.apply(stored, patch)
    whole = copy.deepcopy(patched)
    expected = outcome(lambda: check_fields(whole, POD), whole)
    assert outcome(lambda: check_changed_fields(patched, stored, POD), patched) == expected


@settings(deadline=None)
@given(PATCHES)
def test_a_spec_that_was_left_as_it_was_is_not_checked_again(patch: Document) -> None:
    assert POD is not None
    written = merge_patch.apply(stored_pod(), patch)
    with mock.patch.object(strict, "_NORMAL_SPECS", LRUSet[tuple[str, bytes]](8)):
        first, second = copy.deepcopy(written), copy.deepcopy(written)
        expected = outcome(lambda: check_fields(first, POD), first)
        assert outcome(lambda: check_fields(second, POD), second) == expected
        # What a check has normalized is left as it is by the next one.
        if isinstance(expected, tuple):
            normal = copy.deepcopy(expected[1])
            assert outcome(lambda: check_fields(normal, POD), normal) == ([], expected[1])


def test_only_small_specs_that_need_no_change_are_remembered() -> None:
    assert POD is not None
    with mock.patch.object(strict, "_NORMAL_SPECS", LRUSet[tuple[str, bytes]](8)) as known:
        for change in ({"hostNetwork": False}, {"nodeName": None}, {"unknown": "x"}, {"hostname": "x" * 9000}):
            pod = stored_pod()
            pod["spec"] |= change
            check_fields(pod, POD)
            assert len(known) == 0
        check_fields(stored_pod(), POD)
        assert len(known) == 1


TEXTS = st.sampled_from(["", "x", "\u2028", "\0"])
# Numbers that JSON has, of any size.
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.just((1, "x")))
VALUES_TO_COPY = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3))
)


@settings(deadline=None)
@given(VALUES_TO_COPY)
def test_a_document_is_copied_through_json_text_as_value_by_value(value: Any) -> None:
    obj = {"spec": value}
    document = encode(PODS.unstructured, obj)
    plain = copy_json(obj)
    assert json.dumps(document) == json.dumps(plain | {"apiVersion": "v1", "kind": "Pod"})
    assert document["spec"] is not obj["spec"] or not isinstance(value, dict | list)


def test_what_follows_from_a_spec_is_computed_once_for_all_objects_that_have_it() -> None:
    known: SpecCache[str] = SpecCache(count_max=2, text_length_max=20)
    runs: list[str] = []

    def name_of(spec: Document) -> str:
        runs.append(spec["name"])
        return f"name: {spec['name']}"

    for name in ("a", "a", "b", "a", "c", "a", "b", "long" * 10, "long" * 10):
        assert known.get("Pod", {"name": name}, name_of) == f"name: {name}"
    # Of a, b and c the least recently used was dropped; what is long is computed each time.
    assert runs == ["a", "b", "c", "b", "long" * 10, "long" * 10]
    assert len(known) == 2
    assert known.get("Job", {"name": "b"}, name_of) == "name: b"
    assert runs[-1] == "b"
    assert len(runs) == 7


TOKEN_NAMES = ("kube-api-access-bcdfg", "kube-api-access-22222", "kube-api-access-?", "\\0", "tmp", "No")
VOLUME_NAMES = st.sampled_from([*TOKEN_NAMES, "data"])


@st.composite
def pods(draw: st.DrawFn) -> Document:
    names = draw(st.lists(VOLUME_NAMES, max_size=3))
    mounts = [
        {"name": draw(VOLUME_NAMES), "mountPath": f"/{draw(st.sampled_from('ab'))}"}
        for _ in range(draw(st.integers(0, 2)))
    ]
    container = {
        "name": draw(st.sampled_from(["c", "C"])),
        "image": draw(st.sampled_from(["i", " i"])),
        "imagePullPolicy": "Always",
        "terminationMessagePolicy": "File",
        "resources": {"claims": [{"name": "devices"}]},
        "volumeMounts": mounts,
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": draw(VOLUME_NAMES),
        "terminationGracePeriodSeconds": draw(st.sampled_from([30, -1, True])),
        "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": "t"}],
        "volumes": [{"name": name, "emptyDir": {}} for name in names],
    }
    return {"metadata": {"name": draw(st.sampled_from(["pod", "p" * 250, "Pod"]))}, "spec": spec}


def renamed(pod: Document, volume: str) -> Document:
    """The Pod with another name for its last volume, wherever it occurs."""
    volumes = pod["spec"]["volumes"]
    if not volumes:
        return pod
    text = json.dumps(pod).replace(json.dumps(volumes[-1]["name"]), json.dumps(volume))
    changed: Document = json.loads(text)
    return changed


@settings(deadline=None)
@given(pods(), st.permutations(TOKEN_NAMES))
def test_a_spec_is_valid_if_an_equal_one_was(pod: Document, names: list[str]) -> None:
    known = ValidSpecs(count_max=3)
    for name in names + names:
        created = renamed(pod, name)
        assert validate_pod_create(created, known) == validate_pod_create(created, ValidSpecs())


def test_a_valid_spec_is_validated_once() -> None:
    known = ValidSpecs()
    runs: list[str] = []

    def validate() -> FieldErrors:
        runs.append("run")
        return []

    for suffix in ("bcdfg", "22222"):
        assert known.errors({"volumes": [{"name": f"kube-api-access-{suffix}"}]}, validate) == []
    assert runs == ["run"]
