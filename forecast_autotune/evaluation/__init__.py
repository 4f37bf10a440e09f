"""Recorded spaces: reading them, replaying tuning runs on them, and scoring forecasts."""
