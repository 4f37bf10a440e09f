"""A config without a launch: evidence, or a failure."""
