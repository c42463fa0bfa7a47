"""Raw values (RawExtension) keep the notation of their numbers, in whatever form they come and go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from dray.api.errors import BadRequestError
from dray.api.protobuf import encode_object
from dray.api.raw_numbers import load_stored
from dray.apiserver.call import Call, ObjectResult
from dray.apiserver.encoding import encode_object_result
from dray.apiserver.negotiation import Media, Representation
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import RequestInfo
from tests.local_server import Local

pytestmark = pytest.mark.api_faults

CLAIMS = "resource.k8s.io/v1/resourceclaims"
PARAMETERS = (
    b'{"kind":"P","apiVersion":"x/v1","a":1e3,"b":1.10,"c":123456789012345678901234567890,"d":-0.0,"e":[1E+2,7]}'
)


def claim(api_version: str = "resource.k8s.io/v1", parameters: bytes = PARAMETERS) -> bytes:
    return (
        b'{"apiVersion":"%b","kind":"ResourceClaim","metadata":{"name":"c","namespace":"default"},"spec":{"devices":'
        b'{"config":[{"opaque":{"driver":"gpu.example.com","parameters": %b}}]}}}' % (api_version.encode(), parameters)
    )


async def answer(api: Local, verb: str, version: str, body: Any = None, media: Media = Media.JSON) -> bytes:
    info = RequestInfo(
        "POST", "", verb, "resource.k8s.io", version, "resourceclaims", "", "default", "" if verb == "create" else "c"
    )
    user = UserInfo("tester", groups=("system:masters",))
    result = await api.running.server.execute(Call(info, {}, user, body, "application/json", "test/1"))
    assert isinstance(result, ObjectResult)
    return encode_object_result(result, Representation(media), include="", now=datetime.fromtimestamp(0, UTC))


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
async def test_numbers_are_kept_as_they_came(api: Local, version: str) -> None:
    made = await answer(api, "create", version, claim(f"resource.k8s.io/{version}"))
    assert PARAMETERS in made
    assert PARAMETERS in await answer(api, "get", "v1")
    assert PARAMETERS in await answer(api, "get", "v1beta1")
    assert PARAMETERS in await answer(api, "get", version, media=Media.PROTOBUF)
    assert b"c: 1.2345678901234568e+29" in await answer(api, "get", "v1", media=Media.YAML)


async def test_a_later_write_keeps_them(api: Local) -> None:
    await answer(api, "create", "v1", claim())
    patch = {"metadata": {"labels": {"a": "b"}}}
    kind = "application/merge-patch+json"
    patched = await api.request("patch", f"{CLAIMS}/c@default", patch, content_type=kind)
    assert patched["metadata"]["labels"] == {"a": "b"}
    assert PARAMETERS in await answer(api, "get", "v1")
    # A client in the same process sees plain numbers.
    got = await api.request("get", f"{CLAIMS}/c@default")
    assert orjson.loads(orjson.dumps(got)) == got


async def test_protobuf_brings_them_too(api: Local) -> None:
    document = load_stored(claim() + b" ")
    await api.request("create", f"{CLAIMS}@default", encode_object(document), content_type=Media.PROTOBUF.value)
    assert PARAMETERS in await answer(api, "get", "v1")


async def test_typed_fields_do_not_take_them(api: Local) -> None:
    body = claim().replace(b'"name":"c"', b'"name":"c","generation":1e0')
    with pytest.raises(BadRequestError, match="cannot unmarshal number"):
        await answer(api, "create", "v1", body)
