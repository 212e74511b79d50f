"""Durable: a stream that survives: journal, snapshots, replay."""

from talon_ocd.durable.identity import Identity, fingerprint, settings_at, settings_of
from talon_ocd.durable.journal import Draft, Entry, Event, Journal, Request
from talon_ocd.durable.pictures import Pictures
from talon_ocd.durable.snapshots import Snapshot, Snapshots
from talon_ocd.durable.stream import DurableStream
from talon_ocd.durable.tidy import Keep

__all__ = [
    "Draft",
    "DurableStream",
    "Entry",
    "Event",
    "Identity",
    "Journal",
    "Keep",
    "Pictures",
    "Request",
    "Snapshot",
    "Snapshots",
    "fingerprint",
    "settings_at",
    "settings_of",
]
