"""Authentication by certificate, static token, service account token and anonymously; token requests and reviews."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from dray.api.bootstrap_tokens import StoredToken, Token
from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError, BadRequestError, ConflictError, InvalidError, NotFoundError, UnauthorizedError
from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.authenticator import Authenticator, user_document
from dray.apiserver.authentication.certificates import Identity
from dray.apiserver.authentication.service_accounts import ServiceAccountTokens, split_user_name
from dray.apiserver.authentication.static_tokens import TokenFileError, parse_token_file
from dray.apiserver.request import ANONYMOUS, UserInfo

NOW = datetime(2026, 11, 15, 21, 37, 8, tzinfo=UTC)
ISSUER = "https://kubernetes.default.svc"
SERVER_KEY = certificates.new_private_key()
AUTHORITY = certificates.new_authority(certificates.new_private_key(), NOW)

ACCOUNT: Document = {"metadata": {"namespace": "golden", "name": "default", "uid": "sa-uid"}}
POD: Document = {
    "metadata": {"namespace": "golden", "name": "p1", "uid": "pod-uid"},
    "spec": {"serviceAccountName": "default", "nodeName": "n1"},
}
NODE: Document = {"metadata": {"name": "n1", "uid": "node-uid"}}
SECRET: Document = {"metadata": {"namespace": "golden", "name": "s1", "uid": "secret-uid"}}


class StoredObjects:
    """The objects that tokens are bound to."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, NamespacedName], Document] = {}
        for resource, document in (("serviceaccounts", ACCOUNT), ("pods", POD), ("nodes", NODE), ("secrets", SECRET)):
            self.put(resource, document)

    def put(self, resource: str, document: Document) -> None:
        metadata = document["metadata"]
        self.objects[resource, NamespacedName(metadata.get("namespace", ""), metadata["name"])] = document

    def lookup(self, resource: str, key: NamespacedName) -> Document | None:
        return self.objects.get((resource, key))


def tokens(objects: StoredObjects | None = None, **options: Any) -> ServiceAccountTokens:
    return ServiceAccountTokens(SERVER_KEY, (objects or StoredObjects()).lookup, lambda: "fresh-id", **options)


def authenticator(objects: StoredObjects | None = None, **options: Any) -> Authenticator:
    static = parse_token_file('admin-token,admin,admin-uid,"system:masters"\nalice-token,alice,alice-uid,devs\n', "f")
    return Authenticator(tokens(objects), static, **options)


def ask(
    who: Authenticator, token: str | None = None, certificate: bytes | None = None, now: datetime = NOW
) -> UserInfo:
    header = None if token is None else f"Bearer {token}"
    return who.authenticate(authorization_header=header, peer_certificate=certificate, now=now)


def der(identity: Identity) -> bytes:
    pair = certificates.new_client(AUTHORITY, identity, NOW)
    return x509.load_pem_x509_certificate(pair.certificate).public_bytes(Encoding.DER)


def reference(kind: str, name: str, uid: str = "") -> Document:
    return {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}, "expirationSeconds": 600}


# --- Certificates.


def test_a_certificate_gives_user_and_groups() -> None:
    user = ask(authenticator(), certificate=der(Identity("alice", ("devs", "ops"))))
    assert (user.name, user.groups) == ("alice", ("devs", "ops", "system:authenticated"))
    assert user.extra["authentication.kubernetes.io/credential-id"][0].startswith("X509SHA256=")


def test_a_connection_does_not_outlive_its_certificate() -> None:
    who, certificate = authenticator(), der(Identity("alice"))
    assert ask(who, certificate=certificate).name == "alice"
    with pytest.raises(UnauthorizedError):
        ask(who, certificate=certificate, now=NOW + timedelta(days=366))


def test_the_certificate_comes_before_the_token() -> None:
    assert ask(authenticator(), "alice-token", der(Identity("bob"))).name == "bob"


# --- Static tokens and anonymous requests.


def test_a_static_token() -> None:
    user = ask(authenticator(), "alice-token")
    assert user == UserInfo("alice", "alice-uid", ("devs", "system:authenticated"))


@pytest.mark.parametrize("header", [None, "", "Basic YTpi", "Bearer", "Bearer  "])
def test_without_credentials_one_is_anonymous(header: str | None) -> None:
    def asking(*, allow_anonymous: bool = True) -> UserInfo:
        who = authenticator(allow_anonymous=allow_anonymous)
        return who.authenticate(authorization_header=header, peer_certificate=None, now=NOW)

    assert asking() == ANONYMOUS
    with pytest.raises(UnauthorizedError):
        asking(allow_anonymous=False)


