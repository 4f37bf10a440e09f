"""Search over programs: candidates proposed, forecast, and the promising few built and measured in a box."""
