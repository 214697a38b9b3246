"""Draw the pictures of the console in docs/: a shop that runs, the history of a row, a verification.

    bash tools/install_chromium.sh && python -m tools.console_pictures

The page is that of a real pipeline in a directory, which takes a few rows three times a second for some forty seconds.
"""

from __future__ import annotations

import datetime
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as in PySpark
from zset_join.stages.stage import StageOptions

__all__ = ["draw"]

DOCS = Path(__file__).resolve().parents[1] / "docs"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
CITIES = ("Bergen", "Lyon", "Oslo", "Rome")
EPOCHS, SECONDS_BETWEEN = 120, 0.35


def views() -> dict[str, Any]:
    """Return the two views of the shop: every order with the price of its time and its city, and the revenue per city."""
    columns = "id BIGINT, customer STRING, product STRING, pieces BIGINT, at TIMESTAMP"
    orders = changes("orders", columns, keys="id", watermark=("at", "2 seconds"))
    customers = changes("customers", "customer STRING, city STRING", keys="customer")
    products = changes("products", "product STRING, price BIGINT", keys="product")
    priced = orders.join(products, on="product").withColumn("paid", F.col("pieces") * F.col("price"))
    by_order = priced.join(customers, on="customer", how="left").select("id", "customer", "city", "product", "paid")
    by_city = by_order.groupBy("city").agg(F.count().alias("orders"), F.sum("paid").alias("revenue"))
    return {"by_order": by_order, "by_city": by_city}


def rows_of(epoch: int, draw_of: random.Random) -> Mapping[str, Any]:
    """Return the changes of an epoch: orders, sometimes a price, sometimes a customer who moves, rarely a broken order."""
    at = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    count = draw_of.randint(20, 40) + (120 if epoch % 50 == 30 else 0)
    orders: list[dict[str, Any]] = [
        {
            "id": draw_of.randrange(3000),
            "customer": f"customer {draw_of.randrange(200)}",
            "product": f"product {draw_of.randrange(30)}",
            "pieces": draw_of.randint(1, 9),
            "at": at - datetime.timedelta(milliseconds=draw_of.randrange(1500)),
        }
        for _ in range(count)
    ]
    if epoch % 40 == 39:
        orders.append({"id": None, "customer": "customer 7", "product": "product 1", "pieces": 1, "at": at})
    moving = range(200) if epoch == 0 else draw_of.sample(range(200), 2)
    priced = range(30) if epoch == 0 else draw_of.sample(range(30), 1 if epoch % 10 == 0 else 0)
    return {
        "orders": orders,
        "customers": [{"customer": f"customer {one}", "city": draw_of.choice(CITIES)} for one in moving],
        "products": [{"product": f"product {one}", "price": draw_of.randint(1, 20)} for one in priced],
    }


def draw(into: Path = DOCS) -> None:
    """Write the three pictures into a folder."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        options = StageOptions(on_bad_input="quarantine")
        with Pipeline(views(), f"{place}/shop", keep_inputs=True, options=options) as pipeline, pipeline.console() as console:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(console.url)
            source = random.Random(41)  # noqa: S311 - a draw, no secret
            for epoch in range(EPOCHS):
                pipeline.step(rows_of(epoch, source))
                page.wait_for_timeout(1000 * SECONDS_BETWEEN)
            time.sleep(1)
            page.screenshot(path=into / "console-live.png")
            _rows(page, into)
            _verified(page, into)
        browser.close()


def _rows(page: Page, into: Path) -> None:
    page.evaluate("location.hash = 'rows'")
    page.wait_for_timeout(1500)
    page.get_by_role("button", name="explain row 1").first.click()
    page.wait_for_timeout(2500)
    page.screenshot(path=into / "console-rows.png")


def _verified(page: Page, into: Path) -> None:
    page.get_by_role("button", name="dark").click()
    page.evaluate("location.hash = 'verify'")
    page.wait_for_timeout(500)
    page.get_by_role("button", name="verify").first.click()
    page.wait_for_timeout(4000)
    page.screenshot(path=into / "console-verify.png", clip={"x": 0, "y": 0, "width": 1280, "height": 420})


if __name__ == "__main__":
    draw()
