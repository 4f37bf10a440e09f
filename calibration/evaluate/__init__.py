"""How good forecasts and decisions are, beside other methods, on recorded spaces and on a GPU."""
