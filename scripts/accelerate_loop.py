"""Cyclical pruning in a plain Accelerate loop, without the Trainer: a small ResNet on handwritten digits.

python scripts/accelerate_loop.py                                        # with --resume: resumes after the last cycle
torchrun --nproc_per_node 2 scripts/accelerate_loop.py --batch_size 16   # two processes, the same batch in all
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_cyclical import TVPGD, PruningConfig, prunable_parameters
from hf_cyclical.data import DataArguments, load_image_data
from hf_cyclical.models import load_image_model


def main(args: argparse.Namespace) -> None:
    order = DataLoaderConfiguration(use_seedable_sampler=True)  # the order of the images follows from seed and epoch
    accelerator = Accelerator(cpu=not torch.accelerator.is_available(), dataloader_config=order)
    torch.manual_seed(args.seed)
    data = load_image_data(DataArguments("digits"))
    loaded = load_image_model(args.model, data.labels, image_size=data.image_size)
    train_set, eval_set = data.for_model(loaded, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=data.collate)
    eval_loader = DataLoader(eval_set, args.batch_size, collate_fn=data.collate)
    optimizer = torch.optim.SGD(loaded.model.parameters(), args.learning_rate, momentum=0.9, weight_decay=5e-4)
    model, optimizer, loader, eval_loader = accelerator.prepare(loaded.model, optimizer, loader, eval_loader)
    pruning = PruningConfig(target_sparsity=args.target_sparsity, cycles=args.cycles, delta_t=args.delta_t)
    recipe = pruning.recipe(args.epochs * len(loader))
    params = prunable_parameters(accelerator.unwrap_model(model))
    pruner = TVPGD(params, recipe, optimizer=optimizer.optimizer, replicas=torch.distributed.group.WORLD)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.eta)  # prepared, it would count every process
    accelerator.register_for_checkpointing(pruner, scheduler)
    if args.resume and (states := sorted(args.output_dir.glob("state-*"))):
        accelerator.load_state(states[-1])
    for epoch in tqdm(range(pruner.t // len(loader), args.epochs), "epochs", disable=not accelerator.is_main_process):
        loader.set_epoch(epoch)
        train_set.set_epoch(epoch)
        for batch in skip_first_batches(loader, pruner.t % len(loader)):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            pruner.step(pruner.t)
            scheduler.step()
            optimizer.zero_grad()
            if pruner.t in (cycle.stop for cycle in recipe.cycles):
                accuracy = evaluate(accelerator, model, eval_loader)
                accelerator.print(f"update {pruner.t}: accuracy {accuracy:.4f}, sparsity {pruner.sparsity:.4f}")
                accelerator.save_state(args.output_dir / "saving")
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:  # whole or not there, whenever the run is killed
                    (args.output_dir / "saving").rename(args.output_dir / f"state-{pruner.t:08}")
    accelerator.unwrap_model(model).save_pretrained(args.output_dir, is_main_process=accelerator.is_main_process)
    accelerator.end_training()


@torch.no_grad()
def evaluate(accelerator, model, batches) -> float:
    model.eval()
    right = [accelerator.gather_for_metrics(model(b["pixel_values"]).logits.argmax(-1) == b["labels"]) for b in batches]
    model.train()
    return float(torch.cat(right).float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter, description=__doc__)
    parser.add_argument("--model", default="cifar_resnet8", help="a timm name, a Hub id or a folder")
    parser.add_argument("--target_sparsity", type=float, default=0.95, help="s_t in the paper")
    parser.add_argument("--cycles", type=int, default=5, help="k in the paper")
    parser.add_argument("--epochs", type=int, default=100, help="epochs of all cycles together")
    parser.add_argument("--batch_size", type=int, default=32, help="images of each process in one update")
    parser.add_argument("--learning_rate", type=float, default=0.05, help="at the start of each cycle")
    parser.add_argument("--delta_t", type=int, default=10, help="updates between two choices of masks")
    parser.add_argument("--output_dir", type=Path, default=Path("pruned-loop"), help="for the model and the states")
    parser.add_argument("--resume", action="store_true", help="resume from the last state in output_dir")
    parser.add_argument("--seed", type=int, default=42, help="of the weights and of the order of the images")
    if (args := parser.parse_args()).output_dir.exists() and not args.resume:
        parser.error(f"--output_dir {args.output_dir} exists: name another folder, or resume it with --resume")
    main(args)
