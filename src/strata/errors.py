"""Every error Strata raises on purpose, as one tree.

    StrataError
    + SettingsError         unknown, malformed or contradictory setting (exit code 2)
    + CheckpointError       the file breaks its format, or a tensor is missing
      - UnsupportedError    sound file, feature we do not have
    + PlanError             this machine cannot hold this model under these settings
    + DeviceError           processor, driver or compiler refused
    + RequestError          one request cannot be served; the engine lives
      - ContextTooLong
    + EngineStopped         the loop died; carries the cause

A message says what could not be done, expected against found, where, and one thing to do.
"""


class StrataError(Exception):
    """Root of every error raised on purpose; its text is fit to show to a user."""


class SettingsError(StrataError):
    """A setting is unknown, malformed or contradicts another."""


class CheckpointError(StrataError):
    """A model file breaks its format, or lacks what the model needs."""


class UnsupportedError(CheckpointError):
    """A sound model file asks for something Strata does not have."""


class PlanError(StrataError):
    """This machine cannot hold this model under these settings."""


class DeviceError(StrataError):
    """A processor, a driver or the compiled extension refused."""


class RequestError(StrataError):
    """One request cannot be served; the engine lives on."""


class ContextTooLong(RequestError):
    """Prompt and answer together do not fit the context."""


class EngineStopped(StrataError):
    """The engine's loop has died; ``__cause__`` says why."""
