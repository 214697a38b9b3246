"""What two plans of one query have in common, and what a changed plan would answer otherwise. It knows plans and rows, no runner."""
