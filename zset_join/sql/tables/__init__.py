"""What the names of a session stand for: tables, views, settings, and where rows of tables come from and go to."""
