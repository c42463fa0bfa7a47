"""Random use of the work queue, against the promises written in its module."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dray.client.workqueue import QueueState

KEYS = st.sampled_from("abc")


class Queueing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: QueueState[str] = QueueState()
        self.now = 0.0
        # What is owed: keys added (now or by a delay that is over) and not taken since.
        self.owed: set[str] = set()
        self.delayed: dict[str, float] = {}
        self.working: set[str] = set()

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key, self.now)
        self.owed.add(key)

    @rule(key=KEYS, delay=st.floats(0.001, 5))
    def add_after(self, key: str, delay: float) -> None:
        self.queue.add_after(key, delay, self.now)
        self._delay(key, delay)

    @rule(key=KEYS)
    def fail(self, key: str) -> None:
        delay = self.queue.add_rate_limited(key, self.now)
        assert 0.005 <= delay <= 1000
        self._delay(key, delay)

    @rule(seconds=st.floats(0, 3))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        self._pass_delays()
        key = self.queue.take(self.now)
        ready = self.owed - self.working
        if key is None:
            assert not ready, "work was owed and not given"
            return
        assert key in ready, "a key worked twice at a time, or not owed"
        self.owed.discard(key)
        self.working.add(key)

    @rule(key=KEYS)
    def done(self, key: str) -> None:
        if key in self.working:
            self.queue.done(key, self.now)
            self.working.discard(key)

    @invariant()
    def the_next_timer_is_the_shortest_delay(self) -> None:
        timer = self.queue.next_timer()
        # Delays that are over may still have their timer until somebody asks.
        assert timer is None or timer <= self.now or timer == min(self.delayed.values())
        assert timer is not None or all(due <= self.now for due in self.delayed.values())

    def _delay(self, key: str, seconds: float) -> None:
        """The shortest of several delays counts."""
        self._pass_delays()
        self.delayed[key] = min(self.delayed.get(key, self.now + seconds), self.now + seconds)

    def _pass_delays(self) -> None:
        self.owed |= {key for key, due in self.delayed.items() if due <= self.now}
        self.delayed = {key: due for key, due in self.delayed.items() if due > self.now}


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
