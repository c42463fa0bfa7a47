"""Removing ResourceSlices of drivers that are gone, so that nothing is scheduled to devices nobody can prepare."""
