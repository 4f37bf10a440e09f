"""Kernels of ours, and Inductor's own choices, under `torch.compile`."""
