"""Who may include whom, and who may import whom: docs/README.md's tables of fences, checked on the sources themselves."""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src"

# stage -> folders (or single headers) of ours that its files may include, beside its own and support
ALLOWED = {
    "support": set(),
    "graph": set(),
    "plan": set(),
    "cost": {"graph/graph.h"},  # for Op
    "frontend/formulas": {"graph"},
    "frontend/aten": {"graph", "frontend/formulas", "cost"},
    "frontend/stablehlo": {"graph", "frontend/formulas", "reference", "cost"},
    "reference": {"graph"},
    "passes": {"graph", "reference", "cost"},
    "loop": {"graph/graph.h", "cost"},  # for Op and Dims
    "interpret": {"loop", "graph/graph.h"},
    "emit/llvm": {"loop"},
    "emit/cuda": {"loop"},
    "schedule": {"graph", "loop", "cost", "plan"},
    "lower": {"graph", "loop", "cost", "plan", "schedule"},
    "runtime": {"plan"},
    "runtime/interpret": {"plan", "runtime", "interpret", "loop"},
    "compiler": {"graph", "passes", "schedule", "lower", "cost", "loop", "emit/llvm", "emit/cuda", "plan"},
    "bindings": {
        "graph", "frontend/aten", "frontend/stablehlo", "passes", "reference", "compiler", "plan", "runtime", "runtime/interpret",
        "interpret",
        "loop", "emit/cuda",
    },
}  # fmt: skip
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)  # or a string, which stays
INCLUDE = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(include\w*|import|embed)\b[ \t]*(.*?)[ \t]*$", re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cpp", ".def", ".inc"}


def stage_of(path: str) -> str:
    """The stage that a path below src belongs to: "emit/llvm" for emit/llvm/x.cpp, "runtime" for runtime/cpu/x.h."""
    parts = Path(path).parts
    return "/".join(parts[:2]) if parts[0] in ("emit", "frontend") or parts[:2] == ("runtime", "interpret") else parts[0]


def code_of(text: str) -> str:
    """A C++ file without its comments, its lines that go on put together."""
    return COMMENT.sub(lambda match: match.group(1) or " ", text.replace("\\\n", ""))


def includes(path: str, text: str) -> tuple[list[tuple[str, str]], list[str]]:
    """What a file below src includes, as (its quote, a name), the quote being '"' for all that is ours; and the includes that it
    may not have: of what a macro says, of a path with "..", any but #include."""
    found, dynamic = [], []
    for word, said in INCLUDE.findall(code_of(text)):
        literal = re.fullmatch(r'<([^>"]+)>|"([^"]+)"', said)
        if word != "include" or not literal or ".." in Path(literal.group(1) or literal.group(2)).parts:
            dynamic.append(f"src/{path} has #{word} {said}: only #include of a plain name is read")
            continue
        name = literal.group(1) or literal.group(2)
        ours = literal.group(2) is not None or (SOURCE / name).is_file()
        found.append(('"' if ours else "<", name))
    return found, dynamic


def breaches(path: str, text: str) -> list[str]:
    """What a file below src includes though it must not."""
    stage = stage_of(path)
    names, found = includes(path, text)
    for quote, target in names:
        if quote == '"' and "/" not in target:
            continue  # beside the file itself
        if target.startswith(("llvm/", "llvm-c/")):
            allowed = stage == "emit/llvm" and path != "emit/llvm/emit.h"  # the one header that others include
        elif target.startswith(("torch/", "ATen/", "c10/", "cuda", "Python.h")):
            allowed = False
        elif target.startswith("nanobind/"):
            allowed = stage == "bindings"
        elif quote == '"':
            allowed = stage_of(target) in ALLOWED[stage] | {stage, "support"} or target in ALLOWED[stage]
        else:
            allowed = True  # the C++ library and third parties
        if not allowed:
            found.append(f"src/{path} includes {target}")
    return found


def sources() -> list[tuple[str, str]]:
    """Paths below src, in order, and the texts of the files."""
    files = [file for file in sorted(SOURCE.rglob("*")) if file.suffix in SUFFIXES]
    return [(str(file.relative_to(SOURCE)), file.read_text()) for file in files]


def test_sources_keep_to_the_fences():
    found = [breach for path, text in sources() for breach in breaches(path, text)]
    assert not found, "\n".join(found)


