"""Access control: `auth can-i`, `auth whoami`, tokens, impersonation, roles and forbidden requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Kubectl, needs_kubectl, rows_of


class TestForbidden:
    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            pytest.param(
                ("get", "pods"),
                'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "{}"',
                id="list",
            ),
            pytest.param(
                ("get", "pod", "p"),
                'pods "p" is forbidden: User "alice" cannot get resource "pods" in API group "" in the namespace "{}"',
                id="get",
            ),
            pytest.param(
                ("get", "deviceclasses"),
                'deviceclasses.resource.k8s.io is forbidden: User "alice" cannot list resource "deviceclasses" '
                'in API group "resource.k8s.io" at the cluster scope',
                id="cluster scope",
            ),
            pytest.param(
                ("get", "secrets", "-A"),
                'secrets is forbidden: User "alice" cannot list resource "secrets" in API group "" '
                "at the cluster scope",
                id="all namespaces",
            ),
            pytest.param(
                ("delete", "resourceclaim", "c"),
                'resourceclaims.resource.k8s.io "c" is forbidden: User "alice" cannot delete resource "resourceclaims" '
                'in API group "resource.k8s.io" in the namespace "{}"',
                id="delete",
            ),
        ],
    )
    def test_message(self, as_alice: Kubectl, arguments: tuple[str, ...], what: str) -> None:
        assert as_alice.error(*arguments) == f"Error from server (Forbidden): {what.format(as_alice.namespace)}"

    def test_create(self, as_alice: Kubectl) -> None:
        assert as_alice.error("create", "-f", "-", stdin=bodies.claim("c")) == (
            'Error from server (Forbidden): error when creating "STDIN": resourceclaims.resource.k8s.io is forbidden: '
            'User "alice" cannot create resource "resourceclaims" in API group "resource.k8s.io" '
            f'in the namespace "{as_alice.namespace}"'
        )

    @pytest.mark.behaviour("CL-02")
    def test_classes_are_for_administrators(self, as_alice: Kubectl) -> None:
        message = as_alice.error("create", "-f", "-", stdin=bodies.classic_class("mine"))
        assert 'cannot create resource "resourceclasses" in API group "cdi.k8s.io" at the cluster scope' in message

    def test_wrong_token(self, kubectl: Kubectl, bare_config: Path) -> None:
        tool = kubectl.with_flags(f"--kubeconfig={bare_config}", "--token=wrong")
        assert "You must be logged in to the server" in tool.error("get", "pods")


class TestRoles:
    def test_role_in_one_namespace(self, kubectl: Kubectl, as_alice: Kubectl) -> None:
        kubectl("create", "role", "reader", "--verb=get,list", "--resource=resourceclaims.resource.k8s.io")
        kubectl("create", "rolebinding", "reader", "--role=reader", "--user=alice")
        kubectl("create", "-f", "-", stdin=bodies.claim("c"))
        assert as_alice("get", "resourceclaims", "-o", "name") == "resourceclaim.resource.k8s.io/c\n"
        assert "is forbidden" in as_alice.error("delete", "resourceclaim", "c")
        assert "is forbidden" in as_alice.error("--namespace=default", "get", "resourceclaims")

    def test_bound_cluster_role(self, kubectl: Kubectl, as_alice: Kubectl) -> None:
        kubectl("create", "rolebinding", "editor", "--clusterrole=edit", "--group=devs")
        as_alice("create", "configmap", "c")
        assert "is forbidden" in as_alice.error("get", "roles")

    def test_no_more_than_one_has(self, kubectl: Kubectl, as_alice: Kubectl) -> None:
        kubectl("create", "role", "maker", "--verb=create", "--resource=roles.rbac.authorization.k8s.io")
        kubectl("create", "rolebinding", "maker", "--role=maker", "--user=alice")
        message = as_alice.error("create", "role", "grab", "--verb=get", "--resource=secrets")
        assert (
            'user "alice" (groups=["devs" "system:authenticated"]) is attempting to grant RBAC permissions not '
            "currently held:"
        ) in message
        assert '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}' in message

    def test_reconcile(self, kubectl: Kubectl) -> None:
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "r", "namespace": kubectl.namespace},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        }
        kubectl("auth", "reconcile", "-f", "-", stdin=role)
        assert kubectl.field("role/r", "rules[0].resources[0]") == "pods"


class TestCanI:
    def test_yes_and_no(self, kubectl: Kubectl) -> None:
        answer = kubectl.run("auth", "can-i", "create", "pods")
        assert (answer.code, answer.out) == (0, "yes\n")
        answer = kubectl.run("auth", "can-i", "create", "pods", "--as=alice")
        assert (answer.code, answer.out.split()[0]) == (1, "no")

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("get", "resourceclaims.resource.k8s.io"), "yes"),
            (("get", "resourceclaims.resource.k8s.io", "--subresource=status"), "no"),
            (("watch", "resourceclaims.resource.k8s.io"), "no"),
            (("get", "/version"), "yes"),
            (("get", "/logs"), "no"),
        ],
    )
    def test_as_a_service_account(self, kubectl: Kubectl, arguments: tuple[str, ...], expected: str) -> None:
        kubectl("create", "serviceaccount", "robot")
        kubectl("create", "role", "reader", "--verb=get", "--resource=resourceclaims.resource.k8s.io")
        kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={kubectl.namespace}:robot")
        account = f"--as=system:serviceaccount:{kubectl.namespace}:robot"
        answer = kubectl.run("auth", "can-i", *arguments, account)
        assert answer.out.split()[0] == expected

    def test_list(self, kubectl: Kubectl) -> None:
        kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods", "--resource-name=p")
        kubectl("create", "rolebinding", "reader", "--role=reader", "--user=alice")
        rows = rows_of(kubectl("auth", "can-i", "--list", "--as=alice"))
        assert {"Resources": "pods", "Non-Resource URLs": "[]", "Resource Names": "[p]", "Verbs": "[get list]"} in rows

    def test_quiet(self, kubectl: Kubectl) -> None:
        answer = kubectl.run("auth", "can-i", "get", "pods", "--as=alice", "-q")
        assert (answer.code, answer.out) == (1, "")


class TestWhoAmI:
    @needs_kubectl(28)
    def test_administrator(self, kubectl: Kubectl) -> None:
        rows = {row["ATTRIBUTE"]: row["VALUE"] for row in rows_of(kubectl("auth", "whoami"))}
        assert rows["Groups"] == "[system:masters system:authenticated]"

    @needs_kubectl(28)
    def test_token(self, as_alice: Kubectl) -> None:
        rows = {row["ATTRIBUTE"]: row["VALUE"] for row in rows_of(as_alice("auth", "whoami"))}
        assert rows == {"Username": "alice", "UID": "alice-uid", "Groups": "[devs system:authenticated]"}

    @needs_kubectl(28)
    def test_impersonation(self, kubectl: Kubectl) -> None:
        shown = kubectl("auth", "whoami", "--as=bob", "--as-group=team", "-o", "jsonpath={.status.userInfo}")
        assert shown == '{"groups":["team","system:authenticated"],"username":"bob"}'

    def test_impersonation_is_a_right(self, as_alice: Kubectl) -> None:
        assert as_alice.error("get", "pods", "--as=bob") == (
            'Error from server (Forbidden): users "bob" is forbidden: User "alice" cannot impersonate resource "users" '
            'in API group "" at the cluster scope'
        )

    def test_impersonated_user_is_refused_by_name(self, kubectl: Kubectl) -> None:
        assert 'User "bob" cannot list resource "pods"' in kubectl.error("get", "pods", "--as=bob")
