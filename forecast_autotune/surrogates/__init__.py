"""Who forecasts. One file per surrogate; none imports another."""
