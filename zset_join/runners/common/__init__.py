"""Code shared by all runners."""
