"""Who may import whom: a module imports its own layer or a lower one (docs: CONTRIBUTING.md)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "vpo_lightning"
TASKS = ROOT / "tasks"

TASK_LAYER = {"picture", "task", "prompting", "parsing", "sandbox"} | {
    "scoring",
    "scorer",
    "scoring_pool",
    "scoring_worker",
    "verdict",
    "http_reply",
}
# From bottom to top. A module is named by the first word after `vpo_lightning.`.
LAYERS: list[set[str]] = [
    {"errors"},
    {"core"},
    {"evaluation"},
    TASK_LAYER,
    {"policy", "rollout"},
    {"lightning", "searching", "serving"},
    {"build", "methods", "run_loggers"}
    | {"rules", "engine_choice", "method_rules", "evaluation_rules"},
    {"train", "warmup", "score", "score_lines", "rescore", "worker", "scoring_process"}
    | {"entry", "config_errors", "launch", "resume", "sweep", "training"}
    | {"report", "report_pictures", "search", "serve", "deployed", "run_folder"}
    | {"evaluate", "evaluated", "pool_evaluation", "diagnose"},
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
BUILDERS = {"build", "methods", "run_loggers"}
STRANGERS = {"policy", "rollout"}  # one layer, but weights travel as an iterator of tensors
CORE_NEEDS = {"torch", "jaxtyping"}
TASKS_AVOID = {"torch", "vllm", "lightning", "pytorch_lightning", "transformers"}


def imported_modules(source: str) -> Iterator[str]:
    """The dotted names that a module's source imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from vpo_lightning import build` names the module only together with the name.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(source: str) -> set[str]:
    """First words after `vpo_lightning.` among a module's imports; the folder tasks/ counts too."""
    names = [name.split(".") for name in imported_modules(source)]
    own = {words[1] for words in names if words[0] == "vpo_lightning" and len(words) > 1}
    return own | ({"tasks"} & {words[0] for words in names})


def layer_faults(name: str, source: str) -> list[str]:
    """What a module of `vpo_lightning.<name>` imports but may not."""
    faults: list[str] = []
    for other in sorted(own_imports(source) - {name}):
        if other == "tasks":
            faults.append("tasks are found by _target_ only")
        elif other not in HEIGHT:
            faults.append(f"{other} has no layer")
        elif HEIGHT[other] > HEIGHT[name]:
            faults.append(f"{other} is higher")
        elif {name, other} == STRANGERS:
            faults.append(f"{other} is a stranger")
    return faults


def third_party(source: str) -> set[str]:
    names = {name.split(".")[0] for name in imported_modules(source)}
    return names - set(sys.stdlib_module_names) - {"vpo_lightning"}


def modules_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if path.name != "__init__.py")


def path_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


every_source_module = pytest.mark.parametrize("path", modules_of(PACKAGE), ids=path_id)
every_core_module = pytest.mark.parametrize("path", modules_of(PACKAGE / "core"), ids=path_id)
every_task_module = pytest.mark.parametrize("path", modules_of(TASKS), ids=path_id)


@every_source_module
def test_module_imports_only_its_own_or_a_lower_layer(path: Path) -> None:
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert name in HEIGHT, f"{name}: say in LAYERS which layer it belongs to"
    assert not layer_faults(name, path.read_text())


@every_source_module
def test_only_builders_instantiate(path: Path) -> None:
    instantiates = "hydra.utils.instantiate" in set(imported_modules(path.read_text()))
    assert not instantiates or path in [PACKAGE / f"{name}.py" for name in BUILDERS]


@every_core_module
def test_core_needs_only_torch_and_the_standard_library(path: Path) -> None:
    assert third_party(path.read_text()) <= CORE_NEEDS
    assert own_imports(path.read_text()) <= {"core"}


@every_task_module
def test_task_imports_only_the_task_layer(path: Path) -> None:
    assert own_imports(path.read_text()) <= TASK_LAYER | {"errors", "tasks"}
    assert not third_party(path.read_text()) & TASKS_AVOID


def test_tasks_load_without_torch() -> None:
    names = [path.relative_to(TASKS).with_suffix("") for path in modules_of(TASKS)]
    modules = [".".join(("vpo_lightning", "tasks", *name.parts)) for name in names]
    program = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules}];"
        f"print(sorted({TASKS_AVOID} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("core", "from vpo_lightning.policy import loading", "policy is higher"),
        ("policy", "def f():\n    import vpo_lightning.rollout.engine", "rollout is a stranger"),
        ("evaluation", "from vpo_lightning import build", "build is higher"),
        (
            "rollout",
            "from vpo_lightning.tasks.maze import task",
            "tasks are found by _target_ only",
        ),
        ("rollout", "import vpo_lightning.surprise", "surprise has no layer"),
    ],
)
def test_forbidden_import_is_found(name: str, source: str, fault: str) -> None:
    assert layer_faults(name, source) == [fault]
