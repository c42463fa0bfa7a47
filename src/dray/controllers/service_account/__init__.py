"""Gives every namespace its `default` ServiceAccount and the cluster's root certificate."""
