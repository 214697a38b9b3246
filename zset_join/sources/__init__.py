"""Sources of changes that need no JVM."""

from __future__ import annotations
