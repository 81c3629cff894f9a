"""Section 4 of the paper: sparse linear regression, by hand, against TVPGD, and what the section claims."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from hf_cyclical.core import TVPGD, PruningError, cyclical, gradual, lr_constant, magprune, one_shot, pgd, schedules
from hf_cyclical.paper import Rate, Simulation
from hf_cyclical.paper.linear import adversarial_alpha, gaussian, magprune_rows, random_alpha, ridge_map, tv_pgd

C = 2


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def problems(runs, n, d=5, lam=10.0, seed=0):
    """Adversarial problems and their regularised least-squares solutions."""
    X = gaussian(runs, n, d, torch.Generator().manual_seed(seed))
    A = ridge_map(X, lam)
    alpha = adversarial_alpha(A, C)
    return X, alpha, (A @ alpha.unsqueeze(2)).squeeze(2)


def train(X, alpha, W, recipe, lam=0.0):
    """One run by TVPGD in a plain loop, with autograd and SGD: mask and weights after every update."""
    w = nn.Parameter(W.clone())
    optimizer = torch.optim.SGD([w], lr=1 / (float(torch.linalg.eigvalsh(X.T @ X)[-1]) + lam))
    scheduler = LambdaLR(optimizer, recipe.eta)
    pruner = TVPGD({"w": w}, recipe)
    history = []
    for t in range(recipe.T):
        optimizer.zero_grad()
        (0.5 * (X @ w - X @ alpha).square().sum() + 0.5 * lam * w.square().sum()).backward()
        optimizer.step()
        pruner.step(t)
        scheduler.step()
        history.append((pruner.masks["w"].clone(), w.detach().clone()))
    return history


def assert_same_histories(some, others, **tolerances):
    for (mask, weights), (other_mask, other_weights) in zip(some, others, strict=True):
        assert torch.equal(mask, other_mask)
        torch.testing.assert_close(weights, other_weights, **{"rtol": 0, "atol": 0} | tolerances)


class TestByHand:
    def test_the_adversarial_alpha_misleads_magnitude_pruning(self):
        X = tensor([1, 2, 2]).unsqueeze(0)  # X^T X = x x^T, so that A = x x^T / (|x|^2 + lambda) = x x^T / 18
        A = ridge_map(X, lam=9.0)
        torch.testing.assert_close(A, tensor([1, 2, 2], [2, 4, 4], [2, 4, 4]).unsqueeze(0) / 18)
        alpha = adversarial_alpha(A, c=1)
        torch.testing.assert_close(alpha, tensor([1, 0, 2]) / 9)
        W = (A @ alpha.unsqueeze(2)).squeeze(2)
        torch.testing.assert_close(W, tensor([5, 10, 10]) / 162)
        assert magprune_rows(W, 1 / 3).tolist() == [[False, True, True]]

    def test_pgd_corrects_what_one_shot_pruning_cannot(self):
        X = tensor([1, 1], [0, 1]).unsqueeze(0)  # X^T X = [[1, 1], [1, 2]]
        alpha, W = tensor([0.0, 1.0]), tensor([0.6, 0.5])
        # pgd: (0.6, 0.5) - 0.5 (0.1, -0.4) = (0.55, 0.7), pruned (0, 0.7); then - 0.5 (-0.3, -0.6) gives (0.15, 1.0)
        for T, expected in ((1, [0.0, 0.7]), (2, [0.0, 1.0]), (9, [0.0, 1.0])):
            weights, mask = tv_pgd(X, alpha, W, pgd(0.5, T), step_size=0.5)
            torch.testing.assert_close(weights, tensor(expected))
            assert mask.tolist() == [[False, True]]
        # one-shot: (0.6, 0) at t = 0; then - 0.5 (-0.4, -1.4) gives (0.8, 0.7), masked
        weights, mask = tv_pgd(X, alpha, W, one_shot(0.5, 2, lr=lr_constant), step_size=0.5)
        torch.testing.assert_close(weights, tensor([0.8, 0.0]))
        assert mask.tolist() == [[True, False]]

    def test_the_standard_error_is_that_of_a_proportion(self):
        assert Rate(36, 100).value == 0.36
        assert Rate(36, 100).standard_error == pytest.approx(0.048)  # sqrt(0.36 * 0.64 / 100)
        assert Rate(0, 50).standard_error == 0


class TestProblems:
    @pytest.mark.parametrize("n", [2, 4, 10])
    @pytest.mark.parametrize("lam", [1e-3, 10.0])
    def test_a_alpha_is_the_regularised_least_squares_solution(self, n, lam):
        generator = torch.Generator().manual_seed(n)
        X, alpha = gaussian(20, n, 5, generator), random_alpha(20, 5, C, generator)
        y = X @ alpha.unsqueeze(2)
        # |y - X w|^2 + lambda |w|^2 is the plain loss of more rows: sqrt(lambda) I, with zeros to be predicted
        rows = torch.cat([X, math.sqrt(lam) * torch.eye(5, dtype=X.dtype).expand(20, 5, 5)], dim=1)
        expected = torch.linalg.lstsq(rows, torch.cat([y, torch.zeros(20, 5, 1, dtype=X.dtype)], dim=1)).solution
        torch.testing.assert_close(ridge_map(X, lam) @ alpha.unsqueeze(2), expected)

    def test_the_matrices_are_scaled_so_that_their_gram_matrix_is_the_identity_on_average(self):
        X = gaussian(20_000, 4, 5, torch.Generator().manual_seed(0))
        torch.testing.assert_close((X.mT @ X).mean(0), torch.eye(5, dtype=X.dtype), rtol=0, atol=0.03)

    def test_w_c_of_the_adversarial_alpha_is_the_sum_of_squares_of_row_c(self):
        X, alpha, W = problems(50, 4)
        A = ridge_map(X, 10.0)
        torch.testing.assert_close(W[:, C], (A[:, C] * alpha).sum(1))
        torch.testing.assert_close(W[:, C], A[:, C].square().sum(1) - A[:, C, C].square())
        assert (alpha[:, C] == 0).all()
        assert (alpha.count_nonzero(dim=1) == 4).all()

    def test_the_random_alpha_is_zero_at_c_only(self):
        alpha = random_alpha(50, 5, C, torch.Generator().manual_seed(0))
        assert torch.equal(alpha == 0, (torch.arange(5) == C).expand(50, 5))


class TestTheBatchIsCore:
    @given(
        st.integers(2, 6).flatmap(
            lambda d: st.lists(
                st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 5e-324]), min_size=d, max_size=d), min_size=1
            )
        ),
        st.floats(0, 1),
    )
    def test_every_row_is_pruned_as_magprune_prunes_a_layer(self, rows, s):
        W = tensor(*rows)
        masks = magprune({str(i): row for i, row in enumerate(W)}, s)
        assert torch.equal(magprune_rows(W, s), torch.stack(list(masks.values())))

    @pytest.mark.parametrize(
        "recipe",
        [one_shot(1 / 5, 30), pgd(1 / 5, 30), gradual(1 / 5, 30, delta_t=3), cyclical(2 / 5, 30, k=3, delta_t=2)],
        ids=["one_shot", "pgd", "gradual", "cyclical"],
    )
    def test_every_run_is_a_run_of_tvpgd(self, recipe):
        X, alpha, W = problems(8, 4, lam=1.0)
        weights, masks = tv_pgd(X, alpha, W, recipe)
        for i in range(8):
            mask, w = train(X[i], alpha[i], W[i], recipe)[-1]
            assert torch.equal(masks[i], mask)
            torch.testing.assert_close(weights[i], w)

    @pytest.mark.parametrize("n", [2, 10])
    def test_a_cell_counts_the_runs_whose_pruned_weight_is_c(self, n):
        X, alpha, W = problems(30, n, seed=7)
        found = {
            method: [not train(X[i], alpha[i], W[i], method(1 / 5, 40))[-1][0][C] for i in range(30)]
            for method in (one_shot, pgd)
        }
        cell = Simulation("adversarial", n=n, c=C, lam=10.0, runs=30, steps=40, seed=7).run()
        assert cell.one_shot == Rate(sum(found[one_shot]), 30)
        assert cell.pgd == Rate(sum(found[pgd]), 30)


def eta_zero_first(T):
    return schedules.zero_first(schedules.constant(1.0))


class TestObservation1:
    """For a single weight gradual pruning is one-shot pruning, and cyclical pruning with delta_t = 1 is PGD.

    The weights start at the minimum of a loss with the regulariser, as dense training leaves them. So they do not move
    while s(t) is too small to prune a weight, and a strictly increasing s is a step.
    """

    T, LAM = 60, 0.5

    def problem(self, seed):
        X, alpha, W = problems(1, 4, lam=self.LAM, seed=seed)
        return X[0], alpha[0], W[0], self.LAM

    def start(self, recipe):
        """The update at which the recipe first prunes the weight."""
        return next(t for t in range(recipe.T) if recipe.update_at(t) and round(5 * recipe.s(t)))

    @pytest.mark.parametrize("seed", range(5))
    def test_gradual_pruning_that_reaches_the_target_at_once_is_one_shot(self, seed):
        X, alpha, W, _ = self.problem(seed)
        recipe = gradual(1 / 5, self.T, ramp=0.0, lr=eta_zero_first)
        expected = train(X, alpha, W, one_shot(1 / 5, self.T, lr=lr_constant))
        assert_same_histories(train(X, alpha, W, recipe), expected)

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("shape", ["cubic", "linear"])
    def test_gradual_pruning_is_one_shot_from_the_step_on(self, shape, seed):
        problem = self.problem(seed)
        recipe = gradual(1 / 5, self.T, delta_t=self.T, ramp=0.2, shape=shape, lr=eta_zero_first)
        start = self.start(recipe)
        assert start == 12
        history = train(*problem[:3], recipe, problem[3])
        assert all(mask.all() for mask, _ in history[:start])
        expected = train(*problem[:3], one_shot(1 / 5, self.T - start, lr=lr_constant), problem[3])
        assert_same_histories(history[start:], expected, atol=1e-12)

    @pytest.mark.parametrize("seed", range(5))
    def test_cyclical_pruning_with_constant_s_is_pgd(self, seed):
        X, alpha, W, _ = self.problem(seed)
        recipe = cyclical(1 / 5, self.T, k=3, delta_t=1, ramp=1.0, shape="constant", lr=lr_constant)
        assert_same_histories(train(X, alpha, W, recipe), train(X, alpha, W, pgd(1 / 5, self.T)))

    @pytest.mark.parametrize("seed", range(5))
    def test_cyclical_pruning_is_pgd_from_the_first_step_on(self, seed):
        problem = self.problem(seed)
        recipe = cyclical(1 / 5, self.T, k=3, delta_t=1, s_init=0.6 / 5, ramp=1.0, lr=lr_constant)
        start = self.start(recipe)
        assert 0 < start < 20
        history = train(*problem[:3], recipe, problem[3])
        expected = train(*problem[:3], pgd(1 / 5, self.T - start), problem[3])
        assert_same_histories(history[start:], expected, atol=1e-12)

    def test_the_two_are_not_the_same(self):
        X, alpha, W = problems(5, 10)
        one_shots, pgds = (tv_pgd(X, alpha, W, method(1 / 5, self.T))[1] for method in (one_shot, pgd))
        assert not torch.equal(one_shots, pgds)


class TestSimulation:
    def test_magnitude_pruning_finds_the_adversarial_index_in_about_3_percent(self):
        cell = Simulation("adversarial", n=4, d=5, c=2, lam=1.0, runs=10_000, steps=1).run()
        assert cell.one_shot.value == pytest.approx(0.03, abs=0.01)

    def test_it_is_hardly_ever_found_with_many_more_weights_than_samples(self):
        cell = Simulation("adversarial", n=4, d=20, lam=1.0, runs=2000, steps=1).run()
        assert cell.one_shot.value < 0.002

    @pytest.mark.parametrize("alpha", ["random", "adversarial"])
    def test_pgd_is_better_but_for_severe_overparameterization(self, alpha):
        gains = {}
        for n in (2, 4, 10):
            cell = Simulation(alpha, n=n, lam=10.0, runs=1000, steps=500).run()
            gains[n] = cell.pgd.value - cell.one_shot.value
        assert abs(gains[2]) < 0.03
        assert gains[4] > 0.07
        assert gains[10] > 0.3

    def test_pgd_is_no_better_from_a_solution_with_hardly_any_regularisation(self):
        cell = Simulation("random", n=4, lam=0.01, runs=1000, steps=500).run()
        assert cell.pgd.value <= cell.one_shot.value

    def test_least_squares_alone_finds_c_where_it_determines_alpha(self):
        cell = Simulation("random", n=10, lam=1e-9, runs=500, steps=20).run()
        assert cell.one_shot == cell.pgd == Rate(500, 500)

    def test_weights_at_random_are_pruned_at_c_once_in_d(self):
        """One-shot pruning of an untrained model fails with probability (d - 1) / d."""
        W = torch.randn(20_000, 5, generator=torch.Generator().manual_seed(0))
        assert (~magprune_rows(W, 1 / 5)).double().mean(0).tolist() == pytest.approx([0.2] * 5, abs=0.012)

    def test_the_seed_decides(self):
        cells = [Simulation("random", n=4, lam=10.0, runs=300, steps=50, seed=seed).run() for seed in (0, 0, 1)]
        assert cells[0] == cells[1] != cells[2]

    def test_many_runs_are_done_in_parts(self, monkeypatch):
        monkeypatch.setattr("hf_cyclical.paper.linear._NUMBERS", 7 * 25)
        cell = Simulation("random", n=2, lam=10.0, runs=20, steps=2).run()
        assert cell.one_shot.runs == cell.pgd.runs == cell.settled.runs == 20

    def test_settled_runs_are_those_whose_mask_stays(self):
        cells = [Simulation("adversarial", n=10, lam=10.0, runs=500, steps=steps).run() for steps in (2, 400)]
        assert cells[0].settled.value < cells[1].settled.value

    def test_a_step_size_that_diverges_is_refused(self):
        with pytest.raises(PruningError, match=r"step size 50\.0 is too large"):
            Simulation("random", n=4, lam=10.0, runs=10, step_size=50.0).run()

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ({"n": 0}, "n is 0"),
            ({"runs": 0}, "runs is 0"),
            ({"steps": 0}, "steps is 0"),
            ({"lam": 0.0}, r"lambda is 0\.0"),
            ({"lam": math.nan}, "lambda is nan"),
            ({"step_size": -1.0}, r"step size is -1\.0"),
            ({"d": 1, "c": 0}, "d=1, c=0"),
            ({"c": 5}, "d=5, c=5"),
            ({"alpha": "hostile"}, "'hostile' is not one of random, adversarial"),
        ],
    )
    def test_bad_arguments_are_named(self, bad, message):
        with pytest.raises(PruningError, match=message):
            Simulation(**{"alpha": "random", "n": 4, "lam": 10.0, "runs": 10} | bad)
