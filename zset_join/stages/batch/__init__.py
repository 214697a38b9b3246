"""Stages as batch queries: the two SQL dialects, the tables a query reads, and the registry by kind of stage."""
