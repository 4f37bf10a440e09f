"""Callables that compute the same thing, tuned as one."""
