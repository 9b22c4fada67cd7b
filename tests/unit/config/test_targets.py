"""Which ``_target_`` may be called; and nothing is called while a configuration is loaded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedtronic.config import ConfigError, load_config
from speedtronic.config.targets import check_target, import_target

PACKAGE = "probe_package"
NET = """
import os
import logging
import functools
from torch import nn, load
from torch.nn import Linear

CALLED = []

class Net(nn.Module):
    def __init__(self, width: int, *, vocab_size: int = 3) -> None:
        super().__init__()
        CALLED.append(width)
        self.layer = nn.Linear(width, vocab_size)

    @classmethod
    def wide(cls):
        return cls(64)

def make_net(width):
    return Net(width)

partial = functools.partial(Net, 3)
number = 5

class Caller:
    def __call__(self): ...

instance = Caller()
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a package into the working directory."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("from probe_package.net import Net\n")
    (folder / "net.py").write_text(NET)
    (folder / "needy.py").write_text("import no_such_module_anywhere\n")
    (folder / "typo.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def refusal(target: Any, *, allow: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        check_target(target, key="model._target_", allow=allow)
    message = str(caught.value)
    assert message.startswith("model._target_: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "target",
    [
        "torch.nn.Linear",
        "torch.optim.SGD",
        "torch.optim.lr_scheduler.StepLR",
        "speedtronic.models.gpt.GPT",
        "probe_package.Net",
        "probe_package.net.Net",
        "probe_package.net.make_net",
        "probe_package.net.Linear",
        "speedtronic.optim.adamw.build_adamw",
        "speedtronic.metrics.wandb.WandbHook",
    ],
)
def test_these_may_be_called(target: str) -> None:
    found = check_target(target, key="model._target_", allow=())
    assert callable(found)
    assert found.__name__ == target.rpartition(".")[2]


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "posix.system",
        "builtins.open",
        "builtins.eval",
        "subprocess.run",
        "importlib.import_module",
        "speedtronic.data.cache.os.system",
        "speedtronic.data.corpus.Path",
        "probe_package.net.os.system",
        "probe_package.net.logging.Logger",
        "probe_package.net.functools.partial",
        "torch.nn.modules.module.warnings.warn",
    ],
)
def test_the_standard_library_is_never_called(target: str) -> None:
    for allow in ((), (target, target.partition(".")[0], "os", "posix", "builtins")):
        message = refusal(target, allow=allow)
        assert "may not be called" in message
        assert "standard library" in message
        assert "extras.allow_targets" in message


@pytest.mark.parametrize(
    "target",
    [
        "numpy.load",
        "torch.load",
        "torch.nn.modules.module.torch.load",
        "speedtronic.models.gpt.torch.load",
        "probe_package.net.load",
        "speedtronic_evil.Net",
        "elsewhere.Net",
    ],
)
def test_other_packages_are_called_only_when_allowed(target: str) -> None:
    message = refusal(target)
    assert "may not be called" in message
    assert f"give extras.allow_targets=[{target}] on the command line" in message


def test_an_allowed_name_is_called_whatever_its_real_module() -> None:
    assert check_target("numpy.array", key="x", allow=("numpy.array",)).__name__ == "array"
    assert check_target("torch.load", key="x", allow=("torch.load",)).__name__ == "load"


def test_an_allowed_package_opens_itself_and_not_what_it_imports() -> None:
    assert check_target("numpy.linalg.norm", key="x", allow=("numpy",)).__name__ == "norm"
    assert "belongs to torch.serialization" in refusal(
        "probe_package.net.load", allow=("probe_package",)
    )


def test_functions_of_speedtronic_that_build_nothing_are_refused() -> None:
    message = refusal("speedtronic.data.cache.cache_folder")
    assert "is a function of speedtronic that builds nothing" in message


@pytest.mark.parametrize(
    "target",
    [
        "speedtronic.config.Factory",
        "speedtronic.config.LoggingSettings",
        "speedtronic.config.logging.LoggingSettings.build_hooks",
        "speedtronic.core.files.write_atomic",
        "speedtronic.core.files.os.system",
        "speedtronic.run_folder.claim.FolderClaim",
        "speedtronic.checkpoint.manager.CheckpointManager",
        "speedtronic.runtime.build_runtime",
        "speedtronic.build_model",
        "speedtronic.cli.Job",
    ],
)
def test_what_is_no_component_of_speedtronic_is_never_called(target: str) -> None:
    for allow in ((), (target, "speedtronic")):
        assert "is no component of speedtronic; not even extras" in refusal(target, allow=allow)


