"""Controllers, one package each: a pure `plan` and a thin `reconciler`; API clients only."""
