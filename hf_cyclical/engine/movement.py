"""The kernels that move pixels into planes, out of them and apart by a stride; and the one that runs all others."""

from llvmlite import ir

from .emitter import BYTES, I32, I64, POINTER, Emitter, Value, Vector

__all__ = ["COPY", "RUN", "emit_copy", "emit_run"]

COPY = (
    "source",
    "source_cell",  # address of an address that `source` is an offset from, or 0
    "source_channel",
    "source_row",
    "source_column",  # strides in bytes
    "target",
    "target_cell",
    "target_channel",
    "target_row",
    "target_column",
    "channels",
    "rows",
    "columns",
)
RUN = (
    "rows",  # for each row to run: its address, its owner, and whether threads wait after it
    "count",
    "images",
    "cells",  # (address, bytes to the next image) pairs
    "cell_count",
    "barrier",  # a counter of how often threads have come to wait
    "epoch",  # address of how often all of them have waited before this run
    "sleep",  # address of a function that lets other threads run, or 0
)
SPINS = 2000  # before a thread that waits lets others run


def emit_copy(e: Emitter, step: int) -> None:
    """Copy channels x rows x columns floats.

    Args:
        e: Where to.
        step: 1 for columns that are neighbours in both, 2 for every second one of the source, 0 for any strides.
    """
    source, target = (_base(e, name) for name in ("source", "target"))
    first, last = e.share(e["channels"])

    def row(channel: Value, y: Value) -> None:
        here = e.add(source, e.mul(channel, e["source_channel"]), e.mul(y, e["source_row"]))
        there = e.add(target, e.mul(channel, e["target_channel"]), e.mul(y, e["target_row"]))
        if step:
            _copy_vectors(e, here, there, step)
        else:
            e.each(0, e["columns"], lambda x: _copy_float(e, here, there, x))

    e.each(first, last, lambda channel: e.each(0, e["rows"], lambda y: row(channel, y)))
    e.end()


def _base(e: Emitter, name: str) -> Value:
    cell = e[f"{name}_cell"]
    read = e.choose(e.nonzero(cell), lambda: [e.load(cell, kind=I64)], lambda: [e.i(0)])[0]
    return e.add(read, e[name])


def _copy_float(e: Emitter, here: Value, there: Value, x: Value) -> None:
    value = e.load_float(e.add(here, e.mul(x, e["source_column"])))
    e.store(value, e.add(there, e.mul(x, e["target_column"])))


def _copy_vectors(e: Emitter, here: Value, there: Value, step: int) -> None:
    columns = e["columns"]
    whole = e.b.and_(columns, e.i(-e.width))
    if step == 2:  # the second half of the last pair is not the source's
        whole = e.b.and_(e.sub(columns, 1), e.i(-e.width))

    def vectors(x: Value) -> None:
        at = e.add(here, e.mul(x, step * BYTES))
        parts = [e.load(at, i * e.vector_bytes) for i in range(step)]
        e.store((e.every_second(parts) if step == 2 else parts[0]), e.add(there, e.mul(x, BYTES)))

    def rest() -> Vector:
        at, left = e.add(here, e.mul(whole, step * BYTES)), e.sub(columns, whole)
        floats = left if step == 1 else e.sub(e.add(left, left), 1)
        parts = [
            e.load_lanes(e.add(at, i * e.vector_bytes), e.larger(e.sub(floats, i * e.width), 0)) for i in range(step)
        ]
        e.store_lanes((e.every_second(parts) if step == 2 else parts[0]), e.add(there, e.mul(whole, BYTES)), left)
        return []

    e.each(0, whole, vectors, e.width)
    e.choose(e.less(whole, columns), rest, list)


def emit_run(e: Emitter) -> None:
    """Run rows, one after the other, for each image; where a row says so, all threads wait for one another."""
    kernel = ir.FunctionType(ir.VoidType(), [POINTER, I64, I64])

    def step(index: Value, waited: Value) -> Value:
        entry = e.add(e["rows"], e.mul(index, 24))
        row, owner = e.at(e.load(entry, kind=I64)), e.load(entry, 8, kind=I64)
        owned = e.b.icmp_signed(">=", owner, e.i(0))
        mine = e.b.icmp_signed("==", e.b.srem(owner, e.size), e.rank)

        def call() -> Vector:
            part = [e.b.select(owned, e.i(whole), own) for whole, own in ((0, e.rank), (1, e.size))]
            e.b.call(e.b.inttoptr(e.b.load(row, typ=I64), kernel.as_pointer()), [row, *part])
            return []

        e.choose(e.b.or_(e.b.not_(owned), mine), call, list)
        waits = e.nonzero(e.load(entry, 16, kind=I64))
        return e.choose(waits, lambda: [_wait(e, waited)], lambda: [waited])[0]

    def image(_: Value, carry: Vector) -> Vector:
        waited = e.loop(0, e["count"], 1, carry, lambda index, c: [step(index, c[0])])[0]

        def advance(cell: Value) -> None:
            at = e.add(e["cells"], e.mul(cell, 16))
            moved = e.add(e.load(at, kind=I64), e.load(at, 8, kind=I64))
            e.b.store(moved, e.at(at))

        waited = _wait(e, waited)
        e.each(0, e.b.select(e.equal(e.rank, 0), e["cell_count"], e.i(0)), advance)
        return [_wait(e, waited)]

    e.loop(0, e["images"], 1, [e.load(e["epoch"], kind=I64)], image)
    e.end()


def _wait(e: Emitter, waited: Value) -> Value:
    """Wait until all threads are here, and count how often that was."""
    times = e.add(waited, 1)

    def meet() -> Vector:
        e.b.atomic_rmw("add", e.at(e["barrier"]), e.i(1), "seq_cst")
        goal = e.mul(times, e.size)
        _spin(e, goal)
        return []

    e.choose(e.less(e.i(1), e.size), meet, list)
    return times


def _spin(e: Emitter, goal: Value) -> None:
    b = e.b
    before, head, tired, after = b.block, *(b.append_basic_block() for _ in range(3))
    b.branch(head)
    b.position_at_end(head)
    spins = b.phi(I64)
    arrived = b.load_atomic(e.at(e["barrier"]), "acquire", 8, typ=I64)
    again, done = b.append_basic_block(), b.icmp_signed(">=", arrived, goal)
    b.cbranch(done, after, again)
    b.position_at_end(again)
    e.relax()
    following = e.add(spins, 1)
    sleepy = b.and_(b.icmp_signed(">", following, e.i(SPINS)), e.nonzero(e["sleep"]))
    b.cbranch(sleepy, tired, head)
    b.position_at_end(tired)
    b.call(b.inttoptr(e["sleep"], ir.FunctionType(I32, []).as_pointer()), [])
    b.branch(head)
    spins.add_incoming(e.i(0), before)
    spins.add_incoming(following, again)
    spins.add_incoming(following, tired)
    b.position_at_end(after)
