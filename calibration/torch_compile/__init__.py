"""torch.compile with Inductor's candidates narrowed by forecasts, beside torch.compile as it is."""
