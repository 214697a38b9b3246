"""The words a user writes: streams, views, joins, groups, writers, queries."""
