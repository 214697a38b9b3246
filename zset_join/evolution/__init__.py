"""What two plans have in common, and what a changed plan answers differently. It imports no runner."""
