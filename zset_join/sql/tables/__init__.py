"""Named objects of a session: tables, views, settings, and the sources and sinks of tables."""
