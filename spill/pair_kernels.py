"""The format of a run of pairs, and the loops that find pairs in it.

A pair is two numbers of 32 bits, as one int64 word: `((first - 2^31) << 32) | second`, so that words ascend as pairs do.
A page is `PAIRS_PER_PAGE` words (the last one of a run fewer), ascending; the *directory* keeps the first word of every page
in memory, and behind them the last word of the run. First numbers are hashes, so its position within its page is guessed
from the words at both its ends; a guess that is wrong costs as many steps as it is wrong by, a page at most.

The *filter* of a run has 16 bits per pair and sets two for each, in one word of 64; these words ascend with the numbers, so
that what is looked for in order is found in order. Of the numbers that do not exist one in fifty passes.

Several runs are looked into at once: a line of `RUN_WORDS` words holds the addresses of its directory and filter.
"""

from __future__ import annotations

from typing import Any

from spill.page_kernels import close_window, open_window
from zset_join.kernels.machine.compiled import kernel
from zset_join.kernels.machine.memory import load_u64, prefetch, shift_right

__all__ = [
    "PAIRS_PER_FILTER_WORD",
    "PAIRS_PER_PAGE",
    "PAIR_PAGE_BYTES",
    "RUN_WORDS",
    "fill_filter",
    "filter_word",
    "find_pair_pages",
    "take_pairs",
]

PAIRS_PER_PAGE = 128
PAIR_PAGE_BYTES = 8 * PAIRS_PER_PAGE
PAIRS_PER_FILTER_WORD = 4
RUN_DIRECTORY, RUN_PAGES, RUN_PAIRS, RUN_FILTER, RUN_FILTER_WORDS = 0, 1, 2, 3, 4
RUN_WORDS = 5
_BIAS = 1 << 31
_ODD = -0x61C8864680B583EB
_AHEAD = 8


@kernel
def filter_word(first: int, words: int) -> int:
    """Return the word of a filter of so many that has the bits of a number."""
    return ((first + _BIAS) * words) >> 32


@kernel
def _filter_bits(first: int) -> int:
    mixed = first * _ODD
    return int((1 << shift_right(mixed, 58)) | (1 << (shift_right(mixed, 52) & 63)))


@kernel
def fill_filter(pairs: Any, words: int, begin: int, bits: Any) -> None:
    # `pairs` and `bits` are words; `begin` is the number of the first word in `bits` among the `words` of the filter.
    for pair in range(len(pairs)):
        first = pairs[pair] >> 32
        bits[filter_word(first, words) - begin] |= _filter_bits(first)


@kernel
def _may_hold(run: Any, first: int) -> bool:
    bits = _filter_bits(first)
    return bool(load_u64(run[RUN_FILTER] + 8 * filter_word(first, run[RUN_FILTER_WORDS])) & bits == bits)


@kernel
def _first_of(directory: int, page: int) -> int:
    return int(load_u64(directory + 8 * page) >> 32)


@kernel
def _page_below(directory: int, pages: int, page: int, first: int) -> int:
    """Return the last page that begins below a number, else page 0; gallops from a page that is not behind it."""
    step = 1
    high = page + 1
    while high < pages and _first_of(directory, high) < first:
        page = high
        high = min(high + step, pages)
        step *= 2
    while high - page > 1:
        middle = (page + high) >> 1
        if _first_of(directory, middle) < first:
            page = middle
        else:
            high = middle
    return page


