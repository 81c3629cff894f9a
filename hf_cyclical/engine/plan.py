"""Which tensors a model needs, how they must be padded, and the operators on them, before any memory is laid out."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .grouping import in_groups
from .native import Host
from .planes import Layout, Tensor
from .program import Program

__all__ = ["Choice", "Plan"]

MOST_WASTE = 1.5  # vectors of all bands, by those of an image in one piece


@dataclass(frozen=True)
class Choice:
    """How one layer of the model is computed, and why.

    Attributes:
        layer: Its name in the model.
        path: "sparse", "dense" or "torch".
        why: The reason in a few words.
        sparsity: Of its weights.
    """

    layer: str
    path: str
    why: str
    sparsity: float


@dataclass
class Plan:
    """Tensors and operators; `program` turns them into rows when all of them are known.

    Tensors of one resolution share the distance between rows, because a tap must be the same offset in the input and in
    the output. It is the largest that any of them needs.
    """

    target: Host
    threads: int = 1
    choices: list[Choice] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    exchanged: set[Tensor] = field(default_factory=set)
    _parents: dict[Tensor, Tensor] = field(default_factory=dict)
    _operators: list[Callable[[Program], None]] = field(default_factory=list)

    def tensor(
        self,
        channels: int,
        height: int,
        width: int,
        *,
        flat: bool = False,
        exclusive: bool = False,
        band_rows: int = 0,
    ) -> Tensor:
        """A new tensor without padding."""
        layout = Layout(channels, height, width, self.target.width, flat=flat, band_rows=band_rows)
        tensor = Tensor(layout, exclusive)
        self.tensors.append(tensor)
        return tensor

    def band_rows(self, height: int, width: int) -> int:
        """Rows for each thread of an image of this size; 0 if it is not worth cutting it into bands."""
        rows = -(-height // self.threads)
        whole, band = (Layout(1, n, width, self.target.width, gap=1).vectors for n in (height, rows))
        worth = self.threads > 1 and -(-height // rows) == self.threads and self.threads * band <= MOST_WASTE * whole
        return rows if worth else 0

    def pad(self, tensor: Tensor, above: int = 0, below: int = 0, gap: int = 0) -> None:
        """Make sure that there is at least so much padding."""
        old = tensor.layout
        tensor.layout = replace(old, above=max(old.above, above), below=max(old.below, below), gap=max(old.gap, gap))

    def same_rows(self, *tensors: Tensor) -> None:
        """Give these tensors, and all that are tied to one of them, the same distance between rows."""
        first, *rest = (self._root(tensor) for tensor in tensors)
        for other in rest:
            if other is not first:
                self._parents[other] = first

    def later(self, operator: Callable[[Program], None]) -> None:
        """Add an operator, which writes its rows when layouts are final."""
        self._operators.append(operator)

    @property
    def steps(self) -> int:
        return len(self._operators)

    def program(self) -> tuple[Program, list[int]]:
        """The rows of all operators, and after how many rows each operator ends."""
        self._settle()
        program = Program(self.target, self.threads)
        operators = []
        for operator in self._operators:
            operator(program)
            operators.append(program.rows)
            program.rows = []
        ends = []
        for rows in in_groups(operators):
            program.rows += rows
            ends.append(len(program.rows))
        return program, ends

    def _root(self, tensor: Tensor) -> Tensor:
        while tensor in self._parents:
            tensor = self._parents[tensor]
        return tensor

    def _settle(self) -> None:
        groups: dict[Tensor, list[Tensor]] = {}
        for tensor in self.tensors:
            groups.setdefault(self._root(tensor), []).append(tensor)
        for group in groups.values():
            pitch = max(tensor.layout.pitch for tensor in group)
            for tensor in group:
                tensor.layout = replace(tensor.layout, gap=pitch - tensor.layout.width)
