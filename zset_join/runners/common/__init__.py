"""What every runner does in one way."""
