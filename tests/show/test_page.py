"""`hf-cyclical show` as its user has it: the command, and the page in a real Chromium without a display."""

import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.patience import HUNG
from support.started import captured, prune
from transformers import AutoImageProcessor, AutoModelForImageClassification

from hf_cyclical import load_report
from hf_cyclical.cli import main
from hf_cyclical.reports import show as shown
from hf_cyclical.show import Job

pytest.importorskip("gradio", reason='needs the extra: pip install "hf_cyclical[show]"')
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra test")

from hf_cyclical.show.page import Page  # noqa: E402, with Gradio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
KEPT = (20, 60, 110)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A dense model and what a short run makes of it, on digits."""
    folder = tmp_path_factory.mktemp("jobs")
    on_digits = ["--dataset_name", "digits", "--dense_epochs", 0, "--report_to", "none"]
    words = ["--model_name_or_path", "cifar_resnet8", *on_digits, "--target_sparsity", 0, "--save_strategy", "no"]
    assert prune(*words, "--max_steps", 30, "--output_dir", folder / "dense") == 0
    words = ["--model_name_or_path", folder / "dense", *on_digits, "--target_sparsity", 0.9, "--cycles", 2]
    words += ["--preset", "digits", "--delta_t", 2, "--save_strategy", "steps", "--save_steps", 1000]
    assert prune(*words, "--max_steps", 24, "--output_dir", folder / "pruned") == 0
    return folder


@contextmanager
def served(*words):
    """The address of the page of a job; Ctrl-C ends the command without an error."""
    command = [sys.executable, "-m", "hf_cyclical", "show", *map(str, words), "--port", "0", "--no_browser"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            line = process.stdout.readline()
            assert "The page is at " in line, process.stderr.read()
            yield re.search(r"http://127\.0\.0\.1:\d+", line)[0]
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=HUNG)
    assert (process.returncode, "Traceback" in errors) == (0, False), errors


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(chromium, address):
    """The page in a browser that has nothing of others, and every address that it asked for."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(1000 * HUNG)
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}") or dialog.dismiss())
    page.goto(address)
    page.wait_for_selector("#head h1")
    yield page
    page.close()
    assert errors == []
    assert {urlsplit(url).netloc for url in asked if not url.startswith(("data:", "blob:"))} == {
        urlsplit(address).netloc
    }


def go_to(page, tab):
    page.get_by_role("tab", name=tab, exact=True).click()


@in_chromium
def test_a_finished_job_is_shown_with_all_that_belongs_to_it(jobs, chromium, tmp_path):
    report = load_report(jobs / "pruned")
    with served(jobs / "pruned", "--dense", jobs / "dense") as address, opened(chromium, address) as page:
        _sees_the_accuracy_of_the_cycles(page, report)
        _sees_the_layers_over_the_cycles(page, report)
        _picks_a_layer_and_sees_its_mask(page, jobs / "pruned")
        _drops_an_image_and_sees_both_predictions(page, jobs, tmp_path / "image.png")
        go_to(page, "Card")
        page.wait_for_selector("#card h2:has-text('How sparse')")
        assert page.locator("#card img").get_attribute("src").startswith("data:image/png;base64,")
        assert page.locator("#card img").evaluate("image => image.naturalWidth") > 100


def _sees_the_accuracy_of_the_cycles(page, report):
    page.wait_for_selector("#run-figure .plot-container")
    rows = [row.inner_text().split("\t") for row in page.locator("#cycles tbody tr").all()]
    assert [row[0] for row in rows] == ["dense", "cycle 1", "cycle 2"]
    accuracies = [report.dense["accuracy"], *(cycle.metrics["accuracy"] for cycle in report.cycles)]
    assert [row[1].strip() for row in rows] == [shown(value) for value in accuracies]
    page.wait_for_selector("#run-figure .textpoint")
    drawn = page.locator("#run-figure .textpoint").all_text_contents()
    assert drawn == [f"{100 * value:.2f}" for value in accuracies[1:]]
    assert "finished" in page.locator("#head").inner_text()


