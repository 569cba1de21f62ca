"""Stored responses and conversations: what clients may continue later without sending it again."""

from paddock.conversations.records import Conversation, Item, StoredResponse, new_id
from paddock.conversations.service import Conversations, Limits
from paddock.conversations.store import Page
