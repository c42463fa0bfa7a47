"""Certificate signing requests and bootstrap tokens with their controllers, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dray.api import bootstrap_tokens
from dray.api.bootstrap_tokens import Token
from dray.api.document import GroupVersion
from dray.api.errors import ForbiddenError, NotFoundError
from dray.apiserver.authentication import certificates
from dray.client.interface import unstructured
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS as REQUESTS
from dray.client.resources import CONFIG_MAPS, SECRETS
from dray.controllers.certificates.plan import API_CLIENT, KUBELET_CLIENT, KUBELET_SERVING, conditions
from tests.certificate_cluster import (
    BOOTSTRAP_GROUPS,
    CLIENT_USAGES,
    NODE_USER,
    SERVING_USAGES,
    YEAR,
    Cluster,
    certificate_of,
    content_for,
    has_certificate,
    has_failed,
    run,
)

ADMISSION = GroupVersion("admissionregistration.k8s.io", "v1")
POLICIES = unstructured(ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False)
BINDINGS = unstructured(
    ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
)


@pytest.mark.behaviour("CS-03", "CS-04", "CS-09")
def test_a_bootstrapping_node_gets_a_client_certificate() -> None:
    async def scenario(cluster: Cluster) -> None:
        joining = cluster.user("system:bootstrap:abcdef", *BOOTSTRAP_GROUPS)
        name = await cluster.request(joining, content_for(), expirationSeconds=3600)
        request = await cluster.until(name, has_certificate)
        approval = conditions(request)["Approved"]
        assert approval["reason"] == "AutoApproved"
        assert approval["message"] == "Auto approving kubelet client certificate after SubjectAccessReview."
        issued = certificate_of(request)
        identity = certificates.identity_of(issued)
        assert identity is not None
        assert (identity.user, identity.groups) == (NODE_USER, ("system:nodes",))
        issued.verify_directly_issued_by(x509.load_pem_x509_certificate(cluster.authority.certificate))
        # Back-dated by five minutes, for clocks that differ.
        assert issued.not_valid_after_utc - issued.not_valid_before_utc == timedelta(hours=1, minutes=5)
        usage = issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]

    run(scenario)


@pytest.mark.behaviour("CS-04")
def test_a_node_renews_its_own_certificate_but_no_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.user(NODE_USER, "system:nodes")
        own = await cluster.request(node, content_for())
        request = await cluster.until(own, has_certificate)
        assert "self kubelet client" in conditions(request)["Approved"]["message"]
        other = await cluster.request(node, content_for("system:node:n2"))
        await asyncio.sleep(60)
        assert not (await cluster.admin.get(REQUESTS, other, "")).get("status", {}).get("conditions")

    run(scenario)


@pytest.mark.behaviour("CS-04", "CS-12")
def test_a_serving_certificate_is_for_the_name_and_the_allowed_addresses_of_the_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.user(NODE_USER, "system:nodes")
        good = content_for(names=(x509.IPAddress(ip_address("192.0.2.7")), x509.DNSName("n1")))
        name = await cluster.request(node, good, KUBELET_SERVING, usages=SERVING_USAGES)
        issued = certificate_of(await cluster.until(name, has_certificate))
        assert certificates.server_names(issued.public_bytes(serialization.Encoding.PEM)) == {"192.0.2.7", "n1"}
        issued.verify_directly_issued_by(x509.load_pem_x509_certificate(cluster.kubelet_serving.certificate))
        assert issued.not_valid_after_utc <= cluster.clock.now() + timedelta(days=7)

    run(scenario)


@pytest.mark.behaviour("CS-03")
@pytest.mark.parametrize(
    ("content", "signer", "usages", "message"),
    [
        (content_for("somebody"), KUBELET_CLIENT, CLIENT_USAGES, "does not begin with system:node:"),
        (content_for("system:node:"), KUBELET_CLIENT, CLIENT_USAGES, "missing the name of the node"),
        (
            content_for(NODE_USER, "system:nodes", "other"),
            KUBELET_CLIENT,
            CLIENT_USAGES,
            "organization is not system:nodes",
        ),
        (content_for(names=(x509.DNSName("n1"),)), KUBELET_CLIENT, CLIENT_USAGES, "SANs are not allowed"),
        (
            content_for(names=(x509.RFC822Name("a@b.c"),)),
            KUBELET_SERVING,
            SERVING_USAGES,
            "email",
        ),
        (content_for(), KUBELET_SERVING, SERVING_USAGES, "subjectAltName is required"),
        (content_for(), KUBELET_CLIENT, ["client auth"], "usages did not match"),
        (content_for(), KUBELET_CLIENT, [*CLIENT_USAGES, "server auth"], "usages did not match"),
        (content_for("me", "system:masters"), API_CLIENT, CLIENT_USAGES, "system:masters"),
    ],
)
def test_an_approved_request_that_the_signer_cannot_fulfil_fails(
    content: bytes, signer: str, usages: list[str], message: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        somebody = cluster.user("somebody", "system:masters")
        if signer == API_CLIENT:
            # Refused earlier, when it is created.
            try:
                name = await cluster.request(somebody, content, signer, usages=usages)
            except ForbiddenError:
                return
        else:
            name = await cluster.request(somebody, content, signer, usages=usages)
        await cluster.approve(name)
        request = await cluster.until(name, has_failed)
        failure = conditions(request)["Failed"]
        assert failure["reason"] == "SignerValidationFailure"
        assert message in failure["message"]
        assert not has_certificate(request)

    run(scenario)


@pytest.mark.behaviour("CS-03")
def test_a_certificate_ends_with_its_authority_at_the_latest() -> None:
    async def scenario(cluster: Cluster) -> None:
        somebody = cluster.user("somebody", "system:masters")
        name = await cluster.request(somebody, content_for("me", "team"), API_CLIENT)
        await cluster.approve(name)
        issued = certificate_of(await cluster.until(name, has_certificate))
        assert issued.not_valid_after_utc <= cluster.clock.now() + timedelta(seconds=YEAR)

    run(scenario)


@pytest.mark.behaviour("CS-05")
def test_old_requests_are_deleted() -> None:
    async def scenario(cluster: Cluster) -> None:
        joining = cluster.user("system:bootstrap:abcdef", *BOOTSTRAP_GROUPS)
        done = await cluster.request(joining, content_for())
        pending = await cluster.request(
            cluster.user("somebody", "system:masters"), content_for("me", "team"), API_CLIENT
        )
        await cluster.until(done, has_certificate)
        await asyncio.sleep(3700)
        with pytest.raises(NotFoundError):
            await cluster.admin.get(REQUESTS, done, "")
        await cluster.admin.get(REQUESTS, pending, "")
        await asyncio.sleep(24 * 3600)
        with pytest.raises(NotFoundError):
            await cluster.admin.get(REQUESTS, pending, "")

    run(scenario)


@pytest.mark.behaviour("CS-06", "CS-07")
def test_tokens_sign_the_address_of_the_cluster_until_they_expire() -> None:
    async def scenario(cluster: Cluster) -> None:
        token = Token("abcdef", "0123456789abcdef")
        info = {"metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": {"kubeconfig": "content"}}
        await cluster.admin.create(CONFIG_MAPS.unstructured, info)
        expires = cluster.clock.now() + timedelta(hours=1)
        await cluster.admin.create(SECRETS.unstructured, bootstrap_tokens.make_secret(token, expires, ""))

        async def data() -> dict[str, str]:
            found = await cluster.admin.get(CONFIG_MAPS.unstructured, "cluster-info", "kube-public")
            return dict(found["data"])

        async with asyncio.timeout(60):
            while "jws-kubeconfig-abcdef" not in await data():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)
        assert bootstrap_tokens.is_signed("content", (await data())["jws-kubeconfig-abcdef"], token)
        await asyncio.sleep(3700)
        assert await data() == {"kubeconfig": "content"}
        with pytest.raises(NotFoundError):
            await cluster.admin.get(SECRETS.unstructured, "bootstrap-token-abcdef", "kube-system")

    run(scenario)


def test_a_token_that_cannot_be_deleted_keeps_no_other_from_being_signed() -> None:
    async def scenario(cluster: Cluster) -> None:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["secrets"]}
        policy = {
            "metadata": {"name": "kept"},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "false", "message": "kept"}],
            },
        }
        binding = {"metadata": {"name": "kept"}, "spec": {"policyName": "kept", "validationActions": ["Deny"]}}
        await cluster.admin.create(POLICIES, policy)
        await cluster.admin.create(BINDINGS, binding)
        info = {"metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": {"kubeconfig": "content"}}
        await cluster.admin.create(CONFIG_MAPS.unstructured, info)
        expired, valid = Token("aaaaaa", "0123456789abcdef"), Token("bbbbbb", "0123456789abcdef")
        now = cluster.clock.now()
        for token, expires in ((expired, now + timedelta(seconds=1)), (valid, now + timedelta(hours=1))):
            await cluster.admin.create(SECRETS.unstructured, bootstrap_tokens.make_secret(token, expires, ""))
        async with asyncio.timeout(60):
            while True:
                found = await cluster.admin.get(CONFIG_MAPS.unstructured, "cluster-info", "kube-public")
                signed = {name for name in found["data"] if name.startswith(bootstrap_tokens.SIGNATURE_PREFIX)}
                if signed == {"jws-kubeconfig-bbbbbb"}:
                    break
                await asyncio.sleep(0.5)
        # It is still there: only its deletion failed.
        await cluster.admin.get(SECRETS.unstructured, "bootstrap-token-aaaaaa", "kube-system")

    run(scenario)
