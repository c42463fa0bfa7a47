"""The claim book: every story of a claim, and that what drivers are asked is written down first."""

from __future__ import annotations

import random
from dataclasses import replace

import orjson
import pytest

from dray.api.document import UID, NamespacedName
from dray.node.dra.checkpoint import decode, encode
from dray.node.dra.claim_info_cache import (
    NEXT_PHASE,
    CallPrepare,
    CallUnprepare,
    ClaimInfoCache,
    ClaimRef,
    CountSkip,
    DriverPrepared,
    DriverUnprepared,
    OldClaimError,
    Phase,
    PodAdmitted,
    PodGone,
    SaveCheckpoint,
    Step,
    UnexpectedEventError,
)
from dray.node.dra.claims import AllocatedDevice, ClaimInfo, Device

A, B = UID("pod-a"), UID("pod-b")
SAVE = SaveCheckpoint()


def info(name: str, *drivers: str, uid: str = "") -> ClaimInfo:
    return ClaimInfo(UID(uid or f"uid-{name}"), NamespacedName("default", name), dict.fromkeys(drivers or ("d1",), ()))


def ref(name: str) -> ClaimRef:
    return ClaimRef(UID(f"uid-{name}"), NamespacedName("default", name))


def prepared(driver: str, *names: str) -> DriverPrepared:
    return DriverPrepared(driver, {ref(name).uid: (Device("pool", f"{driver}-{name}"),) for name in names})


def unprepared(driver: str, *names: str) -> DriverUnprepared:
    return DriverUnprepared(driver, tuple(ref(name).uid for name in names))


@pytest.mark.behaviour("SP-111")
def test_one_call_for_each_driver_after_the_checkpoint() -> None:
    book = ClaimInfoCache()
    actions = book.handle(PodAdmitted(A, (info("x", "d2", "d1"), info("y", "d1"))))
    assert actions == (SAVE, CallPrepare("d1", (ref("x"), ref("y"))), CallPrepare("d2", (ref("x"),)))
    assert [claim.pod_uids for claim in book.claims()] == [{A}, {A}]


@pytest.mark.behaviour("SP-111")
def test_prepared_when_every_driver_has_answered_and_then_left_alone() -> None:
    book = ClaimInfoCache()
    book.handle(PodAdmitted(A, (info("x", "d1", "d2"),)))
    assert book.handle(prepared("d1", "x")) == (SAVE,)
    assert book.phase(ref("x").uid) is Phase.PREPARING
    book.handle(prepared("d2", "x"))
    assert book.phase(ref("x").uid) is Phase.PREPARED
    # A second Pod is recorded without another call; a new claim of it is prepared.
    assert book.handle(PodAdmitted(B, (info("x", "d1", "d2"), info("y")))) == (SAVE, CallPrepare("d1", (ref("y"),)))


@pytest.mark.behaviour("SP-113")
def test_a_retry_asks_all_drivers_again_and_devices_do_not_pile_up() -> None:
    book = ClaimInfoCache()
    admitted = PodAdmitted(A, (info("x", "d1", "d2"),))
    book.handle(admitted)
    book.handle(prepared("d1", "x"))
    assert book.handle(admitted) == (SAVE, CallPrepare("d1", (ref("x"),)), CallPrepare("d2", (ref("x"),)))
    book.handle(prepared("d1", "x"))
    book.handle(prepared("d2", "x"))
    (claim,) = book.claims()
    assert claim.devices == {"d1": (Device("pool", "d1-x"),), "d2": (Device("pool", "d2-x"),)}


@pytest.mark.behaviour("SP-114")
def test_an_old_claim_of_the_same_name_blocks_and_nothing_is_changed() -> None:
    book = ClaimInfoCache()
    book.handle(PodAdmitted(A, (info("x", uid="old"),)))
    text = r"old ResourceClaim with same name x and different UID old still exists \(previous pod force-deleted\?!\)"
    with pytest.raises(OldClaimError, match=text):
        book.handle(PodAdmitted(B, (info("y"), info("x", uid="new"))))
    assert [claim.key.name for claim in book.claims()] == ["x"]
    book.handle(PodGone(A))
    book.handle(DriverUnprepared("d1", (UID("old"),)))
    assert book.handle(PodAdmitted(B, (info("x", uid="new"),)))[0] == SAVE