# stage -> headers of others that its files see through what they include, and may not include themselves
THROUGH = {
    "runtime/interpret": {"graph/graph.h", "cost/sums.h"},
    "emit/llvm": {"graph/graph.h", "cost/sums.h"},  # loop's Op and Dims, and how long its runs are
    "emit/cuda": {"graph/graph.h"},
    "interpret": {"cost/sums.h"},
    "bindings": {"schedule/cut.h", "cost/cutting.h", "cost/chunking.h"},  # what compiler/compiler.h shows; defaults of options
}


def reached(path: str, texts: dict[str, str]) -> dict[str, str]:
    """All files below src that a file sees, and through which it includes each."""
    found: dict[str, str] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        for quote, target in includes(file, texts[file])[0]:
            name = target if "/" in target else str(Path(file).parent / target)
            if quote == '"' and name in texts and name not in found:
                found[name] = file
                waiting.append(name)
    return found


def breaches_through(path: str, texts: dict[str, str]) -> list[str]:
    """What a file sees though its stage must not, be it through whatever it includes."""
    stage = stage_of(path)
    allowed = ALLOWED[stage] | THROUGH.get(stage, set()) | {stage, "support"}
    allowed |= {"graph/ops.def"} if "graph/graph.h" in allowed else set()
    return [
        f"src/{path} sees {seen} through src/{via}"
        for seen, via in reached(path, texts).items()
        if stage_of(seen) not in allowed and seen not in allowed
    ]


def test_nothing_is_seen_through_what_is_included():
    texts = dict(sources())
    found = [breach for path in sorted(texts) for breach in breaches_through(path, texts)]
    assert not found, "\n".join(found)


def test_what_is_seen_through_two_headers_is_a_breach():
    texts = {
        "bindings/module.cpp": '#include "compiler/joint.h"\n', "compiler/joint.h": '#include "cut_of.h"\n',
        "compiler/cut_of.h": '#include "lower/lower.h"\n', "lower/lower.h": "", "schedule/cut.h": "",
    }  # fmt: skip
    (found,) = breaches_through("bindings/module.cpp", texts)
    assert found == "src/bindings/module.cpp sees lower/lower.h through src/compiler/cut_of.h"
    texts["compiler/cut_of.h"] = '#include "schedule/cut.h"\n'
    assert not breaches_through("bindings/module.cpp", texts)


def test_every_folder_is_a_stage():
    stages = {stage_of(path) for path, _ in sources()}
    assert stages <= ALLOWED.keys(), f"without a row in ALLOWED: {sorted(stages - ALLOWED.keys())}"


@pytest.mark.parametrize(
    "path, line",
    [
        ("emit/llvm/emit.cpp", '#include "graph/graph.h"'),
        ("runtime/cpu/run.cpp", '#include "loop/loop.h"'),
        ("runtime/runtime.cpp", '#include "compiler/compiler.h"'),
        ("compiler/lower_plan.cpp", '#include "frontend/aten/import.h"'),
        ("compiler/compiler.h", '#include "frontend/formulas/value.h"'),
        ("frontend/formulas/softmax.h", '#include "frontend/aten/call.h"'),
        ("frontend/formulas/losses.cpp", '#include "compiler/compiler.h"'),
        ("frontend/aten/losses.cpp", '#include "frontend/stablehlo/import.h"'),
        ("frontend/stablehlo/import.cpp", '#include "frontend/aten/table.h"'),
        ("loop/split.cpp", '#include "graph/build.h"'),
        ("emit/llvm/emit.h", "#include <llvm/IR/Module.h>"),
        ("schedule/fuse.cpp", "#include <llvm/ADT/SmallVector.h>"),
        ("bindings/module.cpp", "#include <torch/extension.h>"),
        ("plan/plan.h", '  #  include "graph/graph.h"'),
        ("runtime/cuda/executable.cpp", '#include "interpret/device.h"'),
        ("runtime/device.cpp", '#include "runtime/interpret/device.h"'),
        ("runtime/device.cpp", "#include <lower/lower.h>"),
        ("runtime/device.cpp", '/* */ #include "lower/lower.h"'),
        ("runtime/device.cpp", '/* a\n b */ # /* c */ include /**/ "lower/lower.h"  // d'),
        ("runtime/device.cpp", '#include"lower/lower.h"'),
        ("runtime/device.cpp", '#include_next "lower/lower.h"'),
        ("runtime/device.cpp", '#import "lower/lower.h"'),
        ("runtime/device.cpp", '%:include "lower/lower.h"'),
        ("runtime/device.cpp", '#inc\\\nlude "lower/lower.h"'),
        ("runtime/device.cpp", '#define L "lower/lower.h"\n#include L'),
        ("runtime/device.cpp", '#include "../lower/lower.h"'),
        ("runtime/device.cpp", '#include "cpu/../../lower/lower.h"'),
    ],
)
def test_a_breach_is_seen(path, line):
    assert len(breaches(path, f"#include <vector>\n{line}\n")) == 1


