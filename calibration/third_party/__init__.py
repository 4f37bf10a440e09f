"""Other people's packages, unmodified, under `install()`."""