@pytest.mark.parametrize("token", ["bad", "a.b.c", "alice-token ,", "é", "ALICE-TOKEN"])
def test_a_bad_token_is_an_error_not_anonymous(token: str) -> None:
    with pytest.raises(UnauthorizedError) as caught:
        ask(authenticator(), token)
    assert caught.value.status() == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
    }  # fmt: skip


def test_the_token_file_is_read_as_kubernetes_does() -> None:
    text = 't1,u1,1\nt2,u2,2,"a, b,"\n\n,nobody,3\nt1,u9,9\n'
    assert sorted(parse_token_file(text, "f").values(), key=lambda user: user.name) == [
        UserInfo("u2", "2", ("a", "b")),
        UserInfo("u9", "9"),
    ]
    with pytest.raises(TokenFileError, match=r"'f' must have at least 3 columns .*, found 2"):
        parse_token_file("t,u\n", "f")


# --- Service account tokens.


def test_a_token_has_the_claims_of_kubernetes() -> None:
    token, expires = tokens().issue_token(ACCOUNT, {"expirationSeconds": 600}, NOW)
    assert expires == NOW + timedelta(seconds=600)
    assert jwt.get_unverified_header(token)["alg"] == "ES256"
    issued = int(NOW.timestamp())
    assert jwt.decode(token, options={"verify_signature": False}) == {
        "aud": [ISSUER],
        "exp": issued + 600,
        "iat": issued,
        "iss": ISSUER,
        "jti": "fresh-id",
        "kubernetes.io": {"namespace": "golden", "serviceaccount": {"name": "default", "uid": "sa-uid"}},
        "nbf": issued,
        "sub": "system:serviceaccount:golden:default",
    }


def test_a_token_speaks_for_its_service_account() -> None:
    who = authenticator()
    token, _ = who.service_accounts.issue_token(ACCOUNT, {}, NOW)
    for _ in range(2):  # The second time from the cache.
        assert user_document(ask(who, token)) == {
            "username": "system:serviceaccount:golden:default",
            "uid": "sa-uid",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:golden", "system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": ["JTI=fresh-id"]},
        }


def test_a_token_bound_to_a_pod_names_pod_and_node() -> None:
    who = authenticator()
    token, _ = who.service_accounts.issue_token(ACCOUNT, reference("Pod", "p1", "pod-uid"), NOW)
    assert ask(who, token).extra == {
        "authentication.kubernetes.io/credential-id": ("JTI=fresh-id",),
        "authentication.kubernetes.io/pod-name": ("p1",),
        "authentication.kubernetes.io/pod-uid": ("pod-uid",),
        "authentication.kubernetes.io/node-name": ("n1",),
        "authentication.kubernetes.io/node-uid": ("node-uid",),
    }


Change = Callable[[StoredObjects], None]


def replaced(resource: str, document: Document, **metadata: str) -> Change:
    return lambda objects: objects.put(resource, document | {"metadata": document["metadata"] | metadata})


def gone(resource: str) -> Change:
    def change(objects: StoredObjects) -> None:
        objects.objects = {key: value for key, value in objects.objects.items() if key[0] != resource}

    return change


@pytest.mark.parametrize(
    ("spec", "change", "good"),
    [
        pytest.param({}, gone("serviceaccounts"), False, id="account deleted"),
        pytest.param({}, replaced("serviceaccounts", ACCOUNT, uid="other"), False, id="account recreated"),
        pytest.param({}, gone("pods"), True, id="not bound to the pod"),
        pytest.param(reference("Pod", "p1"), gone("pods"), False, id="pod deleted"),
        pytest.param(reference("Pod", "p1"), replaced("pods", POD, uid="other"), False, id="pod recreated"),
        pytest.param(reference("Pod", "p1"), gone("nodes"), True, id="node of the pod deleted"),
        pytest.param(reference("Secret", "s1"), gone("secrets"), False, id="secret deleted"),
        pytest.param(reference("Node", "n1"), gone("nodes"), False, id="node deleted"),
        pytest.param(
            reference("Pod", "p1"),
            replaced("pods", POD, deletionTimestamp="2026-11-15T21:37:00Z"),
            True,
            id="pod terminating",
        ),
        pytest.param(
            reference("Pod", "p1"),
            replaced("pods", POD, deletionTimestamp="2026-11-15T21:36:00Z"),
            False,
            id="pod should have ended a minute ago",
        ),
    ],
)
def test_a_token_is_invalid_without_its_bound_object(spec: Document, change: Change, good: bool) -> None:
    objects = StoredObjects()
    who = authenticator(objects)
    token, _ = who.service_accounts.issue_token(ACCOUNT, spec, NOW)
    assert ask(who, token).name == "system:serviceaccount:golden:default"
    change(objects)
    if good:
        assert ask(who, token).uid == "sa-uid"
        return
    with pytest.raises(UnauthorizedError) as caught:
        ask(who, token)
    assert str(caught.value.__cause__) == "service account token has been invalidated"