def with_device(claim: ClaimInfo, *names: str) -> ClaimInfo:
    return replace(claim, allocated=frozenset(AllocatedDevice("d1", "pool", name) for name in names))


@pytest.mark.behaviour("SP-147")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_device_waits_until_the_claim_that_had_it_is_unprepared(restarted: bool) -> None:
    book = ClaimInfoCache()
    book.handle(PodAdmitted(A, (with_device(info("x"), "gpu-0", "gpu-1"),)))
    if restarted:
        book = ClaimInfoCache(book.claims())
    book.handle(PodGone(A))
    new = with_device(info("y"), "gpu-1", "gpu-2")
    text = "ResourceClaim y: device d1/pool/gpu-1 is not unprepared yet for default/x, which had it before"
    with pytest.raises(OldClaimError, match=text):
        book.handle(PodAdmitted(B, (info("z"), new)))
    assert [claim.key.name for claim in book.claims()] == ["x"]
    # What claims share, and other devices of the claim's driver, are not waited for.
    book.handle(PodAdmitted(B, (info("z"), with_device(info("w"), "gpu-3"))))
    book.handle(unprepared("d1", "x"))
    assert book.handle(PodAdmitted(B, (new,)))[1:] == (CallPrepare("d1", (ref("y"),)),)


@pytest.mark.behaviour("SP-147")
@pytest.mark.parametrize("after", [with_device(info("x"), "gpu-1"), with_device(info("x", "d2"), "gpu-0")])
def test_a_claim_that_was_allocated_anew_waits_until_its_former_devices_are_unprepared(after: ClaimInfo) -> None:
    book = ClaimInfoCache()
    before = with_device(info("x"), "gpu-0")
    book.handle(PodAdmitted(A, (before,)))
    book.handle(PodGone(A))
    with pytest.raises(OldClaimError, match="ResourceClaim x: its former devices are not unprepared yet"):
        book.handle(PodAdmitted(B, (after,)))
    # The same allocation is prepared again, as ever.
    assert book.handle(PodAdmitted(B, (before,)))[1:] == (CallPrepare("d1", (ref("x"),)),)
    book.handle(PodGone(B))
    book.handle(PodGone(A))
    book.handle(unprepared("d1", "x"))
    assert book.handle(PodAdmitted(B, (after,)))[1:] == (CallPrepare(after.drivers[0], (ref("x"),)),)


@pytest.mark.behaviour("SP-117")
def test_only_the_last_pod_unprepares_and_the_claim_is_kept_until_all_drivers_are_done() -> None:
    book = ClaimInfoCache()
    for pod in (A, B):
        book.handle(PodAdmitted(pod, (info("x", "d1", "d2"),)))
    book.handle(prepared("d1", "x"))
    book.handle(prepared("d2", "x"))
    assert book.handle(PodGone(A)) == (SAVE,)
    assert book.handle(PodGone(B)) == (CallUnprepare("d1", (ref("x"),)), CallUnprepare("d2", (ref("x"),)))
    assert book.handle(unprepared("d1", "x")) == ()
    assert book.pod_uids() == (B,)
    # One driver failed: all are asked again.
    assert book.handle(PodGone(B)) == (CallUnprepare("d1", (ref("x"),)), CallUnprepare("d2", (ref("x"),)))
    book.handle(unprepared("d1", "x"))
    assert book.handle(unprepared("d2", "x")) == (SAVE,)
    assert book.claims() == ()


@pytest.mark.behaviour("SP-117")
def test_a_pod_without_claims_here_is_skipped() -> None:
    assert ClaimInfoCache().handle(PodGone(A)) == ()


@pytest.mark.behaviour("N-68")
def test_a_pod_that_was_never_noted_with_a_claim_cannot_unprepare_it_for_others() -> None:
    book = ClaimInfoCache()
    book.handle(PodAdmitted(A, (info("x"),)))
    book.handle(prepared("d1", "x"))
    # Pod B names the claim, but got no further.
    assert book.handle(PodGone(B)) == ()
    assert book.phase(ref("x").uid) is Phase.PREPARED
    assert book.pod_uids() == (A,)