def test_a_component_room_does_not_lead_to_another_room() -> None:
    assert "belongs to speedtronic.core." in refusal("speedtronic.models.registry.ConfigError")


@pytest.mark.parametrize("target", ["torch.nn.init.zeros_", "torch.nn.functional.relu"])
def test_of_torch_only_classes_are_called(target: str) -> None:
    assert "may not be called" in refusal(target)


@pytest.mark.parametrize(
    "target",
    [
        "probe_package.net.Net.wide",
        "torch.nn.Module.apply",
        "speedtronic.models.gpt.GPT.build_nothing",
        "probe_package.net.instance",
    ],
)
def test_only_names_of_modules_are_called(target: str) -> None:
    if target.endswith("build_nothing"):
        assert "has no 'build_nothing'" in refusal(target)
    else:
        assert "is no class or function of a module" in refusal(target)


@pytest.mark.parametrize(
    "hook",
    [
        {"_target_": "speedtronic.config.Factory", "target": "os.system", "arguments": {}},
        {"target": "os.system", "arguments": {"command": "touch HIT"}},
    ],
)
def test_settings_cannot_be_built_inside_a_model(hook: dict[str, Any], tmp_path: Path) -> None:
    logging = {"_target_": "speedtronic.config.logging.LoggingSettings", "hooks": [hook]}
    build = {"_target_": "speedtronic.config.logging.LoggingSettings.build_hooks", "folder": None}
    stranger = {
        "model": {
            "_target_": "torch.nn.Sequential",
            "_args_": [{**build, "_args_": [logging]}],
        }
    }
    with pytest.raises(ConfigError, match=r"is no component of speedtronic"):
        load_config(stranger, allow_targets=())
    assert not (tmp_path / "HIT").exists()


def test_names_are_checked_again_when_they_are_called(tmp_path: Path) -> None:
    """What a name means may have changed since the configuration was loaded."""
    nested = {"_target_": "probe_package.net.make_net", "width": 1}
    model = {"_target_": "torch.nn.Sequential", "_args_": [nested]}
    config = load_config({"model": model})
    first = load_config({"model": {"_target_": "probe_package.net.make_net", "width": 1}})
    net = sys.modules["probe_package.net"]
    net.make_net = net.os.system  # type: ignore[attr-defined]
    for built in (config, first):
        with pytest.raises(ConfigError, match="may not be called"):
            built.model.build(vocab_size=None)


def test_another_folder_closes_a_loaded_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config({"model": {"_target_": "probe_package.Net", "width": 1}})
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(ConfigError, match="may not be called"):
        config.model.build(vocab_size=3)


