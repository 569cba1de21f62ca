"""Spans of keys and values in files: their addresses, their index, and the directory that processes share."""

from paddock.disk_cache.changes import Changed, DirectoryChanges
from paddock.disk_cache.entry import Entry, entries_for
from paddock.disk_cache.index import DiskIndex
from paddock.disk_cache.keys import StateKey
from paddock.disk_cache.listing import Kept, clear, kept, short_names
from paddock.disk_cache.store import RETRY_AFTER, DiskCache, Usage, Written
