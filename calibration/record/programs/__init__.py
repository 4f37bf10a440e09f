"""Programs that call the Triton kernels of packages, so that they can be recorded."""
