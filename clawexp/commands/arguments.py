"""What stands on the command line: the verb, Hydra's flags, the overrides. And the page that `--help` prints."""

from dataclasses import dataclass
from pathlib import Path

from clawexp.errors import ConfigError

VERBS = {
    "train": "run the experiment (the default verb)",
    "eval": "score a model, or a run's newest checkpoint, on held-out tasks",
    "doctor": "say what this machine can run, and what to do about the rest",
    "prepare": "fetch or build what a harness, a runtime, an engine or a model needs",
    "replay": "rebuild a run's last batch from its journal; or tell the forks of recorded --requests",
    "jobs": "list the runs that launchers started: state, step, folder",
    "ps": "list the live sandboxes of this user's runs",
    "reap": "remove what killed runs left behind",
}

MULTIRUN = ("-m", "--multirun")
PASSED_ON = ("-m", "--multirun", "--cfg", "-c", "--resolve", "--package", "-p", "--info", "-i",
             "--config-dir", "-cd", "--config-name", "-cn", "--hydra-help", "--shell-completion", "-sc")  # fmt: skip
WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--config-name", "-cn")

DECIDES = {
    "taskset": "what to do, and how it is scored",
    "harness": "who does it; several share one run",
    "runtime": "where it runs",
    "model": "who answers",
    "model/engine": "how it answers",
    "algo": "how it learns",
    "launcher": "which machine runs it",
    "logger": "who is told",
    "experiment": "several of these choices, and numbers that suit them",
}
"""What one chooses by each group; the other groups hold numbers."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A command line, sorted. Order within each part is kept."""

    overrides: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Hydra's own, with their values."""
    dry_run: bool = False

    @property
    def multirun(self) -> bool:
        return any(flag in MULTIRUN for flag in self.flags)

    @property
    def shows(self) -> bool:
        """Whether Hydra is asked to show something and run nothing."""
        return any(flag in ("--cfg", "-c", "--info", "-i", "--hydra-help") for flag in self.flags)

    def flag(self, *names: str) -> str | None:
        """The value of the first of these flags that is given."""
        for name, value in zip(self.flags, self.flags[1:], strict=False):
            if name in names:
                return value
        return None


def split_verb(argv: list[str]) -> tuple[str, list[str]]:
    """The verb and what follows it. A line that starts with an override or a flag trains."""
    if any(word in ("-h", "--help") for word in argv):
        return "help", []
    if argv and "=" not in argv[0] and not argv[0].startswith(("-", "+", "~")):
        return argv[0], argv[1:]
    return "train", argv


def sort_arguments(argv: list[str]) -> Arguments:
    """Sort a verb's arguments. Raises ConfigError for an unknown flag or a flag without its value."""
    overrides: list[str] = []
    flags: list[str] = []
    dry_run = False
    words = iter(_separated(argv))
    for word in words:
        if word == "--dry-run":
            dry_run = True
        elif not word.startswith("-"):
            overrides.append(word)
        elif word.split("=", 1)[0] not in PASSED_ON:
            raise ConfigError(f"{word}: no such flag. See `python -m clawexp --help`")
        elif word in WITH_VALUE:
            value = next(words, None)
            if value is None:
                raise ConfigError(f"{word}: its value is missing")
            flags += [word, value]
        else:
            flags.append(word)
    return Arguments(overrides=tuple(overrides), flags=tuple(flags), dry_run=dry_run)


def _separated(argv: list[str]) -> list[str]:
    """`--cfg=job` as `--cfg job`."""
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        words += [name, value] if equals and name in WITH_VALUE else [word]
    return words


def conf_folder() -> Path:
    """The folder of the config groups: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"the configuration is missing: no conf/config.yaml in or beside {package}")


def groups(folder: Path) -> dict[str, list[str]]:
    """The options of every config group. `{"algo": ["grpo"], "model/engine": ["embedded"], ...}`"""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.yaml")):
        group = file.parent.relative_to(folder).as_posix()
        if group != ".":
            found.setdefault(group, []).append(file.stem)
    return found


def table() -> str:
    """The groups that one chooses from, as README shows them; `just table` prints it."""
    options = groups(conf_folder())
    named = {group: ", ".join(f"`{name}`" for name in options[group]) for group in DECIDES}
    rows = [f"| `{group}` | {named[group]} | {decides} |" for group, decides in DECIDES.items()]
    return "\n".join(["| group | options | decides |", "|---|---|---|", *rows])


def usage() -> str:
    """The page that `--help` prints."""
    verbs = "\n".join(f"  {verb:<9}{text}" for verb, text in VERBS.items())
    options = "\n".join(
        f"  {group + '=':<15}{', '.join(names)}{f'  ({DECIDES[group]})' if group in DECIDES else ''}"
        for group, names in groups(conf_folder()).items()
    )
    return f"""\
Train a language model by reinforcement learning through an agent harness.

usage: python -m clawexp [verb] [group=option ...] [key=value ...] [flags]

verbs
{verbs}

groups and their options
{options}

flags
  --dry-run       print the resolved experiment and what it would start, and stop
  --cfg job       print the composed config and stop (add --resolve, --package KEY)
  -m              sweep: run every combination of comma-separated values
  --config-dir D  --config-name N   another primary config, such as one of sweeps/

examples
  python -m clawexp                                    learn on this machine in minutes
  python -m clawexp harness=openclaw algo=grpo         the same through OpenClaw
  python -m clawexp -m algo.lr=1e-4,3e-4 steps=2       a sweep of two points
  python -m clawexp launcher=slurm                     the same as a job of a cluster
  python -m clawexp resume=auto                        go on with the newest unfinished run
  python -m clawexp eval resume=RUN                    score a run's newest checkpoint"""
