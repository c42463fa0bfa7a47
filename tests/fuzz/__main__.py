"""`python -m tests.fuzz`: fuzz every decoder of a live server, and print inputs, findings and how to replay them."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from tests.fuzz.fuzzer import fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run, print the report, and fail when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: from the clock)")
    parser.add_argument("--seeds", type=int, default=None, help="a number of seeds instead of a time")
    parser.add_argument("--only", default="", help=f"targets, with commas between: {', '.join(TARGETS)}")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(TARGETS)
    first = int(time.time()) if options.seed is None else options.seed
    print(f"first seed {first}", flush=True)
    report = asyncio.run(fuzz(names, first, seeds=options.seeds, seconds=options.minutes * 60))
    for name, count in report.inputs.items():
        print(f"{name:16} {count:>10,} inputs")
    print(f"{'all':16} {report.total:>10,} inputs, memory {report.growth_bytes / 2**20:+.1f} MiB")
    for finding in report.findings:
        print(f"\n{finding}")
    print(f"\n{len(report.findings)} findings")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
