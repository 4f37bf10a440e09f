"""Fitting what forecasts: the shipped model, and language models."""