def _sees_the_layers_over_the_cycles(page, report):
    go_to(page, "Layers")
    page.wait_for_selector("#layer-figure .heatmap-label")
    page.get_by_text("Rows at the floor", exact=True).click()
    wanted = [str(layer.at_floor) for cycle in report.cycles for layer in cycle.layers]
    page.wait_for_function(
        "n => [...document.querySelectorAll('#layer-figure .heatmap-label')].every(e => !e.textContent.includes('%'))"
        " && document.querySelectorAll('#layer-figure .heatmap-label').length == n",
        arg=len(wanted),
    )
    assert sorted(page.locator("#layer-figure .heatmap-label").all_text_contents()) == sorted(wanted)


def _picks_a_layer_and_sees_its_mask(page, folder):
    """All of its kept weights are in the picture, each as a square of as many pixels."""
    go_to(page, "Masks")
    weight = load_file(folder / "model.safetensors")["layer2.0.conv2.weight"]
    kept = int((weight != 0).sum())
    page.locator("#layer input").click()
    page.get_by_role("option", name="layer2.0.conv2.weight", exact=True).click()
    page.wait_for_selector(f"#mask-caption:has-text('{kept:,} of {weight.numel():,} weights kept')")
    page.wait_for_function("document.querySelector('#mask img')?.complete")
    picture = page.request.get(page.locator("#mask img").get_attribute("src")).body()
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    area = int((pixels == KEPT).all(-1).sum()) / kept
    assert area == round(area**0.5) ** 2


def _drops_an_image_and_sees_both_predictions(page, jobs, file):
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (8, 8, 3), dtype=np.uint8))
    image.save(file)
    go_to(page, "Predictions")
    page.set_input_files("#image input[type=file]", file)
    page.wait_for_selector("#times")
    for name in ("dense", "pruned"):
        folder = jobs / name
        model = AutoModelForImageClassification.from_pretrained(folder).eval()
        pixels = AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")
        with torch.no_grad():
            score, best = model(**pixels).logits.softmax(-1)[0].max(0)
        page.wait_for_selector(f"#{name} [data-testid=label-output-value]")
        assert page.locator(f"#{name} [data-testid=label-output-value]").inner_text().strip() == str(int(best))
        first = re.search(r"(\d+)\s*%", page.locator(f"#{name}").inner_text())[1]
        assert abs(int(first) - 100 * float(score)) <= 1
    rows = [row.inner_text().split("\t") for row in page.locator("#times tbody tr").all()]
    assert [row[:2] for row in rows][:2] == [["dense", "torch"], ["pruned", "torch"]]
    assert all(float(row[2]) > 0 for row in rows)


@in_chromium
def test_a_running_job_is_followed_from_its_start_to_its_end(jobs, chromium, tmp_path):
    job, done = tmp_path / "job", jobs / "pruned"
    job.mkdir()
    (job / ".lock.json").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    with served(job) as address, opened(chromium, address) as page:
        assert "running" in page.locator("#head").inner_text()
        assert "no checkpoint" in page.locator("#head").inner_text()
        go_to(page, "Masks")
        page.wait_for_selector("#mask-caption:has-text('There are no weights yet')")
        assert page.locator("#mask").count() == 0
        for update in (12, 24):
            shutil.copytree(done / f"checkpoint-{update}", tmp_path / "staged")
            (tmp_path / "staged").rename(job / f"checkpoint-{update}")
            page.wait_for_selector(f"#head :text('{update} of 24 updates in the newest checkpoint')")
            page.wait_for_selector(f"#cycles tr:has-text('cycle {update // 12}')", state="attached")
        page.wait_for_selector("#mask img")
        go_to(page, "Predictions")
        assert "--dense" in page.locator("#no-dense").inner_text()
        (job / ".lock.json").unlink()
        for file in done.iterdir():
            if file.is_file():
                shutil.copy(file, job)
        (job / "pruning_report.json").touch()
        page.wait_for_selector("#head .finished")


