"""Calls of the driver author's code: bounded in number, measured, and with one kind of error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from dray.api.errors import APIError
from dray.driver.classic.interface import ClassicController, NoRoomError
from dray.driver.program import call_author
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics

_log = logging.getLogger(__name__)


class DriverFailedError(APIError):
    """The author's code raised an error, which is logged; the call is repeated with backoff."""

    code = 500
    reason = "DriverFailed"
    # The method that raised it; empty for none.
    operation = ""


class AuthorCalls:
    """Calls methods of one driver, at most `concurrency` at a time."""

    def __init__(self, driver: ClassicController, clock: Clock, metrics: Metrics) -> None:
        self._name = driver.name
        self._clock = clock
        self._slots = asyncio.Semaphore(driver.concurrency)
        self._seconds = metrics.histogram(
            "classic_driver_operations_duration_seconds",
            "Duration of one call of the driver",
            ["driver_name", "operation", "is_error"],
        )

    async def call(self, operation: str, method: Callable[..., Any], *given: Any) -> Any:
        """Return what the method returns; its errors become `DriverFailedError`, except `NoRoomError`."""
        async with self._slots:
            started = self._clock.monotonic()
            failed = "true"
            try:
                if getattr(ClassicController, operation) is getattr(method, "__func__", None):
                    # Not overridden by the author: it does not block.
                    answer = method(*given)
                else:
                    answer = await call_author(method, *given)
                failed = "false"
            except NoRoomError:
                raise
            except Exception as error:
                _log.exception("driver failed", extra=fields(driver=self._name, operation=operation))
                failure = DriverFailedError(f"{type(error).__name__}: {error}")
                failure.operation = operation
                raise failure from error
            finally:
                self._seconds.labels(self._name, operation, failed).observe(self._clock.monotonic() - started)
        return answer
