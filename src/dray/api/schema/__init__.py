"""The schema of the built-in kinds: fields and types, shared by all codecs and patches."""