@pytest.mark.parametrize(
    "path, line",
    [
        ("emit/llvm/emit.cpp", "#include <llvm/IR/Module.h>"),
        ("loop/loop.h", '#include "graph/graph.h"'),
        ("runtime/cpu/run.cpp", '#include "runtime/runtime.h"'),
        ("graph/graph.cpp", '#include "graph/ops.def"'),
        ("runtime/device.cpp", '// #include "lower/lower.h"\n/* #include "lower/lower.h"\n#include "lower/lower.h" */'),
        ("runtime/device.cpp", 'f("/*");\n#include <vector>  // "x'),
    ],
)
def test_what_is_allowed_is_allowed(path, line):
    assert breaches(path, line) == []


# ---- targets ----------------------------------------------------------------------------------------------------------

# Who may say which machine it is: whoever makes a Target of it, emitters, what runs on one kind of CPU alone, and devices that
# say which names are theirs. All others ask a Target what it can.
NAMES_MACHINES = (
    "support/", "emit/", "runtime/cpu/", "interpret/amx.cpp", "runtime/cuda/device.cpp", "runtime/interpret/device.cpp",
)  # fmt: skip
MACHINE = re.compile(
    r"""\b(?:Gpu|CpuLevel)\b|(?:\.|->)gpu\b|[=!]=\s*"(?:cpu|interpret|cuda|sm_)|"(?:cpu|interpret|cuda|sm_\w*)"\s*[=!]=|"""
    r"""starts_with\("(?:cpu|interpret|cuda|sm_)"""
)


def machines_named(path: str, text: str) -> list[str]:
    if path.startswith(NAMES_MACHINES):
        return []
    return [f"src/{path}:{i}: {line.strip()}" for i, line in enumerate(text.splitlines(), 1) if MACHINE.search(line)]


def test_stages_ask_for_capabilities():
    found = [line for path, text in sources() for line in machines_named(path, text)]
    assert not found, "\n".join(["docs/targets.md says how to ask a Target instead:", *found])


@pytest.mark.parametrize(
    "line",
    [
        "if (options.gpu) return;",
        "int lanes(CpuLevel level);",
        "std::optional<Gpu> gpu = {};",
        "return machine->gpu ? 1 : 2;",
        'if (plan.device == "interpret") return;',
        'ok = target.name() != "sm_90a";',
        'if ("cpu" == name) return;',
        'if (name.starts_with("sm_")) return;',
    ],
)
def test_a_machine_that_is_named_is_seen(line):
    assert len(machines_named("compiler/codegen.cpp", f"int x;\n{line}\n")) == 1
    assert machines_named("emit/llvm/emit.cpp", line) == []


# Who may ask the environment, the machine and the calling thread: whoever makes CompileOptions of the answers (bindings, for
# Python) or needs none for a plan, since it runs plans; and what only finds a library. All others are told by the options, which
# are in a plan's key.
ASKS_WORLD = ("support/", "runtime/", "bindings/", "interpret/", "emit/cuda/nvrtc.cpp")
WORLD = re.compile(
    r"getenv|\benviron\b|\b(?:machine_)?cpu_level\s*\(|\bcache_sizes\s*\(|\bcpu_(?:target|model|is_intel)\s*\(|"
    r"\bmask_generator\s*\(\s*\)|\bflushes_denormals\s*\(|_mm_getcsr|\bfeget\w+|cpuid|xgetbv|__builtin_cpu|"
    r"hardware_concurrency|\bsysconf\b|\buname\s*\(|sched_get|getauxval|/proc/|\bget_nprocs"
)
OF_TESTS = {"compiler/options.h": "  Target target = cpu_target();"}  # a default that options_of sets for every plan


