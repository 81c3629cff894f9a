"""Finished runs to push, and clients that have hf_cyclical imported beforehand."""

import atexit
import dataclasses
import functools
import hashlib
import inspect
import json
import shutil
import tempfile
import textwrap
from pathlib import Path

import torch
from support.local_hub import WRITER, client_environment
from support.local_hub.clients import LIBRARIES, RESULT, Clients, start
from support.stamped import edit_json
from support.tiny import accuracy
from torch.utils.data import Dataset
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments, ViTImageProcessor

from hf_cyclical import CyclicalPruningTrainer, PruningConfig
from hf_cyclical.models import load_image_model, make_portable
from hf_cyclical.reports import FIGURE_NAME, REPORT_NAME, plot_run, versions

LABELS = ["cat", "dog", "eel"]
PUSHED = ["README.md", "config.json", "model.safetensors", "pruning_report.json", "pruning_run.png", "sparsity.json"]


class Pixels(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        pixels = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(i))
        return {"pixel_values": pixels, "labels": i % 3}


def make_trainer(
    folder, kind="timm", *, target=0.9, trainer=CyclicalPruningTrainer, model=None, processor=None, **arguments
):
    torch.manual_seed(0)
    if model is not None:
        pass
    elif kind == "timm":
        loaded = load_image_model("test_resnet", LABELS, image_size=32, from_scratch=True)
        model, processor = loaded.model, loaded.processor
    else:
        config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        config.id2label, config.label2id = dict(enumerate(LABELS)), {name: i for i, name in enumerate(LABELS)}
        model, processor = ResNetForImageClassification(config), ViTImageProcessor()
    defaults = {
        "output_dir": str(folder), "max_steps": 8, "per_device_train_batch_size": 8, "learning_rate": 0.01,
        "optim": "sgd", "max_grad_norm": 0.0, "report_to": "none", "save_strategy": "no", "logging_strategy": "no",
        "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "remove_unused_columns": False,
    }  # fmt: skip
    return trainer(
        model,
        TrainingArguments(**(defaults | arguments)),
        pruning=PruningConfig(target_sparsity=target, **({"cycles": 2, "delta_t": 1} if target else {})),
        train_dataset=Pixels(),
        eval_dataset=Pixels(),
        processing_class=processor,
        compute_metrics=accuracy,
    )


def copy_run(run, folder, **about):
    """A run of one's own, to do something to, with another report about it."""
    shutil.copytree(run, folder, dirs_exist_ok=True)
    edit_json(folder / REPORT_NAME, lambda report: report["about"].update(about))
    return folder


@functools.cache
def finished_run(kind="timm"):
    """The folder of a finished run, for all tests; whoever changes it takes a copy."""
    parent = Path(tempfile.mkdtemp(prefix="finished_"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    folder = parent / "run"
    trainer = make_trainer(folder, kind)
    trainer.train()
    trainer.save_model()
    make_portable(folder)
    model = "test_resnet" if kind == "timm" else "/home/somebody/models/resnet"
    command = "hf-cyclical prune --output_dir /home/somebody/runs/1"
    about = {"model": model, "dataset": "digits", "seed": 0, "command": command, "versions": versions()}
    report = dataclasses.replace(trainer.report, about=about)
    report.save(folder)
    plot_run(report, folder / FIGURE_NAME)
    return folder


def logits(model):
    """What a model says of fixed images."""
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        output = model.eval()(pixels)
    return getattr(output, "logits", output).tolist()


def contents(folder):
    """Every file below a folder, and when it was changed."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(f): (hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_mtime_ns) for f in files}


@functools.cache
def pushing_clients(hub):
    """As `hub.clients`, but that these have hf_cyclical imported, which takes as long as many tests."""
    clients = PushingClients()
    clients.hub = hub
    clients.forker = start(client_environment(hub), (*LIBRARIES, "hf_cyclical.hub.upload", "hf_cyclical.cli.parsing"))
    atexit.register(clients.close)
    return clients


class PushingClients(Clients):
    def client(self, code, *args, token=WRITER, **options):
        """Run code, or a function with `args`; gives exit code, stdout and stderr."""
        if callable(code):
            source = textwrap.dedent(inspect.getsource(code))
            given = json.dumps(json.dumps(args, default=str))
            code = f"{source}\nimport json\nprint({RESULT!r} + json.dumps({code.__name__}(*json.loads({given}))))\n"
        return self.run(client_environment(self.hub, token, self.home), code, **options)

    def ask(self, function, *args, **options):
        code, out, err = self.client(function, *args, **options)
        assert code == 0, err
        return json.loads(out.rpartition(RESULT)[2])

    def command(self, *words, **options):
        """Run one of the commands."""
        return self.client(
            f"import sys\nfrom hf_cyclical.cli import main\nsys.exit(main({[*map(str, words)]}))", **options
        )

    def push(self, folder, repo_id, *arguments, **options):
        return self.command("push", folder, repo_id, *arguments, **options)
