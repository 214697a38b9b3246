"""Print the product files whose functions run while a SELECT is bound to a plan, by package.

    python -m tools.trace_planning ["SELECT ..."]

A file counts when one of its functions is entered; importing it does not count. Shape is apart from operators: no file of
`state`, `kernels`, `operators` or `aggregates` may be among them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import zset_join
from zset_join.sql import connect

__all__ = ["ORDERS", "files_entered", "main"]

_ROOT = Path(zset_join.__file__).parents[1]
ORDERS = """
CREATE TABLE orders (id BIGINT, customer STRING, total BIGINT, PRIMARY KEY (id));
CREATE TABLE customers (customer STRING, city STRING, PRIMARY KEY (customer));
SELECT city, sum(total) AS total FROM orders JOIN customers ON orders.customer = customers.customer
WHERE total > 0 GROUP BY city
"""


def files_entered(work: Callable[[], Any]) -> list[str]:
    """Return the product files of which a function is called while some work is done, relative to the checkout, sorted."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    packages = (str(_ROOT / "zset_join"), str(_ROOT / "spill"))
    return sorted(str(Path(name).relative_to(_ROOT)) for name in entered if name.startswith(packages))


def main(statements: str) -> None:
    """Print the files that binding the last of some statements enters."""
    *before, last = [text for text in statements.split(";") if text.strip()]
    session = connect()
    for statement in before:
        session.sql(statement)
    files = files_entered(lambda: session.sql(last))
    print(f"{len(files)} files")
    for package, count in sorted(Counter(str(Path(name).parent) for name in files).items()):
        print(f"  {count:3d} {package}: {', '.join(Path(name).name for name in files if str(Path(name).parent) == package)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ORDERS)
