"""Kernels about rows in order of time."""