def world_asked(path: str, text: str) -> list[str]:
    if path.startswith(ASKS_WORLD):
        return []
    lines = code_of(text).splitlines()
    return [
        f"src/{path}: {line.strip()}" for line in lines if WORLD.search(line) and line.split(";")[0] + ";" != OF_TESTS.get(path)
    ]


def test_what_decides_is_told_by_the_options():
    found = [line for path, text in sources() for line in world_asked(path, text)]
    assert not found, "\n".join(["a field of CompileOptions says it instead (docs/cache.md):", *found])


@pytest.mark.parametrize(
    "line",
    [
        'if (std::getenv("TRAINC_X")) return;',
        'secure_getenv("X");',
        "extern char** environ;",
        "if (cpu_level() >= level) return;",
        "o.target = target_of(name, machine_cpu_level ());",
        "const int cores = cache_sizes().cores;",
        "options.target = cpu_target();",
        "draw(mask_generator());",
        "fold(trainc::flushes_denormals());",
        "std::thread::hardware_concurrency();",
        "sysconf(_SC_NPROCESSORS_ONLN);",
        'std::ifstream file("/proc/cpuinfo");',
    ],
)
def test_a_question_to_the_world_is_seen(line):
    assert len(world_asked("schedule/cut.cpp", f"int x;  // {line}\n{line}\n")) == 1
    assert world_asked("support/cpu.cpp", line) == []


def test_capabilities_are_no_machines():
    for line in ["if (options.target.launches_blocks) return;", 'f.take<std::string>("cpu");', "multiprocessors(gpu_target());"]:
        assert machines_named("compiler/codegen.cpp", line) == []


# ---- numbers that decide stand in src/cost

# What is no choice between two ways that are both right.
NO_CHOICE = {
    "schedule/contraction_blocking.h": {"kBlockingVariants"},  # how many there are in cost's table
    "schedule/cut.cpp": {"kInfinite"},
    "schedule/order_steps.cpp": {"kUnlimited"},
    # three parts of an f32 in tiles of AMX
    "lower/contraction_tiles.cpp": {"kParts", "kSquare", "kSixProducts", "kOneProduct", "kLeast", "kGreatest", "kVeltkamp"},
    "lower/lower.cpp": {"inf"},
    "lower/philox.cpp": {"kWord"},
    "emit/cuda/cubin.cpp": {"kFormatWord", "kRegisterCount", "kFrameSize"},
    "emit/cuda/print.cpp": {"kInt"},
    "emit/llvm/bf16.cpp": {"kSeen"},  # a bound of a search: beyond it the answer is the careful one
    "emit/llvm/math.cpp": {"ln2_high"},
    "emit/llvm/trigonometry.cpp": {"two_over_pi", "half_pi", "parts", "last"},
    "frontend/formulas/activations.cpp": {"kSqrt1_2", "k2_SqrtPi", "kTanhBeta"},
    "frontend/formulas/complex.cpp": {"kHuge"},
    "frontend/formulas/signs.h": {"kInf", "kPi"},
    "frontend/formulas/special.cpp": {
        "kNan", "kPiLow", "kBase", "kLanczos", "kG", "kTerms", "kBernoulli", "kBesselNear", "kBesselFar",
    },  # fmt: skip
    "frontend/stablehlo/monoid.cpp": {"infinity"},
    "frontend/stablehlo/monoid.h": {"kMostInOrder"},  # what is refused, too
    "frontend/stablehlo/known.cpp": {"kMostElements"},
    "frontend/stablehlo/parts.h": {"kMostConstants"},
    "frontend/stablehlo/windows.cpp": {"kMostPlaces"},
    "loop/loop.h": {"kBanksBytes", "kCopyBytes", "kMatrices", "kTileSide", "kWarp"},
    "loop/mma.h": {"kMmaM", "kMmaSums"},
    "loop/offsets.cpp": {"kNone"},
    "loop/simplify.cpp": {"kMin"},
    "loop/text.h": {"kComparison", "kInfix", "kLoops", "kSpaces", "kCombines"},
    "plan/cbor.cpp": {"kDeepest"},
    "plan/file.cpp": {"kPlan", "kVersion"},
    "plan/live.h": {"kAlignment"},
    "plan/memory.cpp": {"kUnlimited"},
    "plan/verify.cpp": {"kMostBytes"},
}
COST_PAGE = (ROOT / "docs" / "cost.md").read_text()  # its rows "Outside" say what stands elsewhere, and why
_NUMBER = r"(?:std::)?(?:int|unsigned|size_t|double|float|auto|u?int\d+_t)"
_HERE = r"^ *(?:(?:inline|static) +)*"
CONSTANT = re.compile(_HERE + rf"(?:constexpr +[\w:<>]+|const +{_NUMBER}) +(\w+)(?:\[\w*\])? *[={{{{]", re.MULTILINE)
WORDS = re.compile(_HERE + r"constexpr +(?:(?:const +)?char\b|std::string_view\b|Refusal\b)")


