"""Rewrites of a Triton module that give a kernel another grid, at each of its launches: `persistent` and `split`.

A persistent kernel has a few programs for each multiprocessor, which go on from place to place. A split one adds up parts of
its reduction in programs of their own, and a second launch adds the parts in order and goes on as the kernel did.

Both need what is written out: launches that are statements, by a grid of numbers or a function of the launch's own knobs.
What a kernel's loop carries must be sums that begin at zero and numbers that grow by equal steps; else it is not split.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .triton_text import MAX_AXES, Change, Launch, ModuleText, bracketed, is_plain, words

PER_UNIT = (1, 2, 4, 8)  # programs that stay, for each multiprocessor
PARTS = (2, 4, 8)
UNITS = 128  # multiprocessors where there is no GPU to ask

Rewrite = tuple[str, str]

_PLACE = re.compile(r"\Atl\.(program_id|num_programs)\((?:axis\s*=\s*)?([012])\)\Z")
_ASKED = {"program_id": "fa_place", "num_programs": "fa_count"}
_HARMLESS = ("tl.assume", "tl.static_assert", "tl.device_assert", "tl.multiple_of", "tl.max_contiguous")
_UNITS = f'''def fa_units(tensor):
    """Multiprocessors of the GPU that holds a tensor; {UNITS} where there is none."""
    if not torch.cuda.is_available():
        return {UNITS}
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count


'''


def grid_rewrites(source: str, reached: set[str] | None) -> Iterator[Rewrite]:
    """Every rewrite of a module's grids by one step, as `what@where=how` and the text that comes of it.

    Args:
        reached: the functions that are rewritten; None is all.
    """
    module = ModuleText(source)
    for kernel in module.kernels:
        if reached is None or kernel.name in reached:
            steps = [*_persistent(module, kernel), *_split(module, kernel)]
            for unfolded, inner in _with_calls_written_out(module, kernel):
                steps += _split(unfolded, inner)
            yield from (step for step in steps if _parses(step[1]))


def _parses(text: str) -> bool:
    """Whether a text is Python: what stands on one line with other statements, or in a grid as `*sizes`, may be none."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


# Persistent kernels --------------------------------------------------------------------------------------------------


def _persistent(module: ModuleText, kernel: ast.FunctionDef) -> Iterator[Rewrite]:
    """A few programs for each multiprocessor, each of which does one place of the grid after another."""
    launches, places = module.launches(kernel), _places(module, kernel)
    count = _axes(module, kernel, launches)
    if not count or not _may_be_repeated(module, kernel, places, count):
        return
    counts = [f"fa_count{axis}" for axis in range(count)]
    place = ["fa_place"] if count == 1 else ["fa_place % fa_count0", "fa_place // fa_count0"]
    if count == MAX_AXES:
        place[1:] = ["fa_place // fa_count0 % fa_count1", "fa_place // (fa_count0 * fa_count1)"]
    start, end = module.lines(kernel.body[0], kernel.body[-1])
    body = module.between(start, end, [(*module.span(call), name) for call, name in places])
    at = f"fa_{kernel.name}_at"
    parameters = [*(f"fa_place{axis}" for axis in range(count)), *counts, *map(module.of, kernel.args.args)]
    once = f"@triton.jit\ndef {at}({', '.join(parameters)}):  # fmt: skip\n{body}\n\n"
    loop = (
        f"    for fa_place in tl.range(tl.program_id(0), {' * '.join(counts)}, tl.num_programs(0)):\n"
        "        fa_place = tl.cast(fa_place, tl.int32)\n"  # Triton's interpreter counts in Python's numbers
        f"        {at}({', '.join([*place, *counts, *(arg.arg for arg in kernel.args.args)])})\n"
    )
    for per_unit in PER_UNIT:
        changes = [
            module.before(kernel, once),
            module.parameters(kernel, ", ".join(counts)),
            (start, end, loop),
        ]
        for launch in launches:
            every = " * ".join(map(bracketed, launch.grid))
            changes += [
                (*module.span(launch.indexed.slice), f"min({every}, {per_unit} * fa_units({launch.tensor})),"),
                module.arguments(launch.call, dict(zip(counts, launch.grid, strict=True))),
            ]
        if "fa_units" not in module.functions:
            changes.append(module.before(next(iter(module.functions.values())), _UNITS))
        yield f"persistent@{kernel.name}.program_id={per_unit}", module.changed(changes)


