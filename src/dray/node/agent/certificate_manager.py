"""Renews a certificate of the node well before it expires."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.errors import APIError
from dray.client.certificate_requests import CertificateRequestError
from dray.lib.clock import Clock
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# As kubelet: after 70 to 90 % of the lifetime, so that nodes that joined together do not renew together.
_EARLIEST: Final = 0.7
_SPREAD: Final = 0.2
# Certificates that live shorter than the tolerated clock skew are always due; the cluster must not be flooded.
ROTATION_SECONDS_MIN: Final = 10.0
# Time passes unnoticed while a machine is suspended.
_SLEEP_SECONDS_MAX: Final = 3600.0
_RETRY_SECONDS: Final = 30.0
_RETRY_SECONDS_MAX: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Validity:
    """When a certificate is valid."""

    not_before: datetime
    not_after: datetime


def rotation_deadline(validity: Validity, fraction: float) -> datetime:
    """Return when a certificate is renewed; the fraction, from 0 to 1, spreads nodes."""
    lifetime = validity.not_after - validity.not_before
    return validity.not_before + lifetime * (_EARLIEST + _SPREAD * fraction)


class CertificateManager:
    """Keeps one certificate current; `renew` requests and installs a new one."""

    def __init__(
        self, name: str, clock: Clock, random_source: random.Random, renew: Callable[[], Awaitable[Validity]]
    ) -> None:
        self._name = name
        self._clock = clock
        self._random = random_source
        self._renew = renew

    async def run(self, validity: Validity | None) -> None:
        """Renew the certificate whenever it is due; at once if there is none yet."""
        retry_seconds = _RETRY_SECONDS
        while True:
            if validity is not None:
                await self._wait(validity)
            try:
                validity = await self._renew()
            except (APIError, CertificateRequestError, OSError) as error:
                _log.warning("certificate not renewed", extra=fields(certificate=self._name, error=str(error)))
                await self._clock.sleep(retry_seconds)
                retry_seconds = min(2 * retry_seconds, _RETRY_SECONDS_MAX)
            else:
                _log.info("certificate renewed", extra=fields(certificate=self._name, until=str(validity.not_after)))
                retry_seconds = _RETRY_SECONDS

    async def _wait(self, validity: Validity) -> None:
        deadline = rotation_deadline(validity, self._random.random())
        await self._clock.sleep(ROTATION_SECONDS_MIN)
        while (left := (deadline - self._clock.now()).total_seconds()) > 0:
            await self._clock.sleep(min(left, _SLEEP_SECONDS_MAX))
