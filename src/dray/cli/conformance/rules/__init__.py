"""Judgements on what was seen: each function yields what is wrong, nothing when all is well. Pure."""
