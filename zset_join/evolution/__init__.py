"""What two plans have in common, and what a changed plan answers otherwise. It knows plans and rows, no runner."""