def _axes(module: ModuleText, kernel: ast.FunctionDef, launches: Sequence[Launch]) -> int:
    """Of the grid that all launches of a kernel have, where both may be rewritten; else 0."""
    axes = {len(launch.grid) for launch in launches}
    return axes.pop() if len(axes) == 1 and module.has_torch and is_plain(kernel) else 0


def _places(module: ModuleText, kernel: ast.FunctionDef) -> list[tuple[ast.Call, str]]:
    """Where a kernel asks for its place or for how many there are, and what stands there once it is told."""
    calls = [node for node in ast.walk(kernel) if isinstance(node, ast.Call)]
    return [(call, _ASKED[match[1]] + match[2]) for call in calls if (match := _PLACE.match(module.of(call)))]


def _may_be_repeated(
    module: ModuleText, kernel: ast.FunctionDef, places: Sequence[tuple[ast.Call, str]], axes: int
) -> bool:
    """Whether a kernel's body is the same for any place that it is given, and is no loop over places already."""
    inside = list(ast.walk(kernel))
    asked = sum(isinstance(node, ast.Attribute) and node.attr in _ASKED for node in inside)
    begins = [node.iter.args[0] for node in inside if isinstance(node, ast.For) and isinstance(node.iter, ast.Call)]
    return (
        0 < len(places) == asked
        and all(int(name[-1]) < axes for _, name in places)
        and not any(call in begins for call, _ in places)
        and not any(isinstance(node, ast.Return) for node in inside)
        and not any(_ASKED.keys() & words(called) for called in _called(module, kernel))
    )


def _called(module: ModuleText, kernel: ast.FunctionDef) -> list[ast.FunctionDef]:
    """The functions of the module that a kernel names, and those that these name."""
    found = {kernel.name: kernel}
    waiting = [kernel]
    while waiting:
        for name in sorted(words(waiting.pop()) & module.functions.keys() - found.keys()):
            found[name] = module.functions[name]
            waiting.append(found[name])
    return [function for name, function in found.items() if name != kernel.name]


# Split reductions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A sum that a loop carries: its name and shape."""

    name: str
    shape: tuple[str, ...]

    @property
    def elements(self) -> str:
        return " * ".join(map(bracketed, self.shape))

    @property
    def offsets(self) -> str:
        """Where each element lies, in a row."""
        if len(self.shape) == 1:
            return f"tl.arange(0, {self.shape[0]})"
        rows, columns = self.shape
        return f"tl.arange(0, {rows})[:, None] * {bracketed(columns)} + tl.arange(0, {columns})[None, :]"


def _split(module: ModuleText, kernel: ast.FunctionDef) -> Iterator[Rewrite]:
    """Parts of a loop in programs of their own, whose sums a second launch brings together, in order."""
    launches = module.launches(kernel)
    axis = _axes(module, kernel, launches)  # the one that parts lie along
    if not 0 < axis < MAX_AXES or "fa_sums" in words(kernel):
        return
    asking = (kernel, *_called(module, kernel))
    if any(int(name[-1]) >= axis for each in asking for _, name in _places(module, each)):
        return  # it asks for its place along that axis, where it has been the only one so far
    for number in range(len(kernel.body)):
        loop = _Loop.of(module, kernel, number)
        if loop is None or any(not loop.knobs <= launch.given.keys() for launch in launches):
            continue
        for parts in PARTS:
            changes = [
                module.before(kernel, loop.part(axis)),
                module.parameters(kernel, "fa_sums, FA_PARTS: tl.constexpr"),
                (*module.lines(loop.statement, loop.statement), loop.together(axis)),
            ]
            for launch in launches:
                changes += _launched_twice(module, kernel, launch, parts, loop.size(launch.given))
            yield f"split@{kernel.name}.{loop.variable}={parts}", module.changed(changes)


