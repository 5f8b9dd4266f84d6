set shell := ["bash", "-euo", "pipefail", "-c"]
set positional-arguments

# List the recipes
default:
    @{{ just_executable() }} --list --unsorted

# Make .venv and install the package with its tools
[group('develop')]
setup:
    python3 -m venv .venv
    .venv/bin/pip install -e '.[dev]'

# Format, and fix what can be fixed
[group('develop')]
fix:
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .

# Everything a change must pass; CI runs this
[group('develop')]
check: lint test

# Style, types and import direction
[group('develop')]
lint:
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/pyright
    .venv/bin/lint-imports

# Run the tests, e.g. `just test tests/tree/test_tree.py -k branch`
[group('develop')]
test *args:
    .venv/bin/pytest "$@"

# Run one experiment, e.g. `just run harness=openclaw steps=2`
[group('experiment')]
run *overrides:
    .venv/bin/python -m clawexp "$@"

# Run a named sweep, e.g. `just sweep lr`
[group('experiment')]
sweep name *overrides:
    .venv/bin/python -m clawexp --config-dir sweeps --config-name "$@"

# Show a composed config without running it
[group('experiment')]
config *overrides:
    .venv/bin/python -m clawexp --cfg job --resolve "$@"

# The table of groups, for README
[group('develop')]
table:
    .venv/bin/python -c 'from clawexp.commands.arguments import table; print(table())'

# What this machine can run
[group('experiment')]
doctor:
    .venv/bin/python -m clawexp doctor

# Remove what killed runs left behind
[group('experiment')]
reap:
    .venv/bin/python -m clawexp reap
