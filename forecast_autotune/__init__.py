"""Forecast every config before compiling any."""