def _launched_twice(
    module: ModuleText, kernel: ast.FunctionDef, launch: Launch, parts: int, size: str
) -> Iterator[Change]:
    """Room for the sums, and a launch of the parts, ahead of a launch that brings them together."""
    more = module.arguments(launch.call, {"fa_sums": "fa_sums", "FA_PARTS": str(parts)})
    begin, end = module.span(launch.statement)
    grid = ", ".join([*launch.grid, str(parts)])
    of_parts = [
        (begin, begin + len(kernel.name), f"fa_{kernel.name}_part"),
        (*module.span(launch.indexed.slice), grid),
        more,
    ]
    elements = " * ".join([str(parts), *map(bracketed, launch.grid), bracketed(size)])
    ahead = [
        f"fa_sums = torch.empty({elements}, dtype=torch.float32, device={launch.tensor}.device)",
        module.between(begin, end, of_parts),
    ]
    margin = module.margin(launch.statement)
    apart = "; " if margin.strip() else f"\n{margin}"
    yield begin, begin, "".join(line + apart for line in ahead)
    yield more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A loop of a kernel that adds up: `for variable in range(0, end, step)` at the kernel's own level."""

    module: ModuleText
    kernel: ast.FunctionDef
    statement: ast.For
    range: ast.Call
    variable: str
    end: str
    step: str
    sums: tuple[_Sum, ...]
    steady: tuple[tuple[str, str], ...]  # what grows with each iteration, and by how much

    @classmethod
    def of(cls, module: ModuleText, kernel: ast.FunctionDef, number: int) -> _Loop | None:
        """The loop that is a kernel's statement of this number; None where it does anything but add up."""
        before, loop, after = kernel.body[:number], kernel.body[number], kernel.body[number + 1 :]
        if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name) or loop.orelse or not after:
            return None
        if not isinstance(loop.iter, ast.Call):
            return None
        bounds = [module.of(arg) for arg in loop.iter.args]
        if module.of(loop.iter.func) not in ("range", "tl.range") or not 1 <= len(bounds) <= 3:
            return None
        if (len(bounds) > 1 and bounds[0] != "0") or any(k.arg == "loop_unroll_factor" for k in loop.iter.keywords):
            return None  # of loops that begin elsewhere than at 0, Triton 3.6 unrolls most wrongly
        if not all(_is_harmless(module, each) for each in (*before, *loop.body)):
            return None
        wanted = {n.id for each in after for n in ast.walk(each) if isinstance(n, ast.Name)}
        carried = _carried(module, kernel, loop, before, wanted)
        if carried is None or loop.target.id in wanted:
            return None
        grown, steady = carried
        shapes = _zeros(module, before)
        sums = [_Sum(name=name, shape=shapes[name]) for name in grown if name in shapes]
        if not sums or len(sums) < len(grown):
            return None
        step = bounds[2] if len(bounds) == 3 else "1"
        return cls(
            module=module,
            kernel=kernel,
            statement=loop,
            range=loop.iter,
            variable=loop.target.id,
            end=bounds[min(1, len(bounds) - 1)],
            step=step,
            sums=tuple(sums),
            steady=tuple(steady.items()),
        )

    @property
    def knobs(self) -> set[str]:
        """Parameters of the kernel that the sums' shapes are made of, and nothing else may be."""
        return {n for one in self.sums for size in one.shape for n in re.findall(r"[A-Za-z_]\w*", size)}

    def size(self, given: Mapping[str, str]) -> str:
        """Elements of all sums of a program, in the words of a launch."""
        told = " + ".join(one.elements for one in self.sums)
        return re.sub(r"[A-Za-z_]\w*", lambda name: bracketed(given[name[0]]), told)

    def part(self, axis: int) -> str:
        """The kernel that adds up one part."""
        module, kernel = self.module, self.kernel
        first, last = module.lines(self.statement, self.statement)
        ahead = module.between(module.lines(kernel.body[0], kernel.body[0])[0], first)
        parameters = ", ".join([*map(module.of, kernel.args.args), "fa_sums", "FA_PARTS: tl.constexpr"])
        trips, scale = f"tl.cdiv({self.end}, {self.step})", f" * {bracketed(self.step)}"
        if self.step == "1":
            trips, scale = self.end, ""
        given = [
            f"fa_part * fa_trips{scale}",
            f"tl.minimum({self.end}, (fa_part + 1) * fa_trips{scale})",
            self.step,
            *(f"{each.arg}={module.of(each.value)}" for each in self.range.keywords),
        ]
        bounds = f"{module.of(self.range.func)}({', '.join(given)})"
        lines = [
            f"fa_part = tl.program_id({axis})",
            f"fa_trips = tl.cdiv({trips}, FA_PARTS)",
            *(f"{name} += {bracketed(by)} * (fa_part * fa_trips).to(tl.int64)" for name, by in self.steady),
        ]
        margin = module.margin(self.statement)
        stores = [self._room(axis), *(f"tl.store({where}, {name})" for name, where in self._places())]
        return (
            f"@triton.jit\ndef fa_{kernel.name}_part({parameters}):  # fmt: skip\n{ahead}"
            + "".join(f"{margin}{line}\n" for line in lines)
            + module.between(first, last, [(*module.span(self.range), bounds)])
            + "".join(f"{margin}{line}\n" for line in stores)
            + "\n\n"
        )

    def together(self, axis: int) -> str:
        """What stands in the loop's place: the sums of all parts."""
        loads = [self._room(axis), *(f"{name} += tl.load({where})" for name, where in self._places())]
        margin = self.module.margin(self.statement)
        return f"{margin}for fa_part in range(FA_PARTS):\n" + "".join(f"{margin * 2}{line}\n" for line in loads)

    def _room(self, axis: int) -> str:
        """Where a program's sums of a part lie: part by part, in it program by program."""
        programs, me = "tl.num_programs(0)", "tl.program_id(0)"
        if axis > 1:
            me = f"tl.program_id(1) * {programs} + {me}"
            programs = f"{programs} * tl.num_programs(1)"
        size = bracketed(" + ".join(one.elements for one in self.sums))
        return f"fa_room = fa_sums + (fa_part * {programs} + {me}).to(tl.int64) * {size}"

    def _places(self) -> Iterator[tuple[str, str]]:
        """Each sum, and where its elements lie: one sum after the other."""
        before = "fa_room"
        for one in self.sums:
            yield one.name, f"{before} + {one.offsets}"
            before += f" + {one.elements}"


