"""Foundations that every package uses: errors, types, relations, ticks, options, row conversions."""
