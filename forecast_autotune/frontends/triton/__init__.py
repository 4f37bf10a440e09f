"""Triton kernels: the drop-in for `triton.autotune`."""
