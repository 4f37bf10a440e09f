"""The forecast-autotune command."""
