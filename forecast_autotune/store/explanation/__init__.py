"""A stored decision explained to a person: what `forecast-autotune show` prints and `kernel.explain()` returns."""
