"""`dray controller-manager`: the controllers as a client of any Kubernetes API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from dray.api.document import NamespacedName
from dray.client.kubeconfig import Access
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.component import Dependencies, Election, run_component
from dray.cmd.controllers import check_controllers, spawn_controllers
from dray.cmd.settings import ControllerManagerSettings
from dray.controllers.certificates.reconciler import CertificateAuthority
from dray.runtime.settings import SettingsError
from dray.runtime.tasks import TaskGroup

_NAME: Final = "kube-controller-manager"


async def run(settings: ControllerManagerSettings, stop: asyncio.Event) -> None:
    """Run the controllers, with leader election if enabled, until stopped."""
    check_controllers(settings.controllers)
    authority = _authority(settings)

    def spawn(group: TaskGroup, dependencies: Dependencies) -> SharedInformerFactory:
        return spawn_controllers(
            group,
            dependencies.client,
            dependencies.clock,
            dependencies.metrics,
            root_ca=_root_ca(dependencies.access),
            gates=dependencies.gates,
            nodes=settings,
            authority=authority,
            signing_seconds=settings.cluster_signing_duration,
            chosen=settings.controllers,
        )

    election = Election(NamespacedName("kube-system", _NAME)) if settings.leader_elect else None
    await run_component(_NAME, settings, stop, spawn, election=election)


def _authority(settings: ControllerManagerSettings) -> CertificateAuthority | None:
    files = (settings.cluster_signing_cert_file, settings.cluster_signing_key_file)
    if not any(files):
        return None
    if not all(files):
        raise SettingsError("--cluster-signing-cert-file and --cluster-signing-key-file belong together")
    # The cryptography libraries are large; most processes do not sign.
    from dray.apiserver.authentication.certificates import KeyPair, is_pair
    from dray.cmd.cluster_authority import ClusterAuthority

    try:
        pair = KeyPair(Path(files[0]).read_bytes(), Path(files[1]).read_bytes())
    except OSError as error:
        raise SettingsError(f"{error.filename}: {error.strerror}") from error
    if not is_pair(pair):
        raise SettingsError(f"{files[0]} and {files[1]} are not a certificate and its ECDSA P-256 key")
    return ClusterAuthority(pair)


def _root_ca(access: Access) -> str:
    if access.authority_data:
        return access.authority_data.decode()
    return Path(access.authority_file).read_text(encoding="utf-8") if access.authority_file else ""