def own_numbers(path: str, text: str) -> list[str]:
    """Constants of a file that belong to src/cost: all that are constexpr, and numbers that are const outside functions."""
    if path.split("/")[0] in {"cost", "support", "reference", "interpret", "runtime", "bindings"}:
        return []
    outside = set(re.findall(r"^\| `(k\w+)` \|.*`src/" + re.escape(path) + "` \\|$", COST_PAGE, re.MULTILINE))
    found = []
    for match in CONSTANT.finditer(text):
        line, name = match.group(), match.group(1)
        within = line.startswith(" ") and "constexpr" not in line  # a variable of a function
        if not within and not WORDS.match(line) and name not in outside | NO_CHOICE.get(path, set()):
            found.append(f"src/{path} has a number of its own, {name}: it belongs to src/cost and docs/cost.md")
    return found


def test_numbers_that_decide_stand_in_cost():
    texts = dict(sources())
    found = [breach for path in sorted(texts) for breach in own_numbers(path, texts[path])]
    assert not found, "\n".join(found)
    for path, names in NO_CHOICE.items():
        assert all(re.search(rf"\b{name}\b", texts[path]) for name in names), f"{path} has no such constant any more"


@pytest.mark.parametrize(
    "path, line",
    [
        ("schedule/schedule.cpp", "constexpr int64_t kCheap = 3;"),
        ("schedule/cut.h", "inline constexpr size_t kNear = 16;"),
        ("lower/matmul_chain.cpp", "    constexpr int kRows = 8, kMore = 9;"),
        ("lower/contraction.cpp", "constexpr Tile kTiles[] = {{8, 3}};"),
        ("lower/contraction.cpp", "constexpr Tile kTile{8, 3};"),
        ("compiler/joint.cpp", "const double kStep = 1.1;"),
        ("passes/simplify.cpp", "static constexpr auto kRounds = 50;"),
    ],
)
def test_a_number_of_its_own_is_seen(path, line):
    assert len(own_numbers(path, f"namespace trainc {{\n{line}\n}}\n")) == 1
    assert not own_numbers(path.replace(path.split("/")[0], "cost"), line)


def test_words_and_variables_are_no_numbers_that_decide():
    text = 'constexpr const char* kWhy = "no";\nconstexpr Refusal kTooLarge = "large";\n'
    text += "  const int64_t rows = 3;\n  if constexpr (true) {}\nconst Node* f();\n"
    assert not own_numbers("schedule/schedule.cpp", text)


# ---- the rooms of the Python package ----------------------------------------------------------------------------------

PACKAGE = ROOT / "python" / "trainc"
FRAMEWORKS = {"torch", "functorch", "torchvision", "torchaudio", "jax", "jaxlib", "keras", "tensorflow"}
# first part of a room -> frameworks that it imports
OF_ROOM = {
    "torch": {"torch"}, "cli": {"torch"}, "xla": {"jaxlib"}, "jax": {"jax", "jaxlib"}, "tensorflow": {"tensorflow"},
    "keras": {"keras"},
}  # fmt: skip

