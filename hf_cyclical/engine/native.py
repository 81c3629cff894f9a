"""Compiling the kernels for this processor, once per process, and running rows of them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir

from .emitter import Emitter

__all__ = ["Host", "Kernel", "host", "kernel_address"]

_LOCK = threading.RLock()
WIDTHS = {16: "avx512f", 8: "avx2"}  # floats in a vector, and what a processor of Intel's or AMD's needs for them


@dataclass(frozen=True)
class Host:
    """What kernels are compiled for.

    Attributes:
        width: Floats in a vector.
        processor: LLVM's name of it.
        features: LLVM's flags of what it has.
    """

    width: int
    processor: str
    features: str

    @property
    def registers(self) -> int:
        """Vectors that a tile may take; the rest holds what is loaded."""
        return 28 if self.width == 16 else 12


@dataclass(frozen=True)
class Kernel:
    """A kernel in one variant: how to write it, and the fields of its rows."""

    name: str
    fields: tuple[str, ...]
    emit: Callable[..., None]
    variant: tuple[int | str, ...] = ()


@cache
def host(width: int | None = None) -> Host:
    """This processor, or what it would be with vectors of `width` floats only."""
    with _LOCK:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    try:
        flags = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know what this processor has
        flags = llvm.FeatureMap()
    widest = next((w for w, flag in WIDTHS.items() if flags.get(flag)), 4)
    if width is not None and width < widest:
        for wide, flag in WIDTHS.items():
            if wide > width:
                flags = type(flags)({k: v and not k.startswith(flag[:6]) for k, v in flags.items()})
        widest = width
    return Host(widest, llvm.get_host_cpu_name(), flags.flatten())


@cache
def _target_machine(target: Host) -> llvm.TargetMachine:
    triple = llvm.Target.from_default_triple()
    return triple.create_target_machine(cpu=target.processor, features=target.features, opt=2, jit=True)


@cache
def kernel_address(kernel: Kernel, target: Host) -> int:
    """Where the compiled kernel is. It stays there as long as the process lives."""
    module = ir.Module(kernel.name)
    module.triple = llvm.get_default_triple()
    emitter = Emitter(module, "kernel", target.width, kernel.fields)
    kernel.emit(emitter, *kernel.variant)
    return _compile(module, target)


_ENGINES: list[llvm.ExecutionEngine] = []  # they own the code


def _compile(module: ir.Module, target: Host) -> int:
    with _LOCK:
        machine = _target_machine(target)
        parsed = llvm.parse_assembly(str(module))
        # No passes: the kernels are written as they should run, and passes take most of the time.
        engine = llvm.create_mcjit_compiler(parsed, machine)
        engine.finalize_object()
        _ENGINES.append(engine)
        return engine.get_function_address("kernel")
