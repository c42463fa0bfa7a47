"""The files and commands that credentials come from: kubeconfigs, token files, certificates, exec plugins."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import orjson

from dray.api.errors import UnauthorizedError
from dray.api.timestamps import parse_time
from dray.client import kubeconfig
from dray.client.kubeconfig import Access, Credential, ExecPlugin, Kubeconfig, KubeconfigError, Overrides
from dray.lib.clock import Clock

SERVICE_ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
# client-go reads a token file again after a minute; kubelet renews it long before it expires.
TOKEN_FILE_SECONDS: Final = 60.0
# A credential about to expire would expire on its way.
EXPIRY_MARGIN: Final = timedelta(seconds=10)
PLUGIN_TIMEOUT_SECONDS: Final = 60.0


def read_kubeconfig(paths: Sequence[str]) -> Kubeconfig:
    """Read and merge kubeconfig files; those that do not exist are skipped, as kubectl does."""
    configs = []
    for path in paths:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise KubeconfigError(f"error loading config file {path!r}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise KubeconfigError(f"error loading config file {path!r}: not a text file ({error})") from error
        configs.append(kubeconfig.parse(text, str(Path(path).absolute())))
    return kubeconfig.merge(configs)


def load_access(environ: Mapping[str, str], overrides: Overrides | None = None, path: str = "") -> Access:
    """The access that a command run here has: an explicit file, KUBECONFIG, ~/.kube/config, or the Pod's own.

    Configuration without a server is for the one in KUBERNETES_MASTER.
    """
    paths = (path,) if path else kubeconfig.default_paths(environ, str(Path.home()))
    if path and not Path(path).exists():
        raise KubeconfigError(f"error loading config file {path!r}: no such file or directory")
    config = read_kubeconfig(paths)
    default_server = environ.get("KUBERNETES_MASTER", "")
    in_a_pod = bool(environ.get("KUBERNETES_SERVICE_HOST"))
    if in_a_pod and not config.contexts and not default_server and not (overrides and overrides.server):
        return in_cluster(environ)
    return kubeconfig.resolve(config, overrides, default_server)


def in_cluster(environ: Mapping[str, str], folder: str = SERVICE_ACCOUNT_FOLDER) -> Access:
    """The access of this Pod's service account."""
    try:
        namespace = (Path(folder) / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        namespace = ""
    return kubeconfig.in_cluster_access(environ, folder, namespace)


@dataclass(slots=True)
class ClientCertificate:
    """A client certificate and its key (PEM), which may be replaced while they are in use."""

    certificate: bytes
    key: bytes

    def replace(self, certificate: bytes, key: bytes) -> None:
        """Present another certificate from the next request on."""
        self.certificate, self.key = certificate, key


class Credentials:
    """The current token and client certificate of an access; reads files and runs plugins when needed."""

    def __init__(self, access: Access, clock: Clock, certificate: ClientCertificate | None = None) -> None:
        self._access = access
        self._certificate = certificate or ClientCertificate(access.certificate_data, access.key_data)
        self._clock = clock
        self._token = access.token
        self._token_read: float | None = None
        self._plugin: Credential | None = None
        self._plugin_lock = asyncio.Lock()

    async def current(self) -> Credential:
        """What to present now."""
        if self._access.exec_plugin is not None:
            return await self._from_plugin(self._access.exec_plugin)
        return Credential(
            token=self._from_file() if self._access.token_file else self._token,
            certificate_data=self._certificate.certificate,
            key_data=self._certificate.key,
        )

    def refused(self) -> bool:
        """The server refused the credential; returns whether there may be a better one."""
        had_source = self._access.exec_plugin is not None or bool(self._access.token_file)
        self._plugin, self._token_read = None, None
        return had_source

    def _from_file(self) -> str:
        now = self._clock.monotonic()
        if self._token_read is None or now - self._token_read >= TOKEN_FILE_SECONDS:
            try:
                self._token = Path(self._access.token_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                # The last token read is likely still good while the file is being replaced.
                if not self._token:
                    raise KubeconfigError(f"{self._access.token_file}: {error.strerror}") from error
            self._token_read = now
        return self._token

    async def _from_plugin(self, plugin: ExecPlugin) -> Credential:
        async with self._plugin_lock:
            if self._plugin is None or self._expired(self._plugin):
                self._plugin = await _run_plugin(plugin, self._access)
            return self._plugin

    def _expired(self, credential: Credential) -> bool:
        return bool(credential.expires) and parse_time(credential.expires) - EXPIRY_MARGIN <= self._clock.now()


async def _run_plugin(plugin: ExecPlugin, access: Access) -> Credential:
    info = orjson.dumps(kubeconfig.exec_info(plugin, access)).decode()
    environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": info}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError as error:
        hint = f"\n\n{plugin.install_hint}" if plugin.install_hint else ""
        raise KubeconfigError(f"exec: executable {plugin.command} not found{hint}") from error
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise KubeconfigError(f"exec: {plugin.command} did not answer in {PLUGIN_TIMEOUT_SECONDS:.0f} s") from error
    if process.returncode:
        raise UnauthorizedError(
            f"getting credentials: exec: executable {plugin.command} failed with exit code {process.returncode}"
        )
    try:
        return kubeconfig.read_credential(plugin, orjson.loads(output))
    except orjson.JSONDecodeError as error:
        raise KubeconfigError(f"exec: {plugin.command} did not print an ExecCredential: {error}") from error


def tls_context(access: Access, credential: Credential) -> ssl.SSLContext | None:
    """The TLS settings of an access; None for plain HTTP."""
    if not access.server.startswith("https:"):
        return None
    # Without an authority the machine's own are read, which takes a while: not where there is another.
    if access.insecure:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.authority_data:
        with _named_in_errors("certificate-authority-data", "not a PEM certificate"):
            context = ssl.create_default_context(cadata=access.authority_data.decode())
    else:
        with _named_in_errors(f"certificate-authority {access.authority_file}", "not a PEM certificate"):
            context = ssl.create_default_context(cafile=access.authority_file or None)
    _load_certificate(context, access, credential)
    return context


def _load_certificate(context: ssl.SSLContext, access: Access, credential: Credential) -> None:
    if not (credential.certificate_data or access.certificate_file):
        return
    # The ssl module only reads files: data goes through private ones that do not outlive the call.
    with tempfile.TemporaryDirectory() as folder:
        certificate = _as_file(folder, "tls.crt", credential.certificate_data, access.certificate_file)
        key = _as_file(folder, "tls.key", credential.key_data, access.key_file)
        missing = [path for path in (certificate, key) if path and not Path(path).exists()]
        what = f"client-certificate {access.certificate_file}".strip()
        if credential.certificate_data:
            what = "client-certificate-data and client-key-data"
        with _named_in_errors(missing[0] if missing else what, "not a PEM certificate and its private key"):
            context.load_cert_chain(certificate, key or None)


@contextmanager
def _named_in_errors(what: str, problem: str) -> Iterator[None]:
    """Raise `KubeconfigError` with the part of the kubeconfig that cannot be used."""
    try:
        yield
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{what}: {problem}") from error
    except OSError as error:
        raise KubeconfigError(f"{what}: {error.strerror}") from error


def _as_file(folder: str, name: str, data: bytes, path: str) -> str:
    if not data:
        return path
    target = Path(folder) / name
    target.touch(mode=0o600)
    target.write_bytes(data)
    return str(target)