# room (a folder, or a file beside folders) -> rooms that its modules may import, within functions too, beside their own
_GROUND = {"base", "_core", "torch.compat", "torch.strided", "torch.trust"}
_PLANS = {*_GROUND, "torch.device", "torch.numbers", "torch.graph", "torch.guards", "torch.run", "torch.optimizers"}
ROOMS = {
    "base": {"_core"},  # what every front end stands on: it knows no framework
    "torch": set(),
    "torch.compat": set(),
    "torch.strided": set(),
    "torch.device": {"base", "_core", "torch.compat", "torch.strided"},
    "torch.trust": {"base"},
    "torch.numbers": _GROUND,
    "torch.graph": {*_GROUND, "torch.device", "torch.numbers"},
    "torch.guards": {*_GROUND, "torch.numbers"},
    "torch.run": {*_GROUND, "torch.device", "torch.graph", "torch.guards"},
    "torch.optimizers": {*_GROUND, "torch.device", "torch.graph", "torch.guards", "torch.run"},
    "torch.capture": {*_GROUND, "torch.numbers", "torch.graph", "torch.guards", "torch.run", "torch.optimizers"},
    "torch.verify": {*_PLANS, "torch.capture"},
    "torch.joint": {*_PLANS, "torch.capture"},
    "torch.doors": {*_PLANS, "torch.capture", "torch.verify", "torch.joint"},
    "xla": {"base", "_core"},  # what frameworks of XLA's have in common: StableHLO, and plans that XLA calls
    "jax": {"base", "_core", "xla"},  # another framework's door stands on base alone, and on what it shares
    "tensorflow": {"base", "_core", "xla"},
    "keras": {"base"},  # given the door of its backend
    "trainers": {"torch.doors"},
    "cli": {"base", "_core", "torch.compat", "torch.trust", "torch.verify", "torch.doors", "jax"},
    "__main__": {"cli"},
    "": {"base", "torch.doors", "jax", "tensorflow", "keras"},  # trainc itself: its functions
}  # fmt: skip


def module_of(path: str) -> str:
    """ "torch.graph.wire" for torch/graph/wire.py below the package, "torch.graph" for its folder's __init__.py."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The longest beginning of a module's name that is a room."""
    parts = module.split(".") if module else []
    return next((room for n in range(len(parts), 0, -1) if (room := ".".join(parts[:n])) in ROOMS), parts[0] if parts else "")


def imports(text: str, modules: set[str]) -> list[str]:
    """What a file imports, anywhere in it: modules of ours as "trainc.base.cache", the first name of all others'. (Relative
    imports are refused: `dynamic_imports`.)"""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name.removeprefix("trainc.") in modules else node.module for name in names]
    return [name if name.split(".")[0] == "trainc" else name.split(".")[0] for name in found]


# Who looks at the modules that are there, since a program has imported them: torch's, and those that a program reads.
LOOKS_AT_MODULES = {
    "base.on_import", "base.page.sources", "base.config", "torch.capture.distributed", "torch.capture.trace",
    "torch.guards.reads", "torch.run.gloo_threads", "torch.verify.report", "cli.script",
}  # fmt: skip
_IMPORTERS = {"import_module", "__import__", "exec_module", "load_module", "run_module", "run_path", "exec", "eval"}
# The user's program, of the command; a module that the program imports; a function made of the text of numbers.
_IMPORTS_ANY = {
    "cli.script": {"run_module", "run_path", "exec"}, "base.on_import": {"exec_module"},
    "torch.numbers.operands": {"exec"},
}  # fmt: skip
OF_BASE = {"tqdm"}  # beside Python's own: the progress bar


