"""Fitting what forecasts: the shipped forest, and language models."""
