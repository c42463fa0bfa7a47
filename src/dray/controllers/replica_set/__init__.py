"""Keeps as many Pods of a template as a ReplicaSet asks for."""
