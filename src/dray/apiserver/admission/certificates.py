"""Plugins for certificate signing requests: who may approve for a signer, and who may sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation, Undo
from dray.apiserver.request import Attributes, UserInfo

_REQUESTS: Final = GroupResource("certificates.k8s.io", "certificatesigningrequests")


class _SignerPlugin(AdmissionPlugin):
    """Requires a permission on the signer of a request for writes of one subresource."""

    subresource: ClassVar[str]
    verb: ClassVar[str]

    def __init__(self, is_allowed: Callable[[Attributes], bool]) -> None:
        self._is_allowed = is_allowed

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in writes of the subresource."""
        return resource == _REQUESTS and subresource == self.subresource and operation is Operation.UPDATE

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Refuse users without the permission."""
        old = attributes.old_object
        assert old is not None
        signer = (old.get("spec") or {}).get("signerName") or ""
        if self.concerns(attributes.object or {}, old) and not self._may(attributes.user, signer):
            text = f'user not permitted to {self.verb} requests with signerName "{signer}"'
            raise ForbiddenError(_REQUESTS, attributes.name, text)
        return None

    def concerns(self, new: Document, old: Document) -> bool:
        """Return whether the write needs the permission."""
        return True

    def _may(self, user: UserInfo, signer: str) -> bool:
        # Either for the signer itself or for all signers of its domain.
        names = (signer, f"{signer.partition('/')[0]}/*")
        return any(
            self._is_allowed(
                Attributes(user=user, verb=self.verb, group=_REQUESTS.group, version="*", resource="signers", name=name)
            )
            for name in names
        )


class CertificateApproval(_SignerPlugin):
    """Requires the permission to approve for the signer."""

    name = "CertificateApproval"
    subresource = "approval"
    verb = "approve"


class CertificateSigning(_SignerPlugin):
    """Requires the permission to sign for the signer, from those who set a certificate or report a failure."""

    name = "CertificateSigning"
    subresource = "status"
    verb = "sign"

    def concerns(self, new: Document, old: Document) -> bool:
        """Return whether certificate or conditions changed."""
        status, before = new.get("status") or {}, old.get("status") or {}
        return any(status.get(field) != before.get(field) for field in ("certificate", "conditions"))
