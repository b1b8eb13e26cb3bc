"""Where experts lie, and who decides it: routing traces, profiles, slots, replacement policies.

Decisions are arithmetic on integers, without torch and without a device; what moves bytes imports
this package, never the other way round.
"""
