"""What every room uses and what uses no room: errors, types, relations, ticks, options, conversions of rows."""
