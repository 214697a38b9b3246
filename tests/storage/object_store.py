"""A file system with what an object store has, and nothing more: whole objects, put, get, list, delete, put-if-absent.

Everything an object store cannot do raises: rename, copy, append, writing into an object, making a directory. Objects live in this
process, by bucket; `counts` has how often each request was made.
"""

from __future__ import annotations

import io
from collections import Counter
from typing import Any, ClassVar

import fsspec

__all__ = ["ObjectStore", "install"]


class ObjectStore(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no type hints
    """The store; `objects` maps "bucket/key" to bytes."""

    protocol = "objects"
    cachable = False
    objects: ClassVar[dict[str, bytes]] = {}
    counts: ClassVar[Counter[str]] = Counter()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("objects://").strip("/")

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        self.counts["list"] += 1
        prefix = f"{self._strip_protocol(path)}/"
        below = {key.removeprefix(prefix).partition("/") for key in self.objects if key.startswith(prefix)}
        found = [self._entry(f"{prefix}{first}", is_directory=bool(slash)) for first, slash, _ in below]
        if not found and prefix.rstrip("/") not in self.objects:
            raise FileNotFoundError(path)
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        key = self._strip_protocol(path)
        if key in self.objects:
            return self._entry(key, is_directory=False)
        if any(other.startswith(f"{key}/") for other in self.objects):
            return self._entry(key, is_directory=True)
        raise FileNotFoundError(path)

    def _entry(self, key: str, *, is_directory: bool) -> dict[str, Any]:
        if is_directory:
            return {"name": key, "size": None, "type": "directory"}
        return {"name": key, "size": len(self.objects[key]), "type": "file"}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        key = self._strip_protocol(path)
        if mode == "create" and key in self.objects:
            raise FileExistsError(path)
        self.counts["put_new" if mode == "create" else "put"] += 1
        self.objects[key] = bytes(value)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        key = self._strip_protocol(path)
        if mode == "rb":
            self.counts["get"] += 1
            if key not in self.objects:
                raise FileNotFoundError(path)
            return io.BytesIO(self.objects[key])
        if mode == "wb":
            return _Upload(self, key)
        raise NotImplementedError(f"an object cannot be opened with {mode!r}")

    def rm_file(self, path: str) -> None:
        self.counts["delete"] += 1
        del self.objects[self._strip_protocol(path)]

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def mv(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("an object store has no rename")

    def cp_file(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("copying is not to be relied on")

    def mkdir(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("an object store has no directories")

    makedirs = mkdir


class _Upload(io.BytesIO):
    """An object that is present once it is closed."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        super().__init__()
        self._store = store
        self._key = key

    def close(self) -> None:
        if not self.closed:
            self._store.pipe_file(self._key, self.getvalue())
        super().close()


def install() -> None:
    """Empty the store, and let fsspec find it under `objects://`."""
    fsspec.register_implementation("objects", ObjectStore, clobber=True)
    ObjectStore.objects.clear()
    ObjectStore.counts.clear()
