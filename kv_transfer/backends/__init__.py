"""Transports that move bytes between two arenas; each library is imported in its own file alone."""
