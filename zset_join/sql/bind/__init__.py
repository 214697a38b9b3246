"""Queries as views of the fluent API: names, joins, groups, subqueries, windows."""
