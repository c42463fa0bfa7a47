"""Creates the `default` ServiceAccount and the root CA ConfigMap of every namespace."""
