"""The laws every operator obeys, and the machinery that tries to break them."""
