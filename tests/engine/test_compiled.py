"""`hf_cyclical.compile`: a module that is called like the original, and says clearly what it cannot do."""

import copy
import pickle
import threading
from types import SimpleNamespace

import llvmlite.binding as llvm
import pytest
import timm
import torch
import transformers
from engine.checks import close, images, sparsify

import hf_cyclical
from hf_cyclical import PruningError
from hf_cyclical.core import prunable_parameters
from hf_cyclical.engine import CompiledModel, compiled
from hf_cyclical.engine.graph import build_graph
from hf_cyclical.engine.native import host


@pytest.fixture
def model():
    torch.manual_seed(0)
    return sparsify(timm.create_model("cifar_resnet8"), 0.95)


@pytest.fixture
def pixels():
    return images(2, 3, 32, 32)


@torch.no_grad()
def assert_on_the_engine(fast, model, pixels):
    """Same outputs, from kernels: the model is so sparse that torch is not the faster choice."""
    close(fast(pixels), model(pixels))
    assert not any(fast._slower.values())


def test_is_called_like_the_original(model, pixels):
    fast = hf_cyclical.compile(model)
    assert_on_the_engine(fast, model, pixels)
    assert isinstance(fast, torch.nn.Module)
    assert not fast.training
    assert not fast(pixels).requires_grad
    close(fast(pixels[:1]), model(pixels[:1]).detach())
    close(fast(x=pixels), model(pixels).detach())


def test_any_batch_and_any_size_of_images(model):
    fast = hf_cyclical.compile(model)
    for count, height, width in ((1, 32, 32), (7, 32, 32), (2, 24, 40), (0, 32, 32), (3, 32, 32)):
        batch = images(count, 3, height, width)
        result = fast(batch)
        with torch.no_grad():
            torch.testing.assert_close(result, model(batch), rtol=0, atol=1e-4)


def test_strided_images(model):
    strided = images(4, 3, 32, 32)[::2].to(memory_format=torch.channels_last)
    close(hf_cyclical.compile(model)(strided), model(strided).detach())


def test_says_how_each_layer_is_computed(model):
    layers = [n for n, module in model.named_modules() if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear))]
    choices = hf_cyclical.compile(model).choices(3, 32, 32)
    assert [choice.layer for choice in choices] == layers
    assert all(choice.path == "sparse" and "zeros" in choice.why for choice in choices[1:-1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda x: x.half(), "must be float32 on the CPU, got torch.float16 on cpu: use images.float"),
        (lambda x: x.to("meta"), "got torch.float32 on meta"),
        (lambda x: x[0], "must have the shape .batch, channels, height, width., got .3, 32, 32."),
        (lambda x: x[:, :2], "cannot be compiled for images of 2 x 32 x 32"),
        (lambda x: x.numpy(), "must be a dense tensor .batch, channels, height, width., got ndarray"),
        (lambda x: x.to_sparse(), "must be a dense tensor .* got torch.sparse_coo"),
        (lambda _: None, "no images: call the model with a tensor"),
    ],
)
def test_images_that_do_not_fit(model, pixels, bad, message):
    with pytest.raises(PruningError, match=message):
        hf_cyclical.compile(model)(bad(pixels))


def test_a_dense_model_is_refused():
    with pytest.raises(PruningError, match=r"the model is dense, only 0\.0% of its prunable weights are zero"):
        hf_cyclical.compile(timm.create_model("cifar_resnet8"))


def test_weights_that_are_not_finite_are_refused(model):
    with torch.no_grad():
        model.layer1[0].conv1.weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(PruningError, match=r"layer1\.0\.conv1\.weight has values that are not finite"):
        hf_cyclical.compile(model)


