"""What the wheel takes besides the sources: the kernels that `tools.compile_shipped` compiled, where there are any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShippedKernels(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own configuration
    """Put `build/shipped` into the wheel; without it kernels are compiled when they are first called."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files; a wheel for editing in place takes none."""
        shipped = Path(self.root) / "build" / "shipped"
        if self.target_name == "wheel" and version != "editable" and shipped.is_dir():
            build_data["force_include"][str(shipped)] = "zset_join/kernels/shipped"
