"""The arguments that commands reading a cluster share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dray.api.features import FeatureGateError, FeatureGates
from dray.cli.output import FORMS


def reading_parser(prog: str, description: str, *, forms: Sequence[str] = FORMS) -> argparse.ArgumentParser:
    """A parser with what says where to read and how to print."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    where = parser.add_argument_group("where to read")
    where.add_argument("--kubeconfig", default="", metavar="FILE", help="default: $KUBECONFIG, then ~/.kube/config")
    where.add_argument("--context", default="", help="the kubeconfig's context to use")
    where.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="read files or folders that `kubectl get … -o yaml` wrote instead of a cluster; - is stdin",
    )
    parser.add_argument("-o", "--output", choices=forms, default=forms[0], help="how to print")
    return parser


def add_namespace(parser: argparse.ArgumentParser) -> None:
    """Let the user choose one namespace; all are shown otherwise."""
    parser.add_argument("-n", "--namespace", default="", help="only this namespace; default: all")


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Let the user keep the table on the screen."""
    parser.add_argument("-w", "--watch", action="store_true", help="print again whenever something changes")


def add_feature_gates(parser: argparse.ArgumentParser) -> None:
    """Let the user say what the cluster's scheduler has switched on and off."""
    parser.add_argument(
        "--feature-gates",
        type=_feature_gates,
        default=FeatureGates(),
        metavar="A=true,B=false",
        help="as the cluster's scheduler has",
    )


def _feature_gates(text: str) -> FeatureGates:
    try:
        return FeatureGates.parse(text)
    except FeatureGateError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
