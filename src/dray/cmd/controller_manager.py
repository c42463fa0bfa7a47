"""`dray controller-manager`: the controllers as a client of any Kubernetes API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dray.api.document import NamespacedName
from dray.client.kubeconfig import Access
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.component import Dependencies, Election, run_component
from dray.cmd.controllers import check_controllers, spawn_controllers
from dray.cmd.settings import ControllerManagerSettings
from dray.controllers.certificates.reconciler import CertificateAuthority
from dray.runtime.settings import SettingsError
from dray.runtime.tasks import TaskGroup

if TYPE_CHECKING:
    from dray.apiserver.authentication.certificates import KeyPair

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
    clients = (settings.cluster_signing_cert_file, settings.cluster_signing_key_file)
    serving = (
        settings.cluster_signing_kubelet_serving_cert_file,
        settings.cluster_signing_kubelet_serving_key_file,
    )
    if not any((*clients, *serving)):
        return None
    # The cryptography libraries are large; most processes do not sign.
    from dray.cmd.cluster_authority import ClusterAuthority, authorities_by_signer

    pairs = _read_pair("cluster-signing", *clients), _read_pair("cluster-signing-kubelet-serving", *serving)
    if pairs[0] is not None and pairs[1] is not None and pairs[0].key == pairs[1].key:
        raise SettingsError(
            "--cluster-signing-kubelet-serving-key-file: must not be the key of --cluster-signing-key-file, whose "
            "certificates clients accept from the API server"
        )
    return ClusterAuthority(authorities_by_signer(*pairs))


def _read_pair(flag: str, certificate: str, key: str) -> KeyPair | None:
    from dray.apiserver.authentication.certificates import KeyPair, is_pair

    if not certificate and not key:
        return None
    if not certificate or not key:
        raise SettingsError(f"--{flag}-cert-file and --{flag}-key-file belong together")
    try:
        pair = KeyPair(Path(certificate).read_bytes(), Path(key).read_bytes())
    except OSError as error:
        raise SettingsError(f"{error.filename}: {error.strerror}") from error
    if not is_pair(pair):
        raise SettingsError(f"{certificate} and {key} are not a certificate and its ECDSA P-256 key")
    return pair


def _root_ca(access: Access) -> str:
    if access.authority_data:
        return access.authority_data.decode()
    return Path(access.authority_file).read_text(encoding="utf-8") if access.authority_file else ""
