"""Section 4 of the paper: sparse linear regression with a single weight to prune, for many runs at once.

A problem is y = X alpha with alpha_c = 0, and recovery means that the weight which is pruned at the end is c. (That the
weights equal alpha, too, cannot be asked for: with n < d - 1 they are not determined even by the right support.)

The paper writes y = w^T X with X of d x n. But its A = (X^T X + lambda I)^-1 X^T X is d x d, and w = A alpha the
regularised least-squares solution, only if the samples are the rows of X. So X is n x d here; the problem is the same.

Every row of a tensor of weights is one run, that is one layer of d weights in `magprune`'s local scope.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hf_cyclical.core import PruningError, Recipe
from hf_cyclical.core.recipes import one_shot, pgd

Choice = Literal["random", "adversarial"]
"""How alpha is chosen."""

_NUMBERS = 1 << 20  # numbers in the matrices of the runs that are done in one go: bounds the memory


@dataclass(frozen=True)
class Rate:
    """A probability as it was measured: how many of the runs succeeded."""

    successes: int
    runs: int

    @property
    def value(self) -> float:
        """The estimate p."""
        return self.successes / self.runs

    @property
    def standard_error(self) -> float:
        """Of the estimate: sqrt(p (1 - p) / runs)."""
        return math.sqrt(self.value * (1 - self.value) / self.runs)

    def __add__(self, other: "Rate") -> "Rate":
        return Rate(self.successes + other.successes, self.runs + other.runs)


@dataclass(frozen=True)
class Recovery:
    """How often the methods find c.

    Attributes:
        one_shot: Magnitude pruning of the regularised least-squares solution; what follows cannot change its mask.
        pgd: Projected gradient descent from the same weights.
        settled: How often PGD's mask at the end is the one it had after half of its updates.
    """

    one_shot: Rate
    pgd: Rate
    settled: Rate

    def __add__(self, other: "Recovery") -> "Recovery":
        return Recovery(self.one_shot + other.one_shot, self.pgd + other.pgd, self.settled + other.settled)


@dataclass(frozen=True)
class Simulation:
    """One cell of Table 1. With the same seed, n and d the matrices are the same for every alpha and lambda.

    Attributes:
        alpha: How alpha is chosen.
        n: Number of samples.
        lam: The lambda of the regularised least-squares solution from which both methods start.
        d: Number of weights.
        c: Index of the weight that is zero in alpha, from 0. Makes no difference: the columns of X are alike.
        runs: Number of problems.
        steps: Updates of PGD.
        step_size: Of PGD; if not given, 1 / L of each problem, L being the Lipschitz constant of its gradient.
        seed: Of matrices and alphas.

    Raises:
        PruningError: If the values make no problem.
    """

    alpha: Choice
    n: int
    lam: float
    d: int = 5
    c: int = 2
    runs: int = 10_000
    steps: int = 1000
    step_size: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.alpha not in get_args(Choice):
            raise PruningError(f"alpha {self.alpha!r} is not one of {', '.join(get_args(Choice))}: choose one of them")
        if self.d < 2 or not 0 <= self.c < self.d:
            raise PruningError(f"d={self.d}, c={self.c} leave no choice: give d of at least 2 and c from 0 to d - 1")
        for name, count in (("n", self.n), ("runs", self.runs), ("steps", self.steps)):
            if count < 1:
                raise PruningError(f"{name} is {count}: give at least 1")
        for name, number in (("lambda", self.lam), ("step size", self.step_size)):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise PruningError(f"{name} is {number}: give a positive number")

    def run(self) -> Recovery:
        """Count the runs that recover c.

        Raises:
            PruningError: If PGD diverges.
        """
        generator = torch.Generator().manual_seed(self.seed)
        at_once = max(_NUMBERS // (max(self.n, self.d) * self.d), 1)
        starts = range(0, self.runs, at_once)
        parts = [self._run_some(min(at_once, self.runs - start), generator) for start in starts]
        return sum(parts[1:], parts[0])

    def _run_some(self, runs: int, generator: torch.Generator) -> Recovery:
        s = 1 / self.d  # a single weight
        X = gaussian(runs, self.n, self.d, generator)
        A = ridge_map(X, self.lam)
        alpha = random_alpha(runs, self.d, self.c, generator)
        if self.alpha == "adversarial":
            alpha = adversarial_alpha(A, self.c)
        W = (A @ alpha.unsqueeze(2)).squeeze(2)
        _, pruned = tv_pgd(X, alpha, W, one_shot(s, 1))
        half = self.steps // 2
        middle, halfway = tv_pgd(X, alpha, W, pgd(s, half), self.step_size) if half else (W, pruned)
        _, end = tv_pgd(X, alpha, middle, pgd(s, self.steps - half), self.step_size)
        return Recovery(_rate(~pruned[:, self.c]), _rate(~end[:, self.c]), _rate((halfway == end).all(1)))


def gaussian(runs: int, n: int, d: int, generator: torch.Generator) -> Tensor:
    """Matrices X that nearly have the restricted isometry property: normal entries, scaled so that E[X^T X] = I."""
    return torch.randn(runs, n, d, dtype=torch.float64, generator=generator) / math.sqrt(n)


def ridge_map(X: Tensor, lam: float) -> Tensor:
    """A = (X^T X + lambda I)^-1 X^T X, which takes alpha to the regularised least-squares solution of y = X alpha."""
    # By singular values, since X^T X of n < d samples plus a small lambda is singular to working precision.
    _, sigma, Vh = torch.linalg.svd(X, full_matrices=False)
    A: Tensor = (Vh.mT * (sigma**2 / (sigma**2 + lam)).unsqueeze(-2)) @ Vh
    return A


def random_alpha(runs: int, d: int, c: int, generator: torch.Generator) -> Tensor:
    """Normal entries, except for the zero at c."""
    return _zero_at(c, torch.randn(runs, d, dtype=torch.float64, generator=generator))


def adversarial_alpha(A: Tensor, c: int) -> Tensor:
    """The row c of A, except for the zero at c: w_c = A[c] . alpha is then a sum of squares, seldom the smallest."""
    return _zero_at(c, A[:, c])


def magprune_rows(W: Tensor, s: float) -> Tensor:
    """`magprune` with each row a layer of its own, for many short rows: the same k, and ties broken by index, too."""
    d = W.shape[1]
    k = min(round(s * d), d - 1)
    size = W.abs()
    # Both take the first of equals; for a single weight a minimum is five times as fast as a sort.
    smallest = size.argmin(dim=1, keepdim=True) if k == 1 else size.argsort(dim=1, stable=True)[:, :k]
    return torch.ones_like(W, dtype=torch.bool).scatter_(1, smallest, False)


def tv_pgd(
    X: Tensor, alpha: Tensor, W: Tensor, recipe: Recipe, step_size: float | None = None
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 for every run, on the loss |y - X w|^2 / 2 with y = X alpha: the weights and masks at the end."""
    gram = X.mT @ X
    rate = 1 / torch.linalg.matrix_norm(X, 2).square().unsqueeze(1) if step_size is None else step_size
    M = torch.ones_like(W, dtype=torch.bool)
    for t in range(recipe.T):  # line 2
        gradient = (gram @ (W - alpha).unsqueeze(2)).squeeze(2)
        W = W - recipe.eta(t) * rate * gradient  # line 3
        if recipe.update_at(t):  # line 4
            M = magprune_rows(W, recipe.s(t))  # line 5
        if recipe.project_at(t):
            W = W * M  # line 7
    if not W.isfinite().all():
        raise PruningError(
            f"step size {step_size} is too large: weights grow without bound; give a smaller one, or none for 1 / L"
        )
    return W, M


def _rate(succeeded: Tensor) -> Rate:
    return Rate(int(succeeded.count_nonzero()), len(succeeded))


def _zero_at(c: int, rows: Tensor) -> Tensor:
    rows = rows.clone()
    rows[:, c] = 0
    return rows
