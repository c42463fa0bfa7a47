"""The lifecycle of a classic claim: states, transitions, and the generated documentation."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dray.api import classic_claims as classic
from dray.api.classic_claims import TRANSITIONS, Actor, State, UnexpectedTransitionError, check_transition, state_of
from dray.api.codec import from_document
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod

ROOT = Path(__file__).parents[3]
USER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}


def claim(mode: str = "Delayed", *, going: bool = False, **status: Any) -> ResourceClaim:
    made = from_document(
        ResourceClaim,
        {
            "metadata": {"name": "c", "namespace": "team"},
            "spec": {"resourceClassName": "gpu", "allocationMode": mode},
            "status": status,
        },
    )
    if not going:
        return made
    metadata = msgspec.structs.replace(made.metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    return msgspec.structs.replace(made, metadata=metadata)


SELECTED = {"scheduler": {"selectedNode": "n"}}
STATES = {
    "delayed": (claim(), State.PENDING),
    "delayed, asked": (claim(scheduling={"scheduler": {"potentialNodes": ["n"]}}), State.PENDING),
    "delayed, selected": (claim(scheduling=SELECTED), State.ALLOCATING),
    "immediate": (claim("Immediate"), State.ALLOCATING),
    "allocated": (claim(phase="Allocated"), State.ALLOCATED),
    "allocated, immediate": (claim("Immediate", phase="Allocated"), State.ALLOCATED),
    "in use": (claim(phase="Allocated", reservedFor=[USER]), State.IN_USE),
    "to be freed": (claim(phase="Reallocate"), State.REALLOCATE),
    "deleted while in use": (claim(going=True, phase="Allocated", reservedFor=[USER]), State.DELETING),
    "deleted before it was allocated": (claim(going=True), State.DELETING),
    "gone": (None, State.GONE),
}


@pytest.mark.behaviour("CL-06")
@pytest.mark.parametrize("case", STATES)
def test_state(case: str) -> None:
    given, expected = STATES[case]
    assert state_of(given) is expected


MOVES = {
    "scheduler selects": (Actor.SCHEDULER, claim(), claim(scheduling=SELECTED), True),
    "driver does not select for a delayed claim": (Actor.DRIVER, claim(), claim(scheduling=SELECTED), False),
    "driver allocates on the selected node": (Actor.DRIVER, claim(scheduling=SELECTED), claim(phase="Allocated"), True),
    "driver does not allocate without a node": (Actor.DRIVER, claim(), claim(phase="Allocated"), False),
    "driver allocates at once": (Actor.DRIVER, claim("Immediate"), claim("Immediate", phase="Allocated"), True),
    "scheduler does not allocate": (Actor.SCHEDULER, claim(scheduling=SELECTED), claim(phase="Allocated"), False),
    "scheduler asks to free": (Actor.SCHEDULER, claim(phase="Allocated"), claim(phase="Reallocate"), True),
    "claims in use are not freed": (Actor.SCHEDULER, STATES["in use"][0], claim(phase="Reallocate"), False),
    "controller does not ask to free": (Actor.CONTROLLER, claim(phase="Allocated"), claim(phase="Reallocate"), False),
    "driver frees when asked": (Actor.DRIVER, claim(phase="Reallocate"), claim(), True),
    "driver does not free of its own will": (Actor.DRIVER, claim(phase="Allocated"), claim(), False),
    "node takes its Pod back": (Actor.NODE, STATES["in use"][0], claim(phase="Allocated"), True),
    "driver lets go": (Actor.DRIVER, STATES["deleted before it was allocated"][0], None, True),
    "controller creates": (Actor.CONTROLLER, None, claim(), True),
    "scheduler does not create": (Actor.SCHEDULER, None, claim(), False),
}


@pytest.mark.behaviour("CL-25", "CL-26", "CL-29", "CL-37")
@pytest.mark.parametrize("case", MOVES)
def test_who_may_do_what(case: str) -> None:
    actor, before, after, allowed = MOVES[case]
    if allowed:
        check_transition(actor, before, after)
    else:
        with pytest.raises(UnexpectedTransitionError, match=f"{actor} must not take claim team/c from"):
            check_transition(actor, before, after)


def test_every_state_is_reached_and_left() -> None:
    assert {move.after for move in TRANSITIONS} == set(State) - {State.START}
    assert {move.before for move in TRANSITIONS} == set(State) - {State.GONE}


LIMITS: dict[str, tuple[dict[str, Any], bool]] = {
    "one, free": ({"phase": "Allocated"}, True),
    "one, taken": ({"phase": "Allocated", "reservedFor": [USER]}, False),
    "two, one taken": ({"phase": "Allocated", "userLimit": 2, "reservedFor": [USER]}, True),
    "any number": ({"phase": "Allocated", "userLimit": -1, "reservedFor": [USER] * 3}, True),
}


@pytest.mark.behaviour("CL-11")
@pytest.mark.parametrize("case", LIMITS)
def test_reservable(case: str) -> None:
    status, expected = LIMITS[case]
    assert classic.is_reservable(claim(**status)) is expected


@pytest.mark.behaviour("CL-14", "CL-16")
def test_which_entries_are_classic() -> None:
    spec = {"resourceClassName": "gpu"}
    entries = [
        {"name": "made", "template": {"spec": spec}},
        {"name": "known", "resourceClaimName": "classic"},
        {"name": "other", "resourceClaimName": "structured", "optional": True},
        {"name": "template", "resourceClaimTemplateName": "t"},
    ]
    pod = from_document(Pod, {"metadata": {"name": "p"}, "spec": {"resourceClaims": entries}})
    found = list(classic.classic_entries(pod, lambda name: name == "classic"))
    assert [(item.entry, item.claim_name, item.generated) for item in found] == [
        ("made", "p-made", True),
        ("known", "classic", False),
    ]
    assert list(classic.claim_names_of(pod)) == ["p-made", "classic", "structured"]


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate_classic_claims.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_transitions() -> None:
    tool = _tool()
    page = tool.PAGE.read_text()
    assert tool.rewritten(page) == page, "run tools/generate_classic_claims.py"
