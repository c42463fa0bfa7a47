"""Checks the laws on many messy clusters: `make laws CLUSTERS=10000 SEED=1`.

Each seed is a cluster. Seeds of clusters that break a law are added to `broken_seeds.txt`, which `make test` runs too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.property.sim.laws import ALL_LAWS, Law, breaches
from tests.property.sim.messy_clusters import BROKEN_SEEDS, broken_seeds

PROGRESS_SECONDS = 30.0
# Clusters that a process checks at a time.
BATCH = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a law is broken."""
    options = _parse(arguments)
    laws = [law for law in ALL_LAWS if options.law in ("", law.__name__)]
    seeds = range(options.seed, options.seed + options.clusters)
    broken: dict[int, None] = {}
    counts = Counter[str]()
    started = printed = time.monotonic()
    done = 0
    for batch, found in _checked(seeds, laws, options.jobs):
        done += len(batch)
        for seed, law, text in found:
            broken[seed] = None
            counts[law] += 1
            _say(f"BROKEN {law}, seed {seed}: {text}")
        if time.monotonic() - printed >= PROGRESS_SECONDS:
            printed = time.monotonic()
            _say(f"{printed - started:7.0f} s  {done}/{len(seeds)} clusters  {len(broken)} of them break a law")
    _keep(broken)
    _say(f"{done} clusters, {len(laws)} laws: {len(broken)} clusters break one")
    for law, count in counts.most_common():
        _say(f"  {law}: {count}")
    return 1 if broken else 0


Found = list[tuple[int, str, str]]


def _checked(seeds: range, laws: Sequence[Law], jobs: int) -> Iterable[tuple[range, Found]]:
    batches = [seeds[start : start + BATCH] for start in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(_check, batch, laws): batch for batch in batches}
        for done in as_completed(running):
            yield running[done], done.result()


def _check(seeds: range, laws: Sequence[Law]) -> Found:
    """Return how each cluster breaks each law; a tool that fails breaks it too."""
    logging.disable(logging.CRITICAL)
    found: Found = []
    for seed in seeds:
        for law in laws:
            try:
                found += [(seed, law.__name__, text) for text in breaches(law, seed)]
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
                where = traceback.extract_tb(error.__traceback__)[-1]
                found.append((seed, law.__name__, f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"))
    return found


def _keep(seeds: Iterable[int]) -> None:
    known = broken_seeds()
    new = sorted(set(seeds) - set(known))
    if new:
        text = "".join(f"{seed}\n" for seed in new)
        with BROKEN_SEEDS.open("a", encoding="utf-8") as file:
            file.write(text)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.property.sim", description=__doc__)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--law", choices=[law.__name__ for law in ALL_LAWS], default="", help="only this one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
