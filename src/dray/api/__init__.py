"""Kubernetes objects and their rules: schema, codecs, defaults, validation, conversion, errors; never I/O."""
