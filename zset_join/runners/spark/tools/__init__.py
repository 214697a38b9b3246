"""Tools over a query: verify, sample, explain a row, rescale."""
