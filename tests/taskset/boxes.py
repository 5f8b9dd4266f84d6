"""What the tests of this room call a fixture that makes real sandboxes."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from clawexp.records import Sandbox, Task

Boxed = Callable[[Task], AbstractAsyncContextManager[Sandbox]]
