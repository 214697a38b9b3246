"""What every kernel is made with: the compiler, its kept code, loads and stores at addresses."""