def dynamic_imports(module: str, text: str) -> list[str]:
    """Ways to a module of which the fence cannot read which it is."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            refused = node.level or names & _IMPORTERS or (node.module == "sys" and "modules" in names) or "*" in names
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            modules = ast.unparse(node).endswith("sys.modules") and module not in LOOKS_AT_MODULES
            method = isinstance(node, ast.Attribute) and name in ("exec", "eval") and ast.unparse(node.value) != "builtins"
            refused = modules or (name in _IMPORTERS - _IMPORTS_ANY.get(module, set()) and not method)
        else:
            continue
        if refused:
            found.append(f"{module} has {ast.unparse(node)}: say in full, in an import, what is imported")
    return found


def python_modules() -> dict[str, str]:
    """Name below the package -> text."""
    files = PACKAGE.rglob("*.py")
    return {module_of(str(file.relative_to(PACKAGE))): file.read_text() for file in files}


def python_breaches(module: str, text: str, modules: set[str]) -> list[str]:
    """What a module imports though it must not."""
    room, found = room_of(module), dynamic_imports(module, text)
    if room not in ROOMS:
        return [f"{module} is in no room"]
    for name in imports(text, modules):
        if name.split(".")[0] != "trainc":
            allowed = name not in FRAMEWORKS or name in OF_ROOM.get(room.split(".")[0], set())
            allowed = allowed and (room != "base" or name in sys.stdlib_module_names | OF_BASE)  # any other may bring a framework
        else:
            target = name.removeprefix("trainc").removeprefix(".")
            allowed = room_of(target) in ROOMS[room] | {room} or (room, target) == ("cli", "")
        if not allowed:
            found.append(f"{module} imports {name}")
    return found


def test_modules_keep_to_their_rooms():
    modules = python_modules()
    found = [breach for module, text in modules.items() for breach in python_breaches(module, text, set(modules) | {"_core"})]
    assert not found, "\n".join(found)


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """One circle of a graph; empty where there is none."""
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_rooms_and_no_modules_import_each_other():
    assert not circle(ROOMS)
    modules = python_modules()
    arrows = {
        module: {name.removeprefix("trainc.") for name in imports(text, set(modules)) if name.startswith("trainc.")}
        for module, text in modules.items()
        if module
    }
    assert not circle(arrows)


@pytest.mark.parametrize(
    "module, line",
    [
        ("base.cache", "import torch"),
        ("base.report", "def explain():\n    from trainc.torch.doors import backend"),
        ("torch.run.core", "from trainc.torch.optimizers.plan_updates import PlanUpdates"),
        ("torch.graph.wire", "from trainc.torch.capture import trace"),
        ("torch.guards.reads", "import trainc.torch.run.core"),
        ("torch.doors.step", "import jax"),
        ("xla.wire", "import torch"),
        ("xla.wire", "import jax"),
        ("xla.wire", "from trainc.torch.run import core"),
        ("torch.doors.step", "from trainc.xla import wire"),
        ("tensorflow.door", "import jax"),
        ("tensorflow.door", "import torch"),
        ("tensorflow.door", "from trainc.jax import calls"),
        ("jax.door", "from trainc.tensorflow import calls"),
        ("elsewhere.thing", "import os"),
        ("base.cache", "import functorch"),
        ("base.cache", "import torchvision"),
        ("base.cache", "import a_package_that_may_bring_torch"),
        ("base.cache", "from ..torch import device"),
        ("base.cache", "torch = importlib.import_module('torch')"),
        ("base.cache", "from importlib import import_module as get"),
        ("base.cache", "torch = __import__('torch')"),
        ("base.cache", "get = builtins.__import__"),
        ("base.cache", "torch = sys.modules['torch']"),
        ("base.cache", "from sys import modules"),
        ("base.cache", "exec('import torch')"),
        ("base.cache", "builtins.exec('import torch')"),
        ("torch.graph.wire", "from ..capture import trace"),
        ("torch.graph.wire", "from .. import doors"),
        ("torch.graph.wire", "from . import sizes"),
        ("torch.graph.wire", "from os import *"),
        ("torch.graph.wire", "import sys; door = sys.modules['trainc.torch.doors.call']"),
    ],
)
def test_a_breach_of_a_room_is_seen(module, line):
    assert len(python_breaches(module, f"import os\n{line}\n", set(python_modules()))) == 1


def asks_for_fallback(text: str) -> bool:
    """Whether a file reads or sets the switch, by its name or by one that is not said."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            asks = (node.module or "").endswith("config") and {alias.name for alias in node.names} & {"fallback", "*"}
        elif isinstance(node, ast.Attribute):
            asks = node.attr == "fallback" or (node.attr == "__dict__" and ast.unparse(node.value).split(".")[-1] == "config")
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            asks = function in ("getattr", "setattr", "hasattr", "vars") and ast.unparse(node.args[0]).split(".")[-1] == "config"
        else:
            asks = isinstance(node, ast.Constant) and node.value == "fallback"
        if asks:
            return True
    return False


def test_one_place_decides_on_the_fallback():
    assert [module for module, text in python_modules().items() if asks_for_fallback(text)] == ["base.messages"]


@pytest.mark.parametrize(
    "line",
    [
        "from trainc.base.config import fallback",
        "from trainc.base.config import fallback as asked, cache",
        "x = trainc.config.fallback",
        "from trainc.base import config as c\nc.fallback",
        "getattr(config, 'fallback')",
        "getattr(trainc.config, 'fall' + 'back')",
        "vars(config)",
        "config.__dict__",
        "operator.attrgetter('fallback')(config)",
    ],
)
def test_who_asks_for_the_fallback_is_seen(line):
    assert asks_for_fallback(f"import os\n{line}\n")
    assert not asks_for_fallback('"""trainc.config.fallback"""\nconfig.cache, messages.fell_back("fallback is off")\n')


def test_a_circle_is_seen():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


# ---- private names of frameworks --------------------------------------------------------------------------------------