@kernel
def find_pair_pages(
    runs: Any, firsts: Any, cursor: Any, page_runs: Any, pages: Any, wanted_firsts: Any, wanted_pages: Any, guesses: Any
) -> tuple[int, int]:
    """List the pages that may hold pairs with some first numbers, run by run, ascending and each once, and what to look for."""
    # Stops when a list is full; called again with the same cursor it continues. `firsts` are less 2^31 and ascend. `cursor` is
    # at first 0, 0, -1: run, next wanted, page to look at next; the run ends as their number. Of each look-up (their number is
    # returned second), `wanted_pages` gets the position of its page among those listed.
    count = 0
    lookups = 0
    run, wanted, resumed = cursor[0], cursor[1], cursor[2]
    while run < len(runs):
        directory, page_count = runs[run, RUN_DIRECTORY], runs[run, RUN_PAGES]
        last = -1
        below = 0
        while wanted < len(firsts):
            first = firsts[wanted]
            if _may_hold(runs[run], first):
                below = _page_below(directory, page_count, below, first)
                page = below if resumed < 0 else resumed
                resumed = -1
                while page < page_count and _first_of(directory, page) <= first:
                    if lookups == len(wanted_firsts) or (page != last and count == len(pages)):
                        cursor[0], cursor[1], cursor[2] = run, wanted, page
                        return count, lookups
                    if page != last:
                        page_runs[count], pages[count] = run, page
                        count += 1
                        last = page
                    wanted_firsts[lookups], wanted_pages[lookups] = first, count - 1
                    guesses[lookups] = _guessed(runs[run], page, first)
                    lookups += 1
                    page += 1
            wanted += 1
        run, wanted = run + 1, 0
    cursor[0] = run
    return count, lookups


@kernel
def _pairs_of(run: Any, page: int) -> int:
    return min(PAIRS_PER_PAGE, int(run[RUN_PAIRS]) - page * PAIRS_PER_PAGE)


@kernel
def _guessed(run: Any, page: int, first: int) -> int:
    """Return where in a page a number would be, if the numbers there are spread evenly."""
    begin, end = _first_of(run[RUN_DIRECTORY], page), _first_of(run[RUN_DIRECTORY], page + 1)
    pairs = _pairs_of(run, page)
    return max(0, min(pairs - 1, int(float(first - begin) * pairs / max(1.0, float(end - begin)))))


@kernel
def take_pairs(
    addresses: Any,
    windows: Any,
    page_runs: Any,
    pages: Any,
    wanted_firsts: Any,
    wanted_pages: Any,
    guesses: Any,
    runs: Any,
    found: Any,
) -> int:
    """Copy the wanted pairs out of some pages; return how many, or -1 - position of a page that is damaged."""
    # Windows are opened one after the other, and none is open in the end.
    # `wanted_*` and `guesses` are as `find_pair_pages` left them; `found` gets the pairs as words.
    count = 0
    window, behind = 0, 0
    checked = -1
    for lookup in range(len(wanted_pages)):
        at = wanted_pages[lookup]
        if at >= behind:
            if behind > 0:
                close_window(windows[window - 1, 4], windows[window - 1, 5])
                behind = 0
            if window < len(windows) and windows[window, 0] == at:
                if not open_window(windows[window, 2], windows[window, 3]):
                    return -1 - int(at)
                behind = windows[window, 1]
                window += 1
        ahead = min(lookup + _AHEAD, len(wanted_pages) - 1)
        coming = wanted_pages[ahead]
        if coming < behind:
            prefetch(addresses[coming])
            prefetch(addresses[coming] + 8 * guesses[ahead])
        run, page, address = runs[page_runs[at]], pages[at], addresses[at]
        if at != checked:
            if load_u64(address) != load_u64(run[RUN_DIRECTORY] + 8 * page):
                count = -1 - at
                break
            checked = at
        first, place, pairs = wanted_firsts[lookup], guesses[lookup], _pairs_of(run, page)
        while place > 0 and load_u64(address + 8 * (place - 1)) >> 32 >= first:
            place -= 1
        while place < pairs and load_u64(address + 8 * place) >> 32 < first:
            place += 1
        while place < pairs and load_u64(address + 8 * place) >> 32 == first:
            found[count] = load_u64(address + 8 * place)
            count += 1
            place += 1
    if behind > 0:
        close_window(windows[window - 1, 4], windows[window - 1, 5])
    return count
