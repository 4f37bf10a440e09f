"""Remembering: the SQLite store, and traces, the portable form of recorded runs."""
