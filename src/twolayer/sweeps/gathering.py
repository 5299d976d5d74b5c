"""The parts of cells that are asked for statistics: which are missing, and how they are put together as they arrive."""

from collections.abc import Iterable, Mapping, Sequence

from twolayer.sweeps.compute import Job
from twolayer.sweeps.content import CellNode, CellStatus, Content, packed
from twolayer.sweeps.query import Query, keys_of
from twolayer.sweeps.statistics import concluded, joined
from twolayer.sweeps.sweep_store import Store


class _Gathered:
    """A cell whose parts are put together in their order: one that comes early waits."""

    def __init__(self, parts: Sequence[str]):
        self.parts, self.number = parts, 0  # how many of them are in
        self.node: CellNode | None = None
        self.fault: Content | None = None

    def add(self, content: Content) -> None:
        """Put the next part to the others."""
        self.number += 1
        if content.status != CellStatus.DONE:
            self.fault = content
        elif self.fault is None:
            node = content.nodes[""]
            self.node = node if self.node is None else joined(self.node, node)

    @property
    def result(self) -> Content:
        """The statistics, when all parts are in; a part that failed gives its reason."""
        if self.fault is not None:
            return self.fault
        assert self.node is not None
        return concluded(self.node)


class Gathering:
    """Cells whose replicas are computed in parts.

    Parameters
    ----------
    cells
        The cells that are missing, by their keys.
    where
        What numbers depend on where they are computed, as in `Query.key`.
    store
        Where parts arrive, and where statistics are kept. A folder keeps the parts, too, for a run with more replicas;
        in memory they are given up as soon as they are used.
    """

    def __init__(self, cells: Mapping[str, Query], where: str, store: Store):
        self.store = store
        self.cells: dict[str, _Gathered] = {}
        self.queries: dict[str, Query] = {}  # of the parts
        self._users: dict[str, set[str]] = {}  # the cells that wait for each part
        for key, query in cells.items():
            parts = query.parts()
            names = keys_of(parts, where)
            self.cells[key] = _Gathered(names)
            self.queries |= zip(names, parts, strict=True)
            for name in names:
                self._users.setdefault(name, set()).add(key)

    def jobs(self) -> list[Job]:
        """The parts that are missing, after those that are there were put together."""
        missing = [Job(name, query) for name, query in self.queries.items() if name not in self.store]
        self.arrived(name for name in list(self._users) if name in self.store)
        return missing

    def arrived(self, names: Iterable[str]) -> None:
        """Take in parts that are there, and keep the statistics of cells that are complete."""
        for key in {key: None for name in names for key in self._users.get(name, ())}:
            cell = self.cells[key]
            while cell.number < len(cell.parts) and (name := cell.parts[cell.number]) in self.store:
                contents = dict(self.store.contents([name]))
                if name not in contents:  # a pack that was there and cannot be read
                    break
                cell.add(contents[name])
                users = self._users[name]
                users.discard(key)
                if not users and self.store.folder is None:
                    self.store.discard([name])
            if cell.number == len(cell.parts):
                self.store.save([key], packed({key: cell.result}))
