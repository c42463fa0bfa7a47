"""Runs as many Pods as a ReplicaSet asks for."""