def _carried(
    module: ModuleText, kernel: ast.FunctionDef, loop: ast.For, before: Sequence[ast.stmt], wanted: set[str]
) -> tuple[list[str], dict[str, str]] | None:
    """What a loop carries from one iteration to the next: sums that are wanted after it, and what grows by equal steps.

    None where it carries anything else.
    """
    known, set_here = {arg.arg for arg in kernel.args.args} | _stored(before), _stored([loop])
    added: dict[str, list[ast.stmt]] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if not isinstance(node.op, ast.Add) or node.target.id in words(node.value):
                return None
            added.setdefault(node.target.id, []).append(node)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if _adds_to(module, name, node.value):
                added.setdefault(name, []).append(node)
            elif name in known or name in wanted:
                return None
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            return None
    sums: list[str] = []
    steady: dict[str, str] = {}
    for name, statements in added.items():
        reads = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(loop))
        mine = sum(isinstance(n, ast.Name) and n.id == name for each in statements for n in ast.walk(each))
        if name in wanted and reads == mine and name in known:
            sums.append(name)
            continue
        if name not in known and name not in wanted:
            continue  # of one iteration alone
        only = statements[0]
        if name in wanted or len(statements) > 1 or not isinstance(only, ast.AugAssign) or only not in loop.body:
            return None
        by = {n.id for n in ast.walk(only.value) if isinstance(n, ast.Name)}
        if by & set_here:
            return None
        steady[name] = module.of(only.value)
    return sums, steady


def _stored(statements: Sequence[ast.AST]) -> set[str]:
    """Names that are set."""
    inside = [node for each in statements for node in ast.walk(each)]
    return {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _adds_to(module: ModuleText, name: str, value: ast.expr) -> bool:
    """Whether a value is a sum and something that is none of it: `sum + x`, `tl.dot(a, b, sum)`."""
    if sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value)) != 1:
        return False
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return name in (module.of(value.left), module.of(value.right))
    if isinstance(value, ast.Call) and module.of(value.func) == "tl.dot":
        given = [*value.args[2:3], *(k.value for k in value.keywords if k.arg == "acc")]
        return [module.of(each) for each in given] == [name]
    return False