class TestInstalledPackages:
    """What an environment inside the working directory holds is not the user's."""

    @pytest.fixture
    def install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        def install(folder: str, *, name: str = "probe_installed") -> Path:
            package = tmp_path / folder / name
            package.mkdir(parents=True)
            (package / "__init__.py").write_text("class Net: ...\n")
            monkeypatch.syspath_prepend(str(package.parent))
            return package

        yield install
        for name in [name for name in sys.modules if name.startswith("probe_")]:
            del sys.modules[name]

    @pytest.mark.parametrize("imported_before", [False, True])
    @pytest.mark.parametrize(
        "folder", [".venv/lib/python3.12/site-packages", "lib/dist-packages", "env/code"]
    )
    def test_they_are_refused_imported_or_not(
        self, install: Any, tmp_path: Path, folder: str, imported_before: bool
    ) -> None:
        install(folder)
        if folder == "env/code":
            (tmp_path / "env" / "pyvenv.cfg").write_text("")
        if imported_before:
            importlib.import_module("probe_installed")
        assert "may not be called" in refusal("probe_installed.Net")
        assert ("probe_installed" in sys.modules) == imported_before

    def test_an_environment_is_no_namespace_package(self, install: Any, tmp_path: Path) -> None:
        install("probe_env/lib")
        (tmp_path / "probe_env" / "pyvenv.cfg").write_text("")
        assert "may not be called" in refusal("probe_env.lib.probe_installed.Net")
        assert "probe_env.lib.probe_installed" not in sys.modules

    def test_the_running_environment_is_refused_without_its_marks(
        self, install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install("prefix/code")
        assert check_target("probe_installed.Net", key="x", allow=())
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "prefix"))
        assert "may not be called" in refusal("probe_installed.Net")

    def test_a_project_below_the_prefix_is_still_the_users(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path.parent))
        assert check_target("probe_package.Net", key="x", allow=())

    def test_an_editable_install_below_here_is_the_users(self, install: Any) -> None:
        install("src")
        assert check_target("probe_installed.Net", key="x", allow=()).__name__ == "Net"

    def test_a_folder_here_does_not_open_the_package_python_would_import(
        self, install: Any, tmp_path: Path
    ) -> None:
        install(".venv/site-packages")
        (tmp_path / "probe_installed").mkdir()  # without __init__.py the installed one goes first
        assert "may not be called" in refusal("probe_installed.Net")
        (tmp_path / "probe_installed" / "__init__.py").write_text("class Net: ...\n")
        assert check_target("probe_installed.Net", key="x", allow=())

    def test_an_import_from_elsewhere_is_what_python_would_give(
        self, install: Any, tmp_path: Path
    ) -> None:
        install(".venv/site-packages")
        importlib.import_module("probe_installed")
        (tmp_path / "probe_installed").mkdir()
        (tmp_path / "probe_installed" / "__init__.py").write_text("class Net: ...\n")
        assert "may not be called" in refusal("probe_installed.Net")

    def test_an_allowed_name_below_them_is_imported(self, install: Any) -> None:
        package = install(".venv/site-packages")
        (package / "deep.py").write_text("class Net: ...\n")
        name = "probe_installed.deep.Net"
        assert check_target(name, key="x", allow=(name,)).__name__ == "Net"


def test_code_in_a_run_folder_is_not_imported(tmp_path: Path) -> None:
    run = tmp_path / "probe_outputs" / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "evil.py").write_text("class Net: ...\n")
    assert "may not be called" in refusal("probe_outputs.run.evil.Net")
    assert "probe_outputs.run.evil" not in sys.modules


@pytest.mark.parametrize(
    "target",
    [
        None,
        3,
        "",
        "Net",
        "probe package.Net",
        "probe_package..Net",
        ".Net",
        "probe_package.Net.__init__.__globals__",
        "probe_package.net.__loader__.exec_module",
        "__import__.x",
    ],
)
def test_what_is_no_dotted_name_is_refused(target: Any) -> None:
    assert "must be the dotted name of a class or function" in refusal(target)


@pytest.mark.parametrize("target", ["probe_package.net", "probe_package.net.number"])
def test_what_cannot_be_called_is_refused(target: str) -> None:
    assert "must name a class or function" in refusal(target)


def test_a_prepared_partial_of_the_standard_library_is_refused() -> None:
    assert "standard library" in refusal("probe_package.net.partial")


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    assert refusal("probe_package.net.Nett").endswith(
        "probe_package.net has no 'Nett', got 'probe_package.net.Nett';"
        " did you mean 'probe_package.net.Net'?"
    )
    assert "did you mean 'torch.nn.Linear'?" in refusal("torch.nn.Linea")
    assert "did you mean 'probe_package.net'?" in refusal("probe_package.nett.Net")


def test_a_module_that_cannot_be_imported_is_one_line_with_the_reason() -> None:
    assert "No module named 'no_such_module_anywhere'" in refusal("probe_package.needy.Net")
    assert "typo.py line 1" in refusal("probe_package.typo.f")


def test_a_folder_here_does_not_open_an_installed_package_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    assert "may not be called" in refusal("numpy.load")


def test_a_module_of_the_working_directory_named_like_the_standard_library_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "queue.py").write_text("class Net: ...\n")
    assert "standard library" in refusal("queue.Net")


def test_another_working_directory_closes_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_target("probe_package.Net", key="x", allow=())
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert "may not be called" in refusal("probe_package.Net")


