"""What brings changes into a pipeline without a JVM."""

from __future__ import annotations
