"""One epoch on the driver: its plan, its outputs, its commit, its progress."""
