"""One file per operator."""
