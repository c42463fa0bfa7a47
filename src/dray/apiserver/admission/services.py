"""Gives Services their addresses and node ports; part of every write, and not a plugin that can be disabled."""

from __future__ import annotations

from dray.api.document import Document, GroupResource, key_of
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.ip_addresses import IPAddressRecords
from dray.apiserver.object_cache import SERVICES
from dray.apiserver.service_addresses import ServiceAddresses


class ServiceAllocation(AdmissionPlugin):
    """Completes Services, and reserves what they use until they are stored."""

    name = "ServiceAllocation"

    def __init__(self, addresses: ServiceAddresses, records: IPAddressRecords) -> None:
        self._addresses = addresses
        self._records = records

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates and updates of Services."""
        return resource == SERVICES and not subresource and operation is not Operation.DELETE

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Set missing addresses and ports."""
        assert attributes.object is not None
        self._addresses.complete(attributes.object, attributes.old_object)

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Reserve them; refuse values that are not free."""
        assert attributes.object is not None
        reserved = self._addresses.reserve(attributes.object)
        if attributes.dry_run:
            self._addresses.release(reserved)
            return None
        claimed: list[str] = []

        async def undo() -> None:
            self._addresses.release(reserved)
            for address in claimed:
                await self._records.release(address)

        try:
            for address in (value for value in reserved if isinstance(value, str)):
                await self._claim(attributes.object, address)
                claimed.append(address)
        except BaseException:
            await undo()
            raise
        return undo

    async def _claim(self, service: Document, address: str) -> None:
        if not await self._records.claim(address, key_of(service)):
            raise self._addresses.bad_address(service, address)
