"""One error class per boundary.

ClawexpError
  ConfigError     the experiment as written cannot run; nothing was started
  TasksetError    a task could not be read, set up or graded
  RuntimeFault    a sandbox could not be made, or died
  HarnessError    a harness could not be prepared, started or configured
  CaptureError    a model call could not be captured exactly
  JournalError    the journal of a run is unreadable beyond its torn tail
  EngineError     the engine did not answer as its contract says
  LearnerError    a batch or an update broke an invariant
  LauncherError   a cluster or a child process did not do what it was asked

A message says what happened, to what, and what to do next. Where a program failed, the tail of its
stderr is part of the message: the cause stands at the end.
"""


class ClawexpError(Exception):
    """Root of all errors that a user is meant to read without a traceback."""


class ConfigError(ClawexpError):
    """The experiment as written cannot run."""


class TasksetError(ClawexpError):
    """A task could not be read, set up or graded."""


class RuntimeFault(ClawexpError):
    """A sandbox could not be made, or died under its rollout."""


class HarnessError(ClawexpError):
    """A harness could not be prepared, started or configured."""


class CaptureError(ClawexpError):
    """A model call could not be captured exactly."""


class JournalError(ClawexpError):
    """The journal of a run cannot be read."""


class EngineError(ClawexpError):
    """The engine did not answer as its contract says."""


class EngineRefusal(EngineError):
    """The engine will not do what it is asked, however often."""


class LearnerError(ClawexpError):
    """A batch or an update broke an invariant."""


class LauncherError(ClawexpError):
    """A cluster or a child process did not do what it was asked."""


def first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    """One of the errors that came together."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
