"""Where a command's snapshot comes from: an API server by kubeconfig, or files that kubectl wrote."""
