"""Tools of every kernel: the compiler, its cache, loads and stores at addresses."""