def test_torch_runs_what_it_runs_faster(model, pixels, monkeypatch):
    fast, calls = hf_cyclical.compile(model), []
    fast.choices(3, 32, 32)
    expected = model(pixels).detach()
    model.register_forward_hook(lambda *_: calls.append(1))
    for engine_takes, in_torch in ((3.0, True), (1.0, False)):
        seconds = {True: 2.0, False: engine_takes}
        monkeypatch.setattr(compiled, "_seconds", lambda _, run, __, s=seconds: s[run is model])
        fast.refresh()
        fast.choices(3, 32, 32)
        calls.clear()
        close(fast(pixels), expected)
        assert fast.in_torch(2, 3, 32, 32) is in_torch
        assert len(calls) == in_torch


@pytest.mark.parametrize(("threads", "count", "tried"), [(1, 1, 1), (1, 2, 8), (16, 3, 8), (16, 40, 16), (4, 2, 3)])
def test_a_trial_is_computed_as_the_batch_is(model, threads, count, tried, monkeypatch):
    fast, sizes = hf_cyclical.compile(model, num_threads=threads), set()
    monkeypatch.setattr(compiled, "_seconds", lambda _, run, images: sizes.add(len(images)) or 1.0)
    monkeypatch.setattr(fast, "_graph", lambda shape: SimpleNamespace(shape=shape[1:], run=None))
    fast.in_torch(count, 3, 32, 32)
    assert sizes == {tried}


def test_a_model_of_inference_mode(pixels):
    with torch.inference_mode():
        model = sparsify(timm.create_model("cifar_resnet8").eval(), 0.9)
        fast = hf_cyclical.compile(model)
        close(fast(pixels), model(pixels))


def test_images_of_a_size_that_the_model_refuses():
    config = transformers.ViTConfig(image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=1,
                                    num_attention_heads=2, intermediate_size=16)  # fmt: skip
    fast = hf_cyclical.compile(sparsify(transformers.ViTForImageClassification(config), 0.9))
    with pytest.raises(PruningError, match=r"cannot be compiled for images of 3 x 40 x 40: Input image size") as caught:
        fast(images(1, 3, 40, 40))
    assert "\n" not in str(caught.value)
    assert fast(images(1, 3, 32, 32)).logits.shape == (1, 2)


@pytest.mark.parametrize("features", [{}, {"avx2": True, "fma": True}, RuntimeError("not known")], ids=str)
def test_processors_with_narrow_vectors_or_none(monkeypatch, model, pixels, features):
    def known():
        if isinstance(features, Exception):
            raise features
        return llvm.FeatureMap(features)

    monkeypatch.setattr(llvm, "get_host_cpu_features", known)
    target = host.__wrapped__()
    assert target.width == (8 if isinstance(features, dict) and features.get("avx2") else 4)
    close(build_graph(model, (3, 32, 32), target, 1).run(pixels), model(pixels).detach())


def test_a_graph_refuses_images_that_it_was_not_made_for(model):
    graph = build_graph(model, (3, 32, 32), host(), 1)
    for wrong in (images(1, 3, 32, 31), images(1, 3, 32, 32).double()):
        with pytest.raises(ValueError, match=r"compiled for images of \(3, 32, 32\) in float32"):
            graph.run(wrong)


@pytest.mark.parametrize("change", [lambda m: m.half(), lambda m: m.to("meta"), lambda m: m.double()])
def test_models_of_another_type_or_device_are_refused(model, change):
    with pytest.raises(PruningError, match="the engine needs float32 on the CPU"):
        hf_cyclical.compile(change(model))


def test_stays_what_it_is(model):
    fast = hf_cyclical.compile(model)
    for change in (fast.half, fast.double, lambda: fast.to("meta")):
        with pytest.raises(PruningError, match="stays on the CPU in float32"):
            change()
    with pytest.raises(PruningError, match="inference only"):
        fast.train()
    assert fast.to("cpu").float().eval() is fast


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_no_threads(model, threads):
    with pytest.raises(PruningError, match=f"num_threads must be at least 1, a whole number, got {threads!r}"):
        hf_cyclical.compile(model, num_threads=threads)


@pytest.mark.parametrize("source", [None, 3, b"folder"])
def test_what_is_no_model(source):
    with pytest.raises(PruningError, match=f"takes a model, a folder or a Hub id, got {type(source).__name__}"):
        hf_cyclical.compile(source)


