"""Import the modules named as arguments, then run each job that comes on stdin in a fork and answer its exit code."""

import faulthandler
import importlib
import json
import os
import sys
import traceback
import types


def main():
    sys.path.insert(0, os.getcwd())
    modules = {name: importlib.import_module(name) for name in sys.argv[1:]}
    if "transformers" in modules:  # these names are loaded when they are first asked for
        for name in ("AutoModelForImageClassification", "AutoImageProcessor", "Trainer"):
            getattr(modules["transformers"], name)
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            run(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answers.write(f"{code}\n")
        answers.flush()


def run(job):
    """In the child, which ends here as a script would."""
    for stream, path in enumerate(job["streams"], start=1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    sys.path.insert(0, job["cwd"])
    faulthandler.dump_traceback_later(job["timeout"], exit=True)
    if job["impatient"]:
        forget_to_wait()
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    code = 0
    try:
        exec(compile(job["code"], "<client>", "exec"), main_module.__dict__)  # noqa: S102 - the tests' own code
    except SystemExit as exit_:
        code = exit_code(exit_.code)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(value):
    if isinstance(value, str):
        sys.stderr.write(value + "\n")
    return 1 if isinstance(value, str) else value or 0


def forget_to_wait():
    """Only the clock is changed: the attempts are as many as ever."""
    import time

    from huggingface_hub import file_download
    from huggingface_hub.utils import _http

    names = {name: getattr(time, name) for name in dir(time) if not name.startswith("_")}
    _http.time = file_download.time = types.SimpleNamespace(**{**names, "sleep": lambda seconds: None})


if __name__ == "__main__":
    main()
