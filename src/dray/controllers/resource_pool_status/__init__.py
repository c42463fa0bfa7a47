"""Answers ResourcePoolStatusRequests (KEP-5677): `pools` and `summaries` count, `reconciler` writes."""