def _zeros(module: ModuleText, before: Sequence[ast.stmt]) -> dict[str, tuple[str, ...]]:
    """Shapes of what is zero in float32 ahead of a loop, by name, where nothing touches it in between."""
    found: dict[str, tuple[str, ...]] = {}
    for statement in before:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                found.pop(node.id, None)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target, value = statement.targets[0], statement.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = list(zip(target.elts, value.elts, strict=True))
        for name, made in pairs:
            if isinstance(name, ast.Name) and isinstance(made, ast.Call) and module.of(made.func) == "tl.zeros":
                given = {k.arg: k.value for k in made.keywords}
                shape = made.args[0] if made.args else given.get("shape")
                dtype = made.args[1] if len(made.args) > 1 else given.get("dtype")
                if (
                    isinstance(shape, ast.Tuple | ast.List)
                    and 1 <= len(shape.elts) <= 2
                    and dtype is not None
                    and module.of(dtype) == "tl.float32"
                ):
                    found[name.id] = tuple(module.of(size) for size in shape.elts)
    return found


def _is_harmless(module: ModuleText, statement: ast.stmt) -> bool:
    """Whether a statement may run twice, or in several programs: it writes nothing, nor returns, nor takes long."""
    for node in ast.walk(statement):
        if isinstance(node, ast.For | ast.While | ast.Return):
            return False
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            call = node.value
            return isinstance(call, ast.Call) and module.of(call.func) in _HARMLESS
    return not any(word == "store" or word.startswith("atomic_") for word in words(statement))


# Calls written out ---------------------------------------------------------------------------------------------------


def _with_calls_written_out(
    module: ModuleText, kernel: ast.FunctionDef
) -> Iterator[tuple[ModuleText, ast.FunctionDef]]:
    """The module with one call of the kernel replaced by what it calls: each that has a loop of its own."""
    for statement in kernel.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call = statement.value
        called = module.functions.get(module.of(call.func))
        if called is None or called not in module.kernels or not any(isinstance(s, ast.For) for s in called.body):
            continue
        text = _written_out(module, kernel, statement, call, called)
        if text is not None and _parses(text):
            unfolded = ModuleText(text)
            yield unfolded, unfolded.functions[kernel.name]


def _written_out(
    module: ModuleText, kernel: ast.FunctionDef, statement: ast.Assign, call: ast.Call, called: ast.FunctionDef
) -> str | None:
    last = called.body[-1]
    if not is_plain(called) or not isinstance(last, ast.Return) or last.value is None:
        return None
    if call.keywords or len(call.args) != len(called.args.args):
        return None
    if sum(isinstance(node, ast.Return) for node in ast.walk(called)) > 1:
        return None
    stored = _stored(called.body)
    taken = {n.id for n in ast.walk(kernel) if isinstance(n, ast.Name)} | {a.arg for a in kernel.args.args}
    fixed = {a.arg for a in kernel.args.args if a.annotation is not None}
    names = {name: f"fa_{name}" if name in taken else name for name in stored}
    ahead, margin = "", module.margin(statement)
    for parameter, given in zip(called.args.args, call.args, strict=True):
        text = module.of(given)
        plain = isinstance(given, ast.Name | ast.Constant)
        if (
            plain
            and parameter.arg not in stored
            and (parameter.annotation is None or text in fixed or not isinstance(given, ast.Name))
        ):
            names[parameter.arg] = text
            continue
        names[parameter.arg] = f"fa_{parameter.arg}" if parameter.arg in taken else parameter.arg
        kind = f": {module.of(parameter.annotation)}" if parameter.annotation is not None else ""
        ahead += f"{margin}{names[parameter.arg]}{kind} = {bracketed(text)}\n"
    renamed = [(*module.span(n), names[n.id]) for n in ast.walk(called) if isinstance(n, ast.Name) and n.id in names]
    body = [each for each in called.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    inner = module.between(*module.lines(body[0], body[-2]), renamed) if len(body) > 1 else ""
    result = module.between(*module.span(last.value), renamed)
    target = module.of(statement.targets[0])
    return module.changed(
        [(*module.lines(statement, statement), f"{ahead}{inner}{margin}{target} = {bracketed(result)}\n")]
    )
