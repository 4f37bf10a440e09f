"""Inductor's own choices under `torch.compile`."""
