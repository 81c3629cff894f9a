"""Several threads for one image: each has a band of rows, and waits for the others only where bands meet."""

import gc
import itertools
import os
import sys
import threading

import pytest
import timm
import torch
from engine.checks import assert_same_as_torch, images, sparsify
from support.patience import HUNG
from torch import nn

from hf_cyclical.engine import graph as graph_module
from hf_cyclical.engine.graph import build_graph
from hf_cyclical.engine.native import host
from hf_cyclical.engine.planes import Layout


def waits(graph):
    return sum(graph.program.waits(graph.program.buffers()))


def test_the_last_band_may_have_fewer_rows():
    layout = Layout(channels=3, height=7, width=5, lanes=4, gap=1, band_rows=4)
    assert [layout.rows_of(band) for band in range(layout.bands)] == [4, 3]
    assert layout.floats == 2 * layout.band_floats
    pixels = (layout.mask(1).reshape(-1)[:24].reshape(4, 6) != 0).sum(1)
    assert pixels.tolist() == [5, 5, 5, 0]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        # Each thread computes its own rows, from the image to the result.
        ([nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 6, 1)], 0),
        # Before rows are copied from the other band, it must have them.
        ([nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1)], 1),
        ([nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1)], 2),
        # The mean needs all bands, and the head all means; then the result is copied out.
        ([nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)], 3),
    ],
)
def test_threads_wait_where_they_need_what_others_computed(layers, expected):
    torch.manual_seed(0)
    model = sparsify(nn.Sequential(*layers), 0.5)
    graph = assert_same_as_torch(model, images(1, 3, 12, 12), threads=2)
    assert waits(graph) == expected


def test_a_buffer_is_written_again_after_all_have_read_it():
    # The third convolution may write where the first one did, whose rows the other thread copies before the second.
    torch.manual_seed(0)
    model = sparsify(nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(6))), 0.5)
    assert_same_as_torch(model, images(1, 3, 12, 12), threads=2)


@pytest.mark.parametrize("threads", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("side", [32, 29, 5])
def test_any_number_of_threads(threads, side):
    torch.manual_seed(0)
    model = sparsify(timm.create_model("cifar_resnet8"), 0.9)
    assert_same_as_torch(model, images(1, 3, side, side), threads=threads)


@pytest.mark.parametrize("name", ["test_efficientnet", "test_convnext", "test_vit", "test_resnet", "test_mambaout"])
def test_families_with_two_threads(name):
    torch.manual_seed(0)
    model = sparsify(timm.create_model(name), 0.9)
    assert_same_as_torch(model, images(1, 3, 160, 160), threads=2, native=False)


def test_images_for_each_thread_are_not_cut_into_bands():
    model, pixels = sparsify(timm.create_model("cifar_resnet8"), 0.9), images(5, 3, 32, 32)
    shared, divided = (build_graph(model, (3, 32, 32), host(), 2, divided=divided) for divided in (False, True))
    assert {row.owner for row in shared.program.rows} == {-1, 0, 1}
    assert {row.owner for row in divided.program.rows} == {-1}
    with torch.no_grad():
        torch.testing.assert_close(divided.run(pixels), model(pixels), rtol=0, atol=1e-4)
        torch.testing.assert_close(divided.run(pixels[:1]), model(pixels[:1]), rtol=0, atol=1e-4)


def shared_graph():
    model = sparsify(timm.create_model("cifar_resnet8"), 0.9)
    graph = build_graph(model, (3, 32, 32), host(), 3)
    graph.always_share = True
    return graph


def test_threads_end_with_what_they_work_for():
    before = set(threading.enumerate())
    graph = shared_graph()
    graph.run(images(1, 3, 32, 32))
    started = set(threading.enumerate()) - before
    assert len(started) == 2
    del graph
    gc.collect()
    for thread in started:
        thread.join(timeout=HUNG)
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_threads_of_its_own():
    graph, pixels = shared_graph(), images(1, 3, 32, 32)
    expected = graph.run(pixels)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(graph.run(pixels), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(graph.run(pixels), expected)


def test_a_busy_machine_leaves_images_to_one_thread(monkeypatch):
    graph, pixels, together = shared_graph(), images(1, 3, 32, 32), []
    expected, share, clock = graph.run(pixels), graph._share, itertools.count()
    graph.always_share = False
    monkeypatch.setattr(graph, "_share", lambda *args: (together.append(call), share(*args)))
    monkeypatch.setattr(graph_module.time, "perf_counter", lambda: next(clock))  # threads take a second
    for one_takes, calls, shared in (
        (0.5, 19, [1, 4, 9, 18]),  # more than one: 2 images, then 4, then 8, then 16 are left to one
        (2.0, 18, [16, 17, 18]),  # less, when the last of these are done
        (0.0001, 8, []),  # so short that nothing is shared
    ):
        graph.one_takes = one_takes
        together.clear()
        for call in range(1, calls + 1):  # noqa: B007 (the function above notes it)
            torch.testing.assert_close(graph.run(pixels), expected, rtol=0, atol=1e-5)
        assert together == shared


def test_an_interrupt_waits_for_the_threads_that_still_write(monkeypatch):
    torch.manual_seed(0)
    model = sparsify(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()), 0.5)
    graph = build_graph(model, (3, 12, 12), host(), 2, divided=True)
    batch = images(4, 3, 12, 12)
    graph.run(batch)
    began, go_on, ended = threading.Event(), threading.Event(), []
    run = type(graph._instances[1]).run

    def interrupted(instance, *args):
        if instance is graph._instances[0]:
            began.wait(HUNG)
            threading.Timer(0.2, go_on.set).start()
            raise KeyboardInterrupt
        began.set()
        go_on.wait(HUNG)
        ended.append(run(instance, *args))

    with monkeypatch.context() as patched:
        patched.setattr(type(graph._instances[0]), "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            graph.run(batch)
    assert len(ended) == 1
    torch.testing.assert_close(graph.run(batch), model(batch).detach(), rtol=1e-4, atol=1e-4)
