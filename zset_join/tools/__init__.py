"""Tools over a query: they read its plan and know no runner."""
