"""Shapes of operators: output, key and rejected arguments, as pure functions of the relations.

The law: the shape of an operator is the shape that its stage shows, and nothing here keeps a row, opens a file or runs a
kernel. So a query can be bound, planned and explained without building an operator.
"""
