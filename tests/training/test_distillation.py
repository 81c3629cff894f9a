"""Distillation: its loss against one written by hand, whose word it is, what it costs, resuming, two processes."""

import copy
import math

import pytest
import torch
from support.processes import on_processes
from support.sharded import ShardedTrainer
from support.tiny import CYCLICAL, TinyImages, TinyNet, build_trainer, same_weights
from torch.nn.functional import cross_entropy
from transformers import TrainerCallback

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.training import describe_plan, estimate_time
from hf_cyclical.training.distillation import divergence

TAUGHT = CYCLICAL | {"distill": 0.75, "distill_temperature": 2.0}
LOGS = {"logging_strategy": "steps", "logging_steps": 1}
SAVES = {"save_strategy": "steps", "save_steps": 4}


def by_hand(student, teacher, labels, weight=0.75, temperature=2.0):
    """Sums of p log(p / q) in plain Python, image by image."""
    total = 0.0
    for own, taught in zip(student.tolist(), teacher.tolist(), strict=True):
        q, p = ([math.exp(v / temperature) for v in values] for values in (own, taught))
        q, p = [v / sum(q) for v in q], [v / sum(p) for v in p]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    hard = cross_entropy(student, labels).item()
    return (1 - weight) * hard + weight * temperature**2 * total / len(student)


def batch(i, n=8):
    data = TinyImages()
    rows = [data[j % len(data)] for j in range(i * n, i * n + n)]
    return torch.stack([row["pixel_values"] for row in rows]), torch.stack([row["labels"] for row in rows])


class Students(TrainerCallback):
    """The model before each update."""

    def __init__(self):
        self.models = []

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.models.append(copy.deepcopy(model))


