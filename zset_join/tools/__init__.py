"""Tools over a query: they read its plan and import no runner."""
