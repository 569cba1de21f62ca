"""Batches: requests from a file, run when the server has time. The gateway runs the lines."""

from paddock.batches.active import Options
from paddock.batches.backend import Reply
from paddock.batches.decisions import MayLoad, ModelView
from paddock.batches.prefix_keys import prefix_key
from paddock.batches.records import Batch, Line, Mistake, NewBatch, StoredFile
from paddock.batches.results import message_line
from paddock.batches.runner import Runner
from paddock.batches.service import Batches, Page, Quotas, Upload
from paddock.batches.validation import Check, Checked
