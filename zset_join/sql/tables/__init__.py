"""What the names of a session represent: tables, views, settings, and where rows of tables come from and go to."""