@pytest.mark.behaviour("N-69")
def test_a_pod_that_comes_while_the_claim_is_being_unprepared_has_it_prepared_again() -> None:
    book = ClaimInfoCache()
    book.handle(PodAdmitted(A, (info("x"),)))
    book.handle(prepared("d1", "x"))
    book.handle(PodGone(A))
    assert book.handle(PodAdmitted(B, (info("x"),))) == (SAVE, CallPrepare("d1", (ref("x"),)))
    book.handle(prepared("d1", "x"))
    assert book.handle(PodGone(A)) == (SAVE,)
    assert book.phase(ref("x").uid) is Phase.PREPARED


@pytest.mark.behaviour("SP-120")
def test_after_a_restart_prepare_is_called_once_more_but_devices_are_known() -> None:
    book = ClaimInfoCache()
    book.handle(PodAdmitted(A, (info("x"),)))
    book.handle(prepared("d1", "x"))
    restarted = ClaimInfoCache(book.claims())
    assert restarted.claims() == book.claims()
    assert restarted.handle(PodAdmitted(A, (info("x"),))) == (SAVE, CallPrepare("d1", (ref("x"),)))
    restarted.handle(prepared("d1", "x"))
    assert restarted.handle(PodAdmitted(A, (info("x"),))) == (SAVE,)


@pytest.mark.behaviour("SP-118")
def test_after_a_restart_a_gone_pod_is_unprepared() -> None:
    book = ClaimInfoCache()
    book.handle(PodAdmitted(A, (info("x"),)))
    restarted = ClaimInfoCache(book.claims())
    assert restarted.pod_uids() == (A,)
    assert restarted.handle(PodGone(A)) == (CallUnprepare("d1", (ref("x"),)),)


def test_a_claim_without_devices_calls_no_driver() -> None:
    book = ClaimInfoCache()
    empty = ClaimInfo(UID("uid-x"), NamespacedName("default", "x"), {})
    assert book.handle(PodAdmitted(A, (empty,))) == (SAVE,)
    assert book.phase(empty.uid) is Phase.PREPARED
    assert book.handle(PodGone(A)) == (SAVE,)
    assert book.claims() == ()


def test_two_entries_of_a_pod_may_name_one_claim() -> None:
    book = ClaimInfoCache()
    assert book.handle(PodAdmitted(A, (info("x"), info("x")))) == (SAVE, CallPrepare("d1", (ref("x"),)))


def test_what_the_table_lacks_is_a_bug() -> None:
    book = ClaimInfoCache()
    with pytest.raises(UnexpectedEventError, match="not in use"):
        book.handle(prepared("d1", "x"))
    book.handle(PodAdmitted(A, (info("x"),)))
    with pytest.raises(UnexpectedEventError, match="a driver unprepared it while claim default/x"):
        book.handle(unprepared("d1", "x"))


def test_every_phase_can_be_left() -> None:
    left = {phase for phase, step in NEXT_PHASE if step in (Step.ABANDONED, Step.ADMITTED)}
    assert left == {None, *Phase}


