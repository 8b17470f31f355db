"""How attention meets paged memory, and how small batches meet large matrices."""
