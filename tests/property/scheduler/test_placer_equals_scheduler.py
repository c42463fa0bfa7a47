"""`Placer` and the trace benchmark: the scheduler's code alone chooses the nodes that a whole cluster chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

import bench.openb
from bench.openb.engines import engine
from bench.openb.fragmentation import NodeUse, fragmentation, typical_pods
from bench.openb.run import run
from bench.openb.trace import TraceMissingError, TraceNode, TracePod, arrivals, milli_gpus, read_nodes, read_pods
from dray.scheduler.named_profiles import NAMED_PROFILES, SPREAD

SAMPLE = Path(bench.openb.__file__).parent / "sample"
SEED = 3


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> tuple[list[TraceNode], list[TracePod]]:
    monkeypatch.setenv("OPENB", str(SAMPLE))
    return read_nodes(), read_pods("sample")


@pytest.mark.behaviour("PK-08")
@pytest.mark.parametrize("profile", NAMED_PROFILES)
async def test_the_scheduling_code_alone_places_as_a_whole_cluster_does(
    sample: tuple[list[TraceNode], list[TracePod]], profile: str
) -> None:
    core, stack = [await run(*sample, SEED, engine_name=name, profile=profile) for name in ("core", "stack")]
    assert core.placements == stack.placements
    assert 0 < core.placed < core.pods, "some Pods fit and some do not"


async def test_nothing_is_allocated_beyond_its_capacity(sample: tuple[list[TraceNode], list[TracePod]]) -> None:
    nodes, pods = sample
    used = {node.name: NodeUse.of(node) for node in nodes}
    async with engine("core", nodes, pods, SPREAD) as placing:
        for number, pod in enumerate(arrivals(pods, milli_gpus(nodes), SEED)):
            node_name = await placing.place(number, pod)
            if node_name is None:
                continue
            placed = placing.placer.placed[f"pod-{number}"]  # type: ignore[attr-defined]
            results = [item for claim in placed.claims for item in claim.status.allocation.devices.results]
            indices = [int(item.device.removeprefix("gpu-")) for item in results]
            assert len(set(indices)) == pod.gpus, "each device of a claim is another GPU"
            assert not pod.models or used[node_name].node.model in pod.models
            used[node_name].place(pod, indices)
    assert fragmentation(used.values(), typical_pods(pods)) > 0


def test_arrivals_request_130_percent_and_depend_on_the_seed(sample: tuple[list[TraceNode], list[TracePod]]) -> None:
    nodes, pods = sample
    total = milli_gpus(nodes)
    for seed in range(5):
        arriving = arrivals(pods, total, seed)
        requested = sum(pod.total_milli_gpu for pod in arriving)
        assert 1.3 * total <= requested < 1.3 * total + 8000
        assert arriving == arrivals(pods, total, seed)
        assert arriving != arrivals(pods, total, seed + 1)


def test_a_pod_that_does_not_fit_makes_all_free_gpus_unusable() -> None:
    use = NodeUse.of(TraceNode("n", 8000, 8192, 2, "T4"))
    use.place(TracePod(4000, 1024, 1, 600), (0,))
    assert use.unusable_milli_gpu(TracePod(1000, 1024, 1, 500)) == 400
    assert use.unusable_milli_gpu(TracePod(1000, 1024, 1, 300)) == 0
    assert use.unusable_milli_gpu(TracePod(6000, 1024, 1, 300)) == 1400
    assert use.unusable_milli_gpu(TracePod(1000, 1024, 0, 0)) == 1400
    assert use.unusable_milli_gpu(TracePod(1000, 1024, 1, 300, ("V100",))) == 1400


def test_typical_pods_make_up_95_percent() -> None:
    common, rare, rarest = (TracePod(1, 1, 1, milli) for milli in (1000, 500, 250))
    assert typical_pods([common] * 90 + [rare] * 6 + [rarest] * 4) == [(common, 90 / 96), (rare, 6 / 96)]


def test_a_missing_trace_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENB", str(tmp_path))
    with pytest.raises(TraceMissingError, match=r"set OPENB to the folder of the files from hkust-adsl"):
        read_nodes()
