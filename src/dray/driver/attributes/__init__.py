"""Attributes that all drivers name alike, so that devices of different drivers can be matched."""