def test_the_working_directory_is_on_the_path_only_while_importing(tmp_path: Path) -> None:
    before = list(sys.path)
    import_target("probe_package.net.Net", key="x")
    with pytest.raises(ConfigError):
        import_target("probe_package.needy.Net", key="x")
    assert sys.path == before
    assert str(tmp_path) not in sys.path


def test_loading_imports_and_calls_nothing() -> None:
    config = load_config({"model": {"_target_": "probe_package.net.Net", "width": 8}})
    net = sys.modules["probe_package.net"]
    assert net.CALLED == []
    config.model.build(vocab_size=5)
    assert net.CALLED == [8]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"model": {"_target_": "os.system", "command": "x"}}, "model._target_"),
        ({"data": {"_target_": "builtins.open", "file": "x"}}, "data._target_"),
        ({"optimizer": {"_target_": "os.system"}}, "optimizer._target_"),
        ({"scheduler": {"_target_": "os.system"}}, "scheduler._target_"),
        ({"logging": {"hooks": [{"_target_": "os.system"}]}}, "logging.hooks[0]._target_"),
        ({"logging": {"hooks": ["os.system"]}}, "logging.hooks[0]._target_"),
        (
            {"model": {"_target_": "probe_package.Net", "width": {"_target_": "os.getpid"}}},
            "model.width._target_",
        ),
        (
            {
                "model": {
                    "_target_": "torch.nn.Sequential",
                    "_args_": [{"_target_": "torch.nn.ReLU"}, {"a": [{"_target_": "os.getpid"}]}],
                }
            },
            "model._args_[1].a[0]._target_",
        ),
    ],
)
def test_a_target_is_checked_wherever_it_stands(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    assert str(caught.value).startswith(f"{key}: ")
    assert "extras.allow_targets" in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"run": {"name": {"_target_": "probe_package.net.make_net", "width": 1}}},
        {"tags": [{"_target_": "probe_package.net.make_net", "width": 1}]},
        {"data": {"path": {"_target_": "probe_package.net.make_net", "width": 1}}},
        {"resume": {"_target_": "probe_package.net.make_net", "width": 1}},
    ],
)
def test_a_target_inside_our_own_sections_is_a_wrong_value(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        load_config(values)
    assert PACKAGE not in sys.modules


@pytest.mark.parametrize(
    "target",
    [
        "speedtronic.config.GPTSettings",
        "speedtronic.config.Factory",
        "speedtronic.config.OptimizerSettings",
        "speedtronic.config.ForeignOptimizerSettings",
        "speedtronic.config.load_config",
        "speedtronic.config.nothing",
        "speedtronic.config.load.Path",
    ],
)
def test_a_settings_target_must_be_a_class_of_its_section(target: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"optimizer": {"_target_": target}})
    assert str(caught.value) == (
        "optimizer._target_: must be a settings class of this section,"
        f" got {target!r}; options are adamw, cautious_adamw, muon, muon_plus, muon_torch, normuon"
    )


def test_sections_that_only_we_build_take_no_target_of_the_user() -> None:
    with pytest.raises(ConfigError, match=r"trainer\._target_: must be speedtronic\.config"):
        load_config({"trainer": {"_target_": "torch.nn.Linear"}})


class TestWhichAllowListHolds:
    """``extras.allow_targets`` counts from Python and the command line, not from files."""

    ALLOWED = "numpy.random.default_rng"
    VALUES: dict[str, Any] = {  # noqa: RUF012 - a constant
        "model": {"_target_": ALLOWED},
        "extras": {"allow_targets": [ALLOWED]},
    }

    def test_a_dict_brings_its_own(self) -> None:
        assert load_config(self.VALUES).extras.allow_targets == (self.ALLOWED,)

    def test_the_parameter_replaces_it(self) -> None:
        with pytest.raises(ConfigError, match="may not be called"):
            load_config(self.VALUES, allow_targets=())
        without = {"model": self.VALUES["model"]}
        assert load_config(without, allow_targets=[self.ALLOWED]).extras.allow_targets == ()

    def test_a_file_cannot_open_anything(self, tmp_path: Path) -> None:
        load_config(self.VALUES).save(tmp_path / "c.yaml")
        with pytest.raises(ConfigError, match="may not be called"):
            load_config(tmp_path / "c.yaml")
        config = load_config(tmp_path / "c.yaml", allow_targets=[self.ALLOWED])
        assert config == load_config(self.VALUES)
