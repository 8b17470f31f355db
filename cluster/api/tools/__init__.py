"""Tool calls: what a client defines, how a model is told, and how its text becomes calls."""
