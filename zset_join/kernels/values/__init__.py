"""How kernels see values: columns of a record, equality and hashes of keys, Arrow in and out."""
