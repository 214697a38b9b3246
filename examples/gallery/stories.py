"""The examples of the gallery, by name."""

from __future__ import annotations

from collections.abc import Mapping

from examples.gallery import fraud, history, inventory, late_dimension, late_prices, mart, medallion, payments
from examples.gallery.story import Story

__all__ = ["STORIES"]

_MODULES = (mart, late_prices, late_dimension, fraud, payments, inventory, history, medallion)
STORIES: Mapping[str, Story] = {module.STORY.name: module.STORY for module in _MODULES}