def test_compiling_again_starts_from_the_original(model, pixels):
    fast = hf_cyclical.compile(model)
    again = hf_cyclical.compile(fast, num_threads=2)
    assert again.model is model
    close(again(pixels), model(pixels).detach())


def test_an_original_that_went_back_to_training(model, pixels):
    fast = hf_cyclical.compile(model)
    expected = fast(pixels)
    model.train()
    for call in (lambda: fast(images(1, 3, 24, 24)), lambda: fast.choices(3, 16, 16)):
        with pytest.raises(PruningError, match=r"the original model is in training mode: call its eval\(\)"):
            call()
    model.eval()
    close(fast(pixels), expected)


def test_refresh_reads_changed_weights(model, pixels):
    fast = hf_cyclical.compile(model)
    before = fast(pixels)
    model.fc.bias.data.add_(1)  # which torch does not count
    close(fast(pixels), before)
    fast.refresh()
    close(fast(pixels), before + 1)
    state = {name: torch.zeros_like(t) if name.endswith("fc.bias") else t for name, t in fast.state_dict().items()}
    fast.load_state_dict(state)
    close(fast(pixels), model(pixels).detach())


def _train(model):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(4, 3, 32, 32)).square().mean().backward()
    for weight in prunable_parameters(model).values():
        weight.grad[weight == 0] = 0
    optimizer.step()
    model.eval()


def _prune(model):
    with torch.no_grad():
        weight = next(iter(prunable_parameters(model).values()))
        weight.mul_(torch.rand_like(weight) > 0.5)


def _load(model):
    model.load_state_dict({name: 0.9 * value for name, value in model.state_dict().items()})


@torch.no_grad()
def _measure_means(model):
    model.train()
    model(3 * torch.randn(4, 3, 32, 32))
    model.eval()


@pytest.mark.parametrize("change", [_train, _prune, _load, _measure_means])
def test_a_change_of_the_weights_is_noticed(model, pixels, change):
    fast = hf_cyclical.compile(model)
    before = fast(pixels)
    for _ in range(2):
        change(model)
        after = fast(pixels)
        close(after, model(pixels).detach())
        assert not torch.allclose(after, before)
        before = after


def test_weights_that_became_dense_or_not_finite_are_refused(model, pixels):
    fast = hf_cyclical.compile(model)
    fast(pixels)
    with torch.no_grad():
        for parameter in prunable_parameters(model).values():
            parameter.add_(0.1)
    with pytest.raises(PruningError, match="the model is dense"):
        fast(pixels)
    with torch.no_grad():
        model.fc.weight[0, 0] = torch.nan
    with pytest.raises(PruningError, match="not finite"):
        fast(pixels)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])  # noqa: S301
def test_copies_and_pickles(model, pixels, again):
    fast = hf_cyclical.compile(model, num_threads=2)
    expected = fast(pixels)
    twin = again(fast)
    assert isinstance(twin, CompiledModel)
    close(twin(pixels), expected)


def test_one_thread_computes_what_is_short(model):
    fast, pixels = hf_cyclical.compile(model, num_threads=2), images(3, 3, 32, 32)
    for count in (1, 2, 3, 1):
        close(fast(pixels[:count]), model(pixels[:count]).detach())
    assert fast._graph((1, 3, 32, 32)) is fast._graph((2, 3, 32, 32))


def test_instances_in_several_threads(model):
    shared, own = hf_cyclical.compile(model), hf_cyclical.compile(copy.deepcopy(model), num_threads=2)
    batches = [images(2, 3, 32, 32, seed=i) for i in range(4)]
    with torch.no_grad():
        expected = [model(batch) for batch in batches]
    wrong = []

    def work(fast, i):
        try:
            for _ in range(10):
                torch.testing.assert_close(fast(batches[i]), expected[i], rtol=0, atol=1e-4)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(fast, i)) for i in range(4) for fast in (shared, own)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
