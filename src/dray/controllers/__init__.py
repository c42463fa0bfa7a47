"""Controllers. Each has a pure `plan` and a `reconciler`, a subclass of `dray.controllers.reconciler.Reconciler`."""
