"""Runs the probes of containers periodically, and reports their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dray.lib.clock import Clock
from dray.node.agent.pod.containers import ContainerState
from dray.node.agent.pod.events import ProbeKind, ProbeResultChanged, RecordEvent, StartProbes
from dray.node.agent.pod.machine import WARNING
from dray.node.agent.probes.prober import Prober
from dray.node.agent.probes.thresholds import ThresholdCounter, first_at, period_seconds, probe_of, timeout_seconds


@dataclass(frozen=True, slots=True)
class ProbedContainer:
    """A probed container and the callbacks for results and events."""

    run: StartProbes
    state: ContainerState
    address: Callable[[], str]
    post: Callable[[ProbeResultChanged], None]
    record: Callable[[RecordEvent], None]


class ProbeWorker:
    """Runs the probes of one node."""

    def __init__(self, prober: Prober, clock: Clock) -> None:
        self._prober = prober
        self._clock = clock

    async def run(self, subject: ProbedContainer, kind: ProbeKind) -> None:
        """Probe until cancelled; the startup probe until it has succeeded, the others only after that."""
        probe = probe_of(subject.state.spec, kind)
        assert probe is not None
        judge = ThresholdCounter(probe, kind)
        await self._clock.sleep((first_at(probe, subject.run.started_at) - self._clock.now()).total_seconds())
        while not (kind is ProbeKind.STARTUP and subject.state.started):
            if kind is ProbeKind.STARTUP or subject.state.started:
                await self._ask(subject, judge)
            await self._clock.sleep(period_seconds(probe))

    async def _ask(self, subject: ProbedContainer, judge: ThresholdCounter) -> None:
        run, kind = subject.run, judge.kind
        answer = await self._prober.probe(
            judge.probe, subject.state.spec, run.container_id, subject.address(), timeout_seconds(judge.probe)
        )
        if not answer.healthy:
            text = f"{kind.value} probe failed: {answer.text}".rstrip()
            subject.record(RecordEvent(WARNING, "Unhealthy", text, run.container))
        verdict = judge.answer(healthy=answer.healthy)
        if verdict is not None:
            subject.post(ProbeResultChanged(run.container, run.container_id, kind, verdict))
