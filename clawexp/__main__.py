"""The command line: `python -m clawexp [verb] [overrides]`. Composes nothing and runs nothing itself."""

import importlib
import sys

from clawexp.commands.arguments import VERBS, split_verb, usage
from clawexp.errors import ClawexpError, ConfigError


def main() -> None:
    """Run one verb and exit with its status: 0 done, 1 failed, 2 nothing was started, 130 interrupted."""
    verb, arguments = split_verb(sys.argv[1:])
    if verb == "help":
        print(usage())
        sys.exit(0)
    try:
        if verb not in VERBS:
            raise ConfigError(f"{verb}: no such verb. Choose one of {', '.join(VERBS)}")
        sys.exit(importlib.import_module(f"clawexp.commands.{verb}").run(arguments))
    except ConfigError as error:
        print(f"clawexp: {error}", file=sys.stderr)
        sys.exit(2)
    except ClawexpError as error:
        print(f"clawexp: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
