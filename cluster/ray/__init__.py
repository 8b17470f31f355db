"""Clusters of several hosts by Ray's launcher: cluster files, a provider for fixed hosts, two commands."""