@pytest.mark.parametrize(
    ("seconds", "good"),
    [(-1, False), (0, True), (599, True), (600, False)],
)
def test_a_token_is_good_in_its_time_only(seconds: int, good: bool) -> None:
    who = authenticator()
    token, _ = who.service_accounts.issue_token(ACCOUNT, {"expirationSeconds": 600}, NOW)
    # Fill the cache first: a cached signature must not outlive the token.
    assert ask(who, token, now=NOW)
    now = NOW + timedelta(seconds=seconds)
    if good:
        assert ask(who, token, now=now)
    else:
        with pytest.raises(UnauthorizedError):
            ask(who, token, now=now)


def forged(**changes: Any) -> str:
    token, _ = tokens().issue_token(ACCOUNT, {}, NOW)
    claims = jwt.decode(token, options={"verify_signature": False}) | changes
    kid = jwt.get_unverified_header(token)["kid"]
    return jwt.encode(claims, certificates.load_private_key(SERVER_KEY), "ES256", headers={"kid": kid})


def unsigned() -> str:
    token, _ = tokens().issue_token(ACCOUNT, {}, NOW)
    claims = jwt.decode(token, options={"verify_signature": False})
    return jwt.encode(claims, "", "none", headers={"kid": jwt.get_unverified_header(token)["kid"]})


def signed_by_another() -> str:
    other = ServiceAccountTokens(certificates.new_private_key(), StoredObjects().lookup, lambda: "id")
    return other.issue_token(ACCOUNT, {}, NOW)[0]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(unsigned, id="alg none"),
        pytest.param(signed_by_another, id="another key"),
        pytest.param(lambda: forged(iss="https://evil.example"), id="another issuer"),
        pytest.param(lambda: forged(aud=["vault"]), id="another audience"),
        pytest.param(lambda: forged(sub="system:serviceaccount:kube-system:admin"), id="another subject"),
        pytest.param(lambda: forged(**{"kubernetes.io": {}}), id="no account"),
        pytest.param(lambda: forged(**{"kubernetes.io": "x"}), id="nonsense"),
        pytest.param(lambda: tokens().issue_token(ACCOUNT, {}, NOW)[0][:-4] + "AAAA", id="cut"),
        pytest.param(lambda: tokens().issue_token(ACCOUNT, {}, NOW)[0] + "==", id="padded"),
        pytest.param(lambda: tokens().issue_token(ACCOUNT, {}, NOW)[0] + "!!", id="with other letters"),
    ],
)
def test_a_token_that_is_not_ours_is_rejected(make: Callable[[], str]) -> None:
    with pytest.raises(UnauthorizedError):
        ask(authenticator(), make())


# --- Token requests.


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            {"expirationSeconds": 60},
            InvalidError,
            'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 60: '
            "may not specify a duration less than 10 minutes",
        ),
        (
            {"expirationSeconds": 1 << 33},
            InvalidError,
            'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 8589934592: '
            "may not specify a duration larger than 2^32 seconds",
        ),
        (reference("ConfigMap", "c"), BadRequestError, "cannot bind token to object of type v1, Kind=ConfigMap"),
        (reference("Pod", "zz"), NotFoundError, 'pods "zz" not found'),
        (
            reference("Pod", "p1", "old"),
            ConflictError,
            'Operation cannot be fulfilled on Pod "p1": the UID in the bound object reference (old) does not match the '
            "UID in record. The object might have been deleted and then recreated",
        ),
    ],
)
def test_token_requests_are_checked(spec: Document, error: type[APIError], message: str) -> None:
    with pytest.raises(error) as caught:
        tokens().issue_token(ACCOUNT, spec, NOW)
    assert caught.value.message == message


