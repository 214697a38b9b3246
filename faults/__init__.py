"""Promises after a crash, and the tools that crash the product at every possible point."""

from __future__ import annotations
