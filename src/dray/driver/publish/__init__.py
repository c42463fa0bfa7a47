"""Keeping a driver's ResourceSlices equal to its pools."""
