"""What the product promises after a crash, and the machinery that makes it crash at every place it can."""

from __future__ import annotations
