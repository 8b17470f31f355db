"""Attention kernels behind one small interface."""
