"""The files of the page, as they lie in the package."""
