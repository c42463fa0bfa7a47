"""Settings: precedence, exact errors, and the help page."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dray.api.features import FeatureGates
from dray.api.gate_table import CURRENT, GATES, Release
from dray.runtime.settings import (
    BOOLEAN,
    DURATION,
    EMULATED_VERSION,
    FEATURE_GATES,
    PORT,
    STRING,
    STRINGS,
    HelpRequested,
    SettingsError,
    choice,
    flag_value,
    load,
    number,
    setting,
)


@dataclass(frozen=True, slots=True)
class Example:
    """An example process."""

    config: str = setting(STRING, "", "settings file")
    port: int = setting(PORT, 6443, "port to listen on")
    secure: bool = setting(BOOLEAN, False, "whether to be secure")
    names: tuple[str, ...] = setting(STRINGS, (), "further names", flag="tls-san", key="tlsSANs")
    grace_period: float = setting(DURATION, 30.0, "how long to wait")
    logging_format: str = setting(choice("text", "json"), "text", "log format")
    verbosity: int = setting(number(0, 10), 0, "detail", flag="v", environment="DRAY_VERBOSITY")
    feature_gates: FeatureGates = setting(FEATURE_GATES, FeatureGates(), "gates")  # noqa: RUF009
    emulated_version: Release = setting(EMULATED_VERSION, CURRENT, "release to emulate")  # noqa: RUF009


GATE = next(iter(sorted(name for name, gate in GATES.items() if not gate.newest.locked)))


def test_defaults() -> None:
    assert load(Example, [], {}) == Example()


def test_flag_over_environment_over_file_over_default() -> None:
    text = "port: 1\ngracePeriod: 1m\nlogging_format: json".replace("logging_format", "loggingFormat")
    environ = {"DRAY_PORT": "2", "DRAY_GRACE_PERIOD": "2m"}
    loaded = load(Example, ["--port=3"], environ, text)
    assert (loaded.port, loaded.grace_period, loaded.logging_format) == (3, 120.0, "json")


@pytest.mark.parametrize(
    ("argv", "field", "expected"),
    [
        (["--port", "80"], "port", 80),
        (["--secure"], "secure", True),
        (["--secure=false"], "secure", False),
        (["--tls-san=a,b", "--tls-san", "c"], "names", ("a", "b", "c")),
        (["--grace-period=1h30m"], "grace_period", 5400.0),
        (["--v=4"], "verbosity", 4),
        (["-v", "4"], "verbosity", 4),
        (["--port=1", "--port=2"], "port", 2),
    ],
)
def test_flags(argv: list[str], field: str, expected: object) -> None:
    assert getattr(load(Example, argv, {}), field) == expected


@pytest.mark.parametrize(
    ("argv", "environ", "text", "message"),
    [
        (["--port=x"], {}, "", '--port: invalid value "x": must be a number from 0 to 65535'),
        (["--port=70000"], {}, "", '--port: invalid value "70000": must be a number from 0 to 65535'),
        ([], {"DRAY_PORT": "-1"}, "", 'DRAY_PORT: invalid value "-1": must be a number from 0 to 65535'),
        ([], {}, "port: y", 'dray.yaml: port: invalid value "y": must be a number from 0 to 65535'),
        ([], {}, "prot: 1", 'dray.yaml: unknown key "prot" (did you mean port?)'),
        ([], {}, "zzz: 1", 'dray.yaml: unknown key "zzz"'),
        ([], {}, "- 1", "dray.yaml: must be a map of settings"),
        ([], {}, "port: [1]", 'dray.yaml: port: invalid value "[1]": must be a int'),
        (["--prot=1"], {}, "", "unknown flag: --prot (did you mean --port?)"),
        (["--port"], {}, "", "--port: needs a value"),
        (["extra"], {}, "", 'unexpected argument "extra"'),
        (["--secure=perhaps"], {}, "", '--secure: invalid value "perhaps": must be true or false'),
        (["--logging-format=xml"], {}, "", '--logging-format: invalid value "xml": must be one of text, json'),
        (
            ["--grace-period=soon"],
            {},
            "",
            '--grace-period: invalid value "soon": must be a duration such as "1h30m", "10s" or "500ms"',
        ),
        (
            ["--feature-gates=Nope=true"],
            {},
            "",
            '--feature-gates: invalid value "Nope=true": unrecognized feature gate: Nope',
        ),
    ],
)
def test_refusals_name_their_source(argv: list[str], environ: dict[str, str], text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(Example, argv, environ, text, file_name="dray.yaml")
    assert str(caught.value) == message


def test_feature_gates_from_every_source() -> None:
    wanted = not GATES[GATE].newest.default
    text = str(wanted).lower()
    for loaded in (
        load(Example, [f"--feature-gates={GATE}={text}"], {}),
        load(Example, [], {"DRAY_FEATURE_GATES": f"{GATE}={text}"}),
        load(Example, [], {}, f"featureGates: {{{GATE}: {text}}}"),
    ):
        assert loaded.feature_gates.enabled(GATE) is wanted


def test_the_file_s_own_name_is_known_before_the_file() -> None:
    assert flag_value(Example, ["--config=a.yaml"], {"DRAY_CONFIG": "b.yaml"}, "config") == "a.yaml"
    assert flag_value(Example, [], {"DRAY_CONFIG": "b.yaml"}, "config") == "b.yaml"
    assert flag_value(Example, [], {}, "config") == ""


def test_help_names_flag_default_environment_and_key() -> None:
    with pytest.raises(HelpRequested) as caught:
        load(Example, ["--help"], {})
    text = caught.value.text
    assert "An example process." in text
    assert "--port int\n          port to listen on (default 6443) [env DRAY_PORT, key port]" in text
    assert "--tls-san strings" in text
    assert "[env DRAY_NAMES, key tlsSANs]" in text


@pytest.mark.behaviour("EV-02", "EV-03")
@pytest.mark.parametrize(
    ("argv", "environ", "text"),
    [
        (["--emulated-version=kube=1.36", "--feature-gates=DRAExtendedResource=false"], {}, ""),
        # Wherever the two are from.
        (["--emulated-version=1.36"], {"DRAY_FEATURE_GATES": "DRAExtendedResource=false"}, ""),
        ([], {"DRAY_EMULATED_VERSION": "1.36"}, "featureGates: {DRAExtendedResource: false}"),
        (["--feature-gates=DRAExtendedResource=false"], {}, "emulatedVersion: 1.36"),
    ],
)
def test_gates_are_those_of_the_emulated_release(argv: list[str], environ: dict[str, str], text: str) -> None:
    loaded = load(Example, argv, environ, text)
    assert loaded.feature_gates.release == Release(1, 36)
    assert not loaded.feature_gates.enabled("DRAExtendedResource")
    assert not loaded.feature_gates.enabled("DRADeviceTaintRules")


@pytest.mark.behaviour("EV-02")
def test_a_gate_that_the_release_does_not_let_be_set_is_refused_by_its_source() -> None:
    assert load(Example, ["--emulated-version=1.33"], {}).feature_gates.release == Release(1, 33)
    with pytest.raises(SettingsError) as refused:
        load(Example, ["--emulated-version=1.36"], {"DRAY_FEATURE_GATES": "DRAAdminAccess=false"})
    assert str(refused.value) == (
        'DRAY_FEATURE_GATES: invalid value "DRAAdminAccess=false": cannot set feature gate DRAAdminAccess to false, '
        "feature is locked to true"
    )
    with pytest.raises(SettingsError, match=r'--emulated-version: invalid value "1.30": emulation version 1.30 is not'):
        load(Example, ["--emulated-version=1.30"], {})
