"""A thin layer over llvmlite's IRBuilder: loops, addresses and vectors, in the few forms that the kernels need."""

from collections.abc import Callable, Sequence

from llvmlite import ir

__all__ = ["F32", "I32", "I64", "Emitter", "Value", "Vector"]

Value = ir.Value
Vector = list[ir.Value]
I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
POINTER = ir.PointerType()
BYTES = 4  # of a float


class Emitter:
    """Writes one kernel: `void kernel(const int64 *row, int64 rank, int64 size)`.

    Args:
        module: Where the function goes.
        name: Its name.
        width: Floats in a vector.
        fields: Names of the values in `row`, after its first one, which is the kernel's own address.
    """

    def __init__(self, module: ir.Module, name: str, width: int, fields: Sequence[str]) -> None:
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, I64, I64]), name)
        row, self.rank, self.size = function.args
        self.b = ir.IRBuilder(function.append_basic_block())
        self.width = width
        self.vector_bytes = width * BYTES
        self.vector = ir.VectorType(F32, width)
        self._module = module
        self._fields = {
            field: self.b.load(self.b.gep(row, [self.i(1 + i)], source_etype=I64), typ=I64)
            for i, field in enumerate(fields)
        }

    def __getitem__(self, field: str) -> Value:
        return self._fields[field]

    def real(self, field: str) -> Value:
        """A field that holds the bits of a float."""
        return self.b.bitcast(self.b.trunc(self[field], I32), F32)

    def i(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def add(self, *values: Value | int) -> Value:
        total, *rest = [self._int(value) for value in values]
        for value in rest:
            total = self.b.add(total, value)
        return total

    def sub(self, a: Value | int, b: Value | int) -> Value:
        return self.b.sub(self._int(a), self._int(b))

    def mul(self, a: Value | int, b: Value | int) -> Value:
        return self.b.mul(self._int(a), self._int(b))

    def share(self, n: Value, split: Value | None = None) -> tuple[Value, Value]:
        """This thread's part of range(n): all of it if `split` is 0."""
        rank, size = self.rank, self.size
        if split is not None:
            rank, size = self.mul(rank, split), self.add(self.mul(self.sub(size, 1), split), 1)
        return self.b.udiv(self.mul(n, rank), size), self.b.udiv(self.mul(n, self.add(rank, 1)), size)

    def loop(
        self,
        start: Value | int,
        stop: Value | int,
        step: Value | int,
        carry: Sequence[Value],
        body: Callable[[Value, Vector], Vector | None],
    ) -> Vector:
        """`for i in range(start, stop, step): carry = body(i, carry)`, and the last carry."""
        b = self.b
        before, head, inside, after = b.block, *(b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(I64)
        phis = [b.phi(value.type) for value in carry]
        b.cbranch(b.icmp_signed("<", index, self._int(stop)), inside, after)
        b.position_at_end(inside)
        carried = body(index, phis) or []
        following = self.add(index, step)
        for phi, first, later in zip([index, *phis], [self._int(start), *carry], [following, *carried], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, b.block)
        b.branch(head)
        b.position_at_end(after)
        return phis

    def each(self, start: Value | int, stop: Value | int, body: Callable[[Value], None], step: Value | int = 1) -> None:
        """`for i in range(start, stop, step): body(i)`."""

        def plain(i: Value, _: Vector) -> None:
            body(i)

        self.loop(start, stop, step, [], plain)

    def choose(self, condition: Value, yes: Callable[[], Vector], no: Callable[[], Vector]) -> Vector:
        """The values of one of two branches; only that one runs."""
        b = self.b
        blocks = [b.append_basic_block() for _ in range(2)]
        after = b.append_basic_block()
        b.cbranch(condition, *blocks)
        ends, results = [], []
        for block, branch in zip(blocks, (yes, no), strict=True):
            b.position_at_end(block)
            results.append(branch())
            ends.append(b.block)
            b.branch(after)
        b.position_at_end(after)
        merged = []
        for pair in zip(*results, strict=True):
            phi = b.phi(pair[0].type)
            for value, end in zip(pair, ends, strict=True):
                phi.add_incoming(value, end)
            merged.append(phi)
        return merged

    def nonzero(self, value: Value) -> Value:
        return self.b.icmp_signed("!=", value, self.i(0))

    def equal(self, a: Value, b: Value | int) -> Value:
        return self.b.icmp_signed("==", a, self._int(b))

    def less(self, a: Value, b: Value | int) -> Value:
        return self.b.icmp_signed("<", a, self._int(b))

    def smaller(self, a: Value | int, b: Value | int) -> Value:
        a, b = self._int(a), self._int(b)
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def larger(self, a: Value | int, b: Value | int) -> Value:
        a, b = self._int(a), self._int(b)
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    def at(self, address: Value, offset: int = 0) -> Value:
        return self.b.inttoptr(self.add(address, offset) if offset else address, POINTER)

    def load(self, address: Value, offset: int = 0, kind: ir.Type | None = None) -> Value:
        """A vector of floats, at any float's address."""
        return self.b.load(self.at(address, offset), align=BYTES, typ=kind or self.vector)

    def store(self, value: Value, address: Value, offset: int = 0) -> None:
        self.b.store(value, self.at(address, offset), align=BYTES)

    def load_float(self, address: Value, offset: int = 0) -> Value:
        return self.load(address, offset, F32)

    def load_int(self, address: Value, offset: int = 0) -> Value:
        """A signed 32-bit integer."""
        return self.b.sext(self.load(address, offset, I32), I64)

    def relax(self) -> None:
        """Leave the core to its other thread for a moment, where processors have two."""
        if self._module.triple.startswith("x86_64"):
            self.intrinsic("llvm.x86.sse2.pause", ir.VoidType())

    def prefetch(self, address: Value) -> None:
        """Bring a cache line nearer; an address of nothing does no harm."""
        options = [ir.Constant(I32, value) for value in (0, 3, 1)]  # to be read, to be kept, data
        self.intrinsic("llvm.prefetch.p0", ir.VoidType(), self.at(address), *options)

    def splat(self, scalar: Value | float) -> Value:
        if not isinstance(scalar, ir.Value):
            return ir.Constant(self.vector, [scalar] * self.width)
        one = self.b.insert_element(ir.Constant(self.vector, ir.Undefined), scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.width), [0] * self.width)
        return self.b.shuffle_vector(one, ir.Constant(self.vector, ir.Undefined), zeros)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Compute a * b + c, in one instruction where the processor has it."""
        suffix = f"v{self.width}f32" if a.type == self.vector else "f32"
        return self.intrinsic(f"llvm.fmuladd.{suffix}", a.type, a, b, c)

    def intrinsic(self, name: str, result: ir.Type, *values: Value) -> Value:
        function = self._module.globals.get(name) or ir.Function(
            self._module, ir.FunctionType(result, [value.type for value in values]), name
        )
        return self.b.call(function, values)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic(f"llvm.sqrt.v{self.width}f32", self.vector, x)

    def lanes(self, n: Value) -> Value:
        """True for the first n lanes of a vector."""
        ints = ir.VectorType(I64, self.width)
        number = self.b.insert_element(ir.Constant(ints, ir.Undefined), n, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.width), [0] * self.width)
        number = self.b.shuffle_vector(number, ir.Constant(ints, ir.Undefined), zeros)
        return self.b.icmp_signed("<", ir.Constant(ints, list(range(self.width))), number)

    def load_lanes(self, address: Value, n: Value) -> Value:
        """The first n floats at an address and zeros; nothing after them is read."""
        align, zeros = ir.Constant(I32, BYTES), self.splat(0.0)
        name = f"llvm.masked.load.v{self.width}f32.p0"
        return self.intrinsic(name, self.vector, self.at(address), align, self.lanes(n), zeros)

    def store_lanes(self, value: Value, address: Value, n: Value) -> None:
        """The first n floats of a vector, and nothing after them."""
        self.store_where(value, address, self.lanes(n))

    def store_where(self, value: Value, address: Value, lanes: Value) -> None:
        """The floats of a vector whose lanes are true, and nothing else."""
        name = f"llvm.masked.store.v{self.width}f32.p0"
        self.intrinsic(name, ir.VoidType(), value, self.at(address), ir.Constant(I32, BYTES), lanes)

    def every_second(self, pair: Vector, start: int = 0) -> Value:
        """Every second float of two vectors, as one."""
        order = ir.Constant(ir.VectorType(I32, self.width), list(range(start, 2 * self.width, 2)))
        return self.b.shuffle_vector(*pair, order)

    def total(self, value: Value) -> Value:
        """The sum of a vector's lanes."""
        step = self.width // 2
        while step:
            order = [(i + step) % self.width for i in range(self.width)]
            moved = self.b.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, self.width), order))
            value = self.b.fadd(value, moved)
            step //= 2
        return self.first(value)

    def first(self, value: Value) -> Value:
        """A vector's first lane."""
        return self.b.extract_element(value, ir.Constant(I32, 0))

    def at_least(self, value: Value, bound: Value) -> Value:
        """The larger one; a NaN in `value` stays."""
        return self.b.select(self.b.fcmp_ordered("<", value, bound), bound, value)

    def at_most(self, value: Value, bound: Value) -> Value:
        """The smaller one; a NaN in `value` stays."""
        return self.b.select(self.b.fcmp_ordered(">", value, bound), bound, value)

    def larger_of(self, a: Value, b: Value) -> Value:
        """The larger one; a NaN in either stays."""
        larger = self.b.select(self.b.fcmp_ordered("<", a, b), b, a)
        return self.b.select(self.b.fcmp_unordered("uno", b, b), b, larger)

    def keep(self, value: Value, mask: Value, offset: int = 0) -> Value:
        """The value where the mask in memory has its bits set, else 0, also for a NaN."""
        ints = ir.VectorType(I32, self.width)
        bits = self.b.and_(self.b.bitcast(value, ints), self.load(mask, offset, ints))
        return self.b.bitcast(bits, self.vector)

    def end(self) -> None:
        self.b.ret_void()

    def _int(self, value: Value | int) -> Value:
        return value if isinstance(value, ir.Value) else self.i(value)
