"""A store of pairs of numbers on disk, found by the first: which key a row has, by its primary key.

The law: `find` returns exactly the pairs that were put with the first numbers requested, each once or as often as it was put.
Nothing takes single pairs away; `replace` puts others in the place of all.

Pairs are in runs (`spill.run_set`), which are merged; where equal pairs meet, one stays. A look-up checks the filter of each
run, and reads the page where the pair would be, out of a mapped window where many are wanted. Of the numbers that a run does
not have one in fifty costs a page. Remembers 2.1 bytes per pair, in mapped files.

Numbers have 32 bits and no sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from spill import pair_kernels as k
from spill.cold_store import Int64s, each_once
from spill.file_pages import FilePages
from spill.pages import Pages, damaged_page
from spill.pair_run import PairRun, PairRunWriter, bounds_of
from spill.run import LEAST_PART
from spill.run_set import RunSet

__all__ = ["PairStore"]

_BIAS = 1 << 31
_MOST_PAGES = 1 << 11
_MOST_LOOKUPS = 1 << 14
_LEAST_LOOKUPS = 1 << 8  # a single number may have pairs in many pages
_MERGED_PAGES = 1 << 9  # of all runs that are merged, in memory at once
_LEAST_CHUNK = 1 << 5


class PairStore(RunSet[PairRun]):
    """Keep pairs of numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = PairStore(f"{directory}/keys", owner={"query": "doctest"})
    ...     store.put(np.array([7, 8, 7]), np.array([1, 2, 3]))
    ...     found = store.find(np.array([7, 9]))
    ...     store.close()
    >>> found[0].tolist(), found[1].tolist()
    ([7, 7], [1, 3])
    """

    fanout = 4  # pairs are merged faster than they are looked for in many runs

    def __init__(self, directory: str | Path, *, owner: Mapping[str, str | int], pages: Pages | None = None) -> None:
        lying = FilePages(directory) if pages is None else pages
        super().__init__(directory, pages=lying, stamp={"holds": "pairs", "owner": dict(owner)})

    def _set_runs(self, runs: Sequence[PairRun]) -> None:
        super()._set_runs(runs)
        self._numbers = [run.number for run in runs]
        self._rows = np.array([run.rows for run in runs], np.int64)
        self._table = np.array([run.line() for run in runs], np.int64).reshape(-1, k.RUN_WORDS)

    def _opened_run(self, number: int, rows: int, live: int) -> PairRun:  # noqa: ARG002 - all pairs live
        return PairRun(self._directory, number, self._pages, rows=rows)

    def _new_writer(self, number: int) -> PairRunWriter:
        return PairRunWriter(self._directory, number, self._pages)

    def find(self, firsts: Int64s) -> tuple[Int64s, Int64s]:
        """Return the pairs with some first numbers: first and second number of each, in no particular order."""
        wanted = each_once(firsts) - _BIAS
        word_parts = [np.empty(0, np.int64)]
        with self._reading():
            for first, behind, parts in self._portions(self._runs):
                size = max(LEAST_PART, -(-len(wanted) // parts))
                for begin in range(0, len(wanted), size):
                    word_parts += self._found(wanted[begin : begin + size], slice(first, behind))
                    if not self._keeps_index:
                        for run in self._runs[first:behind]:
                            run.release()
        words = np.concatenate(word_parts)
        return (words >> 32) + _BIAS, words & 0xFFFFFFFF

    def _found(self, wanted: Int64s, among: slice) -> Iterator[Int64s]:
        """Yield the pairs found among some runs."""
        cursor, table = np.array([0, 0, -1], np.int64), self._table[among]
        most = min(_MOST_LOOKUPS, max(_LEAST_LOOKUPS, 2 * len(wanted) * len(table)))
        page_runs, pages = np.empty((2, min(most, _MOST_PAGES)), np.int64)
        wanted_firsts, wanted_pages, guesses = np.empty((3, most), np.int64)
        lists = (page_runs, pages, wanted_firsts, wanted_pages, guesses)
        while cursor[0] < len(table):
            count, looked = k.find_pair_pages(table, wanted, cursor, *lists)
            if looked:
                lookups = (wanted_firsts[:looked], wanted_pages[:looked], guesses[:looked])
                yield self._taken(page_runs[:count], pages[:count], lookups, among)

    def _taken(self, page_runs: Int64s, pages: Int64s, lookups: tuple[Int64s, Int64s, Int64s], among: slice) -> Int64s:
        numbers = self._numbers[among]
        begins, ends = bounds_of(pages, self._rows[among][page_runs])
        read = self._pages.read(numbers, page_runs, pages, begins, ends, may_map=True)
        words = np.empty(len(pages) * k.PAIRS_PER_PAGE, np.int64)
        count = k.take_pairs(read.addresses, read.windows, page_runs, pages, *lookups, self._table[among], words)
        if count < 0:
            raise damaged_page(str(self._directory), numbers[page_runs[-1 - count]], int(pages[-1 - count]))
        taken: Int64s = words[:count].copy()
        return taken

    def put(self, firsts: Int64s, seconds: Int64s) -> None:
        """Add pairs: all of them, or none and an error. Cost: their sorting, and 8 bytes each."""
        if len(firsts) == 0:
            return
        words = each_once(((firsts - _BIAS) << 32) | seconds)
        with self._written_run() as writer:
            writer.expect(len(words))
            writer.append(words)

    def replace(self, parts: Iterable[tuple[Int64s, Int64s]]) -> None:
        """Replace all pairs by others: all of them, or none and an error. Cost: as `put`; meanwhile both are on the disk."""
        before = self._runs
        try:
            for part in parts:
                self.put(*part)
        except BaseException:
            self._drop([run for run in self._runs if run not in before])
            raise
        self._drop(before)

    def _merged(self, runs: Sequence[PairRun]) -> None:
        with self._written_run() as writer:
            writer.expect(sum(run.rows for run in runs))
            for words in _in_one_order([run.words(max(_LEAST_CHUNK, _MERGED_PAGES // len(runs))) for run in runs]):
                writer.append(words)


def _in_one_order(sources: Sequence[Iterator[Int64s]]) -> Iterator[Int64s]:
    """Yield ascending words of several sources, each of them ascending, in one order; equal ones that meet once."""
    held: list[tuple[Iterator[Int64s], Int64s]] = [(source, words) for source in sources for words in _next_of(source)]
    while held:
        bound = min(int(words[-1]) for _, words in held)
        parts: list[Int64s] = []
        left: list[tuple[Iterator[Int64s], Int64s]] = []
        for source, words in held:
            end = int(np.searchsorted(words, bound, "right"))
            parts.append(words[:end])
            left += [(source, words[end:])] if end < len(words) else [(source, more) for more in _next_of(source)]
        held = left
        yield each_once(np.concatenate(parts))


def _next_of(source: Iterator[Int64s]) -> list[Int64s]:
    """Return the next part of a source, if there is one."""
    part = next(source, None)
    return [] if part is None else [part]
