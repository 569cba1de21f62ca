"""The data folder: what outlives the server, and the thread on which it is read and written."""

from paddock.storage.folder import DataFolder, default_folder
from paddock.storage.thread import StoreThread
from paddock.storage.transaction import transaction