def losses(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_the_divergence_of_two_hand_worked_distributions():
    # At temperature 2: (1/2, 1/2) of the student and (1/4, 3/4) of the teacher.
    student, teacher = torch.zeros(1, 2), torch.tensor([[0.0, 2 * math.log(3)]])
    expected = 4 * (0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert divergence(student, teacher, 2.0).item() == pytest.approx(expected, rel=1e-5)
    pixels = [values.view(1, 2, 1, 1).expand(3, 2, 5, 7) for values in (student, teacher)]
    assert divergence(*pixels, 2.0).item() == pytest.approx(expected, rel=1e-5)


def test_logits_that_are_no_classes_are_refused():
    with pytest.raises(PruningError, match=r"gives logits of shape \[2, 5, 3\]: leave distill out"):
        divergence(torch.zeros(2, 5, 3), torch.zeros(2, 5, 3), 1.0)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_loss_is_the_one_by_hand_with_the_first_model_as_teacher(make_trainer, accumulation):
    students, teacher = Students(), TinyNet()
    trainer = make_trainer(
        TAUGHT, max_steps=6, callbacks=[students], gradient_accumulation_steps=accumulation, **LOGS
    )  # fmt: skip
    trainer.train()
    for step, (model, loss) in enumerate(zip(students.models, losses(trainer), strict=True)):
        parts = []
        for i in range(step * accumulation, (step + 1) * accumulation):
            pixels, labels = batch(i)
            with torch.no_grad():
                parts.append(by_hand(model(pixels)["logits"], teacher(pixels)["logits"], labels))
        assert loss == pytest.approx(sum(parts) / accumulation, rel=1e-4)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_loss_of_the_users_own_is_taught_as_much(make_trainer, accumulation):
    def own(outputs, labels, num_items_in_batch=None):
        return cross_entropy(outputs["logits"], labels, reduction="sum") / (8 * accumulation)

    runs = []
    for function in (None, own):
        trainer = make_trainer(TAUGHT, max_steps=6, gradient_accumulation_steps=accumulation)
        trainer.compute_loss_func = function
        trainer.train()
        runs.append(trainer.model.state_dict())
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=1e-4, atol=1e-6)


def test_evaluations_are_of_the_labels_alone(make_trainer):
    trainer = make_trainer(TAUGHT, max_steps=6)
    trainer.train()
    with torch.no_grad():
        rows = TinyImages(n=48, seed=2)
        expected = cross_entropy(trainer.model(rows.pixels)["logits"], rows.labels)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_after_a_dense_start_the_model_that_it_leaves_teaches(make_trainer):
    students = Students()
    trainer = make_trainer(TAUGHT | {"dense_updates": 4}, max_steps=12, callbacks=[students], **LOGS)
    trainer.train()
    assert same_weights(trainer.distillation.teacher, students.models[4])
    logged = losses(trainer)
    for step, teacher in ((3, None), (6, students.models[4])):
        pixels, labels = batch(step)
        with torch.no_grad():
            logits = students.models[step](pixels)["logits"]
            hard = cross_entropy(logits, labels).item()
            expected = by_hand(logits, teacher(pixels)["logits"], labels) if teacher else hard
        assert logged[step] == pytest.approx(expected, rel=1e-4)


def test_the_teacher_has_the_precision_of_the_run_and_never_changes(make_trainer):
    students = Students()
    trainer = make_trainer(TAUGHT, max_steps=6, bf16=True, callbacks=[students], **LOGS)
    trainer.train()
    teacher = trainer.distillation.teacher
    assert same_weights(teacher, TinyNet())
    assert not teacher.training
    assert not any(p.requires_grad for p in teacher.parameters())
    pixels, labels = batch(3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        own, taught = students.models[3](pixels)["logits"].float(), TinyNet()(pixels)["logits"].float()
    assert torch.equal(trainer.distillation.teacher(pixels)["logits"], taught)
    assert losses(trainer)[3] == pytest.approx(by_hand(own, taught, labels), rel=1e-2)


@pytest.mark.parametrize(("dense", "resumed_at"), [(0, 8), (6, 4), (6, 8)])
def test_a_resumed_run_has_the_teacher_that_it_started_with(make_trainer, tmp_path, dense, resumed_at):
    arguments = {"max_steps": 18, "shuffle": True, **SAVES}
    pruning = TAUGHT | {"dense_updates": dense}
    first = make_trainer(pruning, **arguments)
    first.train()
    again = make_trainer(pruning, model=TinyNet(seed=5), output_dir=str(tmp_path / "again"), **arguments)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{resumed_at}"))
    assert same_weights(again.model, first.model)
    assert same_weights(again.distillation.teacher, first.distillation.teacher)


def run_on_a_process(rank, folder, batch_size):
    trainer = build_trainer(folder, TAUGHT, max_steps=12, per_device_train_batch_size=batch_size, **SAVES)
    trainer.train()
    resumed = build_trainer(
        folder / "again", TAUGHT, model=TinyNet(seed=7 + rank), max_steps=12, per_device_train_batch_size=batch_size,
        **SAVES,
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-8"))
    models = (trainer.model, resumed.model, trainer.distillation.teacher)
    return [{name: value.clone() for name, value in model.state_dict().items()} for model in models]


def test_two_processes_train_as_one(tmp_path):
    one, _, _ = run_on_a_process(0, tmp_path / "one", 8)
    two = on_processes(2, run_on_a_process, tmp_path / "two", 4)
    for model, resumed, teacher in two:
        for name, value in one.items():
            torch.testing.assert_close(model[name], value, rtol=1e-4, atol=1e-6)
            assert torch.equal(resumed[name], model[name])
            assert torch.equal(model[name], two[0][0][name])
            assert torch.equal(teacher[name], TinyNet().state_dict()[name])


def test_the_plan_says_who_teaches_and_what_it_costs(make_trainer):
    text = describe_plan(make_trainer(TAUGHT, max_steps=12))
    # 1,644 weights and 31 biases of 4 bytes
    assert "the model as it is at the start teaches, weight 0.75, temperature 2." in text
    assert "a forward pass more for each batch, about a third of an update, and 0.0067 MB in memory" in text
    assert "after the 4 dense updates" in describe_plan(make_trainer(TAUGHT | {"dense_updates": 4}, max_steps=12))
    assert "Distillation" not in describe_plan(make_trainer(CYCLICAL, max_steps=12))


def test_the_estimate_counts_the_teacher(make_trainer):
    passes = []

    class Counting(TinyNet):
        def forward(self, pixel_values, labels=None):
            passes.append(torch.is_grad_enabled())
            return super().forward(pixel_values, labels)

    trainer = make_trainer(TAUGHT, model=Counting(), max_steps=12)
    assert "12 updates of" in estimate_time(trainer)
    updates = sum(passes)
    assert passes.count(False) >= updates == 4
    passes.clear()
    estimate_time(make_trainer(CYCLICAL, model=Counting(), max_steps=12))
    assert passes.count(False) < 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"distill": 1.5}, r"distill 1.5 must be in \[0, 1\]: use 0.5, or leave it out"),
        ({"distill": 0.5, "target_sparsity": 0}, "distill 0.5 has no effect where nothing is pruned"),
        ({"distill": 0.5, "method": "freeze"}, "distill 0.5 has no dense teacher: method freeze starts from a sparse"),
        ({"distill_temperature": 4}, "distill_temperature 4 has no meaning without distill: leave it out"),
        ({"distill": 0.5, "distill_temperature": 0}, r"distill_temperature 0 must be in \(0, 100\]: use 4"),
    ],
)
def test_what_has_no_teacher_is_refused_in_one_line(settings, words):
    with pytest.raises(PruningError, match=words):
        PruningConfig(**settings)


def test_split_weights_are_refused(make_trainer):
    with pytest.raises(PruningError, match="distill is not made for weights that FSDP splits: use DDP"):
        make_trainer(TAUGHT, max_steps=4, kind=ShardedTrainer)