def test_a_token_is_not_bound_to_a_pod_of_another_account() -> None:
    account = {"metadata": ACCOUNT["metadata"] | {"name": "other"}}
    with pytest.raises(BadRequestError, match="pod running with different serviceaccount name"):
        tokens().issue_token(account, reference("Pod", "p1"), NOW)


def test_lifetime_defaults_to_an_hour_and_has_a_bound() -> None:
    assert tokens().issue_token(ACCOUNT, {}, NOW)[1] == NOW + timedelta(hours=1)
    assert tokens(lifetime_seconds_max=7200).issue_token(ACCOUNT, {"expirationSeconds": 10**6}, NOW)[1] == (
        NOW + timedelta(hours=2)
    )


def test_a_token_for_another_audience_is_no_use_here_but_can_be_reviewed() -> None:
    who = authenticator()
    token, _ = who.service_accounts.issue_token(ACCOUNT, {"audiences": ["vault", "x"]}, NOW)
    with pytest.raises(UnauthorizedError):
        ask(who, token)
    assert who.token_review({"token": token}, NOW) == {
        "user": {},
        "error": '[invalid bearer token, token audiences ["vault" "x"] is invalid for the target audiences '
        f'["{ISSUER}"]]',
    }
    assert who.token_review({"token": token, "audiences": ["vault"]}, NOW)["audiences"] == ["vault"]


def test_token_reviews() -> None:
    who = authenticator()
    assert who.token_review({"token": "alice-token"}, NOW) == {
        "authenticated": True,
        "user": {"username": "alice", "uid": "alice-uid", "groups": ["devs", "system:authenticated"]},
        "audiences": [ISSUER],
    }
    assert who.token_review({"token": "zzz"}, NOW) == {"user": {}, "error": "invalid bearer token"}
    assert "authenticated" not in who.token_review({"token": "alice-token", "audiences": ["vault"]}, NOW)


def test_others_can_check_our_tokens_with_the_published_keys() -> None:
    issuer = tokens()
    assert issuer.discovery_document("https://127.0.0.1:6443/") == {
        "issuer": ISSUER,
        "jwks_uri": "https://127.0.0.1:6443/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    }
    token, _ = issuer.issue_token(ACCOUNT, {"audiences": ["vault"]}, NOW)
    keys = jwt.PyJWKSet.from_dict(issuer.public_keys())
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(
        token,
        key,
        algorithms=["ES256"],
        audience="vault",
        options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
    )
    assert claims["sub"] == "system:serviceaccount:golden:default"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("system:serviceaccount:a:b", ("a", "b")),
        ("system:serviceaccount:a:", None),
        ("system:serviceaccount:a:b:c", None),
        ("alice", None),
    ],
)
def test_service_account_user_names(name: str, expected: tuple[str, str] | None) -> None:
    assert split_user_name(name) == expected


@pytest.mark.behaviour("CS-06")
@pytest.mark.parametrize(
    ("text", "seconds", "authenticates", "good"),
    [
        ("abcdef.0123456789abcdef", -1, True, True),
        ("abcdef.0123456789abcdef", 0, True, False),
        ("abcdef.0123456789abcdef", -1, False, False),
        ("abcdef.0123456789abcdeX", -1, True, False),
        ("abcdef.0000000000000000", -1, True, False),
        ("zzzzzz.0123456789abcdef", -1, True, False),
    ],
)
def test_a_bootstrap_token_is_good_with_its_secret_until_it_expires(
    text: str, seconds: int, authenticates: bool, good: bool
) -> None:
    token = Token("abcdef", "0123456789abcdef")
    groups = ("system:bootstrappers:kubeadm:default-node-token",)
    stored = StoredToken(token, NOW, authenticates=authenticates, signs=True, groups=groups)
    who = authenticator()
    who.bootstrap_tokens = {"abcdef": stored}
    now = NOW + timedelta(seconds=seconds)
    if good:
        user = ask(who, text, now=now)
        assert user.name == "system:bootstrap:abcdef"
        assert user.groups == ("system:bootstrappers", *groups, "system:authenticated")
    else:
        with pytest.raises(UnauthorizedError):
            ask(who, text, now=now)