def private_names(text: str) -> list[str]:
    """Names of a framework's that a file imports or reaches and that are not public: some part of them begins with an underscore.
    Operators (torch.ops.aten._to_copy, torch._foreach_add_) are public by their schemas."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    return sorted(name for name in set(found) if re.match(r"(torch|jax|jaxlib)\.(?!ops\.|_foreach_)(.*\.)?_(?!_)", name))


# Private attributes of others that are not PyTorch's: Python's own, and what its documentation names.
_OF_PYTHON = {
    "_getframe", "_current_frames", "_lru_cache_wrapper", "_CFuncPtr", "_showwarnmsg", "_replace", "_asdict", "_fields",
    "_name_", "_value_", "_member_map_", "_value2member_map_", "_member_names_", "_exit", "_get_module_details",
    "_get_main_module_details",
}  # fmt: skip
# A node of a number is a SymNode (numbers/node.py): this one is of its own class.
_INHERITED = {"_expr"}


def own_names(texts: Iterable[str]) -> set[str]:
    """What the package itself calls a private name: what it defines, assigns or takes."""
    found: set[str] = set()
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
    return found


def private_attributes(text: str, own: set[str]) -> list[str]:
    """Attributes that nobody here has defined, of whatever object, and that are not public."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr) and node.attr not in own | _OF_PYTHON:
            name = ast.unparse(node)
            if not re.search(r"\baten\._|_foreach_", name) and not (node.attr in _INHERITED and name.startswith("self.")):
                found.append(name)
    return sorted(set(found))


_BY_STRING = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "getattr_static"}


def private_strings(text: str, own: set[str]) -> list[str]:
    """The same by a string: getattr(torch, "_C")."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in _BY_STRING:
            for given in node.args:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    parts = given.value.split(".")
                    found |= {part for part in parts if re.match(r"_(?!_)", part) and part not in own | _OF_PYTHON}
    return sorted(found)


def test_private_names_of_frameworks_are_in_compat_alone():
    texts = python_modules()
    for room in ("torch", "jax", "xla", "tensorflow"):
        compat = texts.pop(f"{room}.compat")
        assert private_names(compat) or private_attributes(compat, set())
    own = own_names(texts.values())
    found = {
        module: [*private_names(text), *private_attributes(text, own), *private_strings(text, own)]
        for module, text in texts.items()
    }
    assert not {module: names for module, names in found.items() if names}


@pytest.mark.parametrize(
    "line",
    [
        "from torch._C import _get_mkldnn_enabled",
        "from torch.utils import _pytree as pytree",
        "import torch._functorch.aot_autograd",
        "x = torch._C._functorch.peek_interpreter_stack()",
        "torch.nn.Module._call_impl = None",
    ],
)
def test_a_private_name_is_seen(line):
    assert private_names(f"import torch\n{line}\n")
    assert not private_names("import torch\ny = torch.ops.aten._to_copy(torch._foreach_add([x], 1)[0]).__class__\n")


@pytest.mark.parametrize(
    "line", ["model._call_impl(x)", "x.untyped_storage()._cdata", "if p._backward_hooks: pass", "graph._root._prev"]
)
def test_a_private_attribute_is_seen(line):
    assert private_attributes(f"{line}\n", {"_known"})
    assert not private_attributes("self._known, other._known, sys._getframe(), torch.ops.aten._to_copy\n", {"_known"})


@pytest.mark.parametrize(
    "line",
    [
        "getattr(torch, '_C')",
        "hasattr(model, '_call_impl')",
        "setattr(x, '_cdata', 0)",
        "operator.attrgetter('nn._reduction')(torch)",
        "inspect.getattr_static(torch, '_C', None)",
    ],
)
def test_a_private_name_in_a_string_is_seen(line):
    assert private_strings(f"{line}\n", {"_known"})
    assert not private_strings("getattr(self, '_known'), getattr(x, '__name__'), getattr(x, 'shape'), f('_C')\n", {"_known"})


@pytest.mark.parametrize(
    "folder",
    [ROOT, ROOT / "examples", ROOT / "bench", ROOT / "tests", *(ROOT / "tests").iterdir()],
    ids=lambda folder: folder.name,
)
def test_no_folder_is_taken_for_tensorflow(folder):
    """Programs of ours put these on sys.path; Python takes any folder there for a package where TensorFlow is not installed."""
    assert not (folder / "tensorflow").exists()
