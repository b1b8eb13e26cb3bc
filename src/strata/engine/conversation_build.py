"""A conversation as the settings want it kept: how much, and where. Owns the default budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from strata.engine.conversation import Conversation
from strata.engine.conversation_disk import ConversationFiles
from strata.engine.conversation_points import Keeping
from strata.errors import SettingsError
from strata.host_memory import available_bytes
from strata.units import GiB, MiB

if TYPE_CHECKING:
    from strata.engine.parts import Parts
    from strata.settings import Settings

# Of what is free when the model is loaded: enough for some long conversations, and never so much
# that the page cache, in which experts may lie, is pushed out.
_RAM_SHARE: Final = 4
_MOST_RAM_BYTES: Final = 8 * GiB
# Read when the model is loaded, for requests that may never come: a moment of any disk, or little
# beside what was read before.
_AHEAD_BYTES: Final = 64 * MiB
_AHEAD_SHARE: Final = 16


def open_conversation(parts: Parts, settings: Settings) -> Conversation:
    """An empty conversation in a new session of the model.

    Raises:
        SettingsError: the folder for conversations cannot be used.
        PlanError: the session does not fit.
    """
    if settings.conversation_ram is None:
        ram_bytes = min(available_bytes() // _RAM_SHARE, _MOST_RAM_BYTES)
    else:
        ram_bytes = settings.conversation_ram * MiB
    keeping = Keeping(settings.checkpoints, ram_bytes, parts.turn_id)
    files = None
    if settings.conversation_dir is not None:
        if not parts.identity:
            raise SettingsError(
                "conversations of this model cannot be told from another's, so none are kept in "
                f"{settings.conversation_dir}.\n  Try: no --conversation-dir"
            )
        budget_bytes = settings.conversation_disk * MiB
        loaded_bytes = sum(parts.model.memory_report().values())
        ahead_bytes = min(ram_bytes, max(_AHEAD_BYTES, loaded_bytes // _AHEAD_SHARE))
        files = ConversationFiles(
            settings.conversation_dir, parts.identity, budget_bytes, ahead_bytes
        )
    return Conversation(parts.model.new_session(parts.context_len), keeping, files)