HOSTILE = """---
tags: ["<img src=x onerror='window.hacked = 1'>"]
---
# Card <script>window.hacked = 1</script>

<img src=x onerror="window.hacked = 1"> [link](javascript:window.hacked=1) ${window.hacked = 1} {{window.hacked}}

![tracker](https://tracker.example/pixel.png)
"""


@in_chromium
def test_nothing_in_a_strangers_folder_runs_or_calls_home(jobs, chromium, tmp_path):
    job = shutil.copytree(jobs / "pruned", tmp_path / "job", ignore=shutil.ignore_patterns("checkpoint-*"))
    (job / "README.md").write_text(HOSTILE)
    text = (job / "pruning_report.json").read_text()
    report = json.loads(text)
    markup = "<img src=x onerror='window.hacked = 1'>${window.hacked = 1}"
    report["about"] |= {"model": markup, "dataset": markup}
    report["cycles"] = [
        {**cycle, "metrics": {markup: 0.5}, "layers": [{**layer, "name": markup} for layer in cycle["layers"]]}
        for cycle in report["cycles"]
    ]
    report |= {"dense": {markup: 0.5}, "evaluations": []}
    (job / "pruning_report.json").write_text(json.dumps(report))
    with served(job) as address, opened(chromium, address) as page:
        page.wait_for_selector("#run-figure .plot-container")
        for tab in ("Layers", "Masks", "Predictions", "Card"):
            go_to(page, tab)
        page.wait_for_selector("#card h1:has-text('<script>window.hacked = 1</script>')")
        page.wait_for_timeout(1000)
        assert page.evaluate("typeof window.hacked") == "undefined"
        assert page.locator("#card img, #card script, #head img").count() == 0


def got(address, path="/", **headers):
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=HUNG)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def test_an_image_is_judged_by_the_model_that_is_there_now(jobs, tmp_path):
    shutil.copytree(jobs / "pruned", tmp_path / "job")
    page = Page(Job(tmp_path / "job"))
    image = Image.new("RGB", (8, 8), "white")
    before, *_ = page.predict(image)
    weights = load_file(tmp_path / "job" / "model.safetensors")
    [bias] = [name for name in weights if name.endswith("fc.bias")]
    weights[bias] += torch.tensor([0.0] * 9 + [50.0])
    save_file(weights, tmp_path / "job" / "model.safetensors", {"format": "pt"})  # of another run as long as this one
    after, *_ = page.predict(image)
    assert next(iter(before)) != next(iter(after)) == "9"


def test_the_server_answers_only_under_its_own_names_and_serves_no_files(jobs):
    with served(jobs / "pruned") as address:
        status, headers, page = got(address)
        assert status == 200
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "https:" not in headers["content-security-policy"]
        assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=\"https?://", page)
        assert got(address, Host="attacker.example")[0] == 400
        for file in (jobs / "pruned" / "config.json", jobs / "dense" / "model.safetensors", "/etc/passwd"):
            assert got(address, f"/gradio_api/file={file}")[0] in (403, 404)


class TestMistakes:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["nowhere"], "'nowhere' is not there: give the folder of a job, its --output_dir"),
            (["dense/config.json"], "is a file: give the folder of a job"),
            (["dense"], "there is no pruning_report.json in 'dense', and no checkpoint with one"),
            (["pruned", "--dense", "nowhere"], "'nowhere' is neither a folder here nor a Hub id"),
            (["pruned", "--port", "99999"], "--port 99999 must be from 0 to 65535"),
            (["pruned", "--host", "192.0.2.1"], "port 7860 of 192.0.2.1 cannot be used, choose another --port"),
        ],
    )
    def test_are_one_line(self, jobs, monkeypatch, words, said):
        monkeypatch.chdir(jobs)
        code, out, err = captured(main, "show", *words, "--no_browser")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: ")
        assert said in err

    def test_a_port_that_is_taken_is_said(self, jobs):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            code, _, err = captured(main, "show", str(jobs / "pruned"), "--port", str(port), "--no_browser")
        assert (code, err.count("\n")) == (2, 1)
        assert f"port {port} of 127.0.0.1 cannot be used, choose another --port: " in err