class Life:
    """A book, its checkpoint, and drivers whose calls may be carried out and still fail for the caller."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.book, self.saved = ClaimInfoCache(), ClaimInfoCache().claims()
        self.held: dict[str, set[UID]] = {"d1": set(), "d2": set()}

    def restart(self) -> None:
        self.book = ClaimInfoCache(self.saved)

    def check_indices(self) -> None:
        """What the book keeps beside its entries is what these say."""
        anew, kept = ClaimInfoCache(self.book.claims()), self.book
        assert kept.claims() == tuple(sorted(kept.claims(), key=lambda claim: claim.key)) == anew.claims()
        assert kept.counts() == anew.counts()
        assert kept.pod_uids() == anew.pod_uids()
        assert {uid: kept.claims_of(uid) for uid in kept.pod_uids()} == {
            uid: tuple(claim for claim in kept.claims() if uid in claim.pod_uids) for uid in kept.pod_uids()
        }

    def perform(self, event: PodAdmitted | PodGone) -> None:
        for action in self.book.handle(event):
            if isinstance(action, SaveCheckpoint):
                self.saved = self.book.claims()
            elif not isinstance(action, CountSkip):
                self.call(action)

    def call(self, action: CallPrepare | CallUnprepare) -> None:
        uids = {claim.uid for claim in action.claims}
        # Whatever a driver is asked is on the disk already.
        assert uids <= {claim.uid for claim in self.saved}
        if self.rng.random() < 0.3:
            return
        if isinstance(action, CallPrepare):
            self.held[action.driver] |= uids
            answer: DriverPrepared | DriverUnprepared = DriverPrepared(action.driver, dict.fromkeys(uids, ()))
        else:
            self.held[action.driver] -= uids
            answer = DriverUnprepared(action.driver, tuple(uids))
        if self.rng.random() < 0.7 and self.book.handle(answer):
            self.saved = self.book.claims()


@pytest.mark.parametrize("seed", range(30))
def test_drivers_hold_nothing_that_the_checkpoint_does_not_know_whatever_fails(seed: int) -> None:
    life = Life(seed)
    claims = [info("x", "d1"), info("y", "d1", "d2"), info("z", "d2")]
    pods = [A, B, UID("pod-c")]
    for _ in range(60):
        if life.rng.random() < 0.1:
            life.restart()
        pod = life.rng.choice(pods)
        chosen = tuple(life.rng.sample(claims, life.rng.randint(1, 3)))
        life.perform(PodAdmitted(pod, chosen) if life.rng.random() < 0.5 else PodGone(pod))
        assert life.held["d1"] | life.held["d2"] <= {claim.uid for claim in life.saved}
        life.check_indices()
    for _ in range(200):
        for pod in pods:
            life.perform(PodGone(pod))
    assert (life.held, life.book.claims(), life.saved) == ({"d1": set(), "d2": set()}, (), ())


def skipping(name: str, **skipped: str) -> ClaimInfo:
    """A claim of the drivers, with the operations that each skips, by their first letters."""
    names = {"p": "NodePrepareResources", "u": "NodeUnprepareResources"}
    chosen = {driver: frozenset(names[letter] for letter in letters) for driver, letters in skipped.items()}
    return replace(info(name, *skipped), skipped={driver: found for driver, found in chosen.items() if found})


@pytest.mark.behaviour("N-108", "N-123")
def test_drivers_are_not_called_for_operations_that_they_skip() -> None:
    book = ClaimInfoCache()
    claims = (skipping("x", d1="pu", d2="u", d3=""), skipping("y", d1="pu"))
    x, y = CallPrepare("d2", (ref("x"),)), CallPrepare("d3", (ref("x"),))
    skips = (CountSkip("d1", "NodePrepareResources"),) * 2
    assert book.handle(PodAdmitted(A, claims)) == (SAVE, *skips, x, y)
    # Nobody else need prepare y; a second try does not count again.
    assert book.phase(ref("y").uid) is Phase.PREPARED
    assert book.handle(PodAdmitted(A, claims)) == (SAVE, x, y)
    book.handle(prepared("d2", "x"))
    book.handle(prepared("d3", "x"))
    assert book.phase(ref("x").uid) is Phase.PREPARED
    gone = [CountSkip(driver, "NodeUnprepareResources") for driver in ("d1", "d2", "d1")]
    assert book.handle(PodGone(A)) == (SAVE, *gone, CallUnprepare("d3", (ref("x"),)))
    assert [claim.key.name for claim in book.claims()] == ["x"]
    assert book.handle(unprepared("d3", "x")) == (SAVE,)
    assert book.claims() == ()


@pytest.mark.behaviour("N-108")
def test_skipped_operations_are_in_the_checkpoint() -> None:
    book = ClaimInfoCache()
    book.handle(PodAdmitted(A, (skipping("x", d1="pu", d2=""),)))
    content = encode(book.claims())
    assert decode(content) == book.claims()
    state = orjson.loads(orjson.loads(content)["Data"])["ClaimInfoStateList"][0]["DriverState"]
    assert state["d1"]["skipNodeOperations"] == ["NodePrepareResources", "NodeUnprepareResources"]
    assert "skipNodeOperations" not in state["d2"]
