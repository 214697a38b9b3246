"""Numba kernels: the only code that touches rows one by one."""
